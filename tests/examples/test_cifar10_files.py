"""The reader of the CIFAR-10 example, on small files in the published binary format."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from example_runs import load_module

from detcore.errors import DataError


@pytest.fixture(scope="module")
def cifar() -> ModuleType:
    return load_module("cifar10_cnn_tf_keras", "cifar_binary")


def write(path: Path, images: np.ndarray, labels: np.ndarray) -> Path:
    """Write records in the published format: label, then red, green and blue planes."""
    with path.open("wb") as file:
        for image, label in zip(images, labels, strict=True):
            file.write(bytes([label]))
            for colour in range(3):
                file.write(image[:, :, colour].astype(np.uint8).tobytes())
    return path


def pictures(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    return rng.integers(0, 256, size=(count, 32, 32, 3)), rng.integers(0, 10, size=count)


def test_record_files_form_one_sequence(tmp_path: Path, cifar: ModuleType) -> None:
    parts = [pictures(count) for count in (3, 5, 2)]
    for number, part in enumerate(parts, start=1):
        write(tmp_path / f"data_batch_{number}.bin", *part)
    records = cifar.RecordFiles(cifar.find_files(tmp_path, "train"))
    images = np.concatenate([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    assert len(records) == 10
    for indices in (np.arange(10), np.array([9, 0, 3, 2, 7, 8]), np.array([4]), np.array([], int)):
        batch = records.read(indices)
        assert np.array_equal(batch[0], images[indices])
        assert np.array_equal(batch[1], labels[indices])
        assert (batch[0].dtype, batch[1].dtype) == (np.uint8, np.int32)


def test_record_files_pickle_small(tmp_path: Path, cifar: ModuleType) -> None:
    images, labels = pictures(4)
    records = cifar.RecordFiles([write(tmp_path / "test_batch.bin", images, labels)])
    state = records.__getstate__()
    assert len(pickle.dumps(state)) < 1000
    other = cifar.RecordFiles.__new__(cifar.RecordFiles)
    vars(other).update(state)
    assert np.array_equal(other.read(np.arange(4))[0], images)


def test_archive_directory_is_found(tmp_path: Path, cifar: ModuleType) -> None:
    inner = tmp_path / "cifar-10-batches-bin"
    inner.mkdir()
    path = write(inner / "test_batch.bin", *pictures(1))
    assert cifar.find_files(tmp_path, "test") == [path]
    assert cifar.find_files(inner, "test") == [path]


def test_missing_files_show_download_address(tmp_path: Path, cifar: ModuleType) -> None:
    with pytest.raises(DataError, match=r"no file data_batch_\*\.bin in .*\nDownload cifar-10"):
        cifar.find_files(tmp_path, "train")


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-py"])
def test_pickles_are_rejected(tmp_path: Path, cifar: ModuleType, inner: str) -> None:
    folder = tmp_path / inner
    folder.mkdir(exist_ok=True)
    (folder / "data_batch_1").write_bytes(b"cos\n_exit\n(I77\ntR.")
    with pytest.raises(DataError, match=r"Python version of CIFAR-10, whose files are pickles"):
        cifar.find_files(tmp_path, "train")


def test_wrong_sizes_are_rejected(tmp_path: Path, cifar: ModuleType) -> None:
    path = write(tmp_path / "test_batch.bin", *pictures(2))
    content = path.read_bytes()
    for wrong in (content[:-1], b"", content + b"12"):
        path.write_bytes(wrong)
        with pytest.raises(DataError, match=f"has {len(wrong)} bytes, which is not a whole number"):
            cifar.RecordFiles([path])


def test_wrong_labels_are_rejected(tmp_path: Path, cifar: ModuleType) -> None:
    images, labels = pictures(3)
    labels[1] = 77
    path = write(tmp_path / "test_batch.bin", images, labels)
    with pytest.raises(DataError, match="record 1 has label 77"):
        cifar.RecordFiles([path])
