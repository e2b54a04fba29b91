"""The IDX reader of the Fashion-MNIST example, on small files in the published format."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import struct
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from detcore.errors import DataError

EXAMPLE = Path(__file__).parents[2] / "examples" / "fashion_mnist_tf_keras"


@pytest.fixture(scope="module")
def idx() -> ModuleType:
    spec = importlib.util.spec_from_file_location("idx", EXAMPLE / "idx.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def idx_bytes(array: np.ndarray) -> bytes:
    """Return what an IDX file of unsigned bytes holds, as its description says."""
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    return header + array.astype(np.uint8).tobytes()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content))
    return path


def test_images_and_labels_are_read(tmp_path: Path, idx: ModuleType) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, size=(7, 28, 28))
    path = write(tmp_path / "images.gz", idx_bytes(pictures))
    assert np.array_equal(idx.read_images(path), pictures)
    labels = np.array([0, 9, 3])
    path = write(tmp_path / "labels.gz", idx_bytes(labels))
    checksum = hashlib.md5(path.read_bytes()).hexdigest()
    assert np.array_equal(idx.read_labels(path, num_classes=10, md5=checksum.upper()), labels)


def test_a_missing_file_tells_where_to_get_it(tmp_path: Path, idx: ModuleType) -> None:
    with pytest.raises(DataError, match=r"no file .*images\.gz\.\nThe four files are at https://"):
        idx.read_images(tmp_path / "images.gz")


def test_a_wrong_checksum(tmp_path: Path, idx: ModuleType) -> None:
    path = write(tmp_path / "labels.gz", idx_bytes(np.zeros(3)))
    with pytest.raises(DataError, match=r"has the MD5 sum \w{32}, but data\.md5 .* says 0123"):
        idx.read_labels(path, num_classes=10, md5="0123")


def test_swapped_images_and_labels(tmp_path: Path, idx: ModuleType) -> None:
    path = write(tmp_path / "labels.gz", idx_bytes(np.zeros(3)))
    with pytest.raises(DataError, match="magic number 2049, which is the number of labels; images"):
        idx.read_images(path)


def test_other_element_types_and_empty_files(tmp_path: Path, idx: ModuleType) -> None:
    floats = bytearray(idx_bytes(np.zeros((1, 2, 2))))
    floats[2] = 0x0D
    for content in (bytes(floats), b"", b"\0\0\x08"):
        with pytest.raises(DataError, match="images begin with 2051"):
            idx.read_images(write(tmp_path / "images.gz", content))


def test_cut_or_longer_content(tmp_path: Path, idx: ModuleType) -> None:
    content = idx_bytes(np.zeros((5, 28, 28)))
    for wrong in (content[:-1], content + b"x"):
        path = write(tmp_path / "images.gz", wrong)
        with pytest.raises(DataError, match=r"header says \(5, 28, 28\), which is 3936 bytes"):
            idx.read_images(path)


def test_a_cut_or_uncompressed_file(tmp_path: Path, idx: ModuleType) -> None:
    content = idx_bytes(np.zeros((5, 28, 28)))
    path = tmp_path / "images.gz"
    damaged = bytearray(gzip.compress(np.random.default_rng(0).bytes(999)))
    damaged[20:40] = bytes(20)
    for wrong in (gzip.compress(content)[:-6], content, bytes(damaged)):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match=r"images\.gz cannot be decompressed"):
            idx.read_images(path)


def test_a_label_that_is_none(tmp_path: Path, idx: ModuleType) -> None:
    path = write(tmp_path / "labels.gz", idx_bytes(np.array([1, 2, 10])))
    with pytest.raises(DataError, match="label 2 is 10, but there are 10 classes"):
        idx.read_labels(path, num_classes=10)
