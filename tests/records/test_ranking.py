"""Test rankings of checkpoints and trials, and paged lists."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from detcore.errors import CheckpointStateError, NotFoundError
from detcore.log.events import CheckpointDamaged
from detcore.records import MetricRecord
from detcore.types import TrialState

if TYPE_CHECKING:
    from tests.records.conftest import Store


def save(store: Store, trial: int, step: int, *, run: int = 1, **values: Any) -> str:
    """Record a checkpoint and, if values are passed, a validation at its step."""
    uuid = f"t{trial}-{step}"
    store.save(uuid, step, trial=trial)
    if values:
        report(store, trial, step, run=run, **values)
    return uuid


def report(store: Store, trial: int, step: int, *, run: int = 1, **values: Any) -> None:
    store.database.add_metrics(
        [
            MetricRecord(
                trial_id=trial, run_id=run, kind="validation", steps_completed=step, metrics=values
            )
        ]
    )


@pytest.fixture
def three(store: Store) -> Store:
    for _ in range(2):
        store.database.create_trial(experiment_id=1, hparams={}, seed=0)
    save(store, 1, 10, loss=0.5)
    save(store, 1, 20, loss=0.1)
    save(store, 1, 30)
    report(store, 1, 25, loss=0.01)  # without a checkpoint
    save(store, 2, 10, loss=0.1)
    save(store, 2, 20, loss=0.2)
    report(store, 2, 20, run=2, loss=0.9)  # the later run counts
    save(store, 3, 10, loss=math.nan)
    save(store, 3, 20, loss=math.inf)
    store.database.record_checkpoint(CheckpointDamaged(uuid=save(store, 3, 30, loss=0.0)))
    return store


def ranked(store: Store, **options: Any) -> list[str]:
    query = {"experiment_id": 1, "metric": "loss", "smaller_is_better": True, **options}
    return [row.checkpoint.uuid for row in store.database.top_checkpoints(**query)]


@pytest.mark.parametrize("limit", [None, 1, 2, 5, 8, 300])
def test_checkpoints_are_ranked_by_validation(three: Store, limit: int | None) -> None:
    order = ["t1-20", "t2-10", "t1-10", "t2-20", "t3-20", "t1-30", "t3-10"]
    assert ranked(three, limit=limit) == order[:limit]
    down = ["t3-20", "t2-20", "t1-10", "t1-20", "t2-10", "t1-30", "t3-10"]
    assert ranked(three, limit=limit, smaller_is_better=False) == down[:limit]
    distinct = ["t1-20", "t2-10", "t3-20"]
    assert ranked(three, limit=limit, distinct_trials=True) == distinct[:limit]
    assert ranked(three, experiment_id=None, trial_id=1, limit=limit) == [
        "t1-20", "t1-10", "t1-30"
    ][:limit]  # fmt: skip
    absent = ["t1-10", "t1-20", "t1-30", "t2-10", "t2-20", "t3-10", "t3-20"]
    assert ranked(three, metric="absent", limit=limit) == absent[:limit]


@pytest.mark.parametrize("limit", [None, 1, 2, 4, 300])
def test_stand_ins_rank_by_best_validation(store: Store, limit: int | None) -> None:
    for _ in range(3):
        store.database.create_trial(experiment_id=1, hparams={}, seed=0)
    for trial, value in ((1, 0.5), (2, 0.1), (3, 0.3)):  # a checkpoint of trial 3 has a value
        report(store, trial, 25, loss=value)
        report(store, trial, 15, loss=value + 0.5)
        for step in (10, 25 if trial == 3 else 20, 30, 40):
            save(store, trial, step)
    report(store, 4, 25, loss=0.0)
    save(store, 4, 20)  # no later checkpoint
    rows = store.database.top_checkpoints(
        experiment_id=1, metric="loss", smaller_is_better=True, limit=limit, distinct_trials=True
    )
    assert [(row.checkpoint.uuid, row.value, row.value_steps) for row in rows] == [
        ("t4-20", 0.0, 25), ("t2-30", 0.1, 25), ("t3-25", 0.3, 25), ("t1-30", 0.5, 25)
    ][:limit]  # fmt: skip
    assert [row.validation is None for row in rows] == [True, True, False, True][:limit]
    assert ranked(store, experiment_id=None, trial_id=2)[:2] == ["t2-30", "t2-10"]
    assert ranked(store, smaller_is_better=False)[:2] == ["t1-20", "t2-20"]
    store.database.record_checkpoint(CheckpointDamaged(uuid="t2-30"))
    assert ranked(store, limit=2) == ["t4-20", "t2-40"]


def test_ranking_contains_values_and_validations(three: Store) -> None:
    rows = three.database.top_checkpoints(experiment_id=1, metric="loss", smaller_is_better=True)
    assert [row.value for row in rows] == [0.1, 0.1, 0.5, 0.9, math.inf, None, None]
    assert rows[3].validation is not None
    assert rows[3].validation.run_id == 2
    assert rows[5].validation is None
    assert set(three.database.checkpoint_validations(["t1-10", "t1-30", "x"])) == {"t1-10"}
    with pytest.raises(NotFoundError, match="no experiment 9"):
        ranked(three, experiment_id=9)


def test_trials_are_ranked_and_summarized(three: Store) -> None:
    database = three.database
    database.create_trial(experiment_id=1, hparams={}, seed=0)
    rows = database.top_trials(1, metric="loss", smaller_is_better=True)
    assert [(row.trial.id, row.value, row.steps_completed) for row in rows] == [
        (3, 0.0, 30), (1, 0.01, 25), (2, 0.1, 10), (4, None, None)
    ]  # fmt: skip
    few = database.top_trials(1, metric="loss", smaller_is_better=True, limit=2)
    assert few == rows[:2]
    summed = database.summarize_trials(1, metric="loss")
    assert [(s.num_runs, s.steps_completed, s.latest_checkpoint) for s in summed.values()] == [
        (1, 25, "t1-30"), (0, 20, "t2-20"), (0, 30, "t3-20"), (0, 0, None)
    ]  # fmt: skip
    for trial_id, summary in summed.items():
        best = database.trial_best_validation(trial_id, "loss", smaller_is_better=True)
        assert summary.best == best


def test_lists_support_pages_and_filters(store: Store) -> None:
    database = store.database
    for name, labels in (("Ärger", ["a"]), ("beta", ["a", "b"])):
        database.create_experiment(
            config={"labels": labels}, config_text=None, model_dir="/m", name=name
        )
    database.set_experiment_archived(3, True)

    def ids(**options: Any) -> list[int]:
        return [row.id for row in database.list_experiments(**options)]

    assert ids(labels=["a"]) == [2, 3]
    assert ids(labels=["a", "b"], archived=True) == [3]
    assert ids(name="ä") == [2]
    assert ids(newest_first=True, limit=2) == [3, 2]
    assert ids(limit=5, offset=1) == ids(offset=1) == [2, 3]
    assert database.count_experiments(archived=False) == 2
    for _ in range(3):
        database.create_trial(experiment_id=1, hparams={}, seed=0)
    pages = [database.list_trials(1, limit=2, offset=start, newest_first=True) for start in (0, 2)]
    assert [[trial.id for trial in page] for page in pages] == [[4, 3], [2, 1]]
    running = database.list_trials(1, states=[TrialState.RUNNING])
    assert [trial.id for trial in running] == [1]


def test_deleted_experiment_leaves_no_records(three: Store) -> None:
    database = three.database
    database.create_model("m")
    database.register_version("m", "t1-10")
    with pytest.raises(CheckpointStateError, match="in the model registry: m version 1"):
        database.delete_experiment(1)
    database.delete_model("m")
    database.delete_experiment(1)
    assert database.list_experiments() == []
    assert database.list_checkpoints() == []
    again = database.create_experiment(config={}, config_text=None, model_dir="/m", name="n")
    assert again == 2
    assert database.create_trial(experiment_id=2, hparams={}, seed=0) == 4
    assert database.create_model("m").id == 2


def test_invalid_characters_are_replaced(store: Store) -> None:
    database = store.database
    database.set_trial_state(1, TrialState.ERROR, error="a\0b\ud800c" + "x" * 100_000)
    assert str(database.get_trial(1).error).startswith("a\ufffdb\ufffdcx")
    values: dict[str, Any] = {"n" * 5000: 1.0, "big": 2**200, "text\0": 1.0, "nan": math.nan}
    report(store, 1, 5, **values)
    (row,) = database.metrics(1, "validation")
    assert row.metrics["big"] == 2**200
    assert row.metrics["n" * 5000] == 1.0
    best = database.best_validation(1, "text\0", smaller_is_better=True)
    assert best is not None
