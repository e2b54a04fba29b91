"""Serialize values of the user. The only module that pickles; see docs/distributed.md.

Only frames of ranks that have proven to belong to the job reach it. The contents of arrays stay
outside the pickle (protocol 5).
"""

from __future__ import annotations

import dataclasses
import pickle  # between proven ranks only: the handshake precedes the first frame
import struct
from typing import Any

from detcore.contract.errors import DistributedError, describe

_ALIGNMENT = 64
_COUNT = struct.Struct("<Q")
_PLAIN = struct.Struct("<QQ")


@dataclasses.dataclass(slots=True)
class Packed:
    """A value of this rank as bytes.

    Attributes:
        pieces: Consecutive buffers; they refer to the value's own arrays.
        size: Their total length in bytes.
    """

    pieces: list[Any]
    size: int


@dataclasses.dataclass(slots=True)
class Received:
    """A value of another rank in memory of this process.

    Attributes:
        data: The bytes, in memory that belongs to this value alone.
    """

    data: memoryview

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.data.nbytes

    def load(self) -> Any:
        """Return the value. Its arrays are writable, refer to `data` and belong to the caller."""
        count, size = _PLAIN.unpack_from(self.data)
        if count == 1:
            pickled = self.data[_PLAIN.size : _PLAIN.size + size]
            return pickle.loads(pickled)  # noqa: S301  (proven ranks only)
        start = _COUNT.size * (count + 1)
        views = []
        for i in range(count):
            start = _aligned(start)
            (size,) = _COUNT.unpack_from(self.data, _COUNT.size * (i + 1))
            views.append(self.data[start : start + size])
            start += size
        return pickle.loads(views[0], buffers=views[1:])  # noqa: S301  (proven ranks only)


def pack(value: object) -> Packed:
    """Turn a value into pieces; the pieces refer to the value's own arrays.

    Raises:
        DistributedError: If the value cannot be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise DistributedError(
            f"{describe(value)} cannot be sent to other workers: {error}.\n"
            "Only values that can be pickled can be sent; send the parts that can."
        ) from error
    if not buffers:
        return _pad([_PLAIN.pack(1, len(pickled)), pickled], _PLAIN.size + len(pickled))
    views = [memoryview(pickled), *(buffer.raw() for buffer in buffers)]
    sizes = [view.nbytes for view in views]
    start = _COUNT.size * (len(views) + 1)
    pieces: list[Any] = [b"".join(_COUNT.pack(number) for number in (len(sizes), *sizes))]
    for view in views:
        aligned = _aligned(start)
        pieces += [bytes(aligned - start), view]
        start = aligned + view.nbytes
    return _pad(pieces, start)


def _pad(pieces: list[Any], size: int) -> Packed:
    """Add zeros, so that the arrays of a value that follows in the same frame are aligned, too."""
    end = _aligned(size)
    return Packed([*pieces, bytes(end - size)], end)


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT
