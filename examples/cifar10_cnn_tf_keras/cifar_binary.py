"""Reads the binary version of CIFAR-10, with records of one label byte and 3072 pixel bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from detcore.errors import DataError

__all__ = ["IMAGE_SHAPE", "NUM_CLASSES", "RECORD_BYTES", "RecordFiles", "find_files"]

NUM_CLASSES = 10
IMAGE_SHAPE = (32, 32, 3)
RECORD_BYTES = 1 + 32 * 32 * 3

_ARCHIVE_FOLDER = "cifar-10-batches-bin"
_WHERE = (
    "Download cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html and unpack "
    "it into the directory that data.dir in the experiment file names."
)


class RecordFiles:
    """Records in several files under one index. Pickles contain only the paths.

    Args:
        paths: The files, in order.

    Raises:
        DataError: If a file is empty, is not a whole number of records, or has a label above 9.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = list(paths)
        self._records: list[np.memmap] | None = None
        self._ends = np.cumsum([_count_records(path) for path in self._paths])
        for path, records in zip(self._paths, self._open_files(), strict=True):
            _check_labels(path, records[:, 0])

    def __len__(self) -> int:
        """Return the number of records in all files."""
        return int(self._ends[-1])

    def __getstate__(self) -> dict[str, object]:
        """Omit the open files, because each process opens the files itself."""
        return {**vars(self), "_records": None}

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return images ``(record, 32, 32, 3), uint8`` and labels ``(record,), int32``.

        Args:
            indices: Indices of the records, ``0 <= index < len(self)``.
        """
        files = np.searchsorted(self._ends, indices, side="right")
        starts = self._ends - [len(records) for records in self._open_files()]
        rows = np.empty((len(indices), RECORD_BYTES), np.uint8)
        for file in np.unique(files):
            is_in_file = files == file
            rows[is_in_file] = self._open_files()[file][indices[is_in_file] - starts[file]]
        # The files store one plane per colour. Keras requires colour as the last axis.
        images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images), rows[:, 0].astype("int32")

    def _open_files(self) -> list[np.memmap]:
        if self._records is None:
            self._records = [
                np.memmap(path, np.uint8, mode="r").reshape(-1, RECORD_BYTES)
                for path in self._paths
            ]
        return self._records


def find_files(folder: Path, part: str) -> list[Path]:
    """Return the files of the training or the test set.

    Args:
        folder: Directory into which the archive was unpacked, or the directory in the archive.
        part: ``"train"`` or ``"test"``.

    Raises:
        DataError: If the files are missing or belong to the Python version.
    """
    inner = folder / _ARCHIVE_FOLDER
    folder = inner if inner.is_dir() else folder
    pattern = "data_batch_*.bin" if part == "train" else "test_batch.bin"
    files = sorted(folder.glob(pattern))
    if files:
        return files
    for pickled in (folder, folder / "cifar-10-batches-py"):
        if (pickled / "data_batch_1").exists():
            raise DataError(
                f"{pickled} contains the Python version of CIFAR-10, whose files are pickles.\n"
                "This example reads no pickles, because a pickle can run any code.\n"
                f"{_WHERE}"
            )
    raise DataError(f"no file {pattern} in {folder}.\n{_WHERE}")


def _count_records(path: Path) -> int:
    size = path.stat().st_size
    if size == 0 or size % RECORD_BYTES:
        raise DataError(
            f"{path} has {size} bytes, which is not a whole number of records of {RECORD_BYTES} "
            "bytes (the published files have 30730000, 10000 records).\n"
            f"The file is truncated or belongs to another data set (CIFAR-100: 3074).\n{_WHERE}"
        )
    return size // RECORD_BYTES


def _check_labels(path: Path, labels: np.ndarray) -> None:
    if int(labels.max()) >= NUM_CLASSES:
        index = int(np.argmax(labels >= NUM_CLASSES))
        raise DataError(
            f"{path}: record {index} has label {labels[index]}; CIFAR-10 has the labels 0 to "
            f"{NUM_CLASSES - 1}.\nThe file is damaged or belongs to another data set.\n{_WHERE}"
        )
