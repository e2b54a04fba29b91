"""What the loader and its worker processes say to each other.

Tasks and results are messages of a fixed size through one pipe each, shared by all workers. They
are shorter than what a pipe takes and gives in one piece, so no lock is needed, and a worker that
is killed at any moment leaves nothing locked or half read for the others.
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
        index: Which item of the Sequence.
        epoch: Which pass over the data, for its randomness.
        epochs_ended: How often ``on_epoch_end`` was called in the parent so far.
        slot: Where to put it.
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
    """A task is done.

    Attributes:
        number: Which task.
        worker: Which worker did it, from 0.
        failed: Whether the slot holds the text of an error instead of a batch.
        offset: Where the description of the batch (or the text) begins in the slot.
        size_bytes: Its size; 0 = the task was cancelled before a worker came to it.
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
    """What the server of the worker processes is started with; JSON among its arguments.

    Attributes:
        workers: How many processes.
        seed: Seed of each item's randomness.
        epochs_ended: How often ``on_epoch_end`` was called before the Sequence was sent.
        sequence: Descriptor that the Sequence comes through.
        tasks, results: Descriptors of the two pipes.
        leash: Descriptor of a pipe that closes when the parent ends.
        notices: Descriptor through which the server tells of its workers.
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
    """Shared numbers that need no message: which task each worker is at, and what is cancelled."""

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
        """Return the task that a worker is at, or `IDLE`."""
        return self._cells[1 + worker]

    def set_task(self, worker: int, number: int) -> None:
        """Say which task a worker is at."""
        self._cells[1 + worker] = number
