"""The one module that reads environment variables.

| variable | meaning |
| --- | --- |
| ``DETCORE_HOME`` | where records and default checkpoints live; default: the platform's user data directory |
| ``DETCORE_DATABASE`` | SQLAlchemy URL of the record store; default: SQLite in ``DETCORE_HOME`` |
| ``DETCORE_PLUGINS`` | allow-list of plugin names, separated by commas; unset = all |
| ``DETCORE_DISABLE_PLUGINS`` | plugin names to leave out, separated by commas |
| ``DETCORE_TRIAL_INFO`` | set by the runner for its workers: path of a JSON file that says which trial this is |
| ``DETCORE_EVENTS_FD``, ``DETCORE_LEASH_FD`` | set by the runner for its workers: pipe ends for progress events and for noticing that the runner is gone |
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Environment", "read_environment"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The settings that detcore takes from environment variables; see the module's table."""

    home: Path
    database_url: str
    allowed_plugins: frozenset[str] | None
    disabled_plugins: frozenset[str]
    trial_info: Path | None
    events_fd: int | None
    leash_fd: int | None


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Read the variables above.

    Args:
        environ: The variables; default: those of this process, read now.
    """
    env = os.environ if environ is None else environ
    home = _home(env)
    allowed = env.get("DETCORE_PLUGINS")
    info = env.get("DETCORE_TRIAL_INFO")
    return Environment(
        home=home,
        database_url=env.get("DETCORE_DATABASE") or f"sqlite:///{home / 'detcore.db'}",
        allowed_plugins=None if allowed is None else _names(allowed),
        disabled_plugins=_names(env.get("DETCORE_DISABLE_PLUGINS", "")),
        trial_info=Path(info) if info else None,
        events_fd=_descriptor(env.get("DETCORE_EVENTS_FD")),
        leash_fd=_descriptor(env.get("DETCORE_LEASH_FD")),
    )


def _home(env: Mapping[str, str]) -> Path:
    home = env.get("DETCORE_HOME")
    if home:
        return Path(home).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("detcore", appauthor=False))


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def _descriptor(text: str | None) -> int | None:
    return int(text) if text else None
