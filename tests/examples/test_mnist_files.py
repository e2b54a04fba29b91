"""The IDX reader of the MNIST example, on small files in the published format."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from detcore.errors import DataError

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_estimator"


@pytest.fixture(scope="module")
def idx() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("mnist_idx", EXAMPLE / "idx.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mnist_idx"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mnist_idx"]


def idx_bytes(array: np.ndarray) -> bytes:
    """Return what an IDX file of unsigned bytes holds, as its description says."""
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    return header + array.astype(np.uint8).tobytes()


PICTURES = np.random.default_rng(0).integers(0, 256, size=(7, 28, 28))
LABELS = np.array([0, 9, 3, 9, 1, 1, 4])


@pytest.mark.parametrize("compression", ["GZIP", ""])
def test_images_and_labels_are_opened(tmp_path: Path, idx: ModuleType, compression: str) -> None:
    def write(name: str, array: np.ndarray) -> Path:
        content = idx_bytes(array)
        path = tmp_path / (f"{name}.gz" if compression else name)
        path.write_bytes(gzip.compress(content) if compression else content)
        return path

    path = write("train-images-idx3-ubyte", PICTURES)
    images = idx.open_images(idx.find_file(tmp_path, "train-images-idx3-ubyte"))
    assert images == idx.IdxFile(path, (7, 28, 28), 16, compression)
    assert (images.num_records, images.record_bytes) == (7, 784)

    path = write("train-labels-idx1-ubyte", LABELS)
    checksum = hashlib.md5(path.read_bytes()).hexdigest()
    labels = idx.open_labels(path, num_classes=10, md5=checksum.upper())
    assert labels == idx.IdxFile(path, (7,), 8, compression)
    assert (labels.num_records, labels.record_bytes) == (7, 1)


def test_a_missing_file_tells_where_to_get_it(tmp_path: Path, idx: ModuleType) -> None:
    (tmp_path / "labels").mkdir()
    with pytest.raises(DataError, match=r"no file labels\.gz \(or labels\).*\nThe four files are"):
        idx.find_file(tmp_path, "labels")
    with pytest.raises(DataError, match=r"no file .*labels\.gz\.\nThe four files are"):
        idx.open_labels(tmp_path / "labels.gz", num_classes=10)


def test_the_compressed_file_is_taken_first(tmp_path: Path, idx: ModuleType) -> None:
    for name in ("images", "images.gz"):
        (tmp_path / name).touch()
    assert idx.find_file(tmp_path, "images") == tmp_path / "images.gz"


def test_a_wrong_checksum(tmp_path: Path, idx: ModuleType) -> None:
    path = tmp_path / "labels"
    path.write_bytes(idx_bytes(LABELS))
    with pytest.raises(DataError, match=r"has the MD5 sum \w{32}, but data\.md5 .* says 0123"):
        idx.open_labels(path, num_classes=10, md5="0123")


def test_images_and_labels_swapped(tmp_path: Path, idx: ModuleType) -> None:
    path = tmp_path / "swapped"
    path.write_bytes(idx_bytes(LABELS))
    with pytest.raises(DataError, match=r"number 2049, which is the number of labels; images"):
        idx.open_images(path)
    path.write_bytes(idx_bytes(PICTURES))
    with pytest.raises(DataError, match=r"number 2051, which is the number of images; labels"):
        idx.open_labels(path, num_classes=10)


@pytest.mark.parametrize("change", [slice(None, -1), slice(None, 10), slice(None, 0)])
def test_a_file_cut_short(tmp_path: Path, idx: ModuleType, change: slice) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(PICTURES)[change])
    with pytest.raises(DataError, match=r"but its header says|begins with the magic number"):
        idx.open_images(path)


def test_a_file_with_something_added(tmp_path: Path, idx: ModuleType) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(PICTURES) + b"1")
    with pytest.raises(DataError, match=r"holds 5505 bytes, but its header says \(7, 28, 28\)"):
        idx.open_images(path)


def test_damaged_compression(tmp_path: Path, idx: ModuleType) -> None:
    path = tmp_path / "images.gz"
    whole = gzip.compress(idx_bytes(PICTURES))
    for content in (whole[:-20], whole[:200] + bytes(50) + whole[250:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be decompressed"):
            idx.open_images(path)


def test_a_label_out_of_range(tmp_path: Path, idx: ModuleType) -> None:
    path = tmp_path / "labels"
    path.write_bytes(idx_bytes(np.array([1, 2, 10, 11])))
    with pytest.raises(DataError, match="label 2 is 10, but there are 10 classes, 0 to 9"):
        idx.open_labels(path, num_classes=10)


def test_a_file_of_nothing(tmp_path: Path, idx: ModuleType) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(np.zeros((0, 28, 28))))
    with pytest.raises(DataError, match=r"holds no images: its header says \(0, 28, 28\)"):
        idx.open_images(path)
