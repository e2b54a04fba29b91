"""Trials that crash: when they start again, and when they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from search_command import Searches
from toy_command import Detcore

from detcore.records import read_output_log
from detcore.run.supervisor import (
    Advance,
    CountRestart,
    Ending,
    Say,
    State,
    SupervisedTrial,
    Tick,
    Trials,
    WorkersEnded,
    decide_actions,
)
from detcore.search import Exited, ExitReason


class Crashes:
    """A run of two trials that crash."""

    def __init__(self, max_restarts: int) -> None:
        trials = (
            Trials()
            .replace_trial(0, SupervisedTrial(1, length=4))
            .replace_trial(1, SupervisedTrial(2, length=4))
        )
        self.state = State(free=(0, 1), max_restarts=max_restarts, trials=trials, order=(0, 1))
        self.now = 100.0
        self.said: list[str] = []

    def starts(self, trial: int) -> bool:
        """Let as many trials start as may; return whether this one runs."""
        self.state, _ = decide_actions(self.state, Tick(self.now))
        return trial in self.state.running

    def crash(
        self,
        trial: int,
        *,
        made_progress: bool = False,
        fault: tuple[str, int] | None = None,
    ) -> float | None:
        """Let a trial start when it may, and crash; return its pause, None if it is over."""
        self.now = max(self.now, self.state.trials[trial].starts_at)
        assert self.starts(trial)
        ended = WorkersEnded(
            trial, Ending.CRASHED, self.now, made_progress=made_progress, fault=fault
        )
        self.state, actions = decide_actions(self.state, ended)
        self.said = [action.text for action in actions if isinstance(action, Say)]
        if CountRestart(trial) in actions:
            return self.state.trials[trial].starts_at - self.now
        assert actions[-1] == Advance(Exited(trial, ExitReason.ERRORED), "")
        return None


def test_backoff_grows_without_progress() -> None:
    run = Crashes(max_restarts=10_000)
    assert [run.crash(0) for _ in range(8)] == [0, 1, 2, 4, 8, 16, 30, 30]
    assert not run.starts(0)
    assert run.starts(1)
    assert run.crash(1) == 0
    run.now += 29.9
    assert not run.starts(0)
    run.now += 0.2
    assert run.starts(0)
    # After progress, the next restart does not wait.
    pauses = [run.crash(0, made_progress=progress) for progress in (True, False, True)]
    assert pauses == [0, 1, 0]
    assert run.starts(0)
    for _ in range(5000):
        run.crash(0)


def test_repeated_exception_is_permanent() -> None:
    run = Crashes(max_restarts=10)
    early, late = ("ValueError at train.py:3", 10), ("ValueError at train.py:3", 20)
    assert run.crash(0, fault=early) is not None
    assert run.crash(1, fault=early) is not None  # another trial
    assert run.crash(0, fault=late) is not None
    assert run.crash(0, fault=late, made_progress=True) is not None
    assert run.crash(1) is not None  # it was killed in between
    assert run.crash(1, fault=early) is not None
    assert run.crash(0, fault=late) is None
    why = "it failed twice in the same way, with no new checkpoint in between"
    assert run.said == [f"trial 1 is not started again: {why}"]


def test_trial_without_restarts_fails_plainly() -> None:
    run = Crashes(max_restarts=1)
    assert run.crash(0) is not None
    assert run.crash(0) is None
    assert run.said == []


MISTAKES = """
import json, os
from pathlib import Path
mistake = json.loads(Path(os.environ["DETCORE_TRIAL_INFO"]).read_text())["hparams"]["mistake"]
if mistake == "outside the context":
    raise NameError(mistake)
if mistake == "usage":
    raise SystemExit(2)
from detcore import core
with core.init() as context:
    if mistake == "before a report":
        raise TypeError(mistake)
    if mistake == "network":
        raise ConnectionError(mistake)
    for batch in range(1, 4):
        if batch == 3:
            raise ValueError(mistake)
        context.train.report_training_metrics(batch, {"loss": 1.0})
