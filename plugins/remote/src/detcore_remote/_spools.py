"""Sending the records in the spools of a machine to a server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.errors import (
    DatabaseError,
    DetcoreError,
    ForbiddenError,
    NotFoundError,
    UnauthenticatedError,
    in_one_line,
)
from detcore.hooks.delivery import (
    SpoolDamagedError,
    SpoolHeader,
    is_spool_in_use,
    read_spool,
    spool_owner,
)
from detcore_remote._session import ServerAway

if TYPE_CHECKING:
    from detcore_remote._session import Session

__all__ = ["SentSpool", "send_spools"]

_TIMEOUT_S = 30.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SentSpool:
    """The result of sending a spool.

    Attributes:
        path: The spool.
        sent_bytes: How many bytes were sent that the server did not know.
        left_bytes: How many bytes it does not know yet.
        problem: Why bytes are left, in one line, or "".
    """

    path: Path
    sent_bytes: int = 0
    left_bytes: int = 0
    problem: str = ""


def send_spools(
    session: Session, home: Path, *, experiment_id: int | None = None, dry_run: bool = False
) -> Iterator[SentSpool]:
    """Send every finished record of the spools under a home that a server does not know.

    Any number of processes may do so at once, also while workers report: the server takes each
    record in once. Spools that are not for this server are left alone, and so are those of trials
    that were deleted there.

    Args:
        session: The server, as a user.
        home: `Environment.home`.
        experiment_id: Only spools of this experiment.
        dry_run: Whether to send nothing, and only count the bytes to send.

    Yields:
        The result for each spool that the server did not know to its end, or that was refused.

    Raises:
        ServerAway: If the server does not answer; it has the records sent until then.
        UnauthenticatedError: If it does not accept the token.
        ForbiddenError: If it does not accept it for a trial.
    """
    experiment = "*" if experiment_id is None else experiment_id
    for path in sorted(Path(home).glob(f"experiments/{experiment}/trials/*/spool-*.jsonl")):
        if spool_owner(path) is None:
            continue
        try:
            found = _send(session, path, dry_run=dry_run)
        except (ServerAway, UnauthenticatedError, ForbiddenError):
            raise
        except NotFoundError:
            continue
        except (DetcoreError, OSError) as error:
            yield SentSpool(path=path, problem=in_one_line(error))
            continue
        if found.sent_bytes or found.left_bytes:
            yield found


def _send(session: Session, path: Path, *, dry_run: bool) -> SentSpool:
    """Send the records of a spool that a server does not know, if the spool is for it.

    A spool of another server may belong to another trial with the same number.

    Raises:
        ServerAway: If the server did not answer.
        SpoolDamagedError: If the file is not a spool, or shorter than the part the server knows.
        DetcoreError: The refusal of the server.
    """
    header = read_spool(path).header
    if header is None or header.server != session.url:
        return SentSpool(path=path)
    answer: Any = session.ask("GET", _route(header), timeout_s=_TIMEOUT_S)
    known = offset = max(int(answer["offset"]), header.records_at)
    is_all = dry_run
    while not is_all:
        offset, is_all = _send_part(session, path, offset)
    left = _finished(path, offset)
    is_written = left and not dry_run and is_spool_in_use(path)
    note = "its trial runs, and sends it itself" if is_written else ""
    return SentSpool(path=path, sent_bytes=offset - known, left_bytes=left, problem=note)


def _route(header: SpoolHeader) -> str:
    return f"/api/detcore/v1/trials/{header.trial_id}/runs/{header.run_id}/spool"


def _finished(path: Path, offset: int) -> int:
    """Return how many bytes of finished lines follow an offset."""
    begin = offset
    while True:
        try:
            unsent = read_spool(path, offset)
        except SpoolDamagedError:
            return 0
        if not unsent.lines:
            return offset - begin
        offset = unsent.end


def _send_part(session: Session, path: Path, offset: int) -> tuple[int, bool]:
    """Send some of a spool to a server, once.

    Args:
        session: The server.
        path: The spool.
        offset: Byte up to which the server is thought to know it; 0: the beginning.

    Returns:
        Byte up to which the server knows it now, and whether there was nothing to send.

    Raises:
        ServerAway: If the server did not answer; the lines sent may have arrived.
        SpoolDamagedError: If the file is not a spool, or shorter than the part the server knows.
        DetcoreError: The refusal of the server.
    """
    unsent = read_spool(path, offset)
    if unsent.header is None or not unsent.lines:
        return offset, True
    answer: Any = session.ask(
        "POST",
        _route(unsent.header),
        body=unsent.lines,
        params={"offset": unsent.start, "first": unsent.header.records_at},
        timeout_s=_TIMEOUT_S,
        num_tries=1,
    )
    # If this is not the end of the lines sent, another process has moved it, or the server was
    # restored from a backup. The server's offset is right in both cases.
    known = int(answer["offset"])
    if known == unsent.start:
        raise DatabaseError(f"{session.url} takes nothing of {path} from byte {known} on")
    return known, False
