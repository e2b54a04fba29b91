"""Test the display of a search: a table on a terminal, lines in a pipe."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.console import Console

from detcore.cli.run_display import LiveDisplay, PlainDisplay, QuietDisplay
from detcore.cli.run_progress import RunProgress, TrialProgress
from detcore.config import ExperimentConfig
from detcore.launch import WorkerEvent
from detcore.run import TrialStatus
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
SEARCH = ExperimentConfig.model_validate(CONFIG)
STATES = [TrialState.RUNNING, TrialState.COMPLETED, TrialState.ERROR, TrialState.PAUSED]


def trial_info(trial_id: int) -> TrialInfo:
    return TrialInfo(
        experiment_id=1, trial_id=trial_id, run_id=1, trial_seed=0, hparams={}, config={},
        model_dir="/", trial_dir="/",
    )  # fmt: skip


def show(display: LiveDisplay | PlainDisplay, count: int) -> None:
    """Show trials of all states. The metric of trial k is k / 1000."""
    display.search_started(SEARCH)
    for index in range(count):
        hparams = {"rate": 0.01, "optimizer": {"kind": "sgd", "momentum": 0.5}}
        state = STATES[0] if index < 2 else STATES[1 + index % 3]
        info = trial_info(index + 1)
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
    display.search_progress(0.42, 100_000)
    file.seek(0)
    file.truncate()
    display.close()
    text = file.getvalue()
    lines = [line.split("\x1b[2K")[-1].rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= width
    assert len({line for line in lines if "* 1 " in line}) == 1, lines  # also without colours
    rows = [line.replace("*", " ").split() for line in lines if " optimizer." in line]
    output_lines = {int(row[0]): row for row in rows}
    assert len(output_lines) == min(count, 20)
    assert {1, 2} <= set(output_lines)  # running trials
    assert output_lines[1][1] == "running"
    assert "16/64" in output_lines[1]
    assert output_lines[1][-2:] == ["2", "0.001"]
    assert "best val_loss" in text
    assert ("and 180 more: " in text) == (count == 200)
    assert "42%" in text
    header = [line for line in lines if line.startswith("42%")][-1]
    assert "42000 of 100000 batches" in header
    assert f"of {count} trials ended, 2 running, " in text
    assert "best val_loss 0.001 (trial 1)" in " ".join(text.split()) or width < 100


def lines_of(count: int, *, is_verbose: bool = False) -> list[str]:
    file = io.StringIO()
    show(PlainDisplay(Console(file=file, width=200), is_verbose=is_verbose), count)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("kind", [PlainDisplay, LiveDisplay])
def test_late_checkpoint_does_not_change_progress(
    kind: type[PlainDisplay] | type[LiveDisplay],
) -> None:
    file = io.StringIO()
    display = kind(Console(file=file, width=100, force_terminal=kind is LiveDisplay))
    single = CONFIG | {"searcher": {"name": "single", "metric": "val_loss"}}
    display.search_started(ExperimentConfig.model_validate(single))
    info = trial_info(1)
    display.trial_started(info, pid=10)
    display.event(info, WorkerEvent("started", {"length": 100, "steps_completed": 0}))
    training = {"steps_completed": 90, "metrics": {"loss": 1.0}}
    display.event(info, WorkerEvent("training", training))
    uuid = "6d1c0f5e-0000-4000-8000-000000000000"
    checkpoint = {"steps_completed": 45, "uuid": uuid, "size_bytes": 1000, "total_s": 1.0}
    display.event(info, WorkerEvent("checkpoint", checkpoint))
    display.close()
    last = [line for line in file.getvalue().splitlines() if uuid in line][-1]
    assert "batch 45" in last
    assert last.count("batch") == 1


@pytest.mark.parametrize("kind", [PlainDisplay, LiveDisplay])
def test_line_costs_few_calls(kind: type[PlainDisplay] | type[LiveDisplay]) -> None:
    """A worker that prints 100,000 lines must not wait for the display."""
    file = io.StringIO()
    display = kind(Console(file=file, width=100, force_terminal=kind is LiveDisplay))
    show(display, 8)
    info = trial_info(1)
    if isinstance(display, PlainDisplay):
        display = PlainDisplay(Console(file=file), is_verbose=True)
    num_calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event == "call"

    sys.setprofile(count)
    for number in range(2000):
        display.output(info, "stdout", f"line {number}", rank=0)
    sys.setprofile(None)
    display.close()
    assert num_calls < 2000 * 100
    assert [line for line in file.getvalue().splitlines() if "line 1999" in line]


def test_verbose_lines_show_their_trial() -> None:
    text = "\n".join(lines_of(4, is_verbose=True))
    assert "trial 4: completed, best val_loss 0.004 with" in text
    assert "trial 1: batch 16: validation: val_loss 0.001" in text
    assert "[trial 4] a line of the last trial" in text
    assert "kind=sgd" in text


def test_pipe_output_has_few_lines_per_trial() -> None:
    lines = lines_of(24)
    assert (
        "trial 4: completed, best val_loss 0.004 with optimizer.kind=sgd optimizer.momentum=0.5"
        in "\n".join(lines)
    )
    assert not [line for line in lines if "batch 16" in line or "a line of" in line]
    assert "trial 3: interrupted with optimizer.kind=sgd" in lines[2]
    assert lines[-1] == (
        "the output of trials is only in their logs; show it with:  detcore trial logs 24"
    )
    assert len(lines) <= 2 * 24 + 1


@pytest.mark.parametrize("kind", [PlainDisplay, QuietDisplay])
def test_failed_trial_shows_last_error_lines(kind: type[PlainDisplay]) -> None:
    file = io.StringIO()
    display = kind(Console(file=file, width=200))
    display.search_started(SEARCH)
    for trial_id in (1, 2):
        for number in range(100):
            display.output(trial_info(trial_id), "stderr", f"warning {number}", rank=0)
        display.output(trial_info(trial_id), "stderr", f"Error: cause {trial_id}", rank=0)
    display.output(trial_info(3), "stderr", "Traceback (most recent call last):", rank=0)
    display.output(trial_info(3), "stderr", "  File somewhere", rank=0)  # may be interrupted
    output_lines = [f"[trial 1] warning {number}" for number in range(3)] + [
        "[trial 2] Error: cause 2"
    ]
    assert file.getvalue().splitlines() == output_lines
    status = TrialStatus(
        trial_id=1, index=0, state=TrialState.ERROR, hparams={}, length=64, error="cause 1"
    )
    display.trial_changed(status)
    new_lines = file.getvalue().splitlines()[len(output_lines) :]
    assert new_lines[-1] == "[trial 1] Error: cause 1"
    assert new_lines[0] == "[trial 1] warning 51"


def test_search_progress_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    file = io.StringIO()
    display = PlainDisplay(Console(file=file, width=200))
    searcher = {**CONFIG["searcher"], "max_length": {"epochs": 4}}
    display.search_started(ExperimentConfig.model_validate({**CONFIG, "searcher": searcher}))
    display.search_progress(0.0, 32)
    now += 9
    display.search_progress(0.25, 32)
    display.tick()
    assert file.getvalue() == ""
    now += 1
    display.tick()
    time_left = "27s left"  # 9 s for the first quarter
    assert file.getvalue() == (
        f"search: 25%, 8.0 of 32 epochs, {time_left}, 0 of 0 trials ended, 0 running\n"
    )
    now += 12
    display.tick()
    assert file.getvalue().count("search: ") == 1  # no change
    for trial_id in (1, 2):
        status = TrialStatus(
            trial_id=trial_id, index=0, state=TrialState.RUNNING, hparams={}, length=4
        )
        display.trial_changed(status)
        display.event(trial_info(trial_id), WorkerEvent("started", {"length": 200}))
    now += 20
    display.tick()
    line = file.getvalue().splitlines()[-1]
    assert line == f"search: 25%, 8.0 of 32 epochs, {time_left}, 0 of 2 trials ended, 2 running"
    display.search_progress(0.3)
    now += 100
    display.tick()
    assert "of 32" not in file.getvalue().splitlines()[-1]


def test_batched_events_give_no_search_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = RunProgress()
    for fraction in (0.0, 0.2, 0.4):
        progress.record_progress(fraction, 100)
    assert progress.seconds_left is None
    now += 10
    progress.record_progress(0.5, 100)
    assert progress.seconds_left == pytest.approx(50)


def test_simultaneous_events_give_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    trial = TrialProgress(1)
    trial.update(WorkerEvent("started", {"length": 64, "steps_completed": 0}))
    now += 2e-5
    trial.update(WorkerEvent("training", {"metrics": {"loss": 1.0}, "steps_completed": 5}))
    assert trial.speed.per_second is None
    now += 1.0
    trial.update(WorkerEvent("training", {"metrics": {"loss": 0.5}, "steps_completed": 10}))
    assert trial.speed.per_second == pytest.approx(5, rel=1e-3)


def test_no_best_trial_before_first_value() -> None:
    progress = RunProgress()
    progress.trials[1] = TrialProgress(1)
    assert progress.best is None
