"""Where trials and checkpoints come from, and which experiments continue from a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from detcore.errors import NotFoundError

if TYPE_CHECKING:
    from detcore.records import CheckpointRecord, Database, ExperimentRecord, RunRecord


_MAX_ANCESTORS = 20
_SEARCHED = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint that an experiment began with.

    Attributes:
        name: Its UUID, or a folder.
        record: Its record; None if it is not in the records.
    """

    name: str
    record: CheckpointRecord | None


def ancestors(database: Database, experiment: ExperimentRecord) -> list[Origin]:
    """Return the checkpoint that an experiment began with, then that of the one before, ...

    Args:
        database: The records.
        experiment: The experiment.
    """
    found: list[Origin] = []
    seen: set[str] = set()
    while len(found) < _MAX_ANCESTORS:
        origin = _origin(database, experiment)
        if origin is None or origin.name in seen:
            break
        seen.add(origin.name)
        found.append(origin)
        if origin.record is None:
            break
        experiment = database.get_experiment(origin.record.experiment_id)
    return found


def descendants(database: Database, uuid: str) -> list[ExperimentRecord]:
    """Return which of the newest 1,000 experiments began with a checkpoint."""
    newest = database.list_experiments(newest_first=True, limit=_SEARCHED)
    return [one for one in newest if one.searcher.source_checkpoint_uuid == uuid]


def run_origins(
    runs: Sequence[RunRecord], checkpoints: Sequence[CheckpointRecord]
) -> dict[int, CheckpointRecord]:
    """Return by run of a trial the checkpoint of an earlier run from which it continued.

    Args:
        runs: The trial's runs.
        checkpoints: The trial's checkpoints, deleted ones included.
    """
    origins: dict[int, CheckpointRecord] = {}
    for run in runs:
        there = [
            record
            for record in checkpoints
            if record.committed_at is not None
            and record.committed_at <= run.started_at
            and (record.deleted_at is None or record.deleted_at > run.started_at)
        ]
        if there:
            origins[run.run_id] = max(
                there, key=lambda record: (record.steps_completed, record.started_at)
            )
    return origins


def _origin(database: Database, experiment: ExperimentRecord) -> Origin | None:
    name = experiment.searcher.source_checkpoint_uuid
    if not name:
        return None
    try:
        return Origin(name, database.get_checkpoint(name))
    except NotFoundError:
        return Origin(name, None)
