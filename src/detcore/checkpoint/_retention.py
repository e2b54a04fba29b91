"""Which checkpoints of an experiment are kept, and deleting the others."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detcore.checkpoint._delete import delete_checkpoint
from detcore.errors import CheckpointStateError, ConfigError

if TYPE_CHECKING:
    from detcore.database import CheckpointRecord, Database, ExperimentRecord
    from detcore.storage import StorageBackend

__all__ = [
    "RetentionPlan",
    "RetentionPolicy",
    "SavedCheckpoint",
    "apply_retention",
    "choose_checkpoints",
    "plan_retention",
]

# Where the newest one turns out to be damaged, the one before it is gone on from.
_TO_GO_ON_FROM = 2
_RULES = ("save_experiment_best", "save_trial_best", "save_trial_latest")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """How many checkpoints are kept; the sets that the rules name are united.

    Attributes:
        save_experiment_best: Best ones of the whole experiment; >= 0.
        save_trial_best: Best ones of each trial; >= 0.
        save_trial_latest: Those of each trial with the most steps; >= 0.
    """

    save_experiment_best: int = 0
    save_trial_best: int = 1
    save_trial_latest: int = 1

    def __post_init__(self) -> None:
        for name in _RULES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"{name} is {value!r}; expected a whole number >= 0")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RetentionPolicy:
        """Return what an experiment's ``checkpoint_storage`` says, with defaults for the rest."""
        storage = config.get("checkpoint_storage")
        if not isinstance(storage, Mapping):
            return cls()
        return cls(**{name: storage[name] for name in _RULES if storage.get(name) is not None})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A whole checkpoint, as the rules see it.

    Attributes:
        steps_completed: Batches completed when it was saved.
        metric: The searcher's metric at that step; None or NaN if there was no validation.
        saved_at: When it was saved; decides between two of one trial with the same steps.
    """

    uuid: str
    trial_id: int
    steps_completed: int
    metric: float | None = None
    saved_at: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What becomes of the checkpoints.

    Attributes:
        kept: Why each one is kept, by UUID.
        deleted: UUIDs of the others, in the order in which they are deleted.
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

    One without a metric, or with NaN, is never among the best; of equal values the one of the
    earlier trial, then of fewer steps, comes first. A checkpoint that several rules name counts in
    each of them.

    Args:
        saved: All whole checkpoints of the experiment.
        policy: How many.
        smaller_is_better: Whether a smaller metric is better.
        exempt: Those that are kept whatever the rules say, with the reason.
        unfinished: Trials that may go on; their two latest checkpoints are always kept.
    """
    everything = sorted(saved, key=_oldest_first)
    kept: dict[str, list[str]] = defaultdict(list)

    def keep(items: Iterable[SavedCheckpoint], reason: str) -> None:
        for item in items:
            kept[item.uuid].append(reason)

    sign = 1.0 if smaller_is_better else -1.0
    ranked = sorted(
        (item for item in everything if item.metric is not None and not math.isnan(item.metric)),
        key=lambda item: sign * (item.metric or 0.0),  # sorted() keeps the order of equals
    )
    keep(ranked[: policy.save_experiment_best], "best of the experiment")
    for trial_id in dict.fromkeys(item.trial_id for item in everything):
        best = [item for item in ranked if item.trial_id == trial_id]
        keep(best[: policy.save_trial_best], "best of its trial")
        newest = _newest_first(item for item in everything if item.trial_id == trial_id)
        keep(newest[: policy.save_trial_latest], "latest of its trial")
        if trial_id in unfinished:
            keep(newest[policy.save_trial_latest : _TO_GO_ON_FROM], "its trial may go on from it")
    for item in everything:
        if exempt and item.uuid in exempt:
            kept[item.uuid].append(exempt[item.uuid])
    deleted = tuple(item.uuid for item in everything if item.uuid not in kept)
    return RetentionPlan({uuid: tuple(reasons) for uuid, reasons in kept.items()}, deleted)


def plan_retention(
    database: Database,
    experiment_id: int,
    *,
    policy: RetentionPolicy | None = None,
    storage_url: str | None = None,
) -> RetentionPlan:
    """Find out which checkpoints of an experiment are to be kept; nothing is changed.

    Only COMPLETED ones count and are deleted: what is being saved, damaged, or was deleted in part
    by somebody is theirs to look after. Deletions that were interrupted are among those to delete.

    Of a trial that may go on, a checkpoint is kept until a report from behind it is recorded: until
    then its validation, which decides how good it is, may be on its way.

    Args:
        database: The records; call `detcore.database.ingest_spools` first.
        experiment_id: Which experiment.
        policy: How many; default: what the experiment's configuration says.
        storage_url: Only those in this storage are deleted; None = wherever they are.

    Raises:
        NotFoundError: If there is no such experiment.
    """
    experiment = database.get_experiment(experiment_id)
    searcher = experiment.config.get("searcher") or {}
    records = database.list_checkpoints(experiment_id=experiment_id)
    metric = searcher.get("metric")
    metrics = database.checkpoint_metrics(experiment_id, metric) if metric else {}
    unfinished = _unfinished(database, experiment)
    saved = [_saved(record, metrics) for record in records if record.state == "COMPLETED"]
    plan = choose_checkpoints(
        saved,
        policy or RetentionPolicy.from_config(experiment.config),
        smaller_is_better=searcher.get("smaller_is_better", True),
        exempt=_exempt(database) | _not_judged(database, experiment_id, saved, unfinished),
        unfinished=unfinished,
    )
    begun = [record.uuid for record in records if record.state == "DELETING"]
    there = {record.uuid for record in records if storage_url in (None, record.storage_url)}
    return RetentionPlan(
        plan.kept, tuple(uuid for uuid in (*begun, *plan.deleted) if uuid in there)
    )


