"""HTTP requests to a server, which raise the server's errors with the same classes."""

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
# All tries take up to 6 seconds, which is enough for a restart of the server.
_TRIES = 6
_BACKOFF_S = 0.2
_GATEWAY = (502, 503, 504)
# Servers close connections after 5 s without requests. A request that is sent at this moment is
# lost, and only read requests can be repeated.
_IDLE_S = 3.0
_CHUNK_BYTES = 1 << 16
_MAX_BYTES = 256 << 20
_MAX_ERROR_BYTES = 1 << 20
_SHOWN = 300
# Attributes of errors in a server's answer.
_DETAILS = ("missing_bytes", "uuid", "rank", "ranks", "retry_after_s")
# Error classes for answers without a class name, for example from a proxy.
_BY_STATUS: dict[int, type[errors.DetcoreError]] = {
    401: errors.UnauthenticatedError,
    403: errors.ForbiddenError,
    422: errors.InvalidArgumentError,
}


class ServerUnavailableError(errors.UnavailableError):
    """Raised when a server does not respond, because it is unreachable or restarting.

    Attributes:
        may_have_arrived: Whether the server may have processed the request.
    """

    def __init__(self, message: str, *, may_have_arrived: bool = True) -> None:
        super().__init__(message)
        self.may_have_arrived = may_have_arrived


class ServerRefusedError(errors.DatabaseError):
    """Raised when a server rejects a request without an error class, or its answer is invalid."""


