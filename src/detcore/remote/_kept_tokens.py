"""Tokens of users who have logged in, in a file that only its owner may read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detcore.errors import ConfigError, StorageError

__all__ = ["KeptToken", "forget_token", "keep_token", "kept_token"]

_FILE = "credentials.json"
# A token that expires this soon is not used: it could expire during its use.
_MARGIN_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeptToken:
    """A token, its user, and when it expires (seconds since 1970)."""

    user: str
    token: str = dataclasses.field(repr=False)
    expires_at: float


def kept_token(home: Path, url: str, user: str | None = None) -> KeptToken | None:
    """Return the kept token of a user of a server; None if there is no valid one.

    Args:
        home: ``DETCORE_HOME``.
        url: The server, as `normal_url` writes it.
        user: The user; None: the one who logged in last.

    Raises:
        ConfigError: If others may read the file, or it is damaged.
    """
    server = _read(home / _FILE).get(url, {})
    name = user or server.get("active")
    found = server.get("users", {}).get(name)
    if found is None or found["expires_at"] < time.time() + _MARGIN_S:
        return None
    return KeptToken(user=name, token=found["token"], expires_at=found["expires_at"])


def keep_token(home: Path, url: str, kept: KeptToken) -> None:
    """Keep a token, instead of an earlier one of that user; it is the active one from now on.

    Raises:
        StorageError: If it cannot be written.
        ConfigError: If others may read the file, or it is damaged.
    """
    with _changed(home) as servers:
        server = servers.setdefault(url, {"users": {}})
        server["active"] = kept.user
        server["users"][kept.user] = {"token": kept.token, "expires_at": kept.expires_at}


def forget_token(home: Path, url: str, user: str) -> None:
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
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o077:
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
            _replace(path, json.dumps({"servers": servers}, indent=1))
    except OSError as error:
        raise StorageError(
            f"the token cannot be kept in {path}: {error}.\n"
            "Make room there, or set DETCORE_HOME to a folder that you may write to."
        ) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.name == "posix":
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    # mkstemp: mode 0600 from the first moment, and a name that no other process uses.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