def apply_retention(
    database: Database,
    storage: StorageBackend,
    experiment_id: int,
    *,
    policy: RetentionPolicy | None = None,
    on_deleted: Callable[[str], None] | None = None,
) -> RetentionPlan:
    """Delete the checkpoints of an experiment that are not to be kept.

    It may be killed at any moment: each deletion is recorded before files are touched, and the
    next pass goes on. A second pass changes nothing. Checkpoints in other storages stay.

    Args:
        database: The records; call `detcore.database.ingest_spools` first.
        storage: The experiment's.
        experiment_id: Which experiment.
        policy: How many; default: what the experiment's configuration says.
        on_deleted: Called with each UUID, once it is deleted.

    Returns:
        What was kept and deleted.

    Raises:
        NotFoundError: If there is no such experiment.
        StorageError: If something could not be deleted; what was begun is finished by the next
            pass.
    """
    plan = plan_retention(database, experiment_id, policy=policy, storage_url=storage.url)
    kept, deleted = dict(plan.kept), []
    for uuid in plan.deleted:
        try:
            delete_checkpoint(storage, uuid, database=database)
        except CheckpointStateError as error:  # it was registered since the plan was made
            kept[uuid] = (str(error).partition("\n")[0],)
            continue
        deleted.append(uuid)
        if on_deleted is not None:
            on_deleted(uuid)
    return RetentionPlan(kept, tuple(deleted))


def _oldest_first(item: SavedCheckpoint) -> tuple[int, int, float, str]:
    return item.trial_id, item.steps_completed, item.saved_at, item.uuid


def _newest_first(items: Iterable[SavedCheckpoint]) -> list[SavedCheckpoint]:
    """Sort as `Database.latest_checkpoint` does: what a trial goes on from is the first."""
    return sorted(items, key=lambda item: (-item.steps_completed, -item.saved_at, item.uuid))


def _saved(record: CheckpointRecord, metrics: Mapping[str, float]) -> SavedCheckpoint:
    return SavedCheckpoint(
        uuid=record.uuid,
        trial_id=record.trial_id,
        steps_completed=record.steps_completed,
        metric=metrics.get(record.uuid),
        saved_at=record.committed_at.timestamp() if record.committed_at else 0.0,
    )


def _exempt(database: Database) -> dict[str, str]:
    """Return the checkpoints that others rely on, with the reason."""
    exempt = {}
    for experiment in database.list_experiments():
        for uuid in _sources(database, experiment):
            exempt[uuid] = f"experiment {experiment.id} starts from it"
    for uuid, versions in database.registered_checkpoints().items():
        exempt[uuid] = f"in the model registry: {', '.join(versions)}"
    return exempt


def _sources(database: Database, experiment: ExperimentRecord) -> Sequence[str]:
    """Return what the trials of an experiment start from; records from long ago name a trial."""
    searcher = experiment.config.get("searcher") or {}
    uuid, trial_id = searcher.get("source_checkpoint_uuid"), searcher.get("source_trial_id")
    if uuid:
        return [uuid]
    latest = None if trial_id is None else database.latest_checkpoint(trial_id)
    return [] if latest is None else [latest.uuid]


def _not_judged(
    database: Database,
    experiment_id: int,
    saved: Iterable[SavedCheckpoint],
    unfinished: Collection[int],
) -> dict[str, str]:
    """Return the checkpoints whose validation may not be recorded yet."""
    if not unfinished:
        return {}
    summaries = database.summarize_trials(experiment_id, metric=None)
    return {
        item.uuid: "its validation may not be recorded yet"
        for item in saved
        if item.trial_id in unfinished
        and item.steps_completed >= summaries[item.trial_id].steps_completed
    }


def _unfinished(database: Database, experiment: ExperimentRecord) -> set[int]:
    """Return the trials that may go on: running, interrupted, or failed in an open experiment."""
    over = {"COMPLETED", "CANCELED"}
    if experiment.state.value in over:
        over.add("ERROR")
    return {
        trial.id for trial in database.list_trials(experiment.id) if trial.state.value not in over
    }
