"""Metrics: order, repeated steps, the best."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from detcore.errors import DatabaseError, NotFoundError
from detcore.records import MetricRecord
from detcore.records.metric_queries import select_numbers

if TYPE_CHECKING:
    from tests.records.conftest import Store


def report(
    step: int, run_id: int = 1, *, kind: str = "validation", trial_id: int = 1, **values: Any
) -> MetricRecord:
    return MetricRecord(
        trial_id=trial_id, run_id=run_id, kind=kind, steps_completed=step, metrics=values
    )


def test_reports_are_in_the_order_of_steps(store: Store) -> None:
    store.database.add_metrics([report(step, loss=step) for step in (30, 10, 20)])
    store.database.add_metrics([report(15, kind="training", loss=1)])
    rows = store.database.metrics(1, "validation")
    assert [row.steps_completed for row in rows] == [10, 20, 30]
    assert [row.metrics["loss"] for row in rows] == [10, 20, 30]
    assert [row.steps_completed for row in store.database.metrics(1, "training")] == [15]
    assert store.database.summarize_trials(1, metric=None)[1].steps_completed == 30


def test_only_numeric_metrics_are_ranked() -> None:
    values: dict[str, Any] = {
        "text": "0.5", "nested": {"loss": 1.0}, "array": [1.0, 2.0], "huge": 10**400,
        "nan": math.nan, "n" * 10_000: 1.0, "flag": True, "count": 3, "loss": 0.5, "inf": math.inf,
    }  # fmt: skip
    assert select_numbers(values) == {"flag": 1.0, "count": 3.0, "loss": 0.5, "inf": math.inf}


def test_batch_metrics_are_optional(store: Store) -> None:
    record = MetricRecord(
        trial_id=1,
        run_id=1,
        kind="training",
        steps_completed=2,
        metrics={"loss": 1.0},
        batch_metrics=[{"loss": 0.5}, {"loss": math.inf}],
    )
    store.database.add_metrics([record])
    (full,) = store.database.metrics(1, "training")
    assert full.batch_metrics == [{"loss": 0.5}, {"loss": math.inf}]
    assert full.reported_at is not None
    (short,) = store.database.metrics(1, "training", with_batches=False)
    assert short.batch_metrics is None


def test_the_best_validation(store: Store) -> None:
    database = store.database
    second = database.create_trial(experiment_id=1, hparams={}, seed=0)
    database.add_metrics(
        [report(10, loss=0.5, acc=0.1), report(20, loss=0.2, acc=0.7), report(30, loss=0.4),
         report(10, trial_id=second, loss=0.3, acc=0.9), report(20, trial_id=second, loss=math.nan),
         report(30, trial_id=second, loss="0.001", acc=[1]), report(15, kind="training", loss=0.01)]
    )  # fmt: skip

    def best(metric: str, smaller: bool, trial: int | None = None) -> tuple[int, int] | None:
        if trial is None:
            record = database.best_validation(1, metric, smaller_is_better=smaller)
        else:
            record = database.trial_best_validation(trial, metric, smaller_is_better=smaller)
        return None if record is None else (record.trial_id, record.steps_completed)

    assert best("loss", True) == (1, 20)
    assert best("loss", False) == (1, 10)
    assert best("acc", False) == (second, 10)
    assert best("loss", True, second) == (second, 10)
    assert best("acc", True, 1) == (1, 10)
    assert best("absent", True) is None


def test_best_validation_with_infinities_and_ties(store: Store) -> None:
    store.database.add_metrics(
        [report(10, shape=[2], loss=math.inf), report(30, loss=1), report(20, loss=1)]
    )
    store.database.add_metrics([report(40, loss=math.nan)])
    best = store.database.best_validation(1, "loss", smaller_is_better=True)
    worst = store.database.best_validation(1, "loss", smaller_is_better=False)
    assert best is not None
    assert worst is not None
    assert best.steps_completed == 20
    assert worst.metrics["loss"] == math.inf


def test_reports_are_added_all_or_none(store: Store) -> None:
    with pytest.raises(NotFoundError, match="no trial 9"):
        store.database.add_metrics([report(1, loss=1), report(2, trial_id=9, loss=1)])
    numbered = [
        MetricRecord(
            trial_id=1, run_id=1, seq=4, kind="training", steps_completed=1, metrics={"a": 1}
        )
    ]
    store.database.add_metrics(numbered)
    with pytest.raises(DatabaseError, match="already recorded"):
        store.database.add_metrics([report(1, loss=1), *numbered])
    assert store.database.metrics(1, "validation") == []


@pytest.mark.parametrize("smaller_is_better", [True, False])
def test_best_validation_uses_index(sqlite_store: Store, smaller_is_better: bool) -> None:
    statements: list[tuple[str, Any]] = []

    def note(_c: object, _cursor: object, sql: str, values: Any, *_rest: object) -> None:
        statements.append((sql, values))

    event.listen(sqlite_store.database._engine, "before_cursor_execute", note)
    sqlite_store.database.best_validation(1, "loss", smaller_is_better=smaller_is_better)
    (sql, values) = statements[-1]
    with sqlite_store.database._begin_read() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
    assert "USING INDEX ix_validation_values_experiment_id_name_value" in str(plan)
    assert "SCAN" not in str(plan)


numbers = st.one_of(st.floats(), st.integers(-3, 3), st.none(), st.text(max_size=3))


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    reports=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 3), numbers),
        max_size=8,
        unique_by=lambda r: r[:2],
    ),
    smaller=st.booleans(),
)
def test_best_validation_matches_linear_search(
    store: Store, reports: list[tuple[int, int, Any]], smaller: bool
) -> None:
    trial = store.database.create_trial(experiment_id=1, hparams={}, seed=0)
    store.database.add_metrics([report(s, r, trial_id=trial, loss=v) for s, r, v in reports])
    rows = store.database.metrics(trial, "validation")
    newest = {s: max(r for t, r, _ in reports if t == s) for s, _, _ in reports}
    assert [(row.steps_completed, row.run_id) for row in rows] == sorted(newest.items())
    values = [
        row.metrics["loss"]
        for row in rows
        if isinstance(row.metrics["loss"], (int, float)) and not math.isnan(row.metrics["loss"])
    ]
    best = store.database.trial_best_validation(trial, "loss", smaller_is_better=smaller)
    if not values:
        assert best is None
    else:
        assert best is not None
        assert best.metrics["loss"] == (min(values) if smaller else max(values))


@pytest.mark.soak
def test_many_metrics_are_ingested(store: Store) -> None:
    """A report that could not be would hold up all that come after it."""
    names = [f"class {number}" for number in range(60_000)]
    values: dict[str, Any] = dict.fromkeys(names, 0.5)
    store.database.add_metrics([report(1, **values)])
    best = store.database.trial_best_validation(1, names[-1], smaller_is_better=True)
    assert best is not None
    assert len(best.metrics) == len(names)


@pytest.mark.parametrize("names", [("a\0", "a\ufffd"), ("a\ud800", "a\udc01")])
def test_equal_metric_names_are_ingested(store: Store, names: tuple[str, str]) -> None:
    values: dict[str, Any] = {**dict.fromkeys(names, 0.5), "loss": 0.25}
    store.database.add_metrics([report(1, **values)])
    best = store.database.trial_best_validation(1, "loss", smaller_is_better=True)
    assert best is not None
    assert dict(best.metrics) == values
