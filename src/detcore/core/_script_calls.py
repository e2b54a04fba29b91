"""Number the calls of `core.init` in one start of a script, and record the end of the start.

A start is the unit of resume: if it did not finish, the n-th call of the next start continues the
n-th run. The records show which runs a process has opened, so nothing is kept in this process.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import DetcoreError

if TYPE_CHECKING:
    from detcore.database import Database


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCall:
    """One call of `core.init` in a start of a script.

    Attributes:
        number: Its number in the start, from 1.
        first: The experiment of the start's first call; None in the first call.
        session: The process that may open runs in any order, in which calls have no numbers: an
            interactive session, or the parent of a child process (multiprocessing, fork). None in
            the process of a script.
    """

    number: int = 1
    first: int | None = None
    session: dict[str, Any] | None = None

    @classmethod
    def find(cls, database: Database) -> ScriptCall:
        """Return the call that the calling process is making."""
        from detcore.database import identify_process

        session = _find_session_pid()
        if session is not None:
            return cls(session=dataclasses.asdict(identify_process(session)))
        runs = database.list_script_runs()
        if not runs:
            return cls()
        return cls(number=runs[-1].script_call + 1, first=runs[0].id)

    @property
    def record(self) -> dict[str, Any]:
        """The call as the experiment's configuration keeps it, under ``script_start``."""
        return (
            {"session": self.session}
            if self.session
            else {"call": self.number, "first": self.first}
        )


def record_end_at_exit(database_url: str) -> None:
    """Record the end of this process's script when Python exits.

    A start counts as finished if all of its runs are complete and Python exits without an
    uncaught exception. The exit code is unknown at that moment.
    """
    atexit.unregister(_record_end)
    atexit.register(_record_end, database_url, os.getpid())


def _record_end(database_url: str, pid: int) -> None:
    # Python sets this attribute for an exception that ends the script.
    if os.getpid() != pid or getattr(sys, "last_value", None) is not None:
        return
    from detcore.database import Database

    try:
        with Database.open(database_url) as database:
            database.finish_script()
    except (DetcoreError, OSError) as error:
        logging.getLogger("detcore").warning(
            "the end of this script could not be recorded, so that its next start restores the "
            "completed runs instead of training them again: %s",
            error,
        )


def _find_session_pid() -> int | None:
    """Return the process of the session that this process belongs to; None in a script."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        return parent.pid
    if hasattr(sys, "ps1"):
        return os.getpid()
    is_forked = _read_command(os.getppid()) == _read_command(os.getpid()) is not None
    return os.getppid() if is_forked else None


def _read_command(pid: int) -> bytes | None:
    """Return the command line of a process; None where the system does not show it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() or None
    except OSError:
        return None
