"""Cache datasets in a directory, written once and read by every later trial; and the decorators."""

from __future__ import annotations

import abc
import dataclasses
import json
import logging
import os
import re
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from detcore.contract.errors import CheckFailedError, DataError, UnsafePathError, describe
from detcore.contract.values import JSONValue

_logger = logging.getLogger("detcore.data")
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_RECORD_FILE = "detcore-records.json"
_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class CacheKey:
    """Name of a cached dataset: its directory is ``<dataset_id>/<dataset_version>_<part>``."""

    dataset_id: str
    dataset_version: str
    part: str

    @classmethod
    def checked(cls, dataset_id: str, dataset_version: str, *, part: str) -> CacheKey:
        """Create a key, and reject names that are not valid file names.

        Raises:
            UnsafePathError: If a name is empty, has other characters than letters, digits, ``.``,
                ``_`` and ``-``, or starts with ``.`` or ``-``.
        """
        for label, name in (("dataset_id", dataset_id), ("dataset_version", dataset_version)):
            if not isinstance(name, str) or not _SAFE.fullmatch(name):
                raise UnsafePathError(
                    f"{label} is {name!r}, which cannot be part of a file name.\n"
                    "A cached dataset is a directory with that name.\n"
                    "Use letters, digits, '.', '_' and '-', and do not start with '.' or '-'."
                )
        return cls(dataset_id, dataset_version, part)

    def folder(self, root: Path) -> Path:
        """Return the directory below `root`."""
        return root / "datasets" / self.dataset_id / f"{self.dataset_version}_{self.part}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CachedRecords:
    """A complete dataset in the cache.

    Attributes:
        folder: Directory of the files.
        num_records: Number of records; >= 1.
        keys: The order of a record's keys, for `with_key_order`.
    """

    folder: Path
    num_records: int
    keys: JSONValue


