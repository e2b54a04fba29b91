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

__all__ = ["LARGE", "Inline", "Packed", "load", "pack"]

LARGE = 1 << 16  # from this size on, separate shared memory beats copying through socket or board
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
class Inline:
    """A value of another rank in memory of this process.

    Attributes:
        data: The bytes.
        is_private: Whether the memory is exclusive, so that loaded arrays may refer to it.
    """

    data: memoryview
    is_private: bool

    def load(self) -> Any:
        """Return the value. Its arrays are writable and belong to the caller alone."""
        return load(self.data, is_private=self.is_private)

    def close(self) -> None:
        """Do nothing: the memory is freed with its last reference."""


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
        return Packed([_PLAIN.pack(1, len(pickled)), pickled], _PLAIN.size + len(pickled))
    views = [memoryview(pickled), *(buffer.raw() for buffer in buffers)]
    sizes = [view.nbytes for view in views]
    start = _COUNT.size * (len(views) + 1)
    pieces: list[Any] = [b"".join(_COUNT.pack(number) for number in (len(sizes), *sizes))]
    for view in views:
        aligned = _aligned(start)
        pieces += [bytes(aligned - start), view]
        start = aligned + view.nbytes
    return Packed(pieces, start)


def load(data: memoryview, *, is_private: bool) -> Any:
    """Return a value that was packed.

    Args:
        data: All of its bytes.
        is_private: Whether the value's arrays may refer to this memory; otherwise it is copied.
    """
    count, size = _PLAIN.unpack_from(data)
    if count == 1:
        return pickle.loads(data[_PLAIN.size : _PLAIN.size + size])  # noqa: S301  (proven ranks)
    if not is_private:
        data = memoryview(bytearray(data))
    start = _COUNT.size * (count + 1)
    views = []
    for i in range(count):
        start = _aligned(start)
        (size,) = _COUNT.unpack_from(data, _COUNT.size * (i + 1))
        views.append(data[start : start + size])
        start += size
    return pickle.loads(views[0], buffers=views[1:])  # noqa: S301  (proven ranks only)


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT
