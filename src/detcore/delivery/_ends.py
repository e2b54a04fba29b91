"""Events of a killed run, written to its log by the process that settles it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcore._log import Spool, SpooledRecord, is_spool_in_use, read_spool, spool_path
from detcore._log.events import Event, TrialFinished, encode
from detcore.checkpoint import describe_checkpoint
from detcore.delivery._events import saved_event
from detcore.delivery._mailbox import mailboxes_of

if TYPE_CHECKING:
    from detcore.storage import StorageBackend

__all__ = ["tell_end_of_killed", "tell_recovered"]

# The end is the last line, and short.
_TAIL_BYTES = 16 * 1024


def tell_recovered(
    trial_dir: Path, *, trial_id: int, run_id: int, storage: StorageBackend, uuids: Sequence[str]
) -> None:
    """Add checkpoints to the log of a killed run that it committed and could not report.

    Nothing is written for a trial without observers.

    Args:
        trial_dir: The trial's folder.
        trial_id: The trial.
        run_id: The run; its process is gone.
        storage: Holds its checkpoints.
        uuids: The checkpoints that recovery found whole.
    """
    saved = [saved_event(describe_checkpoint(storage, uuid)) for uuid in uuids]
    _append(trial_dir, trial_id, run_id, saved)


def tell_end_of_killed(
    trial_dir: Path, *, trial_id: int, run_id: int, state: str, error: str | None
) -> bool:
    """Write the end of a run whose process was killed to its log, if the run has observers.

    Args:
        trial_dir: The trial's folder.
        trial_id: Which trial.
        run_id: Which run; its process is gone.
        state: As `detcore.hooks.specs.detcore_trial_finished` says.
        error: The error, or None.

    Returns:
        Whether it was written: the log did not have it, and observers wait for it.
    """
    if _has_end(spool_path(trial_dir, run_id)):
        return False
    return _append(trial_dir, trial_id, run_id, [TrialFinished(state=state, error=error)])


def _append(trial_dir: Path, trial_id: int, run_id: int, events: Sequence[Event]) -> bool:
    """Append events to the log of a run whose process is gone; return whether that was done."""
    path = spool_path(trial_dir, run_id)
    mailboxes = [box for box in mailboxes_of(trial_dir) if box.observes(run_id)]
    if not events or not mailboxes or not path.exists() or is_spool_in_use(path):
        return False
    spool = Spool(path, trial_id=trial_id, run_id=run_id)
    try:
        for event in events:
            spool.append(event.KIND, encode(event))
    finally:
        spool.close()
    for mailbox in mailboxes:
        mailbox.add_run(run_id)  # it may count as over already
    return True


def _has_end(path: Path) -> bool:
    """Whether the last lines of a closed spool contain the end of the run."""
    if not path.exists():
        return False
    part = read_spool(path, max(0, path.stat().st_size - _TAIL_BYTES), is_over=True)
    return any(
        isinstance(record, SpooledRecord) and record.kind == TrialFinished.KIND
        for record in part.records()
    )