def normalize_url(url: str) -> str:
    """Return the normalized URL of a server, for comparing and storing.

    ``host`` and ``host:port`` mean plain HTTP. The default port is 8080.

    Raises:
        ConfigError: If it is not the URL of a server.

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
        # The message omits the part before "@", which may contain a password.
        raise errors.ConfigError(
            f"the address of the server at {host} contains a user or a password.\n"
            "Addresses are printed in messages and logs. Remove user and password, and log in: "
            "detcore user login URL --user NAME"
        )
    is_plain = not parts.query and not parts.fragment and text.isascii() and text.isprintable()
    if not host or parts.scheme not in ("http", "https") or port == 0 or not is_plain:
        raise errors.ConfigError(
            f"{url!r} is not the address of a server; expected an address like http://host:8080"
        )
    if port is None and not has_scheme:
        port = _DEFAULT_PORT
    quoted_host = f"[{host}]" if ":" in host else host
    suffix = "" if port is None else f":{port}"
    return f"{parts.scheme}://{quoted_host}{suffix}{parts.path.rstrip('/')}"


class Session:
    """Requests to a server as one user.

    Methods may be called from several threads, and after a fork. Connections are reused. Redirects
    are rejected, so that the token is not sent to another server.

    Args:
        url: Address of the server; see `normalize_url`.
        token: The user's token, or a function that returns it. The function is called before the
            first request, and again if the server rejects the token. "" means no token.
        certificate: File (PEM) of trusted authorities; None means the system's authorities.

    Raises:
        ConfigError: If the URL or the token is invalid.
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
        self._token = _check_token(token) if isinstance(token, str) else None
        self._certificate = certificate
        # The process id and its pool. They are replaced together, so that no lock is necessary,
        # which another thread might hold during a fork.
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
        """Send a request, and return the JSON value of the answer, or None if it is empty.

        If the connection breaks, or a proxy reports that the server is unreachable, a repeatable
        request is retried for some seconds. A request that cannot have arrived is always retried.

        Args:
            method: HTTP method.
            path: Path relative to the server's URL. The caller quotes strings of users in it.
            json_body: Body to send as JSON.
            body: Body to send unchanged; ignored if `json_body` is passed.
            params: Query parameters; None values are left out.
            timeout_s: Maximum time until the last byte of the answer.
            num_tries: Maximum number of tries.
            is_repeatable: Whether the request is idempotent; default: only GET requests.

        Raises:
            ServerUnavailableError: If the server did not respond.
            UnauthenticatedError: If the server rejects the token.
            ServerRefusedError: If the answer is not from a detcore server.
            DetcoreError: The error that the server raised, with the same class if it exists here.
        """
        headers = {"Accept": "application/json"}
        if json_body is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(json_body).encode()
        deadline = time.monotonic() + (timeout_s or _TIMEOUT_S)
        repeatable = method == "GET" if is_repeatable is None else is_repeatable
        where = self._build_url(path, params)
        data = b""
        for attempt in range(num_tries):
            try:
                with self._open_answer(method, where, body, headers, deadline) as answer:
                    data = _read_body(answer, _MAX_BYTES, deadline, self.url)
                break
            except ServerUnavailableError as error:
                wait_s = _BACKOFF_S * 2**attempt * random.uniform(0.5, 1.0)
                is_last = attempt == num_tries - 1 or time.monotonic() + wait_s > deadline
                if is_last or not (repeatable or not error.may_have_arrived):
                    raise
                if attempt == 1:  # explains the wait to the user
                    _logger.warning("%s does not respond; trying again", self.url)
                time.sleep(wait_s)
        return self._parse_json(data, f"{method} {path}")

    @contextlib.contextmanager
    def stream(
        self, path: str, *, params: Mapping[str, Any] | None = None
    ) -> Iterator[Iterator[bytes]]:
        """Yield an answer that may be larger than memory in pieces, without retries.

        The timeout applies to each piece.

        Raises:
            ServerUnavailableError: If the answer is incomplete.
        """
        headers = {"Accept": "application/octet-stream"}
        where = self._build_url(path, params)
        with self._open_answer("GET", where, None, headers, None) as answer:
            yield _iterate_pieces(answer, self.url)

    def close(self) -> None:
        """Close the connections. The next request opens new connections."""
        opened, self._opened = self._opened, None
        if opened is not None and opened[0] == os.getpid():
            opened[1].clear()

    def _parse_json(self, data: bytes, request: str) -> Any:
        try:
            return json.loads(data) if data else None
        except (ValueError, RecursionError) as error:
            raise ServerRefusedError(
                f"the answer of {self.url} to {request} is not JSON ({error}).\n"
                "Check that it is the address of a detcore server."
            ) from error

    def _build_url(self, path: str, params: Mapping[str, Any] | None) -> str:
        query = {k: v for k, v in (params or {}).items() if v is not None}
        suffix = f"?{urllib.parse.urlencode(query, doseq=True)}" if query else ""
        return f"{self.url}{path}{suffix}"

    @contextlib.contextmanager
    def _open_answer(
        self,
        method: str,
        where: str,
        body: bytes | None,
        headers: Mapping[str, str],
        deadline: float | None,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Send a request, repeat it if the token has expired, and release the connection."""
        answer = self._send_request(method, where, body, headers, deadline)
        if answer.status == 401 and self._log_in is not None:
            _release_connection(answer)
            self._token = None
            answer = self._send_request(method, where, body, headers, deadline)
        try:
            if answer.status >= 300:
                soon = time.monotonic() + _TIMEOUT_S
                data = _read_body(answer, _MAX_ERROR_BYTES, deadline or soon, self.url, cut=True)
                request = f"{method} {where.partition('?')[0]}"
                error = _make_refusal_error(answer.status, data, request)
                if answer.status in _GATEWAY and isinstance(error, ServerRefusedError):
                    reason = f"a gateway answered with status {answer.status}"
                    raise _make_unavailable_error(self.url, reason)
                raise error
            yield answer
        finally:
            _release_connection(answer)
            self._used_at = time.monotonic()

    def _send_request(
        self,
        method: str,
        where: str,
        body: bytes | None,
        headers: Mapping[str, str],
        deadline: float | None,
    ) -> urllib3.BaseHTTPResponse:
        import urllib3

        all_headers = {"Accept-Encoding": "identity", **headers}
        token = self._current_token()
        if token:
            all_headers["Authorization"] = f"Bearer {token}"
        timeout_s = _TIMEOUT_S if deadline is None else max(deadline - time.monotonic(), 0.001)
        connect_timeout_s = min(_CONNECT_TIMEOUT_S, timeout_s)
        try:
            return self._get_pool().request(
                method,
                where,
                body=body,
                headers=all_headers,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                timeout=urllib3.Timeout(connect=connect_timeout_s, read=timeout_s),
            )
        except urllib3.exceptions.SSLError as error:
            raise _make_tls_error(self.url, error) from error
        except urllib3.exceptions.HTTPError as error:
            not_sent = (
                urllib3.exceptions.NewConnectionError,
                urllib3.exceptions.ConnectTimeoutError,
            )
            raise _make_unavailable_error(
                self.url, error, may_have_arrived=not isinstance(error, not_sent)
            ) from error

    def _current_token(self) -> str:
        if self._token is None and self._log_in is not None:
            self._token = _check_token(self._log_in())
        return self._token or ""

    def _get_pool(self) -> urllib3.PoolManager:
        import urllib3

        opened = self._opened
        if opened is None or opened[0] != os.getpid():  # a forked child needs new connections
            certificate = str(self._certificate) if self._certificate else None
            opened = (os.getpid(), urllib3.PoolManager(maxsize=8, ca_certs=certificate))
            self._opened = opened
        elif time.monotonic() - self._used_at > _IDLE_S:
            opened[1].clear()
        return opened[1]


def _read_body(
    answer: urllib3.BaseHTTPResponse, most: int, deadline: float, url: str, *, cut: bool = False
) -> bytes:
    """Return the body of an answer. With `cut`, a longer body is truncated.

    Raises:
        ServerRefusedError: If it is longer than `most` bytes, without `cut`.
        ServerUnavailableError: If it is incomplete, or does not end before the deadline.
    """
    parts, size = [], 0
    for piece in _iterate_pieces(answer, url):
        size += len(piece)
        if size > most and not cut:
            raise ServerRefusedError(
                f"the answer of {url} is longer than {most} bytes.\n"
                "Check that it is the address of a detcore server."
            )
        parts.append(piece)
        if size > most:
            break
        if time.monotonic() > deadline:
            raise _make_unavailable_error(url, "its answer did not end in time")
    return b"".join(parts)


def _iterate_pieces(answer: urllib3.BaseHTTPResponse, url: str) -> Iterator[bytes]:
    import urllib3

    try:
        while piece := answer.read1(_CHUNK_BYTES):
            yield piece
    except urllib3.exceptions.SSLError as error:
        raise _make_unavailable_error(url, error) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise _make_unavailable_error(
            url, f"its answer is incomplete ({type(error).__name__}: {error})"
        ) from error


def _release_connection(answer: urllib3.BaseHTTPResponse) -> None:
    """Reuse the connection if the answer was read completely. Otherwise, close it."""
    if answer.closed:
        answer.release_conn()
    else:
        answer.close()


def _check_token(token: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise errors.ConfigError(
            "the token for the server contains invalid characters, such as a line end (the token "
            "is not shown).\n"
            "Correct DETCORE_TOKEN, or log in again: detcore user login URL"
        )
    return token


def _make_unavailable_error(
    url: str, why: object, *, may_have_arrived: bool = True
) -> ServerUnavailableError:
    """Return the error for a server that does not respond."""
    text = str(why)
    if not may_have_arrived and "refused" in text:
        text = "connection refused"
    return ServerUnavailableError(
        f"the server {url} does not respond: {text}\n"
        "Check that it is running (detcore serve), and that the address is correct.",
        may_have_arrived=may_have_arrived,
    )


def _make_tls_error(url: str, error: Exception) -> errors.DetcoreError:
    """Return the error for a failed TLS connection."""
    reason = error.args[0] if error.args else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return ServerRefusedError(
            f"the certificate of {url} is not trusted: {reason.verify_message}.\n"
            "Nothing was sent. Set DETCORE_MASTER_CERT (or certificate=) to the certificate file "
            "of the authority that signed it."
        )
    if isinstance(reason, ssl.SSLError) and "WRONG_VERSION" in str(reason):
        return ServerRefusedError(f"{url} does not support TLS.\nTry http:// instead of https://.")
    return _make_unavailable_error(url, reason)


def _make_refusal_error(status: int, data: bytes, what: str) -> errors.DetcoreError:
    """Return the error in a server's answer.

    Args:
        status: HTTP status of the answer.
        data: Body of the answer.
        what: The request, for messages.
    """
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    fields = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(fields, dict) and isinstance(fields.get("message"), str):
        error = _make_named_error(fields)
        if error is not None:
            return error
    if 300 <= status < 400:
        return ServerRefusedError(
            f"the server redirected {what} ({status}), and redirects are not followed because the "
            "token is only for this server.\n"
            "Use the address that it redirects to, including https://."
        )
    detail = fields or (answer.get("detail", answer) if isinstance(answer, dict) else answer)
    if isinstance(detail, dict) and isinstance(detail.get("message"), str):
        detail = detail["message"]
    text = detail if isinstance(detail, str) else json.dumps(detail) if detail else ""
    text = text or data[:_SHOWN].decode(errors="replace")
    reason = errors.in_one_line(text)[:_SHOWN]
    error_class = _BY_STATUS.get(status)
    if error_class is not None:
        return error_class(f"the server rejected {what}: {reason}")
    return ServerRefusedError(f"the server rejected {what} with status {status}: {reason}")


def _make_named_error(fields: dict[str, Any]) -> errors.DetcoreError | None:
    """Return an error with the class that a server named, or None if the class is unknown."""
    name, message = fields.get("type"), fields["message"]
    if name == "ServerUnavailableError":
        return ServerUnavailableError(message)
    kind = getattr(errors, name, None) if isinstance(name, str) else None
    if not (isinstance(kind, type) and issubclass(kind, errors.DetcoreError)):
        return None
    raised = kind(message)
    details = fields.get("details")
    if isinstance(details, dict):
        for key in _DETAILS:
            if key in details and hasattr(raised, key):
                value = details[key]
                setattr(raised, key, tuple(value) if isinstance(value, list) else value)
    return raised
