"""Values of the user as bytes, and back. The one module that pickles; see docs/distributed.md.

Only frames of ranks that have proven to belong to the job reach it. The contents of arrays stay
outside of the pickle (protocol 5), and large ones go from process to process of one machine in
anonymous shared memory that is written once and then sealed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle  # between proven ranks only: the handshake comes before the first frame
import struct
from collections.abc import Sequence
from typing import Any

from detcore.errors import DistributedError, describe

__all__ = ["LARGE", "Packed", "pack", "packed_from_bytes", "packed_from_descriptor"]

LARGE = 1 << 16  # from here on shared memory beats a copy through a socket
_ALIGNMENT = 64
_COUNT = struct.Struct("<Q")


class Packed:
    """A value as bytes, in one of three forms: pieces to send, bytes received, shared memory.

    Attributes:
        size: Length in bytes.
    """

    def __init__(self, pieces: Sequence[Any], size: int, descriptor: int | None = None) -> None:
        self.size = size
        self._pieces = list(pieces)
        self._descriptor = descriptor

    def pieces(self) -> list[Any]:
        """Return the buffers that follow each other on the wire."""
        if not self._pieces and self._descriptor is not None:
            self._pieces = [memoryview(self._map(self._descriptor))]
        return self._pieces

    def descriptor(self) -> int | None:
        """Return shared memory that holds the value; None where the system has none.

        The descriptor belongs to this object.
        """
        if self._descriptor is None and hasattr(os, "memfd_create"):
            self._descriptor = _shared(self._pieces)
        return self._descriptor

    def load(self) -> Any:
        """Return the value. Its arrays are writable and belong to the caller alone."""
        pieces = self.pieces()
        data = memoryview(pieces[0]) if len(pieces) == 1 else memoryview(b"".join(pieces))
        (count,) = _COUNT.unpack_from(data)
        start = _COUNT.size * (count + 1)
        sizes = [_COUNT.unpack_from(data, _COUNT.size * (i + 1))[0] for i in range(count)]
        views = []
        for size in sizes:
            views.append(data[start : start + size])
            start = _aligned(start + size)
        return pickle.loads(views[0], buffers=views[1:])  # noqa: S301  (proven ranks only)

    def _map(self, descriptor: int) -> mmap.mmap:
        if os.fstat(descriptor).st_size < self.size:
            raise ValueError("shared memory is shorter than announced")
        # Copy on write: what one rank changes, no other sees.
        return mmap.mmap(descriptor, self.size, access=mmap.ACCESS_COPY)

    def close(self) -> None:
        """Let go of the shared memory; values that were loaded keep it alive."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = None
        self._pieces = []


def pack(value: object) -> Packed:
    """Turn a value into pieces; the pieces refer to the value's own arrays.

    Raises:
        DistributedError: If the value cannot be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise DistributedError(
            f"{describe(value)} cannot be sent to other workers: {error}.\n"
            "Only what can be pickled can be; send the parts that can."
        ) from error
    views = [memoryview(pickled), *(buffer.raw() for buffer in buffers)]
    sizes = [view.nbytes for view in views]
    start = _COUNT.size * (len(views) + 1)
    pieces: list[Any] = [b"".join(_COUNT.pack(number) for number in (len(sizes), *sizes))]
    for view in views:
        end = start + view.nbytes
        pieces.append(view)
        start = _aligned(end)
        pieces.append(bytes(start - end))
    return Packed(pieces, start)


def packed_from_bytes(body: memoryview) -> Packed:
    """Wrap bytes that were received."""
    return Packed([body], body.nbytes)


def packed_from_descriptor(descriptor: int, size: int) -> Packed:
    """Wrap shared memory that was received, and own the descriptor."""
    return Packed([], size, descriptor)


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def _shared(pieces: Sequence[Any]) -> int:
    descriptor = os.memfd_create("detcore", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for piece in pieces:
            rest = memoryview(piece).cast("B")
            while rest:
                rest = rest[os.write(descriptor, rest[: 1 << 30]) :]
        _seal(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _seal(descriptor: int) -> None:
    """Forbid to change or shrink the memory, on which a reader would die with SIGBUS."""
    import fcntl

    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
