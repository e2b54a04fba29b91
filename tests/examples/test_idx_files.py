"""IDX readers of the MNIST and Fashion-MNIST examples, with small files."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from example_runs import idx_bytes, load_module

from detcore.errors import DataError

PICTURES = np.random.default_rng(0).integers(0, 256, size=(7, 28, 28))
LABELS = np.array([0, 9, 3, 9, 1, 1, 4])


@pytest.fixture(scope="module")
def mnist() -> ModuleType:
    return load_module("mnist_estimator", "idx")


@pytest.fixture(scope="module")
def fashion() -> ModuleType:
    return load_module("fashion_mnist_tf_keras", "idx")


@pytest.fixture(params=["mnist", "fashion"])
def idx(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Functions of a reader, which opens files for TensorFlow or reads them."""
    module: Any = request.getfixturevalue(request.param)
    if request.param == "mnist":
        return SimpleNamespace(images=module.open_images, labels=module.open_labels)
    return SimpleNamespace(images=module.read_images, labels=module.read_labels)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.gz"


@pytest.mark.parametrize("compression", ["GZIP", ""])
def test_mnist_files_are_opened(tmp_path: Path, mnist: ModuleType, compression: str) -> None:
    for name, array in (("images", PICTURES), ("labels", LABELS)):
        content = idx_bytes(array)
        path = tmp_path / (f"{name}.gz" if compression else name)
        path.write_bytes(gzip.compress(content) if compression else content)
        assert mnist.find_file(tmp_path, name) == path
    images = mnist.open_images(mnist.find_file(tmp_path, "images"))
    assert (images.shape, images.header_bytes, images.compression) == ((7, 28, 28), 16, compression)
    assert (images.num_records, images.record_bytes) == (7, 784)
    labels = mnist.open_labels(path, num_classes=10)
    assert (labels.num_records, labels.record_bytes, labels.header_bytes) == (7, 1, 8)


def test_compressed_file_has_priority(tmp_path: Path, mnist: ModuleType) -> None:
    with pytest.raises(DataError, match=r"no file images\.gz or images in .*\nDownload the four"):
        mnist.find_file(tmp_path, "images")
    for name in ("images", "images.gz"):
        (tmp_path / name).touch()
    assert mnist.find_file(tmp_path, "images") == tmp_path / "images.gz"


def test_fashion_mnist_files_are_read(path: Path, fashion: ModuleType) -> None:
    path.write_bytes(gzip.compress(idx_bytes(PICTURES)))
    assert np.array_equal(fashion.read_images(path), PICTURES)
    path.write_bytes(gzip.compress(idx_bytes(LABELS)))
    assert np.array_equal(fashion.read_labels(path, num_classes=10), LABELS)


def test_missing_file_shows_download_address(path: Path, idx: SimpleNamespace) -> None:
    with pytest.raises(
        DataError, match=r"file .*file\.gz does not exist\.\nDownload the four files from https://"
    ):
        idx.images(path)


def test_wrong_checksum_is_rejected(path: Path, idx: SimpleNamespace) -> None:
    path.write_bytes(gzip.compress(idx_bytes(LABELS)))
    idx.labels(path, num_classes=10, md5=hashlib.md5(path.read_bytes()).hexdigest().upper())
    with pytest.raises(DataError, match=r"has the MD5 sum \w{32}, but data\.md5 .* is 0123"):
        idx.labels(path, num_classes=10, md5="0123")


def test_swapped_files_are_rejected(path: Path, idx: SimpleNamespace) -> None:
    path.write_bytes(gzip.compress(idx_bytes(LABELS)))
    with pytest.raises(DataError, match=r"magic number 2049 \(labels\); expected 2051"):
        idx.images(path)
    path.write_bytes(gzip.compress(idx_bytes(PICTURES)))
    with pytest.raises(DataError, match=r"magic number 2051 \(images\); expected 2049"):
        idx.labels(path, num_classes=10)


FLOATS = bytearray(idx_bytes(PICTURES))
FLOATS[2] = 0x0D


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(FLOATS), r"expected 2051 \(images\)"),
        (b"", r"expected 2051 \(images\)"),
        (idx_bytes(PICTURES)[:10], r"but its header|expected 2051"),
        (idx_bytes(PICTURES)[:-1], r"has 5503 bytes, but its header \(7, 28, 28\)"),
        (idx_bytes(PICTURES) + b"x", r"has 5505 bytes, but its header \(7, 28, 28\)"),
    ],
)
def test_other_content_is_rejected(
    path: Path, idx: SimpleNamespace, content: bytes, message: str
) -> None:
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=message):
        idx.images(path)


def test_damaged_compression_is_rejected(path: Path, idx: SimpleNamespace) -> None:
    content = gzip.compress(idx_bytes(PICTURES))
    for damaged in (content[:-20], content[:200] + bytes(50) + content[250:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"file\.gz cannot be decompressed"):
            idx.images(path)


def test_label_out_of_range_is_rejected(path: Path, idx: SimpleNamespace) -> None:
    path.write_bytes(gzip.compress(idx_bytes(np.array([1, 2, 10]))))
    with pytest.raises(DataError, match="label 2 is 10, but there are 10 classes, 0 to 9"):
        idx.labels(path, num_classes=10)


def test_empty_mnist_file_is_rejected(path: Path, mnist: ModuleType) -> None:
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((0, 28, 28)))))
    with pytest.raises(DataError, match=r"contains no images; its header is \(0, 28, 28\)"):
        mnist.open_images(path)
