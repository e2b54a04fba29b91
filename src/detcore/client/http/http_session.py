"""Requests to one server, which raise the server's errors as the same classes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.contract import errors

if TYPE_CHECKING:
    import urllib3


_logger = logging.getLogger("detcore.client.http")

_DEFAULT_PORT = 8080
_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 5.0
# The tries take up to 6 seconds; a server that restarts is back by then.
_TRIES = 6
_BACKOFF_S = 0.2
_GATEWAY = (502, 503, 504)
# Servers close connections that were idle for 5 s or longer. A request that is sent at that moment
# is lost, and only requests that change nothing can be repeated.
_IDLE_S = 3.0
_CHUNK_BYTES = 1 << 16
_MAX_BYTES = 256 << 20
_MAX_ERROR_BYTES = 1 << 20
_SHOWN = 300
# Attributes of errors that a server sends.
_DETAILS = ("missing_bytes", "uuid", "rank", "ranks", "retry_after_s")
# Where no class is named, as by a proxy.
_BY_STATUS: dict[int, type[errors.DetcoreError]] = {
    401: errors.UnauthenticatedError,
    403: errors.ForbiddenError,
    422: errors.InvalidArgumentError,
}


class ServerUnavailableError(errors.UnavailableError):
    """A server did not answer: it cannot be reached, or is just being restarted.

    Attributes:
        may_have_arrived: Whether it may have carried out the request.
    """

    def __init__(self, message: str, *, may_have_arrived: bool = True) -> None:
        super().__init__(message)
        self.may_have_arrived = may_have_arrived


class ServerRefusedError(errors.DatabaseError):
    """A server refused a request with no more than a status, or gave no valid answer."""


def normalize_url(url: str) -> str:
    """Return the URL of a server as it is compared and kept.

    ``host`` and ``host:port`` mean plain HTTP, and the port 8080 unless they name one.

    Raises:
        ConfigError: If it is no URL of a server.

    Example::

        >>> normalize_url("Example.org/")
        'http://example.org:8080'
        >>> normalize_url("https://example.org/detcore/")
        'https://example.org/detcore'
    """
    text = url.strip()
    has_scheme = "://" in text
    try:
        parts = urllib.parse.urlsplit(text if has_scheme else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urllib.parse.urlsplit("")
    if "@" in parts.netloc:
        # The part before it is not shown: there is a password in it.
        raise errors.ConfigError(
            f"the address of the server at {host} holds a user or a password.\n"
            "Addresses are shown in messages and logs. Leave them out, and log in: "
            "detcore user login URL --user NAME"
        )
    is_plain = not parts.query and not parts.fragment and text.isascii() and text.isprintable()
    if not host or parts.scheme not in ("http", "https") or port == 0 or not is_plain:
        raise errors.ConfigError(
            f"{url!r} is not the address of a server.\nIt looks like http://host:8080"
        )
    if port is None and not has_scheme:
        port = _DEFAULT_PORT
    shown = f"[{host}]" if ":" in host else host
    suffix = "" if port is None else f":{port}"
    return f"{parts.scheme}://{shown}{suffix}{parts.path.rstrip('/')}"


class Session:
    """Requests to a server as one user.

    Methods may be called from several threads, and after a fork. Connections are kept for the next
    request. A redirect is refused, so that the token goes to no other server.

    Args:
        url: Address of the server; see `normalize_url`.
        token: The user's token, or a function that returns it: called before the first request, and
            again if the server does not accept the token. "" for requests that need no token.
        certificate: File of the authorities to trust (PEM); None: the system's.

    Raises:
        ConfigError: If the URL or the token cannot be used.
    """

    def __init__(
        self,
        url: str,
        token: str | Callable[[], str] = "",
        *,
        certificate: Path | None = None,
    ) -> None:
        self.url = normalize_url(url)
        self._log_in = token if callable(token) else None
        self._token = _checked_token(token) if isinstance(token, str) else None
        self._certificate = certificate
        # With the process that made it: replaced as a whole, so that no lock is needed, which a
        # thread might hold at the moment of a fork.
        self._opened: tuple[int, urllib3.PoolManager] | None = None
        self._used_at = time.monotonic()

    def request(
        self,
        method: str,
        path: str,
        *,
        json_body: object = None,
        body: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        num_tries: int = _TRIES,
        is_repeatable: bool | None = None,
    ) -> Any:
        """Send a request, and return the answer's JSON value; None if the answer is empty.

        If the connection breaks, or a proxy reports that the server is unreachable, a repeatable
        request is retried for some seconds. Any request is repeatable if it cannot have arrived.

        Args:
            method: HTTP method.
            path: Path below the server's URL; the caller quotes texts of users in it.
            json_body: Body to send, as JSON.
            body: Body to send, as it is; ignored if `json_body` is given.
            params: The query; values that are None are left out.
            timeout_s: How long to wait for the answer; its last byte included.
            num_tries: How often the request is sent at most.
            is_repeatable: Whether sending it twice has the effect of sending it once; default: for
                GET.

        Raises:
            ServerUnavailableError: If the server did not answer.
            UnauthenticatedError: If it does not accept the token.
            ServerRefusedError: If the answer is not one of a detcore server.
            DetcoreError: The error that the server raised, of the same class if there is one here.
        """
        headers = {"Accept": "application/json"}
        if json_body is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(json_body).encode()
        deadline = time.monotonic() + (timeout_s or _TIMEOUT_S)
        repeatable = method == "GET" if is_repeatable is None else is_repeatable
        where = self._where(path, params)
        data = b""
        for attempt in range(num_tries):
            try:
                with self._answer(method, where, body, headers, deadline) as answer:
                    data = _read(answer, _MAX_BYTES, deadline, self.url)
                break
            except ServerUnavailableError as error:
                wait_s = _BACKOFF_S * 2**attempt * random.uniform(0.5, 1.0)
                is_last = attempt == num_tries - 1 or time.monotonic() + wait_s > deadline
                if is_last or not (repeatable or not error.may_have_arrived):
                    raise
                if attempt == 1:  # a user who waits for seconds learns why
                    _logger.warning("%s does not answer; trying again", self.url)
                time.sleep(wait_s)
        return self._parse_json(data, f"{method} {path}")

    @contextlib.contextmanager
    def stream(
        self, path: str, *, params: Mapping[str, Any] | None = None
    ) -> Iterator[Iterator[bytes]]:
        """Get an answer that may be larger than memory, in pieces as they arrive, without retries.

        The timeout applies to each piece.

        Raises:
            ServerUnavailableError: If the answer is cut off.
        """
        headers = {"Accept": "application/octet-stream"}
        where = self._where(path, params)
        with self._answer("GET", where, None, headers, None) as answer:
            yield _pieces(answer, self.url)

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        opened, self._opened = self._opened, None
        if opened is not None and opened[0] == os.getpid():
            opened[1].clear()

    def _parse_json(self, data: bytes, request: str) -> Any:
        try:
            return json.loads(data) if data else None
        except (ValueError, RecursionError) as error:
            raise ServerRefusedError(
                f"{self.url} answered {request} with what is not JSON ({error}).\n"
                "Is it the address of a detcore server?"
            ) from error

    def _where(self, path: str, params: Mapping[str, Any] | None) -> str:
        query = {k: v for k, v in (params or {}).items() if v is not None}
        suffix = f"?{urllib.parse.urlencode(query, doseq=True)}" if query else ""
        return f"{self.url}{path}{suffix}"

    @contextlib.contextmanager
    def _answer(
        self,
        method: str,
        where: str,
        body: bytes | None,
        headers: Mapping[str, str],
        deadline: float | None,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Send once (twice if the token has expired), and give the connection back."""
        answer = self._send(method, where, body, headers, deadline)
        if answer.status == 401 and self._log_in is not None:
            _give_back(answer)
            self._token = None
            answer = self._send(method, where, body, headers, deadline)
        try:
            if answer.status >= 300:
                soon = time.monotonic() + _TIMEOUT_S
                data = _read(answer, _MAX_ERROR_BYTES, deadline or soon, self.url, cut=True)
                said = _refusal(answer.status, data, f"{method} {where.partition('?')[0]}")
                if answer.status in _GATEWAY and isinstance(said, ServerRefusedError):
                    raise _away(self.url, f"it is answered for with {answer.status}")
                raise said
            yield answer
        finally:
            _give_back(answer)
            self._used_at = time.monotonic()

    def _send(
        self,
        method: str,
        where: str,
        body: bytes | None,
        headers: Mapping[str, str],
        deadline: float | None,
    ) -> urllib3.BaseHTTPResponse:
        import urllib3

        sent = {"Accept-Encoding": "identity", **headers}
        token = self._current_token()
        if token:
            sent["Authorization"] = f"Bearer {token}"
        left = _TIMEOUT_S if deadline is None else max(deadline - time.monotonic(), 0.001)
        try:
            return self._pool().request(
                method,
                where,
                body=body,
                headers=sent,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                timeout=urllib3.Timeout(connect=min(_CONNECT_TIMEOUT_S, left), read=left),
            )
        except urllib3.exceptions.SSLError as error:
            raise _untrusted(self.url, error) from error
        except urllib3.exceptions.HTTPError as error:
            never = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
            raise _away(self.url, error, may_have_arrived=not isinstance(error, never)) from error

    def _current_token(self) -> str:
        if self._token is None and self._log_in is not None:
            self._token = _checked_token(self._log_in())
        return self._token or ""

    def _pool(self) -> urllib3.PoolManager:
        import urllib3

        opened = self._opened
        if opened is None or opened[0] != os.getpid():  # the parent of a fork keeps its own
            certificate = str(self._certificate) if self._certificate else None
            opened = (os.getpid(), urllib3.PoolManager(maxsize=8, ca_certs=certificate))
            self._opened = opened
        elif time.monotonic() - self._used_at > _IDLE_S:
            opened[1].clear()
        return opened[1]


