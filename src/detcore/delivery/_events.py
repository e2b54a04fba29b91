"""The events of a trial's log as arguments of observer hooks, and the end of a killed run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from detcore._log import Spool, SpooledRecord, events, is_spool_in_use, read_spool, spool_path
from detcore._log.events import Event, TrialFinished, encode
from detcore.checkpoint import describe_checkpoint, recover_checkpoints
from detcore.contract.values import TrialInfo
from detcore.delivery._mailbox import mailboxes_of
from detcore.hooks import CheckpointSaved, EventInfo

if TYPE_CHECKING:
    from detcore.database import Database, TrialRecord
    from detcore.storage import StorageBackend

__all__ = ["arguments_of", "hook_of", "recover_trial", "saved_event", "tell_end_of_killed"]

_HOOKS: dict[type[events.Event], str] = {
    events.TrialStarted: "detcore_trial_started",
    events.TrainingMetrics: "detcore_training_metrics",
    events.ValidationMetrics: "detcore_validation_metrics",
    events.CheckpointCommitted: "detcore_checkpoint_saved",
    events.CheckpointSaved: "detcore_checkpoint_saved",
    events.TrialFinished: "detcore_trial_finished",
}
# The end is the last line, and short.
_TAIL_BYTES = 16 * 1024


def hook_of(event: events.Event | None) -> str | None:
    """Return the hook that an event of a log is for, or None."""
    if event is None or (isinstance(event, events.CheckpointCommitted) and not event.url):
        return None  # in the first release, observers got checkpoints by a separate line
    return _HOOKS.get(type(event))


def saved_event(saved: CheckpointSaved) -> events.CheckpointSaved:
    """Return the event of a checkpoint that was found whole after its process was killed."""
    return events.CheckpointSaved(
        uuid=saved.uuid,
        steps_completed=saved.steps_completed,
        url=saved.url,
        path=None if saved.path is None else str(saved.path),
        size_bytes=saved.size_bytes,
        stalled_s=saved.stalled_s,
        total_s=saved.total_s,
    )


def arguments_of(
    record: SpooledRecord, event: events.Event, trial: TrialInfo, *, is_repeat: bool
) -> Mapping[str, object]:
    """Return the arguments for the hook of a record's event; nothing in them can be changed."""
    info = EventInfo(number=record.seq, time=record.time, is_repeat=is_repeat)
    common: dict[str, object] = {"trial": trial, "event": info}
    if isinstance(event, events.TrainingMetrics | events.ValidationMetrics):
        common["steps_completed"] = event.steps_completed
        common["metrics"] = MappingProxyType(event.metrics)
        if isinstance(event, events.TrainingMetrics):
            batches = event.batch_metrics
            common["batch_metrics"] = (
                None if batches is None else tuple(map(MappingProxyType, batches))
            )
    elif isinstance(event, events.CheckpointCommitted | events.CheckpointSaved):
        common["checkpoint"] = CheckpointSaved(
            uuid=event.uuid,
            steps_completed=event.steps_completed,
            url=event.url or "",  # `hook_of` has seen that it is there
            size_bytes=event.size_bytes,
            path=None if event.path is None else Path(event.path),
            stalled_s=event.stalled_s,
            total_s=event.total_s,
        )
    elif isinstance(event, events.TrialFinished):
        common.update(state=event.state, error=event.error)
    return common


def recover_trial(
    database: Database,
    storage: StorageBackend,
    trial: TrialRecord,
    *,
    trial_dir: Path | None = None,
    uuids: Collection[str] | None = None,
) -> None:
    """Settle the checkpoints that killed processes of a trial left, and tell its observers.

    Checkpoints that were committed and could not be reported are added to the log of the killed
    run, if it has observers.

    Args:
        database: Records of the checkpoints.
        storage: The trial's storage.
        trial: The trial; its process is gone.
        trial_dir: Its folder; default: the recorded one.
        uuids: Only these checkpoints; None for all of the trial.
    """
    completed = recover_checkpoints(database, storage, trial.id, uuids=uuids)
    if trial_dir is None and trial.trial_dir is not None:
        trial_dir = Path(trial.trial_dir)
    if trial_dir is not None:
        saved = [saved_event(describe_checkpoint(storage, uuid)) for uuid in completed]
        _append(trial_dir, trial.id, trial.run_id, saved)


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
