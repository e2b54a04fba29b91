"""Encode batches in shared memory: nested tuples, lists and dicts of arrays, without pickle.

The arrays of a batch are copied into a slot one after the other, each aligned for TensorFlow's
zero-copy views; a JSON description of the structure follows them.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from detcore.errors import DataError

_ALIGNMENT = 64
_SCALARS = (bool, int, float, str)
Layout = tuple[int, int]
"""Offset and size in bytes of the JSON description."""
IDLE = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """Prepare an item.

    Attributes:
        number: Counts the tasks of a loader, from 0.
        index: Index of the item in the Sequence.
        epoch: Pass over the data, for its randomness.
        epochs_ended: Number of calls of ``on_epoch_end`` in the parent so far.
        slot: Slot to put it in.
    """

    FORMAT: ClassVar[struct.Struct] = struct.Struct("<5q")
    number: int
    index: int
    epoch: int
    epochs_ended: int
    slot: int

    def pack(self) -> bytes:
        """Return the message."""
        return self.FORMAT.pack(self.number, self.index, self.epoch, self.epochs_ended, self.slot)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The completion of a task.

    Attributes:
        number: Number of the task.
        worker: Index of the worker that did it, from 0.
        failed: Whether the slot holds the text of an error instead of a batch.
        offset: Offset of the description of the batch (or the text) in the slot.
        size_bytes: Its size; 0 if the task was cancelled before a worker started it.
    """

    FORMAT: ClassVar[struct.Struct] = struct.Struct("<5q")
    number: int
    worker: int
    failed: bool
    offset: int
    size_bytes: int

    def pack(self) -> bytes:
        """Return the message."""
        return self.FORMAT.pack(self.number, self.worker, self.failed, self.offset, self.size_bytes)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Arguments of the server of the worker processes, passed as JSON.

    Attributes:
        workers: Number of processes.
        seed: Seed of each item's randomness.
        epochs_ended: Number of calls of ``on_epoch_end`` before the Sequence was sent.
        sequence: Descriptor from which to read the Sequence.
        tasks, results: Descriptors of the two pipes.
        leash: Descriptor of a pipe that closes when the parent ends.
        notices: Descriptor for the server's notices about its workers.
        board: Descriptor of the `Board`.
        slots: Descriptors of the slots.
    """

    workers: int
    seed: int
    epochs_ended: int
    sequence: int
    tasks: int
    results: int
    leash: int
    notices: int
    board: int
    slots: list[int]

    def descriptors(self) -> list[int]:
        """Return all descriptors that the server inherits."""
        named = [self.sequence, self.tasks, self.results, self.leash, self.notices, self.board]
        return named + self.slots


class Board:
    """Shared numbers that need no message: the task of each worker, and the cancelled tasks."""

    def __init__(self, descriptor: int, workers: int) -> None:
        self._cells = memoryview(mmap.mmap(descriptor, self.size_bytes(workers))).cast("q")

    @staticmethod
    def size_bytes(workers: int) -> int:
        """Return the memory that a board needs."""
        return 8 * (workers + 1)

    @property
    def first_wanted(self) -> int:
        """Tasks with lower numbers are cancelled."""
        return self._cells[0]

    @first_wanted.setter
    def first_wanted(self, number: int) -> None:
        self._cells[0] = number

    def task_of(self, worker: int) -> int:
        """Return the current task of a worker, or `IDLE`."""
        return self._cells[1 + worker]

    def set_task(self, worker: int, number: int) -> None:
        """Set the current task of a worker."""
        self._cells[1 + worker] = number


def make_shared_file(size_bytes: int) -> int:
    """Return a descriptor of memory that processes share by inheriting it.

    It has no name, so it disappears with the last process that uses it, however that ends; named
    shared memory would survive a SIGKILL of the process group.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("detcore-loader")
    else:
        with tempfile.TemporaryFile() as file:  # unlinked; macOS has no memfd
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size_bytes)
    return descriptor


