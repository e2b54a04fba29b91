"""Read settings of a context that do not depend on how it finds its numbers."""

from __future__ import annotations

from typing import Any

from detcore.environment import read_variables

__all__ = ["CONNECT_TIMEOUT_S", "TIMEOUT_S", "options_of", "read_key"]

TIMEOUT_S = 1800.0
CONNECT_TIMEOUT_S = 300.0
_JOB_KEY = "DETCORE_JOB_KEY"
_CHIEF_PORT = "DETCORE_CHIEF_PORT"


def options_of(
    *,
    port: int | None = None,
    port_offset: int = 0,
    force_tcp: bool = False,
    key: bytes | str | None = None,
    timeout_s: float = TIMEOUT_S,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
) -> dict[str, Any]:
    """Return the arguments of `detcore.distributed._join.Settings`, without importing it."""
    return {
        "port": _read_port() if port is None else port,
        "port_offset": port_offset,
        "force_tcp": force_tcp,
        "key": read_key(key),
        "timeout_s": timeout_s,
        "connect_timeout_s": connect_timeout_s,
    }


def read_key(key: bytes | str | None = None) -> bytes | None:
    """Return the given key, or that of the variable DETCORE_JOB_KEY."""
    if key is None:
        key = read_variables((_JOB_KEY,)).get(_JOB_KEY)
    return key.encode() if isinstance(key, str) else key


def _read_port() -> int | None:
    """Return the port of rank 0 that the launcher has chosen, or None."""
    text = read_variables((_CHIEF_PORT,)).get(_CHIEF_PORT, "")
    return int(text) if text.isdecimal() else None
