"""Retention: choose which checkpoints of an experiment to keep."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import ConfigError
from detcore.contract.values import RETENTION_DEFAULTS

if TYPE_CHECKING:
    from detcore.records.database import Database
    from detcore.records.record_classes import CheckpointRecord, ExperimentRecord


# If the newest checkpoint is damaged, a trial resumes from the previous checkpoint.
_NUM_RESUME_CHECKPOINTS = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Number of checkpoints to keep; a checkpoint stays if any rule selects it.

    Attributes:
        save_experiment_best: Best checkpoints of the whole experiment; >= 0.
        save_trial_best: Best checkpoints of each trial; >= 0.
        save_trial_latest: Checkpoints of each trial with the most steps; >= 0.
    """

    save_experiment_best: int = RETENTION_DEFAULTS["save_experiment_best"]
    save_trial_best: int = RETENTION_DEFAULTS["save_trial_best"]
    save_trial_latest: int = RETENTION_DEFAULTS["save_trial_latest"]

    def __post_init__(self) -> None:
        for name in RETENTION_DEFAULTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"{name} is {value!r}; expected a whole number >= 0")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RetentionPolicy:
        """Return the policy of an experiment's ``checkpoint_storage``, with defaults."""
        storage = config.get("checkpoint_storage")
        if not isinstance(storage, Mapping):
            return cls()
        return cls(
            **{name: storage[name] for name in RETENTION_DEFAULTS if storage.get(name) is not None}
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A complete checkpoint, as the retention rules use it.

    Attributes:
        steps_completed: Batches completed when it was saved.
        metric: The searcher's metric at that step; None or NaN without a validation.
        saved_at: Time of the save; breaks ties between checkpoints of one trial with equal steps.
    """

    uuid: str
    trial_id: int
    steps_completed: int
    metric: float | None = None
    saved_at: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Decision about the checkpoints of an experiment.

    Attributes:
        kept: Reasons to keep each checkpoint, by UUID.
        deleted: UUIDs of the other checkpoints, in the order of deletion.
    """

    kept: Mapping[str, tuple[str, ...]]
    deleted: tuple[str, ...]


def choose_checkpoints(
    saved: Iterable[SavedCheckpoint],
    policy: RetentionPolicy,
    *,
    smaller_is_better: bool,
    exempt: Mapping[str, str] | None = None,
    unfinished: Collection[int] = (),
) -> RetentionPlan:
    """Choose which checkpoints of an experiment to keep.

    A checkpoint without a metric, or with NaN, is never among the best. With equal values, the
    earlier trial comes first, then fewer steps. A checkpoint that several rules select counts in
    each of them.

    Args:
        saved: All complete checkpoints of the experiment.
        policy: How many to keep.
        smaller_is_better: Whether a smaller metric is better.
        exempt: Checkpoints to keep in any case, with the reason.
        unfinished: Trials that may continue; their two latest checkpoints are always kept.
    """
    everything = sorted(saved, key=_oldest_first)
    reasons: dict[str, list[str]] = defaultdict(list)

    def keep_items(items: Iterable[SavedCheckpoint], reason: str) -> None:
        for item in items:
            reasons[item.uuid].append(reason)

    sign = 1.0 if smaller_is_better else -1.0
    ranked = sorted(
        (item for item in everything if item.metric is not None and not math.isnan(item.metric)),
        key=lambda item: sign * (item.metric or 0.0),  # sorted() is stable
    )
    keep_items(ranked[: policy.save_experiment_best], "best of the experiment")
    for trial_id in dict.fromkeys(item.trial_id for item in everything):
        best = [item for item in ranked if item.trial_id == trial_id]
        keep_items(best[: policy.save_trial_best], "best of its trial")
        newest = _newest_first(item for item in everything if item.trial_id == trial_id)
        keep_items(newest[: policy.save_trial_latest], "latest of its trial")
        if trial_id in unfinished:
            keep_items(
                newest[policy.save_trial_latest : _NUM_RESUME_CHECKPOINTS],
                "its trial may resume from it",
            )
    for item in everything:
        if exempt and item.uuid in exempt:
            reasons[item.uuid].append(exempt[item.uuid])
    deleted = tuple(item.uuid for item in everything if item.uuid not in reasons)
    return RetentionPlan({uuid: tuple(texts) for uuid, texts in reasons.items()}, deleted)


def plan_retention(
    database: Database,
    experiment_id: int,
    *,
    policy: RetentionPolicy | None = None,
    storage_url: str | None = None,
    missing: Collection[str] = (),
) -> RetentionPlan:
    """Choose which checkpoints of an experiment to keep, without changing anything.

    Only COMPLETED checkpoints count and are deleted. Checkpoints that are being saved, are damaged,
    or were partially deleted by a user are left alone. Interrupted deletions are included in the
    deletions.

    A checkpoint of a trial that may continue is kept until a later report of the trial is recorded.
    Before that, its validation may not be recorded yet.

    Args:
        database: The records; call `detcore.records.ingest_event_logs` first.
        experiment_id: The experiment.
        policy: How many to keep; default: the policy in the experiment's configuration.
        storage_url: Delete only checkpoints in this storage; None for all storages.
        missing: Checkpoints whose files are missing; they are neither kept nor deleted.

    Raises:
        NotFoundError: If the experiment does not exist.
    """
    experiment = database.get_experiment(experiment_id)
    metric = experiment.searcher.metric
    records = database.list_checkpoints(experiment_id=experiment_id)
    metrics = database.checkpoint_metrics(experiment_id, metric) if metric else {}
    unfinished = _find_unfinished(database, experiment)
    complete = [
        _make_saved(record, metrics)
        for record in records
        if record.state == "COMPLETED" and record.uuid not in missing
    ]
    plan = choose_checkpoints(
        complete,
        policy or RetentionPolicy.from_config(experiment.config),
        smaller_is_better=bool(experiment.searcher.smaller_is_better),
        exempt=_find_exempt(database)
        | _find_unjudged(database, experiment_id, complete, unfinished),
        unfinished=unfinished,
    )
    interrupted = [record.uuid for record in records if record.state == "DELETING"]
    stored = {record.uuid for record in records if storage_url in (None, record.storage_url)}
    return RetentionPlan(
        plan.kept, tuple(uuid for uuid in (*interrupted, *plan.deleted) if uuid in stored)
    )


def _oldest_first(item: SavedCheckpoint) -> tuple[int, int, float, str]:
    return item.trial_id, item.steps_completed, item.saved_at, item.uuid


def _newest_first(items: Iterable[SavedCheckpoint]) -> list[SavedCheckpoint]:
    """Sort as `Database.latest_checkpoint` does: a trial resumes from the first checkpoint."""
    return sorted(items, key=lambda item: (-item.steps_completed, -item.saved_at, item.uuid))


def _make_saved(record: CheckpointRecord, metrics: Mapping[str, float]) -> SavedCheckpoint:
    return SavedCheckpoint(
        uuid=record.uuid,
        trial_id=record.trial_id,
        steps_completed=record.steps_completed,
        metric=metrics.get(record.uuid),
        saved_at=record.committed_at.timestamp() if record.committed_at else 0.0,
    )


def _find_exempt(database: Database) -> dict[str, str]:
    """Return checkpoints that experiments or models need, with the reason."""
    exempt = {}
    for experiment in database.list_experiments():
        uuid = experiment.searcher.source_checkpoint_uuid
        if uuid:
            exempt[uuid] = f"experiment {experiment.id} starts from it"
    for uuid, versions in database.list_registered_checkpoints().items():
        exempt[uuid] = f"in the model registry: {', '.join(versions)}"
    return exempt


def _find_unjudged(
    database: Database,
    experiment_id: int,
    saved: Iterable[SavedCheckpoint],
    unfinished: Collection[int],
) -> dict[str, str]:
    """Return checkpoints whose validation may not be recorded yet, with the reason."""
    if not unfinished:
        return {}
    summaries = database.summarize_trials(experiment_id, metric=None)
    return {
        item.uuid: "its validation may not be recorded yet"
        for item in saved
        if item.trial_id in unfinished
        and item.steps_completed >= summaries[item.trial_id].steps_completed
    }


def _find_unfinished(database: Database, experiment: ExperimentRecord) -> set[int]:
    """Return trials that may continue: running, interrupted, or failed in an open experiment."""
    final_states = {"COMPLETED", "CANCELED"}
    if experiment.state.value in final_states:
        final_states.add("ERROR")
    trials = database.list_trials(experiment.id)
    return {trial.id for trial in trials if trial.state.value not in final_states}