def _read(
    answer: urllib3.BaseHTTPResponse, most: int, deadline: float, url: str, *, cut: bool = False
) -> bytes:
    """Return the body of an answer; with `cut` the beginning of one that is too long.

    Raises:
        ServerRefusedError: If it is longer than `most` bytes, without `cut`.
        ServerUnavailableError: If it breaks off, or does not end before the deadline.
    """
    parts, size = [], 0
    for piece in _pieces(answer, url):
        size += len(piece)
        if size > most and not cut:
            raise ServerRefusedError(
                f"{url} answers with more than {most} bytes, and no more are read.\n"
                "Is it the address of a detcore server?"
            )
        parts.append(piece)
        if size > most:
            break
        if time.monotonic() > deadline:
            raise _away(url, "the end of its answer does not come")
    return b"".join(parts)


def _pieces(answer: urllib3.BaseHTTPResponse, url: str) -> Iterator[bytes]:
    import urllib3

    try:
        while piece := answer.read1(_CHUNK_BYTES):
            yield piece
    except urllib3.exceptions.SSLError as error:
        raise _away(url, error) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise _away(url, f"its answer breaks off ({type(error).__name__}: {error})") from error


def _give_back(answer: urllib3.BaseHTTPResponse) -> None:
    """Keep the connection, if the answer was read to its end; else close it."""
    if answer.closed:
        answer.release_conn()
    else:
        answer.close()


