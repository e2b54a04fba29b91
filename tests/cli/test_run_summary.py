"""Test the summary that ``detcore run`` prints after a search."""

from __future__ import annotations

import dataclasses

from detcore.cli.run_command import _make_summary
from detcore.run import ExperimentResult, TrialResult
from detcore.types import ExperimentState


def result(values: list[float | None], *, smaller_is_better: bool = True) -> ExperimentResult:
    return ExperimentResult(
        experiment_id=4,
        state=ExperimentState.COMPLETED,
        metric="val_loss",
        smaller_is_better=smaller_is_better,
        trials=tuple(
            TrialResult(
                trial_id=number, state="COMPLETED", steps_completed=50, best_validation=value,
                latest_checkpoint=f"uuid-{number}", best_steps=number,
                hparams={"rate": number / 10, "net": {"width": 8}},
            )
            for number, value in enumerate(values, 1)
        ),
    )  # fmt: skip


def test_summary_lists_ten_trials_and_best() -> None:
    values: list[float | None] = [None, *(abs(number - 5) / 8 for number in range(12))]
    lines = _make_summary(result(values), "")
    assert lines[:3] == [
        "experiment 4: completed",
        "best: trial 7, val_loss 0 at batch 7 (rate=0.7 net.width=8)",
        "best checkpoint:  detcore experiment best 4",
    ]
    rows = [line.split(":")[0].strip() for line in lines if line.startswith("  trial")]
    assert rows == [f"trial {number}" for number in (7, 6, 8, 5, 9, 4, 10, 3, 11, 2)]
    assert "  and 3 more" in lines


def test_summary_with_larger_is_better() -> None:
    lines = _make_summary(result([0.5, 0.75, None], smaller_is_better=False), "")
    assert lines[1].startswith("best: trial 2, val_loss 0.75 at batch 2")
    assert not any("more" in line for line in lines)
    assert not any(line.startswith("best:") for line in _make_summary(result([None, None]), ""))
    assert not any(line.startswith("best:") for line in _make_summary(result([0.5]), ""))
    one = dataclasses.replace(result([0.5]).trials[0], steps_completed=1)
    assert (
        "trial 1: 1 batch, best"
        in _make_summary(dataclasses.replace(result([]), trials=(one,)), "")[1]
    )


def test_summary_names_failed_trials() -> None:
    search = result([0.5, None, 0.75, None])
    trials = [
        dataclasses.replace(trial, state="ERROR" if trial.best_validation is None else trial.state)
        for trial in search.trials
    ]
    lines = _make_summary(dataclasses.replace(search, trials=tuple(trials)))
    assert "2 of 4 trials failed: 2, 4" in lines
    assert not any("failed" in line for line in _make_summary(search))


def test_summary_of_failed_run_suggests_fix() -> None:
    failed = dataclasses.replace(result([0.5]), state=ExperimentState.ERROR, error="KeyError: 'x'")
    last = "fix the cause, then resume from the latest checkpoint:  detcore run --resume 4"
    assert _make_summary(failed, "")[-1] == last


def test_summary_of_run_without_checkpoint_suggests_correct_file() -> None:
    failed = dataclasses.replace(result([0.5]), state=ExperimentState.ERROR, error="KeyError: 'x'")
    untrained = dataclasses.replace(
        failed, trials=(dataclasses.replace(failed.trials[0], latest_checkpoint=None),)
    )
    start = "start again:  detcore run const.yaml"
    assert _make_summary(untrained, start=start)[-2:] == [
        "if the cause is in the experiment file, correct it and " + start,
        "otherwise, fix the cause, then try again:  detcore run --resume 4",
    ]
    for summary in (_make_summary(failed, start=start), _make_summary(untrained)):
        assert "edits of the file are ignored" in summary[-2]


def test_summary_commands_name_server() -> None:
    lines = _make_summary(result([0.5, 0.75]), " --master http://host:8080")
    assert lines[2] == "best checkpoint:  detcore experiment best 4 --master http://host:8080"
    assert lines[-1] == "details:  detcore experiment describe 4 --master http://host:8080"
