"""Lineage: origins of trials and checkpoints, and experiments started from a checkpoint."""

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
    """A checkpoint from which an experiment started.

    Attributes:
        name: UUID, or a directory.
        record: The checkpoint's record, or None if it is not in the records.
    """

    name: str
    record: CheckpointRecord | None


def find_ancestors(database: Database, experiment: ExperimentRecord) -> list[Origin]:
    """Return the chain of checkpoints from which an experiment and its predecessors started.

    Args:
        database: The records.
        experiment: The experiment.
    """
    origins: list[Origin] = []
    names: set[str] = set()
    while len(origins) < _MAX_ANCESTORS:
        origin = _find_origin(database, experiment)
        if origin is None or origin.name in names:
            break
        names.add(origin.name)
        origins.append(origin)
        if origin.record is None:
            break
        experiment = database.get_experiment(origin.record.experiment_id)
    return origins


def find_descendants(database: Database, uuid: str) -> list[ExperimentRecord]:
    """Return the experiments, of the newest 1,000, that started from a checkpoint."""
    newest = database.list_experiments(newest_first=True, limit=_SEARCHED)
    return [one for one in newest if one.searcher.source_checkpoint_uuid == uuid]


def run_origins(
    runs: Sequence[RunRecord], checkpoints: Sequence[CheckpointRecord]
) -> dict[int, CheckpointRecord]:
    """Return the checkpoint from which each run of a trial continued.

    Args:
        runs: The trial's runs.
        checkpoints: The trial's checkpoints, including deleted checkpoints.
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


def _find_origin(database: Database, experiment: ExperimentRecord) -> Origin | None:
    name = experiment.searcher.source_checkpoint_uuid
    if not name:
        return None
    try:
        return Origin(name, database.get_checkpoint(name))
    except NotFoundError:
        return Origin(name, None)