def _checked_token(token: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise errors.ConfigError(
            "the token for the server holds characters that no token has, such as a line's end.\n"
            "It is not shown here. Log in again, or correct DETCORE_TOKEN."
        )
    return token


def _away(url: str, why: object, *, may_have_arrived: bool = True) -> ServerUnavailableError:
    """Return the error of a server that does not answer."""
    text = str(why)
    if not may_have_arrived and "refused" in text:
        text = "connection refused"
    return ServerUnavailableError(
        f"the server {url} does not answer: {text}\n"
        "Is it running (detcore serve), and is the address right?",
        may_have_arrived=may_have_arrived,
    )


def _untrusted(url: str, error: Exception) -> errors.DetcoreError:
    """Return the error of a connection that cannot be encrypted."""
    reason = error.args[0] if error.args else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return ServerRefusedError(
            f"the certificate of {url} is not trusted: {reason.verify_message}.\n"
            "Nothing was sent. Give the file of the authority that signed it: DETCORE_MASTER_CERT, "
            "or certificate=."
        )
    if isinstance(reason, ssl.SSLError) and "WRONG_VERSION" in str(reason):
        return ServerRefusedError(f"{url} does not speak TLS.\nIs it http:// instead of https://?")
    return _away(url, reason)


def _refusal(status: int, data: bytes, what: str) -> errors.DetcoreError:
    """Return the error that a server answered with.

    Args:
        status: HTTP status of the answer.
        data: Body of the answer.
        what: The request, for messages.
    """
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        said = None
    told = said.get("error") if isinstance(said, dict) else None
    if isinstance(told, dict) and isinstance(told.get("message"), str):
        found = _named(told)
        if found is not None:
            return found
    if 300 <= status < 400:
        return ServerRefusedError(
            f"{what} is redirected ({status}), which is not followed: the token is for this "
            "server alone.\nGive the address that it leads to, https:// included."
        )
    detail = told or (said.get("detail", said) if isinstance(said, dict) else said)
    if isinstance(detail, dict) and isinstance(detail.get("message"), str):
        detail = detail["message"]
    text = detail if isinstance(detail, str) else json.dumps(detail) if detail else ""
    text = text or data[:_SHOWN].decode(errors="replace")
    shown = errors.in_one_line(text)[:_SHOWN]
    plain = _BY_STATUS.get(status)
    if plain is not None:
        return plain(f"the server refused {what}: {shown}")
    return ServerRefusedError(f"the server refused {what} with {status}: {shown}")


def _named(told: dict[str, Any]) -> errors.DetcoreError | None:
    """Return the error of the class that a server named, if there is such a class here."""
    name, message = told.get("type"), told["message"]
    if name == "ServerUnavailableError":
        return ServerUnavailableError(message)
    kind = getattr(errors, name, None) if isinstance(name, str) else None
    if not (isinstance(kind, type) and issubclass(kind, errors.DetcoreError)):
        return None
    raised = kind(message)
    details = told.get("details")
    if isinstance(details, dict):
        for key in _DETAILS:
            if key in details and hasattr(raised, key):
                value = details[key]
                setattr(raised, key, tuple(value) if isinstance(value, list) else value)
    return raised
