"""Exchange large values in anonymous shared memory, written once and mapped by the readers.

Allocating fresh pages costs several times as much as filling them, so a rank keeps the last few
segments that it wrote and reuses one that no other rank can see any more. For this purpose every
reader has a word in the table of leases (on the board) for each segment of each rank. There it
notes the generation that was lent to it once the last array that refers to it is gone. A segment
is reused only after all readers have returned it; one that is not returned for long is forgotten by
its writer, and lives as long as its readers hold it.

Readers map copy on write, so the changes of one are invisible to all others.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from detcore.distributed._board import SEGMENTS, Board
from detcore.distributed._values import Inline, Packed, load
from detcore.distributed._wire import Channel, Frame

__all__ = ["NOT_LENT", "Outgoing", "Segments", "Shared", "read_parts", "send_parts"]

NOT_LENT = -1
_PINNED = (1 << 64) - 1
_KEPT_BYTES = 1 << 28  # larger ones are freed immediately
_IDLE_S = 10.0
_GRAIN = 1 << 16
_CHUNK = 1 << 22  # bounds the time for which the interpreter's lock is held
_SEAL_FUTURE_WRITE = 0x10  # fcntl has the name from Python 3.13 on, Linux the seal from 5.1 on
_POPULATE_WRITE = 23  # madvise, Linux 5.14


class Shared:
    """A value in shared memory, with a descriptor that belongs to this object.

    Args:
        segments: This rank's side of the group's shared memory.
        descriptor: The memory.
        size: Length of the value in bytes.
        lease: Index of the segment's first reader in the table of leases, or NOT_LENT.
        generation: Number that its readers note there.
    """

    def __init__(
        self, segments: Segments, descriptor: int, size: int, lease: int, generation: int
    ) -> None:
        self.descriptor = descriptor
        self.size = size
        self.lease = lease
        self.generation = generation
        self._segments = segments

    def load(self) -> Any:
        """Return the value. Its arrays are writable and belong to the caller alone."""
        return self._segments.load(self)

    def close(self) -> None:
        """Close the descriptor; loaded values stay."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


Outgoing = Packed | Inline | Shared


class _Segment:
    """Shared memory that this rank writes."""

    def __init__(self, packed: Packed) -> None:
        self.capacity = -(-packed.size // _GRAIN) * _GRAIN
        self.generation = 0
        self.readers: Sequence[int] = ()
        self.used_at = 0.0
        self.descriptor = -1
        self.descriptor = os.memfd_create("detcore", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # Writing, unlike mapping, does not zero new pages first.
        for piece in packed.pieces:
            rest = memoryview(piece).cast("B")
            while rest:
                rest = rest[os.write(self.descriptor, rest[: 1 << 30]) :]
        os.ftruncate(self.descriptor, self.capacity)
        self._mapping = mmap.mmap(self.descriptor, self.capacity)  # free until it is used
        self._is_populated = False
        self._seal()

    def _seal(self) -> None:
        """Forbid shrinking the memory, which would kill readers with SIGBUS, and writing to it.

        The existing mapping stays writable.
        """
        import fcntl

        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals | _SEAL_FUTURE_WRITE)
        except OSError:
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)

    def write(self, packed: Packed) -> None:
        """Replace the content."""
        if not self._is_populated:
            self._is_populated = True
            with contextlib.suppress(OSError):  # an older kernel, where this is only slower
                self._mapping.madvise(_POPULATE_WRITE)
        target = memoryview(self._mapping)
        start = 0
        for piece in packed.pieces:
            rest = memoryview(piece).cast("B")
            for offset in range(0, rest.nbytes, _CHUNK):
                chunk = rest[offset : offset + _CHUNK]
                target[start : start + chunk.nbytes] = chunk
                start += chunk.nbytes

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class Segments:
    """One rank's side of a group's shared memory: segments that it lends, and that it borrowed.

    Thread-safe and fork-safe: memory that a child can see is not reused.

    Args:
        board: The group's board; without one no memory is reused.
        index: Index of this rank in the group.
    """

    def __init__(self, board: Board | None, index: int) -> None:
        self._index = index
        self._size = 0 if board is None else board.size
        self._leases: memoryview | list[int] = [] if board is None else board.leases
        self._own: list[_Segment | None] = [None] * SEGMENTS
        self._generation = 0
        self._held: dict[tuple[int, int], None] = {}
        self._lock = threading.Lock()
        self._mapper = _Mapper()
        self._is_child = False
        reference = weakref.ref(self)
        os.register_at_fork(
            before=lambda: _if_there(reference, Segments._pin),
            after_in_child=lambda: _if_there(reference, Segments._become_child),
        )

    @classmethod
    def open(cls, board: Board | None, index: int) -> Segments | None:
        """Return a rank's side, or None if the system has no such memory."""
        return cls(board, index) if hasattr(os, "memfd_create") else None

    def put(self, packed: Packed, readers: Sequence[int]) -> Shared:
        """Write a value of this rank.

        Args:
            packed: The value.
            readers: Indices in the group of the ranks that will load it.
        """
        if not self._size or packed.size > _KEPT_BYTES:
            segment = _Segment(packed)
            return Shared(self, os.dup(segment.descriptor), packed.size, NOT_LENT, 0)
        with self._lock:
            place, free = self._free(packed.size)
            if free is None:
                segment = self._own[place] = _Segment(packed)
                for reader in range(self._size):
                    self._leases[self._lease(place) + reader] = 0
            else:
                segment = free
                segment.write(packed)
            self._generation += 1
            segment.generation = self._generation
            segment.readers = tuple(readers)
            segment.used_at = time.monotonic()
            descriptor = os.dup(segment.descriptor)
        return Shared(self, descriptor, packed.size, self._lease(place), segment.generation)

    def _free(self, size: int) -> tuple[int, _Segment | None]:
        """Return an index, and its segment if that is large enough and unused."""
        for place, segment in enumerate(self._own):
            # One that is far too large would keep memory that this value does not need.
            if (
                segment is not None
                and size <= segment.capacity <= 4 * size
                and self._is_free(place, segment)
            ):
                return place, segment
        empty = [place for place, segment in enumerate(self._own) if segment is None]
        if empty:
            return empty[0], None
        oldest = min((s.used_at, p) for p, s in enumerate(self._own) if s is not None)[1]
        self._own[oldest] = None
        return oldest, None

    def _is_free(self, place: int, segment: _Segment) -> bool:
        lease = self._lease(place)
        return all(self._leases[lease + reader] == segment.generation for reader in segment.readers)

    def _lease(self, place: int) -> int:
        return (self._index * SEGMENTS + place) * self._size

    def load(self, shared: Shared) -> Any:
        """Return a value that this or another rank has written.

        Raises:
            ValueError: If the memory differs from the announcement.
        """
        if os.fstat(shared.descriptor).st_size < shared.size:
            raise ValueError("shared memory is shorter than announced")
        if shared.lease != NOT_LENT and not 0 <= shared.lease <= len(self._leases) - self._size:
            raise ValueError("shared memory with an impossible lease")
        memory = self._mapper.map(shared.descriptor, shared.size)
        address = self._mapper.address_of(memory)
        key = (shared.lease, shared.generation)
        self._held[key] = None
        # Called when the last array that refers to the mapping is gone.
        finalizer = weakref.finalize(memory, self._give_back, key, address, shared.size)
        finalizer.atexit = False
        return load(memoryview(memory).cast("B"), is_private=True)

    def _give_back(self, key: tuple[int, int], address: int, size: int) -> None:
        self._mapper.unmap(address, size)
        self._held.pop(key, None)
        lease, generation = key
        if self._is_child or lease == NOT_LENT:
            return
        if self._leases[lease + self._index] != _PINNED:
            self._leases[lease + self._index] = generation

    def _pin(self) -> None:
        """Keep borrowed segments from being reused: a child will see them, too."""
        for lease, _ in list(self._held):
            if lease != NOT_LENT:
                self._leases[lease + self._index] = _PINNED

    def _become_child(self) -> None:
        self._pin()
        self._is_child = True
        self._held = {}
        self._own = [None] * SEGMENTS
        self._lock = threading.Lock()

    def trim(self) -> None:
        """Free memory that has been unused for long."""
        with self._lock:
            before = time.monotonic() - _IDLE_S
            for place, segment in enumerate(self._own):
                if segment is not None and segment.used_at < before:
                    self._own[place] = None

    def close(self) -> None:
        """Forget the segments of this rank; borrowers keep theirs."""
        with self._lock:
            self._own = [None] * SEGMENTS