class Slot:
    """Shared memory for one batch, as one process sees it; it grows with the batches.

    Args:
        descriptor: Result of `make_shared_file`.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._size_bytes = 0
        self._memory: mmap.mmap | None = None

    def memory(self, size_bytes: int, *, grow: bool = False) -> mmap.mmap:
        """Return the slot's memory, with at least the given size.

        Arrays that refer to an earlier, smaller mapping stay valid.

        Args:
            size_bytes: The required size.
            grow: Whether to enlarge the slot if it is smaller; if not, another process has done so.
        """
        if self._memory is None or size_bytes > self._size_bytes:
            actual = os.fstat(self.descriptor).st_size
            if grow and actual < size_bytes:
                # A little more than needed, for batches that differ a little.
                actual = _align(size_bytes + size_bytes // 8, mmap.PAGESIZE)
                os.ftruncate(self.descriptor, actual)
            self._memory = mmap.mmap(self.descriptor, actual)
            self._size_bytes = actual
        return self._memory


class Encoder:
    """Copies batches into slots; caches the encoding of types."""

    def __init__(self) -> None:
        self._types: dict[np.dtype[Any], str] = {}
        self._arrays: list[tuple[np.ndarray, int]] = []
        self._end = 0

    def encode(self, batch: Any, slot: Slot) -> Layout:
        """Copy a batch into a slot.

        Raises:
            DataError: If a part of the batch is neither an array nor a plain value.
        """
        self._arrays, self._end = [], 0
        text = json.dumps(self._describe(batch, "the batch")).encode()
        end = self._end
        memory = slot.memory(end + len(text), grow=True)
        for array, offset in self._arrays:
            np.copyto(np.ndarray(array.shape, array.dtype, memory, offset), array)
        memory[end : end + len(text)] = text
        self._arrays = []  # the user's arrays must not live until the next batch
        return end, len(text)

    def _describe(self, value: Any, where: str) -> dict[str, Any]:
        """Return a JSON description of a value, and collect its arrays."""
        if value is None or (isinstance(value, _SCALARS) and not isinstance(value, np.generic)):
            return {"value": value}
        if isinstance(value, (tuple, list)):
            items = [self._describe(item, f"{where}[{i}]") for i, item in enumerate(value)]
            return {"tuple" if isinstance(value, tuple) else "list": items}
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise DataError(f"{where} is a dict with the key {key!r}; keys must be strings")
            items = [self._describe(item, f"{where}[{key!r}]") for key, item in value.items()]
            return {"dict": list(value), "items": items}
        return self._describe_array(value, where)

    def _describe_array(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, (np.ndarray, np.generic)) and not hasattr(value, "__array__"):
            raise DataError(
                f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which cannot "
                "travel between processes without a copy by pickle.\n"
                "Give arrays, or use threads: use_multiprocessing=False."
            )
        array = np.asarray(value)
        if array.dtype.hasobject:
            return self._describe_texts(array, where)
        described = {
            "array": self._types.get(array.dtype) or self._name_type(array.dtype, where),
            "at": self._end,
            "shape": array.shape,
            "scalar": isinstance(value, np.generic),
        }
        self._arrays.append((array, self._end))
        self._end = _align(self._end + array.nbytes, _ALIGNMENT)
        return described

    def _describe_texts(self, array: np.ndarray, where: str) -> dict[str, Any]:
        """Describe an object array of strings or bytes as their lengths and their bytes."""
        kinds = {type(item) for item in array.flat}
        if array.dtype != object or kinds not in ({str}, {bytes}, set()):
            found = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise DataError(
                f"{where} is an array of Python objects ({found or array.dtype}), which cannot "
                "travel between processes without a copy by pickle.\n"
                "Give numbers, strings or bytes, or use threads: use_multiprocessing=False."
            )
        kind = "str" if str in kinds else "bytes"
        raw = [item.encode() if kind == "str" else item for item in array.flat]
        lengths = np.array([len(item) for item in raw], dtype=np.int64)
        content = np.frombuffer(b"".join(raw), dtype=np.uint8)
        return {
            "texts": kind,
            "lengths": self._describe_array(lengths, where),
            "bytes": self._describe_array(content, where),
            "shape": array.shape,
        }

    def _name_type(self, dtype: np.dtype[Any], where: str) -> str:
        descr = np.lib.format.dtype_to_descr(dtype)
        if np.lib.format.descr_to_dtype(descr) != dtype:
            raise DataError(
                f"{where} is an array of {dtype}, which cannot travel between processes.\n"
                "Convert it to a type of NumPy's own, or use threads: use_multiprocessing=False."
            )
        self._types[dtype] = repr(descr)
        return self._types[dtype]


class Decoder:
    """Makes batches from slots; caches the types and the last structure."""

    def __init__(self) -> None:
        self._types: dict[str, np.dtype[Any]] = {}
        self._text = b""
        self._structure: Any = None

    def decode(self, slot: Slot, layout: Layout) -> Any:
        """Return the batch in a slot; its arrays are views of it, valid until it is reused."""
        offset, size = layout
        memory = slot.memory(offset + size)
        text = memory[offset : offset + size]
        if text != self._text:
            self._text, self._structure = text, json.loads(text)
        return self._build(self._structure, memory)

    def _build(self, described: dict[str, Any], memory: mmap.mmap) -> Any:
        if "array" in described:
            dtype = self._types.get(described["array"]) or self._type_of(described["array"])
            array: np.ndarray = np.ndarray(described["shape"], dtype, memory, described["at"])
            return array[()] if described["scalar"] else array
        if "value" in described:
            return described["value"]
        if "tuple" in described:
            return tuple(self._build(item, memory) for item in described["tuple"])
        if "list" in described:
            return [self._build(item, memory) for item in described["list"]]
        if "dict" in described:
            items = [self._build(item, memory) for item in described["items"]]
            return dict(zip(described["dict"], items, strict=True))
        return self._build_texts(described, memory)

    def _build_texts(self, described: dict[str, Any], memory: mmap.mmap) -> np.ndarray:
        content = self._build(described["bytes"], memory).tobytes()
        array = np.empty(described["shape"], dtype=object)
        start = 0
        for index, length in enumerate(self._build(described["lengths"], memory).tolist()):
            item = content[start : start + length]
            array.flat[index] = item.decode() if described["texts"] == "str" else item
            start += length
        return array

    def _type_of(self, name: str) -> np.dtype[Any]:
        self._types[name] = np.lib.format.descr_to_dtype(ast.literal_eval(name))
        return self._types[name]


def _align(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
