"""Reading a spool to send it elsewhere."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from detcore.database._drain import SpoolDamagedError, read_part
from detcore.database._lines import NotASpoolError, read_header

__all__ = ["SpoolDamagedError", "Unsent", "read_unsent", "spool_owner"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unsent:
    """Whole lines of a spool.

    Attributes:
        trial_id: Whose spool it is.
        run_id: Of which run.
        server: The server that it is for; None: the database of its home.
        first: Byte where its records begin.
        start: Byte where these lines begin.
        lines: The lines, as they are in the file; some, if there are many.
    """

    trial_id: int
    run_id: int
    server: str | None
    first: int
    start: int
    lines: bytes


def read_unsent(path: Path, offset: int) -> Unsent | None:
    """Read what stands in a spool from a byte on; None where nothing is finished in it yet.

    Args:
        path: The spool.
        offset: Byte behind what was sent before; 0 = the beginning.

    Raises:
        SpoolDamagedError: If the file is not a spool, or shorter than `offset`.
        FileNotFoundError: If it is gone.
    """
    with path.open("rb") as file:
        try:
            header = read_header(file, path)
            if header is None:
                return None
            start = max(offset, header.records_at)
            lines = read_part(file, start)
        except NotASpoolError as error:
            raise SpoolDamagedError(f"{error}.\nWhat was reported there cannot be sent.") from error
    return Unsent(
        trial_id=header.trial_id,
        run_id=header.run_id,
        server=header.server,
        first=header.records_at,
        start=start,
        lines=lines,
    )


def spool_owner(path: Path) -> tuple[int, int] | None:
    """Return trial and run that the name of a spool says it is of; None where it says nothing."""
    trial, run = path.parent.name, path.stem.removeprefix("spool-")
    return (int(trial), int(run)) if trial.isdigit() and run.isdigit() else None
