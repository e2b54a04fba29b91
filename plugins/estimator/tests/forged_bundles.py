"""Write indexes of TensorFlow checkpoints with any content and correct checksums."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from tensorflow.core.protobuf import tensor_bundle_pb2

__all__ = ["FLOAT", "STRING", "index_entry", "index_header", "write_bundle"]

FLOAT, STRING = 1, 7
_MAGIC = 0xDB4775248B80FB57


def index_header(num_shards: int = 1) -> bytes:
    """Return the entry that every index begins with."""
    message = tensor_bundle_pb2.BundleHeaderProto(num_shards=num_shards)
    message.version.producer = 1
    return bytes(message.SerializeToString())


def index_entry(
    shape: list[int], *, dtype: int = FLOAT, size: int, offset: int = 0, data: bytes = b""
) -> bytes:
    """Return an index's entry for a tensor. The checksum is that of `data`."""
    message = tensor_bundle_pb2.BundleEntryProto(
        dtype=dtype, offset=offset, size=size, crc32c=_masked_crc32c(data)
    )
    for dimension in shape:
        message.shape.dim.add(size=dimension)
    return bytes(message.SerializeToString())


def write_bundle(prefix: Path, entries: Mapping[str, bytes], data: bytes) -> None:
    """Write an index and one data file.

    Args:
        prefix: Prefix of the file names.
        entries: Entries of the index by tensor. `header` is added if it is missing.
        data: Content of the data file.
    """
    table = {"": index_header(), **entries}
    content = _block([(name.encode(), table[name]) for name in sorted(table)])
    nothing = _block([])
    first = (0, len(content) - 5)
    second = (len(content), len(nothing) - 5)
    index = _block([(b"\xff", _handle(first))])
    third = (len(content) + len(nothing), len(index) - 5)
    footer = (_handle(second) + _handle(third)).ljust(40, b"\0") + struct.pack("<Q", _MAGIC)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(f"{prefix.name}.index").write_bytes(content + nothing + index + footer)
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)


def _block(entries: list[tuple[bytes, bytes]]) -> bytes:
    body = b"".join(
        _varint(0) + _varint(len(key)) + _varint(len(value)) + key + value for key, value in entries
    )
    body += struct.pack("<II", 0, 1) + b"\0"  # one restart point, not compressed
    return body + struct.pack("<I", _masked_crc32c(body))


def _handle(place: tuple[int, int]) -> bytes:
    return _varint(place[0]) + _varint(place[1])


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def _masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
