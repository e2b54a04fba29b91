"""Datasets written once and read again by every later trial."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detcore.errors import DataError, InvalidDataTypeError, UnsafePathError
from detcore_keras._context import describe
from detcore_keras._keras import tf

__all__ = ["CacheKey", "CachedDataset"]

_logger = logging.getLogger("detcore.keras")

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_COUNT_FILE = "detcore-records.json"


@dataclasses.dataclass(frozen=True, slots=True)
class CacheKey:
    """What names a cached dataset: its folder is ``<dataset_id>/<dataset_version>_<part>``."""

    dataset_id: str
    dataset_version: str
    part: str

    @classmethod
    def checked(cls, dataset_id: str, dataset_version: str, *, part: str) -> CacheKey:
        """Make a key, or refuse names that do not belong in a file name.

        Raises:
            UnsafePathError: If a name is empty, or has other characters than letters, digits,
                ``.``, ``_``, ``-``, or begins with ``.`` or ``-``.
        """
        for what, name in (("dataset_id", dataset_id), ("dataset_version", dataset_version)):
            if not isinstance(name, str) or not _SAFE.fullmatch(name):
                raise UnsafePathError(
                    f"{what} is {name!r}, which cannot be part of a file name.\n"
                    "A cached dataset is a folder of that name.\n"
                    "Use letters, digits, '.', '_' and '-', not beginning with '.' or '-'."
                )
        return cls(dataset_id, dataset_version, part)

    def folder(self, root: Path) -> Path:
        """Return the folder below `root`."""
        return root / "datasets" / self.dataset_id / f"{self.dataset_version}_{self.part}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CachedDataset:
    """A dataset of records that is made at most once.

    Attributes:
        key: Names it.
        make_dataset: Makes it, where it is not there yet.
        root: Cache folder; None = nothing is kept.
        shuffle_seed: Seed of the order; None = as it was written.
        reshuffle: Whether each epoch has an order of its own.
        shard: Rank and number of workers.
        drop_remainder: Leave out records so that all workers have as many.
    """

    key: CacheKey
    make_dataset: Callable[[], Any]
    root: Path | None
    shuffle_seed: int | None
    reshuffle: bool
    shard: tuple[int, int]
    drop_remainder: bool

    def open(self) -> Any:
        """Return the dataset of records: sharded, and shuffled if asked for.

        Raises:
            InvalidDataTypeError: If the function did not return a ``tf.data.Dataset``.
            DataError: If it has no records, or no end.
        """
        dataset, num_records = self._records()
        rank, size = self.shard
        if size > 1:
            if self.drop_remainder:
                num_records -= num_records % size
                dataset = dataset.take(num_records)
            dataset = dataset.shard(size, rank)
        if self.shuffle_seed is not None:
            dataset = dataset.shuffle(
                max(1, -(-num_records // size)),
                seed=self.shuffle_seed,
                reshuffle_each_iteration=self.reshuffle,
            )
        return dataset

    def _records(self) -> tuple[Any, int]:
        if self.root is None:
            dataset = self._made()
            return dataset, _count(dataset)
        folder = self.key.folder(self.root)
        if not (folder / _COUNT_FILE).exists():
            self._write(folder)
        record = json.loads((folder / _COUNT_FILE).read_text(encoding="utf-8"))
        num_records = int(record["num_records"])
        dataset = tf.data.Dataset.load(str(folder))
        return dataset.apply(tf.data.experimental.assert_cardinality(num_records)), num_records

    def _made(self) -> Any:
        dataset = self.make_dataset()
        if not isinstance(dataset, tf.data.Dataset):
            raise InvalidDataTypeError(
                f"the cached dataset function returned {describe(dataset)}, not a tf.data.Dataset."
            )
        if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise DataError(
                f"the dataset {self.key.dataset_id!r} has no end, so caching it would fill the "
                "disk.\nLeave out repeat() in the decorated function: detcore repeats it."
            )
        return dataset

    def _write(self, folder: Path) -> None:
        """Write beside the folder, then rename: what is there is whole."""
        scratch = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._made().save(str(scratch))
            num_records = _count(tf.data.Dataset.load(str(scratch)))
            text = json.dumps({"version": 1, "num_records": num_records}) + "\n"
            (scratch / _COUNT_FILE).write_text(text, encoding="utf-8")
            _rename(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        _logger.info("cached %d records of %s in %s", num_records, self.key.dataset_id, folder)


def _rename(scratch: Path, folder: Path) -> None:
    try:
        scratch.rename(folder)
    except OSError:
        # Another trial was first; what it wrote under this name and version is as good.
        if not (folder / _COUNT_FILE).exists():
            raise


def _count(dataset: Any) -> int:
    count = int(dataset.reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1))
    if count == 0:
        raise DataError("the dataset to cache is empty: it has 0 records.")
    return count
