"""Test `Session` with slow, unreachable and hostile servers, and servers of other programs."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from detcore.client.http import ServerRefusedError, ServerUnavailableError, Session
from detcore.errors import (
    ConfigError,
    DetcoreError,
    ForbiddenError,
    InvalidArgumentError,
    NotFoundError,
    StorageFullError,
    UnauthenticatedError,
)

TOKEN = "s3cret-token"


class Script:
    """A scripted server and its requests.

    Attributes:
        url: Address of the server.
        asked: Heads of the requests.
        connections: Number of connections.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []
        self.connections = 0


@contextlib.contextmanager
def scripted(*answers: bytes | Callable[[socket.socket], None]) -> Iterator[Script]:
    """Run a server that sends these answers and repeats the last. ``b""`` closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        script = Script(f"http://127.0.0.1:{listener.getsockname()[1]}")
        threads: list[threading.Thread] = []

        def serve(link: socket.socket) -> None:
            with link, contextlib.suppress(OSError):
                while head := read_head(link):
                    answer = answers[min(len(script.asked), len(answers) - 1)]
                    script.asked.append(head)
                    if callable(answer):
                        answer(link)
                        return
                    if not answer:
                        return
                    link.sendall(answer)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = listener.accept()
                    script.connections += 1
                    thread = threading.Thread(target=serve, args=(link,), daemon=True)
                    threads.append(thread)
                    thread.start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield script
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(10)


def read_head(link: socket.socket) -> str:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = link.recv(65536)
        if not piece:
            return ""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            missing = int(line.split(b":")[1]) - len(body)
            while missing > 0:
                missing -= len(link.recv(65536))
    return head.decode()


def answer(status: int, body: object = None, *headers: str, raw: bytes | None = None) -> bytes:
    data = json.dumps(body).encode() if raw is None else raw
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detcore.client.http.http_session._BACKOFF_S", 0.001)


def failure(script: Script, method: str = "GET", **options: float) -> DetcoreError:
    """Send a request and return its error, which must not contain the token."""
    session = Session(script.url, TOKEN)
    with pytest.raises(DetcoreError) as caught:
        session.request(method, "/x", **options)  # type: ignore[arg-type]  # timeouts, numbers
    session.close()
    chained_error: BaseException | None = caught.value
    while chained_error is not None:
        assert TOKEN not in f"{chained_error!r} {chained_error}"
        chained_error = chained_error.__cause__ or chained_error.__context__
    return caught.value


# -- answers ---------------------------------------------------------------------------------------


def test_empty_answer_is_none() -> None:
    with scripted(answer(200, {"a": [1]}), answer(200, raw=b""), answer(204, raw=b"")) as script:
        session = Session(script.url, TOKEN)
        assert session.request("GET", "/x", params={"a": 1, "b": None, "c": ["d", "é"]}) == {
            "a": [1]
        }
        assert session.request("POST", "/x", json_body={}) is None
        assert session.request("DELETE", "/x") is None
        session.close()
    assert script.asked[0].startswith("GET /x?a=1&c=d&c=%C3%A9 HTTP/1.1\r\n")
    assert f"Authorization: Bearer {TOKEN}" in script.asked[0]
    assert script.connections == 1  # all requests used one connection
    assert TOKEN not in repr(session)


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (404, {"error": {"type": "NotFoundError", "message": "no x"}}, NotFoundError, "no x"),
        (401, {"detail": "who?"}, UnauthenticatedError, "who[?]"),
        (403, {"detail": "no"}, ForbiddenError, "no"),
        (422, {"detail": [{"loc": ["a"]}]}, InvalidArgumentError, "loc"),
        (
            500,
            {"error": {"type": "Zebra", "message": "m"}},
            ServerRefusedError,
            "with status 500: m",
        ),
        (
            500,
            {"error": {"type": "describe", "message": "m"}},
            ServerRefusedError,
            "with status 500: m",
        ),
        (500, {"error": {"type": ["x"], "message": 3}}, ServerRefusedError, "with status 500"),
        (500, {"error": "text"}, ServerRefusedError, "with status 500: text"),
        (418, [1, 2], ServerRefusedError, "with status 418: .1, 2"),
        (418, None, ServerRefusedError, "with status 418: null"),
    ],
)
def test_server_errors_keep_their_class(
    status: int, body: object, kind: type[DetcoreError], text: str
) -> None:
    with scripted(answer(status, body)) as script, pytest.raises(kind, match=text):
        raise failure(script, "POST")
    assert len(script.asked) == 1


def test_errors_keep_their_attributes() -> None:
    document = {
        "type": "StorageFullError",
        "message": "full",
        "details": {"missing_bytes": 7, "x": 1},
    }
    with scripted(answer(507, {"error": document})) as script:
        error = failure(script)
    assert isinstance(error, StorageFullError)
    assert error.missing_bytes == 7
    assert not hasattr(error, "x")


def test_redirects_are_not_followed() -> None:
    with scripted(answer(200, {})) as thief:
        to_thief = answer(307, None, f"Location: {thief.url}/x")
        with scripted(to_thief) as script:
            error = failure(script)
    assert isinstance(error, ServerRefusedError)
    assert "redirected GET" in str(error)
    assert thief.asked == []


@pytest.mark.parametrize(
    "raw", [b"<html>hello", b"{", b"\xff\xfe", b"[" * 100_000, b"HTTP", b"NaN nonsense"]
)
def test_answer_that_is_not_json(raw: bytes) -> None:
    with (
        scripted(answer(200, raw=raw)) as script,
        pytest.raises(ServerRefusedError, match="not JSON"),
    ):
        raise failure(script)


def test_answer_that_is_not_http() -> None:
    with scripted(b"SSH-2.0-OpenSSH_9\r\n\r\n") as script, pytest.raises(ServerUnavailableError):
        raise failure(script, num_tries=1)


def test_too_large_answer_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detcore.client.http.http_session._MAX_BYTES", 65536)
    with (
        scripted(answer(200, raw=b"[" + b"1," * 50_000 + b"1]")) as script,
        pytest.raises(ServerRefusedError, match="longer than 65536 bytes"),
    ):
        raise failure(script)

    def flood(link: socket.socket) -> None:
        link.sendall(b"HTTP/1.1 500 X\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            link.sendall(b"x" * 65536)

    with scripted(flood) as script, pytest.raises(ServerRefusedError, match="with status 500: xxx"):
        raise failure(script)


def test_compressed_answers_are_not_decompressed() -> None:
    with (
        scripted(answer(200, None, "Content-Encoding: gzip", raw=b"\x1f\x8b000")) as script,
        pytest.raises(ServerRefusedError, match="not JSON"),
    ):
        raise failure(script)


# -- time ------------------------------------------------------------------------------------------


def test_request_times_out_without_answer() -> None:
    with scripted(lambda link: time.sleep(120)) as script:
        begin = time.monotonic()
        error = failure(script, timeout_s=0.2)
    assert isinstance(error, ServerUnavailableError)
    assert time.monotonic() - begin < 60


def test_request_times_out_with_endless_answer() -> None:
    """Each byte arrives in time, but the answer never ends."""

    def drip(link: socket.socket) -> None:
        link.sendall(b"HTTP/1.1 200 X\r\nContent-Length: 100000\r\n\r\n")
        while True:
            link.sendall(b" ")
            time.sleep(0.02)

    with scripted(drip) as script:
        begin = time.monotonic()
        error = failure(script, timeout_s=0.3, num_tries=1)
    assert "its answer did not end in time" in str(error)
    assert time.monotonic() - begin < 60


# -- retries ---------------------------------------------------------------------------------------

BUSY = {"error": {"type": "ServerUnavailableError", "message": "busy"}}
AWAY = [answer(502, raw=b"bad"), answer(503, BUSY), answer(504, raw=b"late"), b""]


def test_reads_are_retried_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cut_off = b"HTTP/1.1 200 X\r\nContent-Length: 50\r\n\r\n{"
    with scripted(*AWAY, lambda link: link.sendall(cut_off), answer(200, [1])) as script:
        session = Session(script.url, TOKEN)
        assert session.request("GET", "/x") == [1]
        assert caplog.messages == [f"{script.url} does not respond; trying again"]
        session.close()
    assert len(script.asked) == 6


@pytest.mark.parametrize("number", range(4))
def test_changes_are_sent_once(number: int) -> None:
    with scripted(AWAY[number], answer(200, [1])) as script:
        error = failure(script, "POST")
        assert isinstance(error, ServerUnavailableError)
        assert error.may_have_arrived
        assert len(script.asked) == 1
        session = Session(script.url, TOKEN)
        assert session.request("POST", "/x", is_repeatable=True) == [1]
        session.close()


def test_change_is_retried_if_not_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    session = Session(f"http://127.0.0.1:{port}", TOKEN)
    with pytest.raises(
        ServerUnavailableError, match=r"connection refused\nCheck that it is running"
    ) as caught:
        session.request("POST", "/x")
    assert not caught.value.may_have_arrived


def test_server_error_is_not_retried() -> None:
    body = {"error": {"type": "UnavailableError", "message": "busy"}}
    with scripted(answer(503, body)) as script, pytest.raises(DetcoreError, match=r"^busy$"):
        raise failure(script)
    assert len(script.asked) == 1


def test_idle_connection_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may be closing the connection, which would lose the request."""
    with scripted(answer(200, {})) as script:
        session = Session(script.url, TOKEN)
        session.request("POST", "/x")
        session.request("POST", "/x")
        assert script.connections == 1
        monkeypatch.setattr("detcore.client.http.http_session._IDLE_S", -1.0)
        session.request("POST", "/x")
        assert script.connections == 2
        session.close()


