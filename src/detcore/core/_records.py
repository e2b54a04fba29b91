"""The records of a trial that a runner started: a database, or a server in front of one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from detcore._log import Spool
    from detcore.database import Database, Patience, SpoolMover, WorkerRecords
    from detcore.environment import Environment
    from detcore.types import TrialInfo

__all__ = ["Reporting", "is_server", "open_embedded", "open_remote", "patience"]

_Append: TypeAlias = Callable[[str, object], object]

_FLUSH_TIMEOUT_S = 60.0
# A server takes requests of up to 8 MiB; what stands before a long record goes with it.
_MOST_SENT_BYTES = 7 * 2**20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """How a trial's chief reports.

    Attributes:
        records: What is recorded of the trial, and asked about it.
        spool: Where reports are safe at once.
        settle: Waits for the reports at the end of the trial.
        add_missing: Adds the events of checkpoints that observers were not told of.
    """

    records: WorkerRecords
    spool: Spool
    settle: Callable[[], None]
    add_missing: Callable[[_Append], None]


def is_server(url: str) -> bool:
    """Whether records are behind a server, by their URL."""
    return url.startswith(("http://", "https://"))


def open_embedded(info: TrialInfo, database: Database, stack: contextlib.ExitStack) -> Reporting:
    """Open the spool of a trial whose records are in a database.

    Args:
        info: Which trial.
        database: The records.
        stack: Closes the spool.
    """
    from detcore.database import SpoolDrainer

    spool = _open_spool(info, stack)
    drainer: SpoolMover = SpoolDrainer(database, spool.path)

    def add_missing(append: _Append) -> None:
        from detcore.delivery import add_missing_checkpoints

        add_missing_checkpoints(database, info.trial_id, append)

    return Reporting(
        records=database.patient(patience()),
        spool=spool,
        settle=lambda: drainer.close(_FLUSH_TIMEOUT_S),
        add_missing=add_missing,
    )


def open_remote(
    info: TrialInfo,
    environment: Environment,
    stack: contextlib.ExitStack,
    *,
    wait_s: Callable[[], float],
) -> Reporting:
    """Open the spool of a trial whose records are behind a server; that may be away.

    Args:
        info: Which trial.
        environment: Has the trial's token.
        stack: Closes the spool, and sends what is left then.
        wait_s: Returns how long the end of the trial waits for the server, in seconds.
    """
    from detcore.remote import Session
    from detcore.remote.reporting import Reach, RemoteRecords, SpoolSender

    session = Session(
        info.database_url,
        environment.token or "",
        certificate=environment.master_certificate,
    )
    stack.callback(session.close)
    spool = _open_spool(info, stack, server=session.url, most_bytes=_MOST_SENT_BYTES)
    reach = Reach()
    sender = SpoolSender(session, spool.path, reach)
    stack.callback(lambda: sender.close(wait_s()))
    records = RemoteRecords(
        session, trial_id=info.trial_id, append=spool.append, sender=sender, reach=reach
    )

    def add_missing(append: _Append) -> None:
        for kind, payload in records.untold_checkpoints():
            append(kind, payload)

    return Reporting(
        records=records,
        spool=spool,
        settle=lambda: sender.flush(wait_s()),
        add_missing=add_missing,
    )


def patience() -> Patience:
    """Return what lets a trial wait while the server of its database is away."""
    import logging

    from detcore.database import Patience

    return Patience(logging.getLogger("detcore").warning)


def _open_spool(
    info: TrialInfo,
    stack: contextlib.ExitStack,
    *,
    server: str | None = None,
    most_bytes: int | None = None,
) -> Spool:
    from detcore._log import Spool, spool_path

    path = spool_path(Path(info.trial_dir), info.run_id)
    spool = Spool(
        path,
        trial_id=info.trial_id,
        run_id=info.run_id,
        server=server,
        most_bytes=most_bytes,
    )
    stack.callback(spool.close)
    return spool
