"""Credentials of a user for a server, and trusted authorities for the server's certificate."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detcore.atomic_files import replace_file
from detcore.client.http.http_session import Session, normalize_url
from detcore.contract.errors import ConfigError, StorageError, UnauthenticatedError
from detcore.environment import Environment

_FILE = "credentials.json"
# A token with less remaining time is not used, because it could expire during its use.
_MARGIN_S = 60.0


def find_credentials(
    url: str,
    user: str | None,
    environment: Environment,
    *,
    password: str | None = None,
) -> str:
    """Return a token for a server.

    The sources are tried in this order: the argument `password`, ``DETCORE_TOKEN`` (of any user),
    the token that ``detcore user login`` stored, and a login with the environment's password.

    Args:
        url: The server; see `normalize_url`.
        user: The user; None means the environment's user, or the user who logged in last.
        environment: The settings of this process.
        password: Password for a login, which takes precedence over other sources.

    Raises:
        ConfigError: If the URL or an environment variable is invalid.
        UnauthenticatedError: If no credentials are found.
        ForbiddenError: If the server rejects user and password.
        ServerUnavailableError: If a login is necessary and the server does not respond.
    """
    url = normalize_url(url)
    certificate = trusted_authorities(environment)
    name = user or environment.user
    if password is None:
        if environment.token:
            return environment.token
        stored = read_stored_token(environment.home, url, name)
        if stored is not None:
            return stored.token
        if environment.user in (None, name):
            password = environment.password
    if name and password is not None:
        return request_token(url, name, password, certificate=certificate).token
    owner = f" of {name!r}" if name else ""
    option = f" --user {name}" if name else ""
    raise UnauthenticatedError(
        f"no token{owner} for the server {url}: no valid token is stored, and DETCORE_TOKEN is not "
        "set.\n"
        f"Log in: detcore user login {url}{option}\n"
        "In scripts, set DETCORE_TOKEN, or DETCORE_USER and DETCORE_PASSWORD."
    )


def open_session(url: str, user: str | None = None, *, environment: Environment) -> Session:
    """Return a session with a server; see `find_credentials`."""
    token = find_credentials(url, user, environment)
    return Session(url, token, certificate=trusted_authorities(environment))


def request_token(
    url: str, user: str, password: str, *, certificate: Path | None = None
) -> StoredToken:
    """Log in to a server and return a new token.

    Raises:
        ForbiddenError: If the server rejects user and password.
        ServerUnavailableError: If the server does not respond.
    """
    with contextlib.closing(Session(url, certificate=certificate)) as session:
        body = {"username": user, "password": password}
        answer = session.request("POST", "/api/detcore/v1/login", json_body=body)
    return StoredToken(user=user, token=answer["token"], expires_at=answer["expires_at"])


def trusted_authorities(environment: Environment) -> Path | None:
    """Return the file of trusted authorities, or None for the system's authorities.

    Raises:
        ConfigError: If the environment names a missing file.
    """
    path = environment.master_certificate
    if path is not None and not path.is_file():
        raise ConfigError(
            f"the certificate file {path} does not exist (DETCORE_MASTER_CERT or "
            "DET_MASTER_CERT_FILE).\n"
            "Set the variable to the certificate (PEM) of the server or of its authority. "
            "Certificates are always checked."
        )
    return path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredToken:
    """A token with its user and its expiry time (seconds since 1970)."""

    user: str
    token: str = dataclasses.field(repr=False)
    expires_at: float


def read_stored_token(home: Path, url: str, user: str | None = None) -> StoredToken | None:
    """Return the stored token of a user of a server, or None if it is missing or has expired.

    Args:
        home: ``DETCORE_HOME``.
        url: The server, as returned by `normalize_url`.
        user: The user; None means the user who logged in last.

    Raises:
        ConfigError: If other users can read the file, or it is damaged.
    """
    server = _read_tokens(home / _FILE).get(url, {})
    name = user or server.get("active")
    entry = server.get("users", {}).get(name)
    if entry is None or entry["expires_at"] < time.time() + _MARGIN_S:
        return None
    return StoredToken(user=name, token=entry["token"], expires_at=entry["expires_at"])


def store_token(home: Path, url: str, kept: StoredToken) -> None:
    """Store a token as the active token, and replace an earlier token of this user.

    Raises:
        StorageError: If it cannot be written.
        ConfigError: If other users can read the file, or it is damaged.
    """
    with _open_tokens(home) as servers:
        server = servers.setdefault(url, {"users": {}})
        server["active"] = kept.user
        server["users"][kept.user] = {"token": kept.token, "expires_at": kept.expires_at}


def delete_token(home: Path, url: str, user: str) -> None:
    """Delete the stored token of a user of a server, if any."""
    with _open_tokens(home) as servers:
        server = servers.get(url, {"users": {}})
        server["users"].pop(user, None)
        if server.get("active") == user:
            server["active"] = next(iter(server["users"]), None)
        if not server["users"]:
            servers.pop(url, None)


def _read_tokens(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigError(
                    f"{path} contains tokens and is readable by other users, so it is not used.\n"
                    f"Restrict its permissions: chmod 600 {path}"
                )
            data = file.read()
    except FileNotFoundError:
        return {}
    try:
        return {url: _check_entry(server) for url, server in json.loads(data)["servers"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # The message omits the reason, which may quote the file's content.
        raise ConfigError(
            f"the token file {path} is damaged.\n"
            "Remove it, and log in again: detcore user login URL"
        ) from None


def _check_entry(server: Any) -> dict[str, Any]:
    users = {
        str(name): {"token": str(kept["token"]), "expires_at": float(kept["expires_at"])}
        for name, kept in server["users"].items()
    }
    return {"active": server.get("active"), "users": users}


@contextlib.contextmanager
def _open_tokens(home: Path) -> Iterator[dict[str, Any]]:
    """Yield the stored tokens, and write them back. Other processes wait in the meantime."""
    path = home / _FILE
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _lock_file(home / f"{_FILE}.lock"):
            servers = _read_tokens(path)
            yield servers
            text = json.dumps({"servers": servers}, indent=1)
            replace_file(path, text.encode(), mode=0o600)
    except OSError as error:
        raise StorageError(
            f"the token cannot be stored in {path}: {error}.\n"
            "Free some space, or set DETCORE_HOME to a writable directory."
        ) from error


@contextlib.contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
