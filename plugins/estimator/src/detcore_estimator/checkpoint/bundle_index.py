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

# The format of LevelDB tables, https://github.com/google/leveldb/blob/main/doc/
_FOOTER, _TRAILER = 48, 5
_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_MAX_DIMENSIONS, _MAX_ELEMENTS = 254, 2**63 - 1


def find_index_fault(path: Path) -> str | None:
    """Return the problem of an index; None if TensorFlow may read it.

    Args:
        path: ``<prefix>.index``.
    """
    content = path.read_bytes()
    try:
        for key, value in _read_entries(content):
            if key:
                _check_entry(key, value)
            else:
                tensor_bundle_pb2.BundleHeaderProto.FromString(value)
    except (ValueError, IndexError, struct.error, message.DecodeError) as error:
        return str(error) or "it is truncated"
    return None


def _check_entry(key: bytes, value: bytes) -> None:
    entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
    name = key.decode(errors="replace")
    sizes = [dimension.size for dimension in entry.shape.dim]
    elements = 1
    for size in sizes:
        elements *= max(size, 1)
    if any(size < 0 for size in sizes) or elements > _MAX_ELEMENTS:
        raise ValueError(f"the tensor {name!r} has the impossible shape {sizes[:8]}")
    if len(sizes) > _MAX_DIMENSIONS:
        raise ValueError(
            f"the tensor {name!r} has an impossible number of dimensions: {len(sizes)}"
        )
    if entry.dtype not in types_pb2.DataType.values():
        raise ValueError(f"the tensor {name!r} has the unknown type number {entry.dtype}")
    if entry.size < 0 or entry.offset < 0:
        raise ValueError(f"the tensor {name!r} has {entry.size} bytes at offset {entry.offset}")


def _read_entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of an index, by key."""
    if len(content) < _FOOTER or not content.endswith(_MAGIC):
        raise ValueError("it is not the index of a checkpoint, or it is truncated")
    footer = content[-_FOOTER:]
    place = 0
    for _ in range(2):  # offset and size of the filter, which is not used
        _, place = _read_number(footer, place)
    for _, handle in _read_block(content, footer[place:]):
        yield from _read_block(content, handle)


def _read_block(content: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of the block that a handle refers to."""
    start, used = _read_number(handle, 0)
    size, _ = _read_number(handle, used)
    block = content[start : start + size]
    if len(block) < size or start + size + _TRAILER > len(content):
        raise ValueError("it refers to bytes beyond its end")
    if content[start + size] != 0:
        raise ValueError("it is compressed, but TensorFlow never compresses an index")
    (restarts,) = struct.unpack("<I", block[-4:])
    end, place, key = size - 4 * (restarts + 1), 0, b""
    while place < end:
        shared, place = _read_number(block, place)
        added, place = _read_number(block, place)
        length, place = _read_number(block, place)
        key = key[:shared] + block[place : place + added]
        value = block[place + added : place + added + length]
        place += added + length
        if place > end:
            raise ValueError("it is truncated")
        yield key, value


def _read_number(data: bytes, place: int) -> tuple[int, int]:
    """Return a variable-length number, and the position of the next byte."""
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
