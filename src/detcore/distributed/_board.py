"""Share memory between the ranks of one machine, to exchange small values.

A rank writes its call to its slot and signals; once all have, the first rank releases them with
one signal, and each reads the others' slots. The signals are eventfds: the kernel orders writes
before a signal and reads after it.

Layout: the number of the newest released collective, the table of leases (see `_segments`), and
two slots for each rank, used in turn. A rank reuses a slot only after the next collective, which
all ranks reached, so that no rank still reads its previous content.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import struct
import sys
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from detcore.distributed._failure import Position
from detcore.distributed._values import LARGE, Inline, Packed, load

__all__ = ["SEGMENTS", "Board", "Waiter"]

MAX_RANKS = 64  # one bit of the signal for each rank but the first
SEGMENTS = 4  # segments of shared memory that a rank can lend to the others at a time
_HEAD = struct.Struct("<QIIII")  # number, bytes of name, site, value; whether there is a value
_KNOWN = 256
_WORD = 8
_LEASES = 64
_SLOT = LARGE + (1 << 13)
_SPIN_S = 100e-6
_MAX_PAUSE = 64


class Board:
    """The shared memory of one group, as one rank sees it.

    Args:
        size: Number of ranks in the group.
        descriptors: The memory, the signal and two releases; owned by this object from here on.
    """

    def __init__(self, size: int, descriptors: Sequence[int]) -> None:
        self.size = size
        self._descriptors = list(descriptors)
        memory, self.ring_descriptor, *self._releases = descriptors
        length = _length(size)
        if os.fstat(memory).st_size < length:
            raise ValueError("the board is shorter than its group needs")
        self._bytes = memoryview(mmap.mmap(memory, length))
        self._released = self._bytes[:_WORD].cast("Q")
        end = _LEASES + _WORD * size * SEGMENTS * size
        self.leases = self._bytes[_LEASES:end].cast("Q")
        self._slots = self._bytes[_slots_start(size) :]
        reference = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _close_in_child(reference))
        # Most calls come from the same few lines.
        self._written: dict[tuple[str, str], tuple[int, int, bytes]] = {}
        self._read: dict[tuple[bytes, int], tuple[str, str]] = {}

    @classmethod
    def create(cls, size: int) -> Board | None:
        """Make the board of a new group; None if unsupported, or for too many ranks."""
        if sys.platform != "linux" or not hasattr(os, "eventfd") or size > MAX_RANKS:
            return None
        import fcntl

        memory = os.memfd_create("detcore-board", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        descriptors = [memory]
        try:
            os.ftruncate(memory, _length(size))
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
            flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
            for _ in range(3):
                descriptors.append(os.eventfd(0, flags))
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return cls(size, descriptors)

    def descriptors(self) -> list[int]:
        """Return the descriptors with which another rank opens the board."""
        return list(self._descriptors)

    def write(self, index: int, position: Position, packed: Packed | None) -> bool:
        """Write a rank's call to its slot; False if it does not fit, or the board is closed."""
        if not self._descriptors:
            return False
        key = position.name, position.site
        if key not in self._written:
            _bound(self._written)
            name, site = key[0].encode(), key[1].encode(errors="backslashreplace")
            used = _HEAD.size + len(name) + len(site)
            padding = bytes(_value_start(len(name), len(site)) - used)
            self._written[key] = len(name), len(site), name + site + padding
        name_size, site_size, names = self._written[key]
        pieces: list[Any] = [] if packed is None else packed.pieces
        size = 0 if packed is None else packed.size
        if _HEAD.size + len(names) + size > _SLOT:
            return False
        head = _HEAD.pack(position.number, name_size, site_size, size, packed is not None)
        data = b"".join([head, names, *pieces])
        begin = self._begin(index, position.number)
        self._slots[begin : begin + len(data)] = data
        return True

    def read(self, index: int, number: int) -> tuple[Position, Inline | None]:
        """Return the call in a rank's slot, while the slot holds it.

        Raises:
            ValueError: If the slot's content is invalid.
        """
        begin = self._begin(index, number)
        slots = self._slots
        found, name_size, site_size, size, has_value = _HEAD.unpack_from(slots, begin)
        start = _value_start(name_size, site_size)
        if start + size > _SLOT:
            raise ValueError("a slot of the board is overfull")
        names = bytes(slots[begin + _HEAD.size : begin + _HEAD.size + name_size + site_size])
        key = names, name_size
        if key not in self._read:
            _bound(self._read)
            self._read[key] = str(names[:name_size], "utf-8"), str(names[name_size:], "utf-8")
        name, site = self._read[key]
        begin += start
        value = Inline(slots[begin : begin + size], False) if has_value else None
        return Position(found, name, site), value

    def values(self, indices: Iterable[int], number: int) -> list[Any]:
        """Load the values in the slots of ranks for a collective that was released.

        Raises:
            ValueError: If a slot's content is invalid.
        """
        slots = self._slots
        values = []
        for index in indices:
            begin = self._begin(index, number)
            found, name_size, site_size, size, has_value = _HEAD.unpack_from(slots, begin)
            start = _value_start(name_size, site_size)
            if found != number or not has_value or start + size > _SLOT:
                raise ValueError("a slot of the board holds no value of this collective")
            begin += start
            values.append(load(slots[begin : begin + size], is_private=False))
        return values

    def ring(self, index: int) -> None:
        """Signal the first rank that this rank's slot holds a new call."""
        os.eventfd_write(self.ring_descriptor, 1 << index - 1)

    def rung(self) -> list[int]:
        """Return the ranks that signalled since the last call; empty if the board is closed.

        A rank signals once for each collective, so no bit carries into the next one.
        """
        if not self._descriptors:
            return []
        try:
            bits = os.eventfd_read(self.ring_descriptor)
        except BlockingIOError:
            return []
        return [index for index in range(1, self.size) if bits >> index - 1 & 1]

    def release_descriptor(self, number: int) -> int:
        """Return the descriptor that is readable once the collective of this number is released.

        There are two, used in turn: the descriptor of a collective stays readable until all ranks
        have reached the next one.
        """
        return self._releases[number & 1]

    def end(self, number: int) -> None:
        """Reset the release of the previous collective, which all ranks have left."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.release_descriptor(number - 1))

    def release(self, number: int) -> None:
        """Release all other ranks, which are waiting in the collective of this number."""
        self._released[0] = number
        os.eventfd_write(self.release_descriptor(number), 1)

    def is_released(self, number: int, ready: list[tuple[int, int]]) -> bool:
        """Return whether ranks may leave a collective.

        Args:
            number: The number of the collective.
            ready: Result of ``poll``, in which the release descriptor was registered first.
        """
        if not ready or ready[0][0] != self._releases[number & 1]:
            return False
        return self._released[0] == number

    def close(self) -> None:
        """Close the descriptors. The memory stays as long as received arrays refer to it."""
        descriptors, self._descriptors = self._descriptors, []
        self.ring_descriptor, self._releases = -1, [-1, -1]
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_descriptors"):
            self.close()

    def _begin(self, index: int, number: int) -> int:
        return (2 * index + (number & 1)) * _SLOT


class Waiter:
    """Waits for descriptors: polls for a moment before it sleeps, if every rank has a core.

    Waking up takes longer than the rest of a small collective. Where polling was in vain, as
    between ranks that arrive at different times, it is tried ever more rarely.

    Args:
        poller: Polls the descriptors.
        ranks: Ranks on this machine; 0: they are on several.
        spin_s: How long to poll.
    """

    def __init__(self, poller: select.poll, ranks: int, *, spin_s: float = _SPIN_S) -> None:
        self._poller = poller
        # A board, and with it a number of ranks, exists on Linux only.
        has_cores = ranks > 0 and ranks <= len(os.sched_getaffinity(0))
        self._spin_s = spin_s if has_cores else 0.0
        self._pause = 1  # waits without polling after the next one in vain
        self._paused = 0

    def wait(self, timeout_s: float) -> list[tuple[int, int]]:
        """Return the events of ``poll``, at the latest after a timeout."""
        if self._paused:
            self._paused -= 1
        elif timeout_s > 0 and self._spin_s:
            until = time.perf_counter() + self._spin_s
            while time.perf_counter() < until:
                if ready := self._poller.poll(0):
                    self._pause = 1
                    return ready
            self._paused, self._pause = self._pause, min(2 * self._pause, _MAX_PAUSE)
        return self._poller.poll(max(timeout_s, 0) * 1000)


def _close_in_child(reference: weakref.ref[Board]) -> None:
    """Prevent a forked child from acting in its parent's name."""
    board = reference()
    if board is not None:
        board.close()


def _bound(known: dict[Any, Any]) -> None:
    if len(known) >= _KNOWN:
        known.clear()


def _slots_start(size: int) -> int:
    end = _LEASES + _WORD * size * SEGMENTS * size
    return -(-end // mmap.PAGESIZE) * mmap.PAGESIZE


def _length(size: int) -> int:
    return _slots_start(size) + 2 * size * _SLOT


def _value_start(name_size: int, site_size: int) -> int:
    return (_HEAD.size + name_size + site_size + 63) & ~63
