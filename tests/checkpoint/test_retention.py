"""Which checkpoints are kept, and that a pass over them may be killed and repeated."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcore.checkpoint import (
    CheckpointContext,
    apply_retention,
    delete_checkpoint,
    verify_checkpoint,
)
from detcore.distributed import DistributedContext
from detcore.errors import CheckpointStateError, ConfigError
from detcore.log.events import CheckpointDamaged, CheckpointDeleting
from detcore.records import (
    MetricRecord,
    RetentionPlan,
    RetentionPolicy,
    plan_retention,
)
from detcore.records.retention import SavedCheckpoint, choose_checkpoints
from detcore.types import ExperimentState, TrialState

# The documented example: two trials of five checkpoints each.
_METRICS = [None, None, 0.6, 0.5, 0.4, None, 0.2, 0.3, None, None]
_EXAMPLE = [
    SavedCheckpoint(uuid=str(n), trial_id=1 if n <= 5 else 2, steps_completed=n, metric=metric)
    for n, metric in enumerate(_METRICS, 1)
]


def policy(best: int, trial_best: int, latest: int) -> RetentionPolicy:
    return RetentionPolicy(
        save_experiment_best=best, save_trial_best=trial_best, save_trial_latest=latest
    )


@pytest.mark.parametrize(
    ("numbers", "kept"),
    [
        ((0, 0, 0), []),
        ((2, 0, 0), [8, 7]),
        ((5, 0, 0), [8, 7, 5, 4, 3]),
        ((9, 0, 0), [8, 7, 5, 4, 3]),
        ((0, 1, 0), [7, 5]),
        ((0, 3, 0), [8, 7, 5, 4, 3]),
        ((0, 7, 0), [8, 7, 5, 4, 3]),
        ((0, 0, 1), [10, 5]),
        ((0, 0, 3), [10, 9, 8, 5, 4, 3]),
        ((2, 1, 0), [8, 7, 5]),
        ((2, 0, 1), [10, 8, 7, 5]),
        ((0, 1, 1), [10, 7, 5]),
        ((2, 1, 1), [10, 8, 7, 5]),
    ],
)
def test_retention_follows_documented_table(numbers: tuple[int, int, int], kept: list[int]) -> None:
    plan = choose_checkpoints(_EXAMPLE, policy(*numbers), smaller_is_better=True)
    assert sorted(map(int, plan.kept), reverse=True) == kept
    assert {*plan.kept, *plan.deleted} == {str(n) for n in range(1, 11)}


def test_retention_keeps_earlier_of_equal_values() -> None:
    items = [
        SavedCheckpoint(uuid=f"{trial}-{step}", trial_id=trial, steps_completed=step, metric=1.0)
        for trial in (2, 1)
        for step in (20, 10)
    ]
    plan = choose_checkpoints(items, policy(1, 1, 1), smaller_is_better=True)
    assert plan.kept == {
        "1-10": ("best of the experiment", "best of its trial"),
        "2-10": ("best of its trial",),
        "1-20": ("latest of its trial",),
        "2-20": ("latest of its trial",),
    }
    alone = choose_checkpoints(items[:1], policy(1, 1, 1), smaller_is_better=True)
    assert len(alone.kept["2-20"]) == 3


@pytest.mark.parametrize("value", [-1, 1.0, True, "1"])
def test_invalid_retention_policy_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="save_trial_latest"):
        RetentionPolicy(save_trial_latest=value)


def test_retention_policy_has_documented_defaults() -> None:
    assert RetentionPolicy.from_config({}) == policy(0, 1, 1)
    assert RetentionPolicy.from_config({"checkpoint_storage": "s3://b/p"}) == policy(0, 1, 1)
    storage = {"type": "s3", "save_experiment_best": 3, "save_trial_latest": 0}
    assert RetentionPolicy.from_config({"checkpoint_storage": storage}) == policy(3, 1, 0)


metrics = st.one_of(st.none(), st.just(math.nan), st.floats(0, 1).map(lambda x: round(x, 1)))
checkpoints = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5), metrics), max_size=25).map(
    lambda rows: [
        SavedCheckpoint(uuid=f"c{n}", trial_id=trial, steps_completed=step, metric=metric)
        for n, (trial, step, metric) in enumerate(rows)
    ]
)
policies = st.builds(policy, st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))


def is_number(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


@given(
    checkpoints, policies, st.booleans(), st.sets(st.integers(0, 30)), st.sets(st.integers(1, 4))
)
def test_retention_obeys_each_rule(
    saved: list[SavedCheckpoint],
    rules: RetentionPolicy,
    smaller: bool,
    exempt_numbers: set[int],
    unfinished: set[int],
) -> None:
    exempt = {f"c{n}": "exempt" for n in exempt_numbers}

    def choose(items: list[SavedCheckpoint]) -> RetentionPlan:
        return choose_checkpoints(
            items, rules, smaller_is_better=smaller, exempt=exempt, unfinished=unfinished
        )

    plan = choose(saved)
    by_uuid = {item.uuid: item for item in saved}
    assert set(plan.kept) | set(plan.deleted) == set(by_uuid)
    assert not set(plan.kept) & set(plan.deleted)
    assert not set(plan.deleted) & set(exempt)

    def is_worse(one: SavedCheckpoint, other: SavedCheckpoint) -> bool:
        assert one.metric is not None
        assert other.metric is not None
        return one.metric > other.metric if smaller else one.metric < other.metric

    def check_best(reason: str, among: list[SavedCheckpoint], limit: int) -> None:
        valued = [item for item in among if is_number(item.metric)]
        best = [item for item in among if reason in plan.kept.get(item.uuid, ())]
        assert len(best) == min(limit, len(valued))
        assert all(item in valued for item in best)
        other_items = [item for item in valued if item not in best]
        assert not any(is_worse(one, other) for one in best for other in other_items)

    check_best("best of the experiment", saved, rules.save_experiment_best)
    for trial in {item.trial_id for item in saved}:
        own_items = [item for item in saved if item.trial_id == trial]
        check_best("best of its trial", own_items, rules.save_trial_best)
        latest = [i for i in own_items if "latest of its trial" in plan.kept.get(i.uuid, ())]
        assert len(latest) == min(rules.save_trial_latest, len(own_items))
        least = min((item.steps_completed for item in latest), default=0)
        assert all(i.steps_completed <= least for i in own_items if i not in latest and latest)
        if trial in unfinished:
            newest = max(item.steps_completed for item in own_items)
            assert any(i.uuid in plan.kept and i.steps_completed == newest for i in own_items)
    # After these deletions, no more checkpoints are deleted.
    again = choose([by_uuid[uuid] for uuid in plan.kept])
    assert again.deleted == ()
    assert dict(again.kept) == dict(plan.kept)


class Experiment:
    """An experiment of two trials that are complete, with validations and checkpoints."""

    def __init__(self, desk: Any, folder: Path) -> None:
        self.desk = desk
        self.database = desk.database
        searcher = {"metric": "loss", "smaller_is_better": True}
        self.id = self.database.create_experiment(
            config={"searcher": searcher}, config_text=None, model_dir="/", name="kept"
        )
        self.folder = folder
        self.trials = [self.add_trial(), self.add_trial()]
        self.end(ExperimentState.COMPLETED)

    def add_trial(self) -> int:
        trial_id: int = self.database.create_trial(experiment_id=self.id, hparams={}, seed=0)
        self.database.start_run(trial_id)
        return trial_id

    def end(self, state: ExperimentState) -> None:
        for trial_id in self.trials:
            self.database.set_trial_state(trial_id, TrialState(state.value))
        self.database.set_experiment_state(self.id, state)

    def save(self, step: int, loss: float | None = None, *, trial: int = 0) -> str:
        trial_id = self.trials[trial]
        context = CheckpointContext(
            storage=self.desk.storage, distributed=DistributedContext(), database=self.database,
            trial_id=trial_id,
        )  # fmt: skip
        uuid = context.upload(self.folder, {"steps_completed": step})
        if loss is not None:
            self.validate(step, loss, trial_id=trial_id)
        return uuid

    def validate(
        self, step: int, loss: float, *, run_id: int = 1, trial_id: int | None = None
    ) -> None:
        self.database.add_metrics(
            [
                MetricRecord(
                    trial_id=trial_id or self.trials[0], run_id=run_id, kind="validation",
                    steps_completed=step, metrics={"loss": loss, "accuracy": 1 - loss},
                )
            ]
        )  # fmt: skip

    def prune(self, *numbers: int, **options: Any) -> RetentionPlan:
        """Apply a policy of these numbers, or by default the configured policy."""
        options["policy"] = policy(*numbers) if numbers else None
        return apply_retention(self.database, self.desk.storage, self.id, **options)


@pytest.fixture
def experiment(desk: Any, folder: Path) -> Experiment:
    return Experiment(desk, folder)


def test_second_retention_pass_deletes_nothing(experiment: Experiment) -> None:
    desk = experiment.desk
    best = experiment.save(10, 0.1)
    pruned = [experiment.save(20, 0.5), experiment.save(30, math.nan)]
    latest = experiment.save(40)
    other = experiment.save(10, 0.3, trial=1)
    notices: list[str] = []
    plan = experiment.prune(on_deleted=notices.append)
    assert plan.kept == {
        best: ("best of its trial",),
        latest: ("latest of its trial",),
        other: ("best of its trial", "latest of its trial"),
    }
    assert list(plan.deleted) == notices == pruned
    states = desk.states()
    assert [states[uuid] for uuid in pruned] == ["DELETED"] * 2
    for uuid in plan.kept:
        assert verify_checkpoint(desk.storage, uuid) == []
    assert {entry.key.partition("/")[0] for entry in desk.storage.list()} == set(plan.kept)
    again = experiment.prune()
    assert (again.kept, again.deleted) == (plan.kept, ())
    assert desk.states() == states


def test_retention_uses_metric_of_last_run(experiment: Experiment) -> None:
    first = experiment.save(10, 0.1)
    second = experiment.save(20, 0.2)
    experiment.save(30)
    experiment.database.start_run(experiment.trials[0])
    experiment.validate(10, 0.9, run_id=2)
    experiment.end(ExperimentState.COMPLETED)
    plan = experiment.prune(0, 1, 0)
    assert set(plan.kept) == {second}
    assert first in plan.deleted


def test_retention_ignores_missing_checkpoints(experiment: Experiment) -> None:
    older = [experiment.save(step) for step in (10, 20, 30)]
    missing = [experiment.save(step) for step in (40, 50)]
    for uuid in missing:
        experiment.desk.storage.delete_tree(uuid)
    plan = experiment.prune(0, 0, 1)
    assert set(plan.kept) == {older[2]}
    assert plan.deleted == tuple(older[:2])


def test_retention_keeps_referenced_checkpoints(experiment: Experiment) -> None:
    database = experiment.database
    registered, source, missing = (experiment.save(step) for step in (10, 20, 30))
    database.create_model("m")
    database.register_version("m", registered)
    other = database.create_experiment(
        config={"searcher": {"source_checkpoint_uuid": source}}, config_text=None, model_dir="/",
        name="warm",
    )  # fmt: skip
    plan = experiment.prune(0, 0, 0)
    assert plan.kept == {
        registered: ("in the model registry: m version 1",),
        source: (f"experiment {other} starts from it",),
    }
    assert plan.deleted == (missing,)
    with pytest.raises(CheckpointStateError, match="in the model registry: m version 1"):
        delete_checkpoint(experiment.desk.storage, registered, database=database)
    with pytest.raises(CheckpointStateError, match="in the model registry"):
        delete_checkpoint(experiment.desk.storage, registered, database=database, globs=["*.bin"])
    assert verify_checkpoint(experiment.desk.storage, registered) == []
    assert delete_checkpoint(
        experiment.desk.storage, registered, database=database, force=True
    ) == {}  # fmt: skip
    assert experiment.desk.names(registered) == []


@pytest.mark.parametrize("state", ["RUNNING", "PAUSED", "ERROR"])
def test_retention_keeps_resume_checkpoints(experiment: Experiment, state: str) -> None:
    missing = experiment.save(10, 0.1)
    before = experiment.save(20, 0.2)
    latest = experiment.save(30, 0.3)
    experiment.validate(40, 0.4)
    experiment.end(ExperimentState(state))
    plan = experiment.prune(0, 0, 0)
    # Two: the newest one may turn out to be damaged.
    reason = ("its trial may resume from it",)
    assert plan.kept == {latest: reason, before: reason}
    assert plan.deleted == (missing,)
    plan = experiment.prune(0, 0, 1)
    assert plan.kept == {latest: ("latest of its trial",), before: reason}
    experiment.end(ExperimentState.CANCELED)
    assert experiment.prune(0, 0, 0).deleted == (before, latest)


def test_retention_keeps_unvalidated_checkpoints(experiment: Experiment) -> None:
    uuids = [experiment.save(step) for step in (10, 20, 30, 40)]
    experiment.validate(10, 0.5)
    experiment.end(ExperimentState.RUNNING)
    # The reports of a worker come in later than its checkpoints.
    plan = experiment.prune()
    assert plan.deleted == ()
    assert plan.kept[uuids[1]] == ("its validation may not be recorded yet",)
    experiment.validate(20, 0.1)
    assert experiment.prune().deleted == (uuids[0],)
    experiment.validate(30, 0.3)
    experiment.validate(40, 0.4)
    assert experiment.prune().deleted == ()
    last = experiment.save(50)
    experiment.validate(60, 0.6)
    assert experiment.prune().deleted == (uuids[2],)
    assert {*experiment.prune().kept} == {uuids[1], uuids[3], last}


def test_retention_prunes_failed_trials_at_the_end(
    experiment: Experiment,
) -> None:
    uuid = experiment.save(10)
    experiment.database.set_trial_state(experiment.trials[0], TrialState.ERROR)
    assert experiment.prune(0, 0, 0).deleted == (uuid,)


def test_retention_finishes_started_deletions(
    experiment: Experiment,
) -> None:
    database, desk = experiment.database, experiment.desk
    active, damaged, part, begun = (experiment.save(step) for step in (10, 20, 30, 40))
    from sqlalchemy import text

    with database._begin_write() as connection:
        connection.execute(
            text("UPDATE checkpoints SET state = 'ACTIVE' WHERE uuid = :uuid"), {"uuid": active}
        )
    database.record_checkpoint(CheckpointDamaged(uuid=damaged))
    delete_checkpoint(desk.storage, part, database=database, globs=["weights.bin"])
    database.record_checkpoint(CheckpointDeleting(uuid=begun))
    plan = experiment.prune(0, 0, 0)
    assert plan.deleted == (begun,)
    states = desk.states()
    assert [states[uuid] for uuid in (active, damaged, part, begun)] == [
        "ACTIVE", "DAMAGED", "PARTIALLY_DELETED", "DELETED",
    ]  # fmt: skip
    assert desk.names(begun) == []
    assert desk.names(damaged)


def test_retention_keeps_newly_registered_checkpoint(experiment: Experiment) -> None:
    first, second, third = (experiment.save(step) for step in (10, 20, 30))
    database = experiment.database
    database.create_model("m")

    def register(uuid: str) -> None:
        if uuid == first:
            database.register_version("m", second)

    plan = experiment.prune(0, 0, 0, on_deleted=register)
    assert plan.deleted == (first, third)
    assert "in the model registry" in plan.kept[second][0]
    assert verify_checkpoint(experiment.desk.storage, second) == []


def test_retention_is_limited_to_experiment(
    experiment: Experiment, folder: Path, make_desk: Any, tmp_path: Path
) -> None:
    from detcore.storage import LocalStorage

    own_uuid = experiment.save(10)
    elsewhere = make_desk(experiment.database, LocalStorage(tmp_path / "elsewhere"))
    desk, experiment.desk = experiment.desk, elsewhere
    away = experiment.save(20)
    experiment.desk = desk
    neighbour = Experiment(desk, folder).save(10)
    assert plan_retention(
        experiment.database, experiment.id, policy=policy(0, 0, 0)
    ).deleted == (own_uuid, away)  # fmt: skip
    assert experiment.prune(0, 0, 0).deleted == (own_uuid,)
    states = desk.states()
    assert (states[away], states[neighbour]) == ("COMPLETED", "COMPLETED")
