"""Which hyperparameters matter, on trials of which it is known."""

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
    """Record trials whose metric depends on `width`, which is best in the middle, and `name`."""
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
def test_what_matters_comes_first(records: Records, smaller_is_better: bool) -> None:
    experiment = _search(records, 60, smaller_is_better=smaller_is_better)
    found = rank_hyperparameters(read_view(records.database, experiment))
    shares = {one.name: one.share for one in found}
    # `each` has another value in each trial: it would explain everything.
    assert list(shares) == ["width", "name", "noise"]
    assert shares["width"] > 0.5 > shares["name"] > 0.05 >= shares["noise"]
    assert (found[1].best, found[1].worst) == ("good", "bad")
    low, high = map(float, found[0].best.split(" to "))
    assert low < 0.5 < high


def test_few_trials_say_nothing(records: Records) -> None:
    assert importance_table(read_view(records.database, _search(records, 9))) == ""


def test_the_report_says_what_matters(records: Records) -> None:
    experiment = _search(records, 20)
    page = records.home / "report.html"
    assert records("report", str(experiment), "-o", str(page)).exit_code == 0
    assert "How much of the ranks by value each explains alone" in page.read_text()


def test_chosen_trials_have_axes_of_their_own(records: Records) -> None:
    whole = read_view(records.database, _search(records, 230), max_rows=None)
    assert len(whole.trials) == 230
    last = whole.trials[-40:]
    view = select_trials(whole, last)
    assert [axis.name for axis in view.axes] == [axis.name for axis in whole.axes]
    assert all(trial.id in axis.positions for axis in view.axes for trial in view.trials)
    assert "in the middle" in legend(view)
    assert len({name.split()[1] for name in trial_classes(view).values()}) == 5
    assert len(select_trials(whole, whole.trials).trials) == 200
    assert draw_parallel(select_trials(whole, [])) == draw_parallel(select_trials(whole, ()))


def test_values_that_say_nothing_are_no_error(records: Records) -> None:
    experiment = records.experiment({"searcher": {"metric": "value", "smaller_is_better": True}})
    for number in range(12):
        odd: dict[str, object] = {"maybe": 1.5} if number % 2 else {}
        same = {"list": [number % 3], "large": 10**400 + number % 4, "flag": number % 2 == 0}
        trial = records.trial(experiment, lr=10.0 ** -(number % 4), **same, **odd)
        records.report(trial, "validation", 10, value=1.0)
    assert all(one.share == 0 for one in rank_hyperparameters(read_view(records.database, 1)))
