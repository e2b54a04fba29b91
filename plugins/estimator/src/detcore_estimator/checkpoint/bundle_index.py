"""Validate the index of a TensorFlow checkpoint before TensorFlow reads it.

TensorFlow ends the whole process if an index contains impossible shapes (2.15 to 2.21).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import message  # type: ignore[import-untyped]  # no types
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import tensor_bundle_pb2

# The format is that of LevelDB's tables, https://github.com/google/leveldb/blob/main/doc/
_FOOTER, _TRAILER = 48, 5
_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_MAX_DIMENSIONS, _MAX_ELEMENTS = 254, 2**63 - 1


def index_fault(path: Path) -> str | None:
    """Return the fault of an index; None if TensorFlow may read it.

    Args:
        path: ``<prefix>.index``.
    """
    content = path.read_bytes()
    try:
        for key, value in _entries(content):
            if key:
                _check_entry(key, value)
            else:
                tensor_bundle_pb2.BundleHeaderProto.FromString(value)
    except (ValueError, IndexError, struct.error, message.DecodeError) as error:
        return str(error) or "it is cut off"
    return None


def _check_entry(key: bytes, value: bytes) -> None:
    entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
    name = key.decode(errors="replace")
    sizes = [dimension.size for dimension in entry.shape.dim]
    elements = 1
    for size in sizes:
        elements *= max(size, 1)
    if any(size < 0 for size in sizes) or elements > _MAX_ELEMENTS:
        raise ValueError(f"the tensor {name!r} has the shape {sizes[:8]}, which cannot be")
    if len(sizes) > _MAX_DIMENSIONS:
        raise ValueError(f"the tensor {name!r} has {len(sizes)} dimensions, which cannot be")
    if entry.dtype not in types_pb2.DataType.values():
        raise ValueError(f"the tensor {name!r} has the type number {entry.dtype}, which is none")
    if entry.size < 0 or entry.offset < 0:
        raise ValueError(f"the tensor {name!r} has {entry.size} bytes from {entry.offset} on")


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of an index, by key."""
    if len(content) < _FOOTER or not content.endswith(_MAGIC):
        raise ValueError("it is not the index of a checkpoint, or it is cut off")
    footer = content[-_FOOTER:]
    place = 0
    for _ in range(2):  # where the filter is, which is not used
        _, place = _number(footer, place)
    for _, handle in _block(content, footer[place:]):
        yield from _block(content, handle)


def _block(content: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of the block that a handle names."""
    start, used = _number(handle, 0)
    size, _ = _number(handle, used)
    block = content[start : start + size]
    if len(block) < size or start + size + _TRAILER > len(content):
        raise ValueError("it tells of bytes that it does not have")
    if content[start + size] != 0:
        raise ValueError("it is compressed, which TensorFlow's own never are")
    (restarts,) = struct.unpack("<I", block[-4:])
    end, place, key = size - 4 * (restarts + 1), 0, b""
    while place < end:
        shared, place = _number(block, place)
        added, place = _number(block, place)
        length, place = _number(block, place)
        key = key[:shared] + block[place : place + added]
        value = block[place + added : place + added + length]
        place += added + length
        if place > end:
            raise ValueError("it is cut off")
        yield key, value


def _number(data: bytes, place: int) -> tuple[int, int]:
    """Return a number of variable length, and the position of the next byte."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("it has a number that is too long")
