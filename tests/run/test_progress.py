"""How far a single trial is, from what its workers tell."""

from __future__ import annotations

import time
import types
from typing import Any, cast

import pytest

from detcore.launch import WorkerEvent
from detcore.run.running_trial import RunningTrial, _HangTimer
from detcore.types import Length, TrialSettings, Unit


def progress_after(*events: tuple[str, dict[str, Any]], unit: str = "epochs") -> float | None:
    nothing = cast(Any, None)  # events need neither workers nor an output
    settings = TrialSettings(max_length=Length(60, Unit(unit)), length_unit=Unit(unit))
    info = cast(
        Any,
        types.SimpleNamespace(
            steps_completed=0, settings=settings, searcher_length=60, trial_dir="/", run_id=1
        ),
    )
    trial = RunningTrial(0, info, nothing, nothing)
    for kind, fields in events:
        trial.note_event(WorkerEvent(kind, fields))
    return trial.progress


STARTED = ("started", {"length": 90, "steps_completed": 0})


@pytest.mark.parametrize(
    ("events", "progress"),
    [
        ([], None),
        ([STARTED], 0.0),
        ([("started", {"length": 90, "steps_completed": 45})], 0.5),
        ([STARTED, ("training", {"steps_completed": 45})], 0.5),
        ([STARTED, ("validation", {"steps_completed": 91, "metrics": {}})], 1.0),
        # A checkpoint may be reported when training is beyond it.
        ([STARTED, ("training", {"steps_completed": 45}), ("checkpoint", {"steps_completed": 9})],
         0.5),
        # A script that does not say how far it trains, and one that does.
        ([("training", {"steps_completed": 45})], None),
        ([("progress", {"progress": 1.5, "length": 6, "unit": "epochs"})], 0.25),
        ([("progress", {"progress": 1.5, "length": None, "unit": None})], None),
    ],
)  # fmt: skip
def test_progress_is_counted_in_batches(
    events: list[tuple[str, dict[str, Any]]], progress: float | None
) -> None:
    assert progress_after(*events) == progress


def test_script_progress_uses_length_in_batches() -> None:
    assert progress_after(("training", {"steps_completed": 45}), unit="batches") == 0.75
    # One batch, of a smoke run.
    started = ("started", {"length": 1, "steps_completed": 0})
    assert progress_after(started, ("training", {"steps_completed": 1}), unit="batches") == 1.0


def test_hang_timer_counts_time_without_reports() -> None:
    timers = [_HangTimer(0.05), _HangTimer(300.0), _HangTimer(None)]
    time.sleep(0.1)
    assert [timer.is_over(has_news=True) for timer in timers] == [False, False, False]
    time.sleep(0.1)
    assert [timer.is_over(has_news=False) for timer in timers] == [True, False, False]
