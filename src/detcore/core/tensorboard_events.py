"""Write scalars to TensorBoard event files, without TensorBoard.

An event file is a sequence of records (length, masked CRC of the length, data, masked CRC of the
data), each a serialised ``Event`` message. Source: tensorflow/core/lib/io/record_writer.h,
tensorflow/core/util/event.proto and framework/summary.proto of TensorFlow 2.15.
"""

from __future__ import annotations

import array
import math
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from detcore.contract.errors import StorageError, StorageFullError


class EventFile:
    """One event file, created at the first report; each report is one write."""

    def __init__(self, folder: Path) -> None:
        """Set the directory; the file is created later.

        Args:
            folder: Directory of the trial's event files.
        """
        self._folder = folder
        self._fd: int | None = None
        self._table = _build_crc_table()

    def add_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Append one event with all scalars.

        Raises:
            StorageFullError: If the disk is full.
            StorageError: If the file cannot be written.
        """
        event = _encode_double(1, time.time()) + _encode_varint_field(2, step)
        event += _encode_bytes_field(
            5, b"".join([self._encode_value(tag, x) for tag, x in scalars.items()])
        )
        try:
            if self._fd is None:
                self._fd = self._open_file()
            self._append_record(self._fd, event)
        except OSError as error:
            from detcore.storage import is_storage_full

            kind = StorageFullError if is_storage_full(error) else StorageError
            raise kind(
                f"the event file in {self._folder} cannot be written: {error}.\n"
                "Free some space, or switch event files off: "
                "core.init(tensorboard_mode=TensorboardMode.MANUAL)"
            ) from error

    def close(self) -> None:
        """Close the file, if it was created."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open_file(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.detcore"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self._folder / name, flags, 0o644)
        self._append_record(fd, _encode_double(1, now) + _encode_bytes_field(3, b"brain.Event:2"))
        return fd

    def _append_record(self, fd: int, event: bytes) -> None:
        """Append a record. On an error, remove its part, which would corrupt later records."""
        record = remainder = self._encode_record(event)
        try:
            while remainder:
                remainder = remainder[os.write(fd, remainder) :]
        except OSError:
            os.ftruncate(fd, os.fstat(fd).st_size - len(record) + len(remainder))
            raise

    def _encode_value(self, tag: str, number: float) -> bytes:
        """Return an encoded Summary.Value with a tag and a simple value (32-bit float)."""
        try:
            simple = struct.pack("<f", number)
        except OverflowError:
            simple = struct.pack("<f", math.copysign(math.inf, number))
        value = (
            _encode_bytes_field(1, tag.encode(errors="replace"))
            + _encode_varint(2 << 3 | 5)
            + simple
        )
        return _encode_bytes_field(1, value)

    def _encode_record(self, data: bytes) -> bytes:
        length = struct.pack("<Q", len(data))
        return length + self._compute_masked_crc(length) + data + self._compute_masked_crc(data)

    def _compute_masked_crc(self, data: bytes) -> bytes:
        crc = 0xFFFFFFFF
        for byte in data:
            crc = self._table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
        crc ^= 0xFFFFFFFF
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _build_crc_table() -> array.array[int]:
    """Return the reflected CRC-32C (Castagnoli) table as a compact array."""
    table = [0]
    for bit in range(8):
        crc = 1 << bit
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table += [entry ^ crc for entry in table]
    return array.array("I", table)


def _encode_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _encode_varint_field(field: int, number: int) -> bytes:
    return _encode_varint(field << 3) + _encode_varint(number)


def _encode_double(field: int, number: float) -> bytes:
    return _encode_varint(field << 3 | 1) + struct.pack("<d", number)


def _encode_bytes_field(field: int, data: bytes) -> bytes:
    return _encode_varint(field << 3 | 2) + _encode_varint(len(data)) + data