class DatasetCache:
    """The cache directory, independent of the format in which a framework writes a dataset.

    Args:
        root: Directory of all cached datasets. It need not exist.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, key: CacheKey) -> CachedRecords | None:
        """Return the dataset cached under `key`, or None.

        Raises:
            DataError: If the dataset exists but this version cannot read it.
        """
        folder = key.folder(self._root)
        path = folder / _RECORD_FILE
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["version"] != _VERSION:
                raise ValueError(f"version {record['version']!r}, but this is version {_VERSION}")
            num_records = record["num_records"]
            if not isinstance(num_records, int) or num_records < 1:
                raise ValueError(f"num_records is {describe(num_records)}")
            return CachedRecords(folder=folder, num_records=num_records, keys=record["keys"])
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"the cached dataset {key.dataset_id!r} cannot be read: {path}: {error}\n"
                f"Remove the directory, and the dataset is created again: rm -r {folder}"
            ) from error

    def open(self, key: CacheKey, write: Callable[[Path], tuple[int, Any]]) -> CachedRecords:
        """Return the dataset cached under `key`, writing it first if it does not exist.

        It is written to a temporary directory, which is then renamed, so an existing dataset is
        complete. If several processes write the same dataset, the first is kept, and all processes
        read it.

        Args:
            key: Names the dataset.
            write: Writes the dataset into a directory, which does not exist yet. Returns the number
                of records, and the structure of a record (dicts, tuples and lists of anything).

        Raises:
            DataError: If the dataset is empty, or if a cached dataset cannot be read.
        """
        return self.find(key) or self._write_dataset(key, write)

    def _write_dataset(
        self, key: CacheKey, write: Callable[[Path], tuple[int, Any]]
    ) -> CachedRecords:
        folder = key.folder(self._root)
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        scratch = _get_scratch_path(folder, os.getpid())
        try:
            num_records, structure = write(scratch)
            if num_records < 1:
                raise DataError(
                    f"the dataset {key.dataset_id!r} is empty: it has {num_records} records.\n"
                    "Only datasets with records can be cached."
                )
            record = {"version": _VERSION, "num_records": num_records, "keys": key_order(structure)}
            text = json.dumps(record) + "\n"
            (scratch / _RECORD_FILE).write_text(text, encoding="utf-8")
            try:
                scratch.rename(folder)
            except OSError:
                # Another process was first. Its dataset has the same name and version.
                if not (folder / _RECORD_FILE).exists():
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        dataset = self.find(key)
        if dataset is None:
            raise DataError(f"{folder} was removed while it was being written; start again")
        _logger.info("cached %d records of %s in %s", dataset.num_records, key.dataset_id, folder)
        return dataset


def _get_scratch_path(folder: Path, pid: int) -> Path:
    return folder.with_name(f"{folder.name}.{socket.gethostname()}.{pid}.tmp")


def _remove_leftovers(folder: Path) -> None:
    """Remove leftovers of processes on this machine that were killed while writing."""
    start, end = _get_scratch_path(folder, 0).name.split(".0.tmp")[0] + ".", ".tmp"
    for path in folder.parent.iterdir():
        pid = path.name[len(start) : -len(end)]
        is_ours = path.name.startswith(start) and path.name.endswith(end) and pid.isdecimal()
        if is_ours and not _is_alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    if pid == os.getpid():
        return False  # an earlier process with the same id
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # the process belongs to another user
    return True


def key_order(structure: Any) -> JSONValue:
    """Return the keys of all dicts in a structure of dicts, tuples and lists, in order.

    Example::

        >>> key_order(({"b": 1, "a": 2}, 3))
        [[['b', None], ['a', None]], None]
    """
    if isinstance(structure, Mapping):
        return [[name, key_order(part)] for name, part in structure.items()]
    if isinstance(structure, tuple | list):
        return [key_order(part) for part in structure]
    return None


def with_key_order(structure: Any, order: Any) -> Any:
    """Return a structure with the keys of its dicts in an order from `key_order`.

    Keys that are not in `order` come last, sorted. Without an order, all keys are sorted.
    """
    if isinstance(structure, Mapping):
        key_orders = dict(order or ())
        names = [name for name in key_orders if name in structure]
        names += sorted((name for name in structure if name not in key_orders), key=str)
        return {name: with_key_order(structure[name], key_orders.get(name)) for name in names}
    if isinstance(structure, tuple | list):
        part_orders = list(order or ())
        part_orders += [None] * (len(structure) - len(part_orders))
        parts = [
            with_key_order(part, part_order)
            for part, part_order in zip(structure, part_orders, strict=False)
        ]
        make = getattr(type(structure), "_make", type(structure))  # a namedtuple has _make
        return make(parts)
    return structure


class _WrapsDatasets(Protocol):
    wrapped_datasets: list[Any]


class CachingContext(abc.ABC):
    """The part of a trial's context that caches datasets.

    Attributes:
        may_repeat: Whether the training dataset may be cached again, for an input function that
            runs several times.
    """

    may_repeat: ClassVar[bool] = False

    def __init__(self, context: _WrapsDatasets) -> None:
        self._wrapping = context
        self._training_key: CacheKey | None = None

    @property
    def is_caching_training_data(self) -> bool:
        """Whether `cache_train_dataset` was used."""
        return self._training_key is not None

    def cache_train_dataset(
        self,
        dataset_id: str,
        dataset_version: str,
        shuffle: bool = False,
        skip_shuffle_at_epoch_end: bool = False,
    ) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        """Decorate a function that creates the training dataset, so that it runs once.

        The first call writes the records to the cache directory, under `dataset_id` and
        `dataset_version`. Later calls, also in other trials and experiments, read the records from
        there. The function has no parameters and returns a ``tf.data.Dataset`` of records. Batch
        and augment the result of the decorated function, and do not ``repeat()`` inside it. With an
        Estimator, the function runs in a separate graph, so it must create everything it uses. Call
        the decorated function inside ``input_fn``.

        As with every other dataset, training continues at the position of a checkpoint. Nothing is
        ever removed from the cache directory.

        Args:
            dataset_id: Name of the data; letters, digits, ``.``, ``_`` and ``-``.
            dataset_version: Version of the data. Change it when the function changes.
            shuffle: Whether to read the records in an order derived from the trial's seed.
            skip_shuffle_at_epoch_end: Whether all epochs have the same order.

        Returns:
            A decorator.

        Raises:
            CheckFailedError: If it is used twice (with Estimators: for two datasets), or together
                with ``context.wrap_dataset``.
            UnsafePathError: If a name has characters that are invalid in a file name.
        """
        key = CacheKey.checked(dataset_id, dataset_version, part="train")
        if self._training_key is not None and not (self.may_repeat and self._training_key == key):
            raise CheckFailedError(
                "context.experimental.cache_train_dataset was used twice in this trial.\n"
                "A trial has one training dataset.\n"
                "Use cache_validation_dataset for the validation data."
            )
        if self._training_key is None and self._wrapping.wrapped_datasets:
            raise CheckFailedError(
                "context.experimental.cache_train_dataset was used after context.wrap_dataset.\n"
                "A cached dataset is already sharded.\n"
                "Use one of the two for all datasets of a trial."
            )
        self._training_key = key
        return self._decorator(key, shuffle, reshuffle=not skip_shuffle_at_epoch_end, train=True)

    def cache_validation_dataset(
        self, dataset_id: str, dataset_version: str, shuffle: bool = False
    ) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        """Decorate a function that creates the validation dataset; see `cache_train_dataset`.

        Args:
            dataset_id: Name of the data; letters, digits, ``.``, ``_`` and ``-``.
            dataset_version: Version of the data. Change it when the function changes.
            shuffle: Whether to read the records in an order derived from the trial's seed, the same
                in each validation.

        Returns:
            A decorator.

        Raises:
            UnsafePathError: If a name has characters that are invalid in a file name.
        """
        key = CacheKey.checked(dataset_id, dataset_version, part="val")
        return self._decorator(key, shuffle, reshuffle=False, train=False)

    @abc.abstractmethod
    def _decorator(
        self, key: CacheKey, shuffle: bool, *, reshuffle: bool, train: bool
    ) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
        """Return the decorator of a function that creates a dataset."""