class _Mapper:
    """Private mappings that need no descriptor, as `mmap` provides from Python 3.13 on."""

    def __init__(self) -> None:
        import ctypes

        self._ctypes = ctypes
        library = ctypes.CDLL(None, use_errno=True)
        self._mmap = library.mmap
        self._mmap.restype = ctypes.c_void_p
        self._mmap.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
            ctypes.c_long,
        ]  # fmt: skip
        self._munmap = library.munmap
        self._munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def map(self, descriptor: int, size: int) -> Any:
        """Map memory copy on write; the caller must unmap the buffer after use."""
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        address = self._mmap(None, size, protection, mmap.MAP_PRIVATE, descriptor, 0)
        if address in (None, self._ctypes.c_void_p(-1).value):
            number = self._ctypes.get_errno()
            raise OSError(number, f"{size} bytes of shared memory: {os.strerror(number)}")
        return (self._ctypes.c_ubyte * size).from_address(address)

    def address_of(self, memory: Any) -> int:
        """Return the address of a buffer."""
        address: int = self._ctypes.addressof(memory)
        return address

    def unmap(self, address: int, size: int) -> None:
        """Remove a mapping."""
        self._munmap(address, size)


def _if_there(reference: weakref.ref[Segments], act: Any) -> None:
    segments = reference()
    if segments is not None:
        act(segments)


def send_parts(
    channel: Channel,
    kind: int,
    meta: dict[str, Any],
    parts: Mapping[int, Outgoing],
    *,
    deadline: float,
) -> None:
    """Send a frame with values.

    Args:
        channel: The connection.
        kind: Kind of the frame.
        meta: Its other contents.
        parts: Index in the group -> value.
        deadline: On the clock of ``time.monotonic``.

    Raises:
        LinkLost: If the other end is gone.
    """
    pieces: list[Any] = []
    descriptors: list[int] = []
    table: list[tuple[int, ...]] = []
    for index, part in parts.items():
        if isinstance(part, Shared):
            descriptors.append(part.descriptor)
            table.append((index, part.size, part.lease, part.generation))
        elif isinstance(part, Packed):
            pieces += part.pieces
            table.append((index, part.size))
        else:
            pieces.append(part.data)
            table.append((index, part.data.nbytes))
    channel.send(kind, {**meta, "parts": table}, pieces, descriptors, deadline=deadline)


def read_parts(frame: Frame, segments: Segments | None) -> dict[int, Inline | Shared]:
    """Return the values in a frame, by index in the group."""
    parts: dict[int, Inline | Shared] = {}
    start = 0
    descriptors = list(frame.descriptors)
    for index, size, *lent in frame.meta.get("parts", ()):
        if lent and segments is not None:
            parts[index] = Shared(segments, descriptors.pop(0), size, *lent)
        else:
            parts[index] = Inline(frame.body[start : start + size], is_private=True)
            start += size
    for descriptor in descriptors:
        os.close(descriptor)
    return parts
