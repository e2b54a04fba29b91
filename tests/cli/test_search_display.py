"""The display of a search: a table on a terminal, lines in a pipe."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from detcore.cli._display import LiveDisplay, PlainDisplay
from detcore.cli._progress import TrialProgress
from detcore.launch import WorkerEvent
from detcore.runner import TrialStatus
from detcore.types import TrialInfo, TrialState

CONFIG: dict[str, Any] = {
    "searcher": {"name": "adaptive_asha", "metric": "val_loss"},
    "resources": {"slots_per_trial": 1},
    "hyperparameters": {
        "rate": {"type": "log", "minval": -4, "maxval": -1, "base": 10},
        "optimizer": {
            "kind": {"type": "categorical", "vals": ["sgd", "adam"]},
            "momentum": {"type": "double", "minval": 0, "maxval": 1},
        },
        "global_batch_size": 32,
    },
}
STATES = [TrialState.RUNNING, TrialState.COMPLETED, TrialState.ERROR, TrialState.PAUSED]


def show(display: LiveDisplay | PlainDisplay, count: int) -> None:
    """Show trials of all states; the metric of the k-th is k / 1000."""
    display.search_started(CONFIG)
    for index in range(count):
        hparams = {"rate": 0.01, "optimizer": {"kind": "sgd", "momentum": 0.5}}
        state = STATES[0] if index < 2 else STATES[1 + index % 3]
        info = TrialInfo(
            experiment_id=1, trial_id=index + 1, run_id=1, trial_seed=0, hparams=hparams,
            config=CONFIG, model_dir="/", trial_dir="/",
        )  # fmt: skip
        status = TrialStatus(
            trial_id=index + 1, index=index, state=TrialState.RUNNING, hparams=hparams, length=64
        )
        display.trial_changed(status)
        if state is not TrialState.PAUSED:
            display.trial_started(info, pid=10)
            metrics = {"val_loss": (index + 1) / 1000}
            display.event(info, WorkerEvent("started", {"length": 64, "steps_completed": 0}))
            fields = {"metrics": metrics, "steps_completed": 16}
            display.event(info, WorkerEvent("validation", fields))
        display.trial_changed(
            TrialStatus(
                trial_id=index + 1, index=index, state=state, hparams=hparams, length=64, rung=2
            )
        )
    display.search_progress(0.42)
    display.output(info, "stdout", "a line of the last trial", rank=0)


@pytest.mark.parametrize(("width", "count"), [(80, 16), (120, 200)])
def test_the_table_fits_the_terminal(width: int, count: int) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, height=30, color_system=None)
    display = LiveDisplay(console)
    show(display, count)
    file.seek(0)
    file.truncate()
    display.close()
    text = file.getvalue()
    lines = [line.split("\x1b[2K")[-1].rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= width
    rows = [line.split() for line in lines if " sgd " in line or " kind sgd" in line]
    shown = {int(row[0]): row for row in rows}
    assert len(shown) == min(count, 20)
    assert {1, 2} <= set(shown)  # those that run
    assert shown[1][1] == "running"
    assert "16/64" in shown[1]
    assert shown[1][-2:] == ["2", "0.001"]
    assert "best val_loss" in text
    assert ("and 180 more: " in text) == (count == 200)
    assert "42%" in text


def test_lines_in_a_pipe_say_whose_they_are() -> None:
    file = io.StringIO()
    show(PlainDisplay(Console(file=file, width=200)), 4)
    text = file.getvalue()
    assert "trial 4: completed, best val_loss 0.004 with" in text
    assert "trial 1: batch 16: validation: val_loss 0.001" in text
    assert "[trial 4] a line of the last trial" in text
    assert "kind sgd" in text


def test_events_that_come_at_once_tell_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    trial = TrialProgress(1)
    trial.update(WorkerEvent("started", {"length": 64, "steps_completed": 0}))
    now += 2e-5
    trial.update(WorkerEvent("training", {"metrics": {"loss": 1.0}, "steps_completed": 5}))
    assert trial.rate is None
    now += 1.0
    trial.update(WorkerEvent("training", {"metrics": {"loss": 0.5}, "steps_completed": 10}))
    assert trial.rate == pytest.approx(10, rel=1e-3)
