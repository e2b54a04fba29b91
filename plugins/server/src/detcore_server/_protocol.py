"""Connections: limits on their number, and on the size and the speed of requests and answers."""

from __future__ import annotations

import asyncio
import http
import json
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MAX_HEAD_BYTES = 64 * 2**10
# Requests over one connection that wait for the answer to one before them.
_MAX_PIPELINED = 100
# For the head of a request, after its first byte or the beginning of the connection.
_HEAD_S = 20.0
# A body may take this long, and this much longer for each byte that has come.
_BODY_S = 30.0
_SLOWEST_BYTES_PER_S = 16 * 2**10
# For a client that does not read the answer to its request.
_STUCK_S = 60.0


_TOO_LARGE = f"the head of a request has at most {_MAX_HEAD_BYTES} bytes"


class _TooLargeError(httptools.HttpParserError):
    """The head of a request is too large, or too many requests wait."""


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol with limits; for the size of bodies see `detcore_server._limits`."""

    max_connections = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_in_body = False
        self._body_bytes = 0
        # Bytes since the last byte of a body: sizes of chunks, and headers after them.
        self._around_body_bytes = 0
        self._body_since = 0.0
        self._body_timer: asyncio.TimerHandle | None = None
        self._stuck_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(503, "too many connections", b"retry-after: 1\r\n")
            return
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        for timer in (self._head_timer, self._body_timer, self._stuck_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a head, and time it."""
        if self.transport.is_closing():
            return
        self._around_body_bytes += len(data)
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(431, _TOO_LARGE)
        elif (
            self._is_in_body
            and self._around_body_bytes > _MAX_HEAD_BYTES
            and not self.transport.is_closing()
        ):
            self._refuse(431, _TOO_LARGE)
        if self._is_in_body and self._body_timer is None:
            # Most bodies come with their head; only the others are timed.
            self._body_since = self.loop.time()
            self._body_timer = self.loop.call_later(_BODY_S, self._on_slow_body)
        if self._is_idle():
            self._time_head()

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._is_in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        """End a head, which may have come in one piece."""
        self._is_in_head = False
        size = sum(len(name) + len(value) for name, value in self.headers) + len(self.url)
        if size > _MAX_HEAD_BYTES:
            self._refuse(431, _TOO_LARGE)
            raise _TooLargeError("the head is too large")
        if len(self.pipeline) >= _MAX_PIPELINED:
            self.transport.close()  # an answer would be taken for that of another request
            raise _TooLargeError("too many requests wait")
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._is_in_body = True
        self._body_bytes = 0
        self._around_body_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count the bytes of a body."""
        self._body_bytes += len(body)
        self._around_body_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a body."""
        self._is_in_body = False
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Continue; the next head may have begun to arrive meanwhile."""
        super().on_response_complete()
        if self._is_in_head and not self.transport.is_closing():
            self._time_head()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request, unless it was answered."""
        if not self.transport.is_closing():
            self._refuse(400, "this is no HTTP request")

    def pause_writing(self) -> None:
        """Wait for a client that does not read, but not forever."""
        super().pause_writing()
        self._stuck_timer = self.loop.call_later(_STUCK_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop waiting."""
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None
        super().resume_writing()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _time_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(_HEAD_S, self._on_slow_head)

    def _on_slow_head(self) -> None:
        self._head_timer = None
        if self._is_idle() and not self.transport.is_closing():
            self._refuse(408, "the request came too slowly")

    def _on_slow_body(self) -> None:
        self._body_timer = None
        allowed_s = _BODY_S + self._body_bytes / _SLOWEST_BYTES_PER_S
        left_s = self._body_since + allowed_s - self.loop.time()
        if self.transport.is_closing() or self._is_idle():
            return  # it was answered already; see `_on_slow_head`
        if left_s > 0 or self.flow.read_paused:  # the latter: this server is slow
            self._body_timer = self.loop.call_later(max(left_s, 1.0), self._on_slow_body)
        elif self.cycle.response_started:
            self.transport.close()
        else:
            self._refuse(408, "the body came too slowly")

    def _refuse(self, status: int, reason: str, header: bytes = b"") -> None:
        kind = "InvalidArgumentError" if status in (400, 431) else "ServerAway"
        body = json.dumps({"error": {"type": kind, "message": reason}}).encode()
        phrase = http.HTTPStatus(status).phrase
        self.transport.write(
            b"HTTP/1.1 %d %s\r\nconnection: close\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n%s\r\n%s" % (status, phrase.encode(), len(body), header, body)
        )
        self.transport.close()


def make_protocol(max_connections: int) -> type[asyncio.Protocol]:
    """Return the class of the connections of one server."""
    return type("Protocol", (_Protocol,), {"max_connections": max_connections})