"""


def _restarts_by_mistake(detcore: Detcore, mistakes: dict[str, int], **changes: object) -> str:
    """Run a trial with each mistake; check how often each is started again; return the output."""
    config = detcore.config(
        hyperparameters={
            "global_batch_size": 8,
            "learning_rate": 0.05,
            "mistake": {"type": "categorical", "vals": list(mistakes)},
        },
        searcher={"name": "grid", "metric": "loss", "max_length": {"batches": 10}},
        **changes,
    )
    finished = detcore.run_failing("run", config, detcore.tmp_path, "--json")
    trials = finished.summary["trials"]
    restarts = {trial["hparams"]["mistake"]: trial["num_restarts"] for trial in trials}
    assert restarts == mistakes, finished.output
    return finished.output


def test_permanent_script_error_is_not_retried(detcore: Detcore) -> None:
    (detcore.tmp_path / "train.py").write_text(MISTAKES)
    mistakes = {
        "outside the context": 0, "usage": 0, "before a report": 0, "after a report": 1,
        "network": 2,
    }  # fmt: skip
    output = _restarts_by_mistake(detcore, mistakes, entrypoint="python3 train.py", max_restarts=2)
    reason = "exit code 1; its last line on standard error: NameError: outside the context"
    assert f"the last failure: the worker ended with {reason}" in output
    assert "latest checkpoint" not in output  # not one was saved


def test_missing_command_is_not_retried(detcore: Detcore) -> None:
    config = detcore.config(entrypoint="no-such-program --fast", max_restarts=2)
    finished = detcore.run_failing("run", config, detcore.tmp_path)
    assert "trial 1 is not started again: it failed before its first batch" in finished.output
    assert "exit code 127" in finished.output
    assert "restart 1" not in finished.output


def test_permanent_trial_error_is_not_retried(detcore: Detcore) -> None:
    (detcore.tmp_path / "model_def.py").write_text(
        """
import numpy as np
from detcore.errors import DataError
from detcore_toy import ToyTrial

class Line(ToyTrial):
    def __init__(self, context):
        self.mistake = context.get_hparam("mistake")

    def build_data(self):
        if self.mistake == "build_data":
            raise KeyError("no such column")
        if self.mistake == "network":
            raise DataError("the loader failed") from ConnectionError("reset")
        return np.ones((96, 3)), np.ones(96)
"""
    )
    # The toy framework reports "val_loss", not "loss".
    mistakes = {"build_data": 0, "network": 2, "searcher.metric": 0}
    _restarts_by_mistake(detcore, mistakes, max_restarts=2)


def test_second_restart_waits_and_keeps_place(detcore: Detcore) -> None:
    searches = Searches(detcore)
    searches.order(t1={"fail_at": 1, "fail_runs": 2})
    summary = searches.run(searcher={"max_trials": 2}, max_restarts=2)
    assert summary["state"] == "COMPLETED"
    assert [start["trial"] for start in searches.starts()] == [1, 1, 1, 2]
    log, _ = read_output_log(Path(str(searches.trials()[0].trial_dir)))
    notices = [line.text.partition(". It ")[2] for line in log if line.stream == "detcore"]
    assert notices == [
        "starts again from the start: it has no checkpoint (restart 1 of 2)",
        "starts again in 1 s from the start: it has no checkpoint (restart 2 of 2)",
    ]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import detcore_absent", "needs the plugin 'detcore-absent', which is not installed"),
        ("import absent", "No module named 'absent'"),
        ("class Line: pass", "is not a trial class"),
    ],
)
def test_permanent_errors_are_not_retried(detcore: Detcore, code: str, message: str) -> None:
    folder = detcore.write_code("model_def.py", f"class Line: ...\n{code}\n")
    finished = detcore.run_failing("run", detcore.config(max_restarts=3), folder, "--json")
    assert message in finished.summary["error"]
    (trial,) = finished.summary["trials"]
    assert trial["num_restarts"] == 0
