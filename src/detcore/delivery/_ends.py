"""Events that a killed process could not write down itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from detcore._log import Spool, SpooledRecord, is_spool_in_use, read_spool, spool_path
from detcore.delivery._events import CHECKPOINT, FINISHED, STARTED, encode_checkpoint, encode_end
from detcore.delivery._mailbox import mailboxes_of
from detcore.hooks import CheckpointSaved

if TYPE_CHECKING:
    from detcore.database import Database

__all__ = ["add_missing_checkpoints", "tell_end_of_killed"]

# The end is the last line, and short.
_TAIL_BYTES = 16 * 1024


def add_missing_checkpoints(
    database: Database, trial_id: int, append: Callable[[str, object], object]
) -> None:
    """Write down the checkpoints of earlier runs that observers are not told of.

    A process may be killed between the commit of a checkpoint and the event.

    Args:
        database: The records; the spools of earlier runs are taken in.
        trial_id: Which trial.
        append: Adds an event to the spool of the run that starts.
    """
    starts = database.events(trial_id, STARTED)
    if not starts:
        return  # nobody observed it until now
    told = {event.payload.get("uuid") for event in database.events(trial_id, CHECKPOINT)}
    for record in database.list_checkpoints(trial_id=trial_id, states=["COMPLETED"]):
        is_observed = record.started_at >= starts[0].reported_at
        if is_observed and record.uuid not in told:
            saved = CheckpointSaved(
                uuid=record.uuid,
                steps_completed=record.steps_completed,
                url=f"{record.storage_url.rstrip('/')}/{record.uuid}",
                size_bytes=record.size_bytes,
            )
            append(CHECKPOINT, encode_checkpoint(saved))


def tell_end_of_killed(
    trial_dir: Path, *, trial_id: int, run_id: int, state: str, error: str | None
) -> bool:
    """Write down how a run ended whose process was killed, if somebody observes it.

    Args:
        trial_dir: The trial's folder.
        trial_id: Which trial.
        run_id: Which run; its process is gone.
        state: As `detcore.hooks.specs.detcore_trial_finished` says.
        error: What went wrong, or None.

    Returns:
        Whether it was written: it was not said before, and somebody waits for it.
    """
    path = spool_path(trial_dir, run_id)
    mailboxes = [box for box in mailboxes_of(trial_dir) if box.observes(run_id)]
    if not mailboxes or not path.exists() or is_spool_in_use(path) or _has_end(path):
        return False
    spool = Spool(path, trial_id=trial_id, run_id=run_id)
    try:
        spool.append(FINISHED, encode_end(state, error))
    finally:
        spool.close()
    for mailbox in mailboxes:
        mailbox.add_run(run_id)  # it may have been taken for over already
    return True


def _has_end(path: Path) -> bool:
    """Whether the last lines of a spool, which is closed, tell of the end."""
    part = read_spool(path, max(0, path.stat().st_size - _TAIL_BYTES), is_over=True)
    return any(
        isinstance(record, SpooledRecord) and record.kind == FINISHED for record in part.records()
    )
