"""Credentials of a user for a server, and the authorities trusted for the server's certificate."""

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
# A token that expires this soon is not used: it could expire during its use.
_MARGIN_S = 60.0


def find_credentials(
    url: str,
    user: str | None,
    environment: Environment,
    *,
    password: str | None = None,
) -> str:
    """Return a token for a server.

    Uses the first of these that exists: a `password` given here, ``DETCORE_TOKEN`` (of any user),
    the token that ``detcore user login`` kept, a log-in with the environment's password.

    Args:
        url: The server; see `normalize_url`.
        user: The user; None: the environment's user, or else the one who logged in last.
        environment: The settings of this process.
        password: Password to log in with; takes precedence over the other sources.

    Raises:
        ConfigError: If the URL, or a variable, cannot be used.
        UnauthenticatedError: If no credentials are found.
        ForbiddenError: If the server refuses user and password.
        ServerUnavailableError: If a log-in is needed and the server does not answer.
    """
    url = normalize_url(url)
    certificate = trusted_authorities(environment)
    name = user or environment.user
    if password is None:
        if environment.token:
            return environment.token
        kept = read_stored_token(environment.home, url, name)
        if kept is not None:
            return kept.token
        if environment.user in (None, name):
            password = environment.password
    if name and password is not None:
        return request_token(url, name, password, certificate=certificate).token
    whose = f" of {name!r}" if name else ""
    option = f" --user {name}" if name else ""
    raise UnauthenticatedError(
        f"no token{whose} for the server {url}: none is kept here that is still good, and "
        "DETCORE_TOKEN is not set.\n"
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
    """Return a new token of a server.

    Raises:
        ForbiddenError: If the server refuses user and password.
        ServerUnavailableError: If it does not answer.
    """
    with contextlib.closing(Session(url, certificate=certificate)) as session:
        body = {"username": user, "password": password}
        said = session.request("POST", "/api/detcore/v1/login", json_body=body)
    return StoredToken(user=user, token=said["token"], expires_at=said["expires_at"])


def trusted_authorities(environment: Environment) -> Path | None:
    """Return the file that servers' certificates are checked against; None: the system's.

    Raises:
        ConfigError: If the environment names one that is not there.
    """
    path = environment.master_certificate
    if path is not None and not path.is_file():
        raise ConfigError(
            f"there is no file {path} of authorities (DETCORE_MASTER_CERT or "
            "DET_MASTER_CERT_FILE).\n"
            "Name the certificate (PEM) of the server, or of who signed it; leaving it unchecked "
            "is not offered."
        )
    return path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredToken:
    """A token, its user, and when it expires (seconds since 1970)."""

    user: str
    token: str = dataclasses.field(repr=False)
    expires_at: float


def read_stored_token(home: Path, url: str, user: str | None = None) -> StoredToken | None:
    """Return the kept token of a user of a server; None if there is no valid one.

    Args:
        home: ``DETCORE_HOME``.
        url: The server, as `normalize_url` writes it.
        user: The user; None: the one who logged in last.

    Raises:
        ConfigError: If others may read the file, or it is damaged.
    """
    server = _read(home / _FILE).get(url, {})
    name = user or server.get("active")
    found = server.get("users", {}).get(name)
    if found is None or found["expires_at"] < time.time() + _MARGIN_S:
        return None
    return StoredToken(user=name, token=found["token"], expires_at=found["expires_at"])


def store_token(home: Path, url: str, kept: StoredToken) -> None:
    """Keep a token, instead of an earlier one of that user; it is the active one from now on.

    Raises:
        StorageError: If it cannot be written.
        ConfigError: If others may read the file, or it is damaged.
    """
    with _changed(home) as servers:
        server = servers.setdefault(url, {"users": {}})
        server["active"] = kept.user
        server["users"][kept.user] = {"token": kept.token, "expires_at": kept.expires_at}


def delete_token(home: Path, url: str, user: str) -> None:
    """Forget the token of a user of a server, if it is kept."""
    with _changed(home) as servers:
        server = servers.get(url, {"users": {}})
        server["users"].pop(user, None)
        if server.get("active") == user:
            server["active"] = next(iter(server["users"]), None)
        if not server["users"]:
            servers.pop(url, None)


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigError(
                    f"others may read {path}, which holds tokens: it is not used.\n"
                    f"Make it yours alone: chmod 600 {path}"
                )
            data = file.read()
    except FileNotFoundError:
        return {}
    try:
        return {url: _checked(server) for url, server in json.loads(data)["servers"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # Without the reason, which may quote the file's content.
        raise ConfigError(
            f"the file of tokens {path} is damaged.\n"
            "Remove it, and log in again: detcore user login URL"
        ) from None


def _checked(server: Any) -> dict[str, Any]:
    users = {
        str(name): {"token": str(kept["token"]), "expires_at": float(kept["expires_at"])}
        for name, kept in server["users"].items()
    }
    return {"active": server.get("active"), "users": users}


@contextlib.contextmanager
def _changed(home: Path) -> Iterator[dict[str, Any]]:
    """Yield the kept tokens, and write them back; other processes wait meanwhile."""
    path = home / _FILE
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _locked(home / f"{_FILE}.lock"):
            servers = _read(path)
            yield servers
            text = json.dumps({"servers": servers}, indent=1)
            replace_file(path, text.encode(), mode=0o600)
    except OSError as error:
        raise StorageError(
            f"the token cannot be kept in {path}: {error}.\n"
            "Make room there, or set DETCORE_HOME to a folder that you may write to."
        ) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
