"""Tests of limits on the size, speed and number of requests."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

import pytest
from job_server import wait_for
from plain_http import PlainHttp, connect_to, read_to_the_end
from running_server import PASSWORD, SLOW_TO_JUDGE, USER, RunningServer

KB = 2**10
MB = 2**20
# The default timeouts would take a minute in each test.
IMPATIENT = """
from detcore_server.http import connection_limits
connection_limits._HEAD_S = connection_limits._BODY_S = connection_limits._STUCK_S = 1.0
"""
LOGIN = json.dumps({"username": USER, "password": PASSWORD}).encode()
ME = b"GET /api/detcore/v1/me HTTP/1.1\r\nhost: x\r\n"


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Server with timeouts of one second."""
    home = tmp_path_factory.mktemp("home")
    with RunningServer(home, setup=IMPATIENT) as running:
        yield running


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Server for ten connections with the default timeouts."""
    home = tmp_path_factory.mktemp("home")
    with RunningServer(home, "--max-body-mb", "1", "--max-connections", "10") as running:
        yield running


@pytest.fixture
def http(limited: RunningServer) -> Iterator[PlainHttp]:
    http = PlainHttp(limited.url)
    yield http
    http.close()


@pytest.fixture(scope="module")
def token(limited: RunningServer) -> str:
    return limited.token()


def chunked(size: int) -> bytes:
    """Return a chunked body without its end."""
    piece = b"%x\r\n%s\r\n" % (16 * KB, b" " * 16 * KB)
    return piece * (size // (16 * KB))


def post(path: str, *headers: str) -> bytes:
    """Return the head of a request with a body."""
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def status_of(answer: bytes) -> int:
    """Return the status of a response."""
    assert answer.startswith(b"HTTP/1.1 "), answer[:100]
    return int(answer.split()[1])


def send_forever(connection: socket.socket, data: bytes) -> None:
    """Send data in a loop without reading."""
    while True:
        connection.sendall(data)


def send_all(connection: socket.socket, *parts: bytes) -> None:
    """Send each piece without reading."""
    for part in parts:
        connection.sendall(part)


def say(server: RunningServer, *parts: bytes) -> bytes:
    """Send data and return the response until the server closes the connection."""
    with connect_to(server.url) as connection:
        for part in parts:
            with contextlib.suppress(ConnectionError):
                connection.sendall(part)
        return read_to_the_end(connection)


@pytest.mark.parametrize("is_declared", [True, False])
@pytest.mark.parametrize(
    ("has_token", "size", "status"),
    [(False, 64 * KB + 1, 413), (True, 64 * KB + 1, 403), (True, MB + 1, 413)],
)
def test_body_limit_depends_on_token(
    limited: RunningServer,
    http: PlainHttp,
    token: str,
    has_token: bool,
    size: int,
    status: int,
    is_declared: bool,
) -> None:
    body = json.dumps({"username": USER, "password": "wrong"}).encode().ljust(size)
    used_token = token if has_token else ""
    path = "/api/detcore/v1/login"
    if is_declared:
        json_type = {"Content-Type": "application/json"}
        answer = http.ask("POST", path, body, token=used_token, headers=json_type)
        assert answer.status == status
    else:
        head = post(
            path,
            "transfer-encoding: chunked",
            "connection: close",
            f"authorization: Bearer {used_token}",
        )
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        assert status_of(say(limited, head, chunks)) == status
    # The server still answers, even on the same connection.
    assert http.ask("GET", "/api/detcore/v1/me", token=token).status == 200


@pytest.mark.soak
def test_endless_body_is_not_read(limited: RunningServer, token: str) -> None:
    head = post(
        "/api/detcore/v1/login", "transfer-encoding: chunked", f"authorization: Bearer {token}"
    )
    answer = say(limited, head, *[chunked(MB) for _ in range(8)])
    assert status_of(answer) == 413


@pytest.mark.parametrize("path", ["/api/detcore/v1/models", "/api/v1/models"])
@pytest.mark.parametrize(("depth", "is_taken"), [(100, True), (101, False), (500, False)])
def test_too_deep_metadata_is_rejected(
    http: PlainHttp, token: str, path: str, depth: int, is_taken: bool
) -> None:
    name = f"{depth}-deep-below-{path.split('/')[2]}"
    nested = "[" * depth + "]" * depth
    body = f'{{"name": "{name}", "metadata": {{"a": {nested}}}}}'.encode()
    response = http.ask(
        "POST", path, body, token=token, headers={"Content-Type": "application/json"}
    )
    assert response.status == 200 if is_taken else response.status in (400, 422)
    listed = http.ask("GET", path, token=token)
    assert listed.status == 200
    assert (name.encode() in listed.body) == is_taken


@pytest.mark.parametrize(
    "head",
    [
        ME + b"x: " + b"a" * 70 * KB + b"\r\n\r\n",
        ME + b"".join(b"x%d: %s\r\n" % (n, b"a" * KB) for n in range(70)) + b"\r\n",
        ME + b"x: " + b"a" * 400 * KB,
        b"GET /" + b"a" * 70 * KB + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
    ids=["one", "many", "without end", "path"],
)
def test_too_large_head_is_rejected(limited: RunningServer, head: bytes) -> None:
    answer = say(limited, head)
    # The connection may break during sending.
    assert answer == b"" or status_of(answer) == 431


@pytest.mark.parametrize(
    "trailers",
    [b"x: " + b"a" * 16 * MB, b"a:\r\n" * 4 * MB],
    ids=["one", "many"],
)
def test_endless_trailers_are_rejected(limited: RunningServer, trailers: bytes) -> None:
    head = post("/api/detcore/v1/login", "transfer-encoding: chunked")
    parts = [trailers[at : at + 64 * KB] for at in range(0, len(trailers), 64 * KB)]
    with connect_to(limited.url) as connection, pytest.raises(ConnectionError):
        send_all(connection, head, b"1\r\n{\r\n0\r\n", *parts)


def test_few_trailers_are_accepted(limited: RunningServer) -> None:
    head = post("/api/detcore/v1/login", "transfer-encoding: chunked", "connection: close")
    body = b"%x\r\n%s\r\n0\r\nx: %s\r\n\r\n" % (len(LOGIN), LOGIN, b"a" * 16 * KB)
    assert status_of(say(limited, head, body)) == 200


def test_large_head_is_accepted(limited: RunningServer) -> None:
    head = ME + b"x: " + b"a" * 32 * KB + b"\r\nconnection: close\r\n\r\n"
    assert status_of(say(limited, head)) == 401


@pytest.mark.parametrize(
    "said", [b"", b"\r\n", b"G", ME], ids=["nothing", "newline", "letter", "line"]
)
def test_missing_head_times_out(impatient: RunningServer, said: bytes) -> None:
    assert status_of(say(impatient, said)) == 408


def test_missing_head_after_response_times_out(impatient: RunningServer) -> None:
    answer = say(impatient, ME + b"\r\n", b"GET /")
    assert [status_of(part) for part in (answer, answer[answer.rindex(b"HTTP/") :])] == [401, 408]


def test_missing_body_times_out(impatient: RunningServer) -> None:
    head = post("/api/detcore/v1/login", "content-length: 100")
    assert status_of(say(impatient, head, b"{")) == 408


def test_slow_body_times_out(impatient: RunningServer) -> None:
    head = post("/api/detcore/v1/login", "content-length: 60000")
    with connect_to(impatient.url) as connection:
        connection.settimeout(0.05)
        connection.sendall(head)
        answer = b""
        while not answer:
            connection.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(1000)
    assert status_of(answer) == 408


def assert_answers(server: RunningServer) -> None:
    """Check that the server answers on a new connection."""
    http = PlainHttp(server.url)
    assert http.ask("GET", "/api/detcore/v1/me", token=server.token()).status == 200
    http.close()


def test_client_that_does_not_read_is_disconnected(impatient: RunningServer) -> None:
    request = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\n\r\n"
    with connect_to(impatient.url) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KB)
        connection.settimeout(30)
        connection.sendall(request % impatient.token().encode() * 90)
        with pytest.raises(ConnectionError):
            send_forever(connection, b"\r\n" * KB)
    assert_answers(impatient)


def test_pipelined_requests_are_limited(
    impatient: RunningServer,
) -> None:
    assert say(impatient, (ME + b"\r\n") * 50 + b"GET /").count(b"HTTP/1.1 401") == 50
    assert say(impatient, (ME + b"\r\n") * 1000).count(b"HTTP/1.1 401") < 200
    assert_answers(impatient)


def test_too_many_connections_are_rejected(limited: RunningServer, token: str) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            connection = stack.enter_context(connect_to(limited.url))
            connection.sendall(ME + b"\r\n")
            assert connection.recv(12) == b"HTTP/1.1 401"
        refused = say(limited)
        assert status_of(refused) == 503
        assert b"retry-after: 1" in refused

    def has_room() -> bool:
        http = PlainHttp(limited.url)
        with contextlib.closing(http), contextlib.suppress(OSError, HTTPException):
            return http.ask("GET", "/api/detcore/v1/me", token=token).status == 200
        return False

    wait_for(has_room)  # it notices closed connections


def test_invalid_http_is_rejected(limited: RunningServer) -> None:
    answer = say(limited, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    assert status_of(answer) == 400
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"] == (
        "invalid HTTP request"
    )


def test_shutdown_finishes_open_requests(tmp_path: Path) -> None:
    server = RunningServer(tmp_path).start()
    try:
        head = post(
            "/api/detcore/v1/login", f"content-length: {len(LOGIN)}", "expect: 100-continue"
        )
        with connect_to(server.url) as connection, connect_to(server.url) as idle:
            connection.sendall(head)
            # The route has started.
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
            server.signal(signal.SIGTERM)
            assert read_to_the_end(idle) == b""
            connection.sendall(LOGIN)
            answer = read_to_the_end(connection)
        assert status_of(answer) == 200
        assert b'"token":' in answer
        assert server.stop() == 0
    finally:
        server.kill()
    with pytest.raises(ConnectionRefusedError):
        connect_to(server.url)


@pytest.mark.parametrize(
    ("route", "own"),
    [
        (
            "/api/detcore/v1/experiments",
            {"submission_id": "x" * 8, "archive": "0" * 64, "archive_size": 1, "name": "x.yaml"},
        ),
        ("/api/v1/experiments", {"validateOnly": True}),
    ],
)
def test_slow_validation_blocks_nobody(tmp_path: Path, route: str, own: dict[str, object]) -> None:
    submission = {"config": "entrypoint: a:B", **own}
    with RunningServer(tmp_path, setup=SLOW_TO_JUDGE) as running:
        token = running.token()

        def ask(method: str, path: str, body: object = None) -> int:
            with contextlib.closing(PlainHttp(running.url)) as http:
                return http.ask(method, path, body, token=token).status

        # More requests than threads for fast routes.
        with ThreadPoolExecutor(60) as pool:
            handed_in = [pool.submit(ask, "POST", route, submission) for _ in range(60)]
            for _ in range(5):
                assert ask("GET", "/api/detcore/v1/experiments/1/outcome") == 404
            assert {future.result() for future in handed_in} == {503}
