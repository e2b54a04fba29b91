"""The key-value server through which Horovod's workers on one machine find each other.

Horovod's C++ code sends ``PUT``, ``GET`` and ``DELETE`` requests for ``/scope/key``, and repeats a
``GET`` until the key exists. When all ranks of a scope have deleted their keys, the scope is
emptied, so a second ``hvd.init()`` does not find the addresses of the first call.
Source: horovod 0.28.1, ``horovod/runner/http/http_server.py``.
"""

from __future__ import annotations

import http.server
import os
import socket
import struct
import threading
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from detcore.launch.nodes import RendezvousStore

_LOOPBACK = "127.0.0.1"
_CONNECTIONS = Path("/proc/net/tcp")
_LOCAL, _REMOTE, _UID = 1, 2, 7  # columns of this file
_REQUEST_TIMEOUT_S = 3.0
_MAX_VALUE_BYTES = 1 << 20
_MAX_STORE_BYTES = 64 << 20


class RendezvousServer:
    """A server on the loopback address, at a port that the system chooses.

    Args:
        store: Storage of the values, in this process or on another machine.
        max_workers: Maximum number of workers that send requests concurrently.
    """

    def __init__(self, store: RendezvousStore, *, max_workers: int) -> None:
        connections = 2 * max_workers + 16
        self._server = _Server((_LOOPBACK, 0), store, connections)
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="detcore-rendezvous",
            daemon=True,
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening. Running requests are still answered."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class MemoryStore:
    """Scopes of keys and values, in this process.

    Args:
        scope_sizes: Number of ranks in each scope. A scope is emptied when all ranks have left it.
    """

    def __init__(self, scope_sizes: Mapping[str, int]) -> None:
        self._scope_sizes = scope_sizes
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], bytes] = {}
        self._finished: dict[str, set[str]] = {}

    def get(self, scope: str, key: str) -> bytes | None:
        """Return a value, or None if it is not set yet."""
        with self._lock:
            return self._values.get((scope, key))

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Store a value, and return whether it fit into the memory limit."""
        with self._lock:
            stored_bytes = sum(map(len, self._values.values()))
            if stored_bytes + len(value) > _MAX_STORE_BYTES:
                return False
            self._values[scope, key] = value
            return True

    def delete(self, scope: str, key: str) -> None:
        """Record that a rank has left a scope."""
        with self._lock:
            if scope not in self._scope_sizes:
                self._values.pop((scope, key), None)
                return
            finished = self._finished.setdefault(scope, set())
            finished.add(key)
            if len(finished) >= self._scope_sizes[scope]:
                del self._finished[scope]
                for name in [name for name in self._values if name[0] == scope]:
                    del self._values[name]


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], store: RendezvousStore, connections: int) -> None:
        super().__init__(address, _Handler)
        self.store = store
        # Limits the number of threads. Each thread ends within its request's timeout.
        self._free_threads = threading.BoundedSemaphore(connections)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accept only processes of this user. Horovod does not authenticate."""
        return is_own_peer(client_address, request.getsockname())

    def process_request(self, request: Any, client_address: Any) -> None:
        self._free_threads.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free_threads.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free_threads.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about a broken connection, because the worker repeats its request."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        place = self._parse_path()
        if place is None:
            return
        value = self.server.store.get(*place)
        if value is None:
            self._send_answer(HTTPStatus.NOT_FOUND)
        else:
            self._send_answer(HTTPStatus.OK, value)

    def do_PUT(self) -> None:
        place = self._parse_path()
        if place is None:
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._send_answer(HTTPStatus.LENGTH_REQUIRED)
        elif int(length[:20]) > _MAX_VALUE_BYTES:
            self._send_answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            value = self.rfile.read(int(length))
            if len(value) < int(length):
                self._send_answer(HTTPStatus.BAD_REQUEST)
            elif not self.server.store.put(*place, value):
                self._send_answer(HTTPStatus.INSUFFICIENT_STORAGE)
            else:
                self._send_answer(HTTPStatus.OK)

    def do_DELETE(self) -> None:
        place = self._parse_path()
        if place is not None:
            self.server.store.delete(*place)
            self._send_answer(HTTPStatus.OK)

    def _parse_path(self) -> tuple[str, str] | None:
        parts = self.path.split("/")
        if len(parts) != 3 or parts[0]:
            self._send_answer(HTTPStatus.BAD_REQUEST)
            return None
        return parts[1], parts[2]

    def _send_answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because every worker sends many requests."""


def is_own_peer(peer: tuple[str, int], here: tuple[str, int]) -> bool:
    """Return whether a process of this user owns the other end of a TCP connection.

    Only Linux reports the owner. On other systems, the result is always True.

    Args:
        peer: IPv4 address and port of the other end, on this machine.
        here: Address and port of this end.
    """
    addresses = [_encode_address(peer), _encode_address(here)]
    try:
        lines = _CONNECTIONS.read_text().splitlines()
    except FileNotFoundError:
        return True
    rows = (line.split() for line in lines[1:])
    owner = next((row[_UID] for row in rows if [row[_LOCAL], row[_REMOTE]] == addresses), None)
    return owner == str(os.getuid())


def _encode_address(address: tuple[str, int]) -> str:
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"
