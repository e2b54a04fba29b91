"""HTTP requests with the standard library, and raw connections."""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import Any

__all__ = ["Answer", "PlainHttp", "connect_to", "read_to_the_end"]


@dataclasses.dataclass(frozen=True)
class Answer:
    """Response from a server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Response body as a JSON value."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """Message of an error response."""
        return str(self.json["error"]["message"])


class PlainHttp:
    """Client of one server with one connection, which it reopens after a failure."""

    def __init__(self, url: str, *, context: ssl.SSLContext | None = None) -> None:
        parts = urllib.parse.urlsplit(url)
        assert parts.hostname is not None
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            self._connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=60, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request. A body that is not bytes is sent as JSON."""
        all_headers = dict(headers or {})
        if token:
            all_headers["Authorization"] = f"Bearer {token}"
        if body is not None and not isinstance(body, bytes):
            all_headers.setdefault("Content-Type", "application/json")
            body = json.dumps(body).encode()
        try:
            self._connection.request(method, path, body, all_headers)
            answer = self._connection.getresponse()
            return Answer(answer.status, dict(answer.headers.items()), answer.read())
        except (http.client.HTTPException, OSError):
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def connect_to(url: str) -> socket.socket:
    """Open a raw connection to a server, for invalid requests."""
    parts = urllib.parse.urlsplit(url)
    assert parts.port is not None
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


def read_to_the_end(connection: socket.socket) -> bytes:
    """Receive data until the other side closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)
