"""Define the messages between the loader and its worker processes.

Tasks and results are messages of a fixed size through one pipe each, shared by all workers. They
are short enough for a pipe to transfer atomically, so no lock is needed, and a worker that is
killed at any moment leaves no lock and no partial message for the others.
"""

from __future__ import annotations

import dataclasses
import mmap
import struct
from typing import ClassVar

__all__ = ["IDLE", "Board", "Result", "Startup", "Task"]

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
