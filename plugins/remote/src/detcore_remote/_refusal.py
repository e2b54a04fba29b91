"""The errors for requests that a server refuses or does not answer."""

from __future__ import annotations

import json
import ssl
from typing import Any

from detcore import errors

__all__ = ["ServerAway", "ServerRefused", "away", "refusal", "untrusted"]

_SHOWN = 300
# Attributes of errors that a server sends.
_DETAILS = ("missing_bytes", "uuid", "rank", "ranks", "retry_after_s")
# Where no class is named, as by a proxy.
_BY_STATUS: dict[int, type[errors.DetcoreError]] = {
    401: errors.UnauthenticatedError,
    403: errors.ForbiddenError,
    422: errors.InvalidArgumentError,
}


class ServerAway(errors.UnavailableError):
    """A server did not answer: it cannot be reached, or is just being restarted.

    Attributes:
        may_have_arrived: Whether it may have carried out the request.
    """

    def __init__(self, message: str, *, may_have_arrived: bool = True) -> None:
        super().__init__(message)
        self.may_have_arrived = may_have_arrived


class ServerRefused(errors.DatabaseError):
    """A server refused a request with no more than a status, or gave no valid answer.

    Attributes:
        status: The status of its answer, or 0.
    """

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def away(url: str, why: object, *, may_have_arrived: bool = True) -> ServerAway:
    """Return the error of a server that does not answer."""
    text = str(why)
    if not may_have_arrived and "refused" in text:
        text = "connection refused"
    return ServerAway(
        f"the server {url} does not answer: {text}\n"
        "Is it running (detcore serve), and is the address right?",
        may_have_arrived=may_have_arrived,
    )


def untrusted(url: str, error: Exception) -> errors.DetcoreError:
    """Return the error of a connection that cannot be encrypted."""
    reason = error.args[0] if error.args else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return ServerRefused(
            f"the certificate of {url} is not trusted: {reason.verify_message}.\n"
            "Nothing was sent. Give the file of the authority that signed it: DETCORE_MASTER_CERT, "
            "or certificate=."
        )
    if isinstance(reason, ssl.SSLError) and "WRONG_VERSION" in str(reason):
        return ServerRefused(f"{url} does not speak TLS.\nIs it http:// instead of https://?")
    return away(url, reason)


def refusal(status: int, data: bytes, what: str) -> errors.DetcoreError:
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
        return ServerRefused(
            f"{what} is redirected ({status}), which is not followed: the token is for this "
            "server alone.\nGive the address that it leads to, https:// included.",
            status=status,
        )
    detail = told if told else said.get("detail", said) if isinstance(said, dict) else said
    if isinstance(detail, dict) and isinstance(detail.get("message"), str):
        detail = detail["message"]
    text = detail if isinstance(detail, str) else json.dumps(detail) if detail else ""
    if not text:
        text = data[:_SHOWN].decode(errors="replace")
    shown = errors.in_one_line(text)[:_SHOWN]
    plain = _BY_STATUS.get(status)
    if plain is not None:
        return plain(f"the server refused {what}: {shown}")
    return ServerRefused(f"the server refused {what} with {status}: {shown}", status=status)


def _named(told: dict[str, Any]) -> errors.DetcoreError | None:
    """Return the error of the class that a server named, if there is such a class here."""
    name, message = told.get("type"), told["message"]
    if name == "ServerAway":
        return ServerAway(message)
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
