"""Test metric curves: the database thins them and keeps every extreme."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from detcore.records import MetricCurve, MetricRecord

if TYPE_CHECKING:
    from tests.records.conftest import Store


def add(store: Store, kind: str, values: dict[int, Any], *, run: int = 1, name: str = "m") -> None:
    """Report values of a metric by step."""
    store.database.add_metrics([
        MetricRecord(trial_id=store.trial_id, run_id=run, kind=kind, steps_completed=step,
                     metrics={name: value})
        for step, value in values.items()
    ])  # fmt: skip


def curve(store: Store, kind: str, name: str = "m", *, parts: int = 1000) -> MetricCurve:
    """Return the curve of the metric."""
    curves = store.database.metric_curves(store.experiment_id, kind, name, parts=parts)
    return curves.get(store.trial_id, MetricCurve())


def test_curve_keeps_validation_extremes(store: Store) -> None:
    values = {step: float(step % 7) for step in range(1, 101)}
    values[33] = 50.0
    values[34] = -50.0
    add(store, "validation", values)
    assert curve(store, "validation").points == sorted(values.items())
    thin = curve(store, "validation", parts=4).points
    assert len(thin) <= 2 * 4 + 2
    assert thin == sorted(thin)
    assert set(thin) <= set(values.items())
    assert {(1, 1.0), (33, 50.0), (34, -50.0), (100, 2.0)} <= set(thin)


def test_curve_keeps_last_training_reports(store: Store) -> None:
    values = {step: step / 2 for step in range(1, 101)}
    add(store, "training", values)
    points = curve(store, "training", parts=4).points
    assert points == [(1, 0.5), (25, 12.5), (50, 25.0), (75, 37.5), (100, 50.0)]


def test_curve_is_sampled_when_long(store: Store) -> None:
    add(store, "training", {step: step / 2 for step in range(1, 104)})
    run = store.database.start_run(store.trial_id)
    add(store, "training", dict.fromkeys(range(90, 96), 7.0), run=run)
    for parts in (1, 2, 4, 103, 1000):
        points = curve(store, "training", parts=parts).points
        assert len(points) == min(parts + 1, 103)
        assert points == sorted(points)
        assert {points[0][0], points[-1][0]} == {1, 103}
        assert all(value == (7.0 if 90 <= step < 96 else step / 2) for step, value in points)
    points = curve(store, "training", parts=4).points
    assert [step for step, _ in points] == [1, 26, 52, 78, 103]


def test_repeated_reports_count_once(store: Store) -> None:
    count = store.database.count_metrics
    assert count(store.trial_id, "training") == 0
    for steps in (range(1, 50), range(40, 45), range(42, 60, 2)):
        run = store.database.start_run(store.trial_id)
        add(store, "training", dict.fromkeys(steps, 1.0), run=run)
        for kind in ("training", "validation"):
            assert count(store.trial_id, kind) == len(store.database.metrics(store.trial_id, kind))


def test_curve_query_does_not_scan_reports(sqlite_store: Store) -> None:
    database, trial = sqlite_store.database, sqlite_store.trial_id
    experiment = sqlite_store.experiment_id
    work: list[int] = []
    with database._begin_read() as connection:
        # SQLite calls the handler every 50 instructions. The pool keeps the connection.
        link: Any = connection.connection.driver_connection
        link.set_progress_handler(lambda: work.append(1), 50)
    counts = []
    for reports in (range(1, 501), range(501, 5001)):
        add(sqlite_store, "training", dict.fromkeys(reports, 1.0))
        for read in (
            lambda: database.metric_curves(experiment, "training", "m", parts=20),
            lambda: database.metric_names(experiment),
            lambda: database.metrics(trial, "training", newest=20),
        ):
            work.clear()
            assert read()
            counts.append(len(work))
    for few, many in zip(counts[:3], counts[3:], strict=True):
        assert many < 1.5 * few + 5


def test_curve_supports_largest_steps(store: Store) -> None:
    add(store, "validation", {0: 1.0, 2**62: 2.0, 2**63 - 1: 3.0})
    points = curve(store, "validation", parts=200).points
    assert [value for _, value in points] == [1.0, 2.0, 3.0]
    add(store, "training", {0: 1.0, 2**62: 2.0, 2**63 - 1: 3.0})
    for parts in (3, 200):
        points = curve(store, "training", parts=parts).points
        assert [value for _, value in points] == [1.0, 2.0, 3.0]


def test_later_run_replaces_reports(store: Store) -> None:
    add(store, "validation", {10: 1.0, 20: 2.0})
    add(store, "training", {10: 1.0, 20: 2.0})
    run = store.database.start_run(store.trial_id)
    add(store, "validation", {20: 5.0, 30: 6.0}, run=run)
    add(store, "training", {20: 5.0, 30: 6.0}, run=run)
    for kind in ("validation", "training"):
        assert curve(store, kind).points == [(10, 1.0), (20, 5.0), (30, 6.0)]


def test_curve_values_that_are_not_finite(store: Store) -> None:
    values = {1: math.nan, 2: math.inf, 3: -math.inf, 4: 0.5, 5: math.nan}
    add(store, "validation", values)
    add(store, "training", {**values, 6: "text", 7: True, 8: [1.0]})
    thinned = curve(store, "validation")
    assert (thinned.points, thinned.num_nan) == ([(2, math.inf), (3, -math.inf), (4, 0.5)], 2)
    steps = [step for step, _ in curve(store, "training").points]
    assert steps == [1, 2, 3, 4, 5]


def test_curve_of_selected_trials_and_steps(store: Store) -> None:
    other = store.database.create_trial(experiment_id=store.experiment_id, hparams={}, seed=1)
    add(store, "validation", {1: 1.0})
    add(store, "validation", {2: 2.0}, name="%'\"_")
    add(store, "training", {1: 3.0}, name="loss")
    assert store.database.metric_names(store.experiment_id) == [
        ("validation", "%'\"_"), ("validation", "m"), ("training", "loss"),
    ]  # fmt: skip
    assert curve(store, "validation", "%'\"_").points == [(2, 2.0)]
    assert curve(store, "training", "nothing").points == []
    ask = store.database.metric_curves
    assert ask(store.experiment_id, "validation", "m", trial_ids=[other]) == {}
    assert ask(store.experiment_id, "validation", "m", trial_ids=[]) == {}
    assert list(ask(store.experiment_id, "validation", "m", trial_ids=[store.trial_id])) == [
        store.trial_id
    ]
    assert ask(store.experiment_id + 1, "validation", "m") == {}
    assert store.database.metric_names(store.experiment_id + 1) == []
