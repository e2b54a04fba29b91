"""Send frames on a socket between two authenticated ranks.

A frame is a header, a small JSON object and a body of raw bytes. Over TCP, keyed checksums follow
the header and the whole frame. They include the number of the frame, so that frames cannot be
inserted, repeated or changed on the way. Lengths are used only after their checksum was verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import select
import socket
import struct
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

WELCOME, CALL, RESULT, ERROR, LEAVE, ASK, ANSWER = range(2, 9)

_HEADER = struct.Struct("!4sBIQ")
_MAGIC = b"DcC1"
_MAX_META = 1 << 24
_READ = 1 << 16
_MAC_SIZE = 32
_POLL_INTERVAL_S = 3600.0
_MAX_PIECES = 512  # below IOV_MAX


class LinkLostError(Exception):
    """Raised when the other end of a channel has exited or violates the protocol."""


class Frame(NamedTuple):
    """One message. The receiver owns the body and may write to it."""

    kind: int
    meta: dict[str, Any]
    body: memoryview


class RankChannel:
    """Sends and receives frames on a connected socket. Reads never block.

    Not thread-safe.

    Args:
        connection: A connected stream socket. The channel takes ownership of it.
        keys: Keys for the checksums of sent and of received data; unused on Unix sockets.
    """

    def __init__(self, connection: socket.socket, keys: tuple[bytes, bytes] | None = None) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._keys = None
        if connection.family != socket.AF_UNIX:
            _tune_socket(connection)
            self._keys = keys
        self._sent = 0
        self._received = 0
        self._buffer = bytearray()
        self._frames = self._read_frames()
        close_in_forks(connection)

    def fileno(self) -> int:
        """Return the socket's descriptor, for ``poll``."""
        return self.socket.fileno()

    @property
    def has_buffered(self) -> bool:
        """Whether bytes of the next frame are buffered, where ``poll`` does not see them."""
        return bool(self._buffer)

    def receive(self) -> Frame | None:
        """Return the next frame if it is complete, or None.

        Raises:
            LinkLostError: If the other end has exited or violates the protocol.
        """
        try:
            return next(self._frames)
        except (OSError, StopIteration, ValueError, MemoryError, OverflowError) as error:
            raise LinkLostError(str(error) or "the connection has ended") from error

    def wait(self, deadline: float) -> Frame | None:
        """Return the next frame, or None when the deadline (``time.monotonic``) passes."""
        poller = select.poll()
        poller.register(self.socket, select.POLLIN)
        while (frame := self.receive()) is None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            poller.poll(min(remaining, _POLL_INTERVAL_S) * 1000)
        return frame

    def send(
        self,
        kind: int,
        meta: dict[str, Any],
        pieces: Sequence[Any] = (),
        *,
        deadline: float,
    ) -> None:
        """Send a frame; stop early when the other end sends a message in the meantime.

        Such a message reports a failure, and the caller reads it next.

        Raises:
            LinkLostError: If the other end has exited, or does not read before the deadline.
        """
        text = json.dumps(meta, separators=(",", ":")).encode()
        views = [memoryview(piece).cast("B") for piece in pieces]
        size = sum(view.nbytes for view in views)
        header = _HEADER.pack(_MAGIC, kind, len(text), size)
        parts = [memoryview(header), memoryview(text), *(view for view in views if view.nbytes)]
        if self._keys is not None:
            frame_checksum = _compute_checksum(self._keys[0], b"frame", self._sent, parts)
            parts.append(memoryview(frame_checksum))
            parts.insert(
                1, memoryview(_compute_checksum(self._keys[0], b"header", self._sent, [header]))
            )
        self._sent += 1
        try:
            self._send_all(parts, deadline)
        except (BrokenPipeError, ConnectionError, OSError) as error:
            raise LinkLostError(str(error)) from error

    def _send_all(self, parts: list[memoryview], deadline: float) -> None:
        poller: select.poll | None = None
        while parts:
            try:
                count = self.socket.sendmsg(parts[:_MAX_PIECES])
            except BlockingIOError:
                if poller is None:
                    poller = select.poll()
                    poller.register(self.socket, select.POLLOUT | select.POLLIN)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise LinkLostError("it does not accept more bytes") from None
                events = poller.poll(min(remaining, 1.0) * 1000)
                if events and not events[0][1] & select.POLLOUT and events[0][1] & select.POLLIN:
                    return
                continue
            while parts and count >= parts[0].nbytes:
                count -= parts.pop(0).nbytes
            if count:
                parts[0] = parts[0][count:]

    def _read_frames(self) -> Iterator[Frame | None]:
        """Yield frames, and None while bytes are missing."""
        buffer = self._buffer
        while True:
            while len(buffer) < _HEADER.size:
                if not self._fill_buffer():
                    yield None
            header = bytes(buffer[: _HEADER.size])
            magic, kind, meta_size, body_size = _HEADER.unpack(header)
            if magic != _MAGIC or meta_size > _MAX_META:
                raise LinkLostError("it sent an invalid frame")
            del buffer[: _HEADER.size]
            if self._keys is not None:  # before allocating memory for the body
                yield from self._verify_checksum(b"header", [header])
            while len(buffer) < meta_size:
                if not self._fill_buffer():
                    yield None
            text = bytes(buffer[:meta_size])
            body = bytearray(body_size)
            num_buffered = min(len(buffer) - meta_size, body_size)
            body[:num_buffered] = memoryview(buffer)[meta_size : meta_size + num_buffered].tobytes()
            del buffer[: meta_size + num_buffered]
            remaining = memoryview(body)[num_buffered:]
            while remaining:
                size = self._receive_into(remaining)
                if not size:
                    yield None
                remaining = remaining[size:]
            if self._keys is not None:
                yield from self._verify_checksum(b"frame", [header, text, body])
            self._received += 1
            yield Frame(kind, json.loads(text), memoryview(body))

    def _verify_checksum(self, purpose: bytes, parts: Sequence[Any]) -> Iterator[None]:
        """Verify the next checksum; yield while bytes are missing."""
        assert self._keys is not None
        while len(self._buffer) < _MAC_SIZE:
            if not self._fill_buffer():
                yield None
        expected = _compute_checksum(self._keys[1], purpose, self._received, parts)
        if not hmac.compare_digest(expected, bytes(self._buffer[:_MAC_SIZE])):
            raise LinkLostError("a frame was changed on its way")
        del self._buffer[:_MAC_SIZE]

    def _fill_buffer(self) -> bool:
        """Append received bytes to the buffer, and return whether there were any."""
        try:
            data = self.socket.recv(_READ)
        except BlockingIOError:
            return False
        if not data:
            raise LinkLostError("the connection has ended")
        self._buffer += data
        return True

    def _receive_into(self, buffer: memoryview) -> int:
        try:
            size = self.socket.recv_into(buffer)
        except BlockingIOError:
            return 0
        if not size:
            raise LinkLostError("the connection has ended")
        return size

    def close(self) -> None:
        """Close the socket; idempotent."""
        self.socket.close()


def _compute_checksum(key: bytes, purpose: bytes, number: int, parts: Sequence[Any]) -> bytes:
    count = number.to_bytes(8, "big")
    digest = hashlib.blake2b(count, key=key, digest_size=_MAC_SIZE, person=purpose)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _tune_socket(connection: socket.socket) -> None:
    """Send small frames immediately, and detect the loss of a machine within seconds."""
    options = (("TCP_NODELAY", 1), ("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 5))
    for name, value in options:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # the same while data is in flight
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15_000)


def close_in_forks(connection: socket.socket) -> None:
    """Close the child's copy of a socket after every fork.

    An open copy would hide the death of this process from the other end.
    """
    reference = weakref.ref(connection)

    def close() -> None:
        copy = reference()
        if copy is not None:
            with contextlib.suppress(OSError):
                copy.close()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=close)
