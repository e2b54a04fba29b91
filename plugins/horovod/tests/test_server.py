"""The key-value server, with Horovod's requests and with invalid requests."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest

from detcore_horovod.rendezvous_server import MemoryStore, RendezvousServer, _Server, is_own_peer


@pytest.fixture
def server() -> Iterator[RendezvousServer]:
    server = RendezvousServer(MemoryStore({"global": 2}), max_workers=2)
    yield server
    server.close()


def send_request(
    server: RendezvousServer, method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path, body)
    response = connection.getresponse()
    result = response.status, response.read()
    connection.close()
    return result


def test_get_returns_value_after_put(server: RendezvousServer) -> None:
    assert send_request(server, "GET", "/global/0") == (404, b"")
    assert send_request(server, "PUT", "/global/0", b"\x00address\xff") == (200, b"")
    assert send_request(server, "GET", "/global/0") == (200, b"\x00address\xff")
    assert send_request(server, "GET", "/local/0") == (404, b"")


def test_scope_is_emptied_when_all_ranks_left(server: RendezvousServer) -> None:
    for rank in "01":
        send_request(server, "PUT", f"/global/{rank}", b"old")
    for _ in range(2):
        send_request(server, "DELETE", "/global/0")
    assert send_request(server, "GET", "/global/1")[0] == 200
    send_request(server, "DELETE", "/global/1")
    assert send_request(server, "GET", "/global/0")[0] == 404
    send_request(server, "PUT", "/other/key", b"value")
    send_request(server, "DELETE", "/other/key")
    assert send_request(server, "GET", "/other/key")[0] == 404


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET /global HTTP/1.0\r\n\r\n", 400),
        (b"GET /a/b/c HTTP/1.0\r\n\r\n", 400),
        (b"PUT /global/0 HTTP/1.0\r\n\r\n", 411),
        (b"PUT /global/0 HTTP/1.0\r\nContent-Length: -5\r\n\r\n", 411),
        (b"PUT /global/0 HTTP/1.0\r\nContent-Length: 99999999999999\r\n\r\n", 413),
        (b"POST /global/0 HTTP/1.0\r\n\r\n", 501),
        (b"\x16\x03 garbage HTTP/1.0\r\n\r\n", 501),
    ],
)
def test_invalid_requests_are_rejected(
    server: RendezvousServer, request_text: bytes, status: int
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(request_text)
        response = connection.makefile("rb").read()
    assert str(status).encode() in response.splitlines()[0]
    assert send_request(server, "GET", "/global/0")[0] == 404


def test_server_listens_only_on_loopback(server: RendezvousServer) -> None:
    assert server._server.server_address[0] == "127.0.0.1"


def test_peer_is_identified_by_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as client:
        accepted, address = listener.accept()
        with accepted:
            assert is_own_peer(address, accepted.getsockname())
            assert not is_own_peer((address[0], 1), accepted.getsockname())
            assert client.getpeername() == listener.getsockname()
            uid = os.getuid() + 1
            monkeypatch.setattr(os, "getuid", lambda: uid)
            assert not is_own_peer(address, accepted.getsockname())


def test_other_users_get_no_answer(server: RendezvousServer) -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    code = (
        "import socket, sys\n"
        "peer = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "peer.sendall(b'PUT /global/0 HTTP/1.0\\r\\nContent-Length: 1\\r\\n\\r\\nx')\n"
        "try: print(peer.recv(100))\n"
        "except ConnectionError: print(b'')\n"
    )
    result = subprocess.run(
        ["/usr/bin/env", "python3", "-c", code, str(server.port)],
        user=65534, capture_output=True, text=True, check=True, cwd="/",
        env={"PATH": "/usr/bin:/usr/local/bin"},
    )  # fmt: skip
    assert result.stdout == "b''\n"
    assert send_request(server, "GET", "/global/0")[0] == 404


def test_memory_and_threads_are_bounded(server: RendezvousServer) -> None:
    value = bytes(1 << 20)
    statuses = [send_request(server, "PUT", f"/global/{key}", value)[0] for key in range(70)]
    assert statuses.count(200) == 64
    assert set(statuses) == {200, 507}
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]
    # Silent connections are dropped after their timeout. Then the server answers again.
    assert send_request(server, "GET", "/global/0")[0] == 200
    assert threading.active_count() - before <= 20
    for connection in silent:
        connection.close()


@pytest.mark.timeout(30)
def test_failed_thread_start_frees_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse_start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse_start)  # root has no thread limit
    with _Server(("127.0.0.1", 0), MemoryStore({}), connections=1) as server:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                server.process_request(None, ("127.0.0.1", 1))
