"""HTTP proxy that injects the faults of networks and busy stores."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

FAULTS = ("503", "429", "reset before", "reset after", "truncate", "delay", "throttle")
"""All faults except ``"stall"``, which only a timeout ends, and credential faults."""
REFUSALS = {
    "ExpiredToken": 403,
    "RequestTimeTooSkewed": 403,
    "AccessDenied": 403,
    "Invalid Credentials": 401,
}
"""Error codes of S3, and a message of GCS, with their status."""

_DELAY_S = 0.2
_BYTES_PER_S = 20_000_000
_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)


class FaultProxy:
    """Faults to inject, which may be changed while the proxy runs.

    Attributes:
        url: URL of the proxy.
        choose: Function from the method and target of a request to a fault or None.
        seen: Injected faults.
        expired_keys: S3 access keys that are rejected with ExpiredToken.
        on_expired: Called after each such rejection.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.choose: Callable[[str, str], str | None] = lambda method, target: None
        self.seen: list[str] = []
        self.expired_keys: set[str] = set()
        self.on_expired: Callable[[], object] = lambda: None
        self.closing = threading.Event()

    def sometimes(self, *faults: str, share: float, seed: int = 0) -> None:
        """Inject a fault into a fraction of the requests."""
        chooser = random.Random(seed)
        lock = threading.Lock()

        def choose(method: str, target: str) -> str | None:
            with lock:
                return chooser.choice(faults) if chooser.random() < share else None

        self.choose = choose

    def always(self, fault: str, *methods: str) -> None:
        """Inject a fault into all requests, or all requests with some methods."""
        self.choose = lambda method, target: fault if not methods or method in methods else None


@contextlib.contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """Run a proxy in front of a server, initially without faults."""
    host = urlsplit(upstream).netloc

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 0

        def handle(self) -> None:
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(ConnectionError, TimeoutError):
                super().handle()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

        def forward(self) -> None:
            fault = proxy.choose(self.command, self.path)
            key = re.search("Credential=(\\w+)", self.headers.get("Authorization", ""))
            if key and key[1] in proxy.expired_keys:
                fault = "ExpiredToken"
            if fault is not None:
                proxy.seen.append(fault)
            length = int(self.headers.get("Content-Length", 0))
            chunked = self.headers.get("Transfer-Encoding", "") == "chunked"
            body = self.chunks() if chunked else self.rfile.read(length)
            if len(body) < length:
                self.close_connection = True
                return
            if fault == "stall":
                proxy.closing.wait()
                self.close_connection = True
                return
            if fault == "reset before":
                self.reset()
                return
            if fault in ("503", "429"):
                self.answer(int(fault), [("Content-Type", "application/xml")], _SLOW_DOWN)
                return
            if fault in REFUSALS:
                if fault == "ExpiredToken":
                    proxy.on_expired()
                text = f"<Error><Code>{fault}</Code><Message>a test</Message></Error>"
                self.answer(REFUSALS[fault], [("Content-Type", "application/xml")], text.encode())
                return
            if fault == "delay":
                time.sleep(_DELAY_S)
            status, headers, content = self.ask(body)
            if fault == "reset after":
                self.reset()
                return
            self.answer(status, headers, content, fault)

        def chunks(self) -> bytes:
            body = b""
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            link = http.client.HTTPConnection(host, timeout=60)
            link.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in (
                    "connection",
                    "expect",
                    "transfer-encoding",
                    "content-length",
                ):
                    link.putheader(name, value)
            link.putheader("Content-Length", str(len(body)))
            link.putheader("Connection", "close")
            link.endheaders(body)
            answer = link.getresponse()
            content = answer.read()
            headers = answer.getheaders()
            link.close()
            return answer.status, headers, content

        def answer(
            self,
            status: int,
            headers: list[tuple[str, str]],
            content: bytes,
            fault: str | None = None,
        ) -> None:
            self.send_response_only(status)
            length = len(content)
            for name, value in headers:
                if name.lower() == "content-length":
                    length = int(value)  # length in the response to HEAD, which has no content
                elif name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command == "HEAD":
                return
            if fault == "truncate" and content:
                self.wfile.write(content[: len(content) // 2])
                self.close_connection = True
                return
            if fault == "throttle":
                for start in range(0, len(content), 1 << 17):
                    self.wfile.write(content[start : start + (1 << 17)])
                    time.sleep((1 << 17) / _BYTES_PER_S)
                return
            self.wfile.write(content)

        def reset(self) -> None:
            """Close with RST instead of FIN."""
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True

        do_GET = do_PUT = do_POST = do_PATCH = do_HEAD = do_DELETE = forward

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        proxy = FaultProxy(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.closing.set()
            server.shutdown()
            thread.join()