# -- tokens ----------------------------------------------------------------------------------------


def test_token_is_fetched_on_use_and_after_expiry() -> None:
    tokens: list[str] = []

    def log_in() -> str:
        tokens.append(f"token-{len(tokens)}")
        return tokens[-1]

    refused = answer(401, {"detail": "expired"})
    with scripted(answer(200, 1), refused, answer(200, 2), refused) as script:
        session = Session(script.url, log_in)
        assert tokens == []
        assert session.request("GET", "/x") == 1
        assert session.request("POST", "/x", json_body={"a": 1}) == 2
        with pytest.raises(UnauthenticatedError):
            session.request("GET", "/x")
        session.close()
    assert [
        request_head.partition("Bearer ")[2].partition("\r")[0] for request_head in script.asked
    ] == [*("token-0", "token-0", "token-1", "token-1", "token-2")]


@pytest.mark.parametrize("token", ["a\r\nHost: x", "a b", "tökèn", "a\x00"])
def test_invalid_token_is_not_shown(token: str) -> None:
    with pytest.raises(ConfigError, match="contains invalid characters") as caught:
        Session("http://host", token)
    assert token not in str(caught.value)
    session = Session("http://127.0.0.1:1", lambda: token)
    with pytest.raises(ConfigError, match="contains invalid characters"):
        session.request("GET", "/x")


# -- TLS -------------------------------------------------------------------------------------------


def test_https_to_a_server_without_tls() -> None:
    with scripted(answer(200, {})) as script:
        session = Session(script.url.replace("http:", "https:"), TOKEN)
        with pytest.raises(DetcoreError, match=r"does not support TLS|does not respond"):
            session.request("GET", "/x", num_tries=1)
        assert TOKEN not in "".join(script.asked)


# -- streams ---------------------------------------------------------------------------------------


def test_incomplete_stream_is_reported() -> None:
    def cut(link: socket.socket) -> None:
        link.sendall(b"HTTP/1.1 200 X\r\nContent-Length: 10\r\n\r\nabc")

    with scripted(cut) as script:
        session = Session(script.url, TOKEN)
        with session.stream("/x") as pieces:
            assert next(pieces) == b"abc"
            with pytest.raises(ServerUnavailableError, match="is incomplete"):
                next(pieces)
        session.close()
