"""Translation of database errors into errors of detcore."""

from __future__ import annotations

import re

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from detcore.contract.errors import DatabaseError, StorageFullError
from detcore.database import _postgresql
from detcore.database._connections import WAIT_S

__all__ = ["damaged", "shown_url", "translate"]

_DAMAGE = ("not a database", "malformed", "file is encrypted", "could not decode")
_SECRET = re.compile(r"pass|secret|token|key", re.IGNORECASE)


def shown_url(url: URL) -> str:
    """Return a URL with its password, and what else may be secret in it, as ``***``."""
    query = {name: "***" if _SECRET.search(name) else value for name, value in url.query.items()}
    return url.set(query=query).render_as_string().replace("%2A%2A%2A", "***")


def translate(error: DBAPIError, url: URL) -> Exception:
    """Return detcore's error for one of the database's."""
    where = shown_url(url)
    cause = error.orig or error
    reason = str(cause).strip().rstrip(".")
    if url.password:
        reason = reason.replace(str(url.password), "***")
    if url.get_backend_name() == "postgresql":
        found = _postgresql.explain(cause, reason, where)
    else:
        found = _of_sqlite(reason, url)
    return found or DatabaseError(f"the database {where} refused a statement: {reason}")


def damaged(url: URL, reason: str) -> DatabaseError:
    """Return the error for a file that is no whole SQLite database."""
    return DatabaseError(
        f"the database {shown_url(url)} is damaged or not a database: {reason}.\n"
        "Its records cannot be read; checkpoints are elsewhere and are not affected.\n"
        f"Restore the file from a backup, or move it away to start a new one: "
        f"mv {url.database} {url.database}.damaged"
    )


def _of_sqlite(reason: str, url: URL) -> Exception | None:
    low = reason.lower()
    where = shown_url(url)
    if "disk is full" in low or "no space" in low:
        return StorageFullError(
            f"no room for records: {where}: {reason}.\n"
            "What was reported stays in the spool of its trial and is taken in later.\n"
            "Free some space, then go on."
        )
    if "locked" in low:
        return DatabaseError(
            f"the database {where} was locked by another process for {WAIT_S:.0f} s: {reason}.\n"
            "A process holds a write transaction open, or the file is on a network file system.\n"
            f"Find it with: lsof {url.database}"
        )
    if any(words in low for words in _DAMAGE):
        return damaged(url, reason)
    if "readonly" in low or "read-only" in low or "unable to open" in low:
        return DatabaseError(
            f"the database {where} cannot be opened or written: {reason}.\n"
            "Change its permissions, or set DETCORE_HOME (or DETCORE_DB) to another place."
        )
    return None
