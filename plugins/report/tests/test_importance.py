"""Importance of hyperparameters, for trials with known effects."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded import Records

from detcore.records import Database
from detcore_report import (
    draw_parallel,
    importance_table,
    legend,
    read_view,
    select_trials,
    trial_classes,
)
from detcore_report.charts.importance import rank_hyperparameters


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    with Database.open(f"sqlite:///{tmp_path / 'detcore.db'}") as database:
        yield Records(tmp_path, database)


def _search(records: Records, num_trials: int, *, smaller_is_better: bool = True) -> int:
    """Record trials whose metric depends on `width`, with a middle optimum, and on `name`."""
    chance = random.Random(3)
    experiment = records.experiment(
        {"searcher": {"metric": "value", "smaller_is_better": smaller_is_better}}
    )
    for number in range(num_trials):
        width, name = chance.uniform(0, 1), chance.choice(["good", "bad"])
        trial = records.trial(
            experiment, width=width, name=name, noise=chance.random(), each=f"text {number}"
        )
        bad = 4 * (width - 0.5) ** 2 + 0.3 * (name == "bad") + 0.02 * chance.random()
        records.report(trial, "validation", 10, value=bad if smaller_is_better else -bad)
    return experiment


@pytest.mark.parametrize("smaller_is_better", [True, False])
def test_most_important_hyperparameter_is_first(records: Records, smaller_is_better: bool) -> None:
    experiment = _search(records, 60, smaller_is_better=smaller_is_better)
    result = rank_hyperparameters(read_view(records.database, experiment))
    shares = {one.name: one.share for one in result}
    # `each` differs in each trial, so it would explain everything.
    assert list(shares) == ["width", "name", "noise"]
    assert shares["width"] > 0.5 > shares["name"] > 0.05 >= shares["noise"]
    assert (result[1].best, result[1].worst) == ("good", "bad")
    low, high = map(float, result[0].best.split(" to "))
    assert low < 0.5 < high


def test_few_trials_have_no_importance(records: Records) -> None:
    assert importance_table(read_view(records.database, _search(records, 9))) == ""


def test_report_shows_importance(records: Records) -> None:
    experiment = _search(records, 20)
    page = records.home / "report.html"
    assert records("report", str(experiment), "-o", str(page)).exit_code == 0
    assert "How much of the ranks by value each explains alone" in page.read_text()


def test_selected_trials_have_own_axes(records: Records) -> None:
    expected = read_view(records.database, _search(records, 230), max_rows=None)
    assert len(expected.trials) == 230
    last = expected.trials[-40:]
    view = select_trials(expected, last)
    assert [axis.name for axis in view.axes] == [axis.name for axis in expected.axes]
    assert all(trial.id in axis.positions for axis in view.axes for trial in view.trials)
    assert "in the middle" in legend(view)
    assert len({name.split()[1] for name in trial_classes(view).values()}) == 5
    assert len(select_trials(expected, expected.trials).trials) == 200
    assert draw_parallel(select_trials(expected, [])) == draw_parallel(select_trials(expected, ()))


def test_constant_values_have_no_importance(records: Records) -> None:
    experiment = records.experiment({"searcher": {"metric": "value", "smaller_is_better": True}})
    for number in range(12):
        odd: dict[str, object] = {"maybe": 1.5} if number % 2 else {}
        same = {"list": [number % 3], "large": 10**400 + number % 4, "flag": number % 2 == 0}
        trial = records.trial(experiment, lr=10.0 ** -(number % 4), **same, **odd)
        records.report(trial, "validation", 10, value=1.0)
    assert all(one.share == 0 for one in rank_hyperparameters(read_view(records.database, 1)))
