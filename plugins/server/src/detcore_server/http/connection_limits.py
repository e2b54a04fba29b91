"""Limits on connections, and on the size and duration of requests and responses."""

from __future__ import annotations

import asyncio
import http
import json
import math
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MAX_HEAD_BYTES = 64 * 2**10
# Pipelined requests of one connection.
_MAX_PIPELINED = 100
# Time for a request head, from its first byte or the start of the connection.
_HEAD_S = 20.0
# Time for a body, and additional time per received byte.
_BODY_S = 30.0
_MIN_BYTES_PER_S = 16 * 2**10
# Time for a client to read its response.
_STUCK_S = 60.0
_WATCH_INTERVAL_S = 1.0
_TOO_LARGE = f"the request head exceeds {_MAX_HEAD_BYTES} bytes"


class _TooLargeError(httptools.HttpParserError):
    """Raised when a request head is too large or too many requests are pipelined."""


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol with limits. `detcore_server.http.body_limits` limits body sizes."""

    max_connections = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Start times of waiting for a head, for a body, and for the client to read.
        self._head_since = self._body_since = self._stuck_since = math.inf
        self._body_bytes = 0
        # Bytes outside bodies since the last head or body part: heads, chunk sizes and trailers.
        self._overhead_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection unless the limit is reached."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(503, "too many connections", b"retry-after: 1\r\n")
            return
        self._head_since = self.loop.time()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count bytes outside bodies, and start waiting for a head."""
        if self.transport.is_closing():
            return
        self._overhead_bytes += len(data)
        super().data_received(data)
        if self._overhead_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, _TOO_LARGE)
        if self._is_idle():
            self._head_since = min(self._head_since, self.loop.time())

    def on_message_begin(self) -> None:
        """Handle the start of a head."""
        super().on_message_begin()
        self._head_since = self.loop.time()
        self._overhead_bytes = 0

    def on_headers_complete(self) -> None:
        """Handle the end of a head."""
        size = sum(len(name) + len(value) for name, value in self.headers) + len(self.url)
        if size > _MAX_HEAD_BYTES:
            self._refuse(431, _TOO_LARGE)
            raise _TooLargeError("the request head is too large")
        if len(self.pipeline) >= _MAX_PIPELINED:
            self.transport.close()  # a response could be attributed to another request
            raise _TooLargeError("too many pipelined requests")
        self._head_since = math.inf
        self._body_since = self.loop.time()
        self._body_bytes = self._overhead_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count the bytes of a body."""
        self._body_bytes += len(body)
        self._overhead_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of a body."""
        self._body_since = math.inf
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Handle the end of a response. The next head may already be arriving."""
        super().on_response_complete()
        if self._head_since < math.inf:
            self._head_since = self.loop.time()

    def send_400_response(self, msg: str) -> None:
        """Respond to an invalid request, unless a response was sent."""
        if not self.transport.is_closing():
            self._refuse(400, "invalid HTTP request")

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read."""
        super().pause_writing()
        self._stuck_since = self.loop.time()

    def resume_writing(self) -> None:
        """Stop the timeout."""
        self._stuck_since = math.inf
        super().resume_writing()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        """Close the connection of a slow client, or schedule the next check."""
        now = self.loop.time()
        body_s = _BODY_S + self._body_bytes / _MIN_BYTES_PER_S
        if now - self._stuck_since > _STUCK_S:
            self.transport.abort()
        elif self.transport.is_closing():
            pass
        elif self._is_idle():
            if now - self._head_since > _HEAD_S:
                self._refuse(408, "the request is too slow")
        # While reading is paused, the server is slow and not the client.
        elif now - self._body_since > body_s and not self.flow.read_paused:
            if self.cycle.response_started:
                self.transport.close()
            else:
                self._refuse(408, "the body is too slow")
        self._timer = self.loop.call_later(_WATCH_INTERVAL_S, self._watch)

    def _refuse(self, status: int, reason: str, header: bytes = b"") -> None:
        kind = "InvalidArgumentError" if status in (400, 431) else "ServerUnavailableError"
        body = json.dumps({"error": {"type": kind, "message": reason}}).encode()
        phrase = http.HTTPStatus(status).phrase
        self.transport.write(
            b"HTTP/1.1 %d %s\r\nconnection: close\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n%s\r\n%s" % (status, phrase.encode(), len(body), header, body)
        )
        self.transport.close()


def make_protocol(max_connections: int) -> type[asyncio.Protocol]:
    """Return the connection class of a server."""
    return type("Protocol", (_Protocol,), {"max_connections": max_connections})
