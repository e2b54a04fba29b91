"""Scripts that call `core.init` several times with equal arguments, such as k-fold scripts."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from detcore import core
from detcore.errors import RunError

# Reads from the environment where to end: "FOLD-STEP" in a step, "FOLD-after" between two calls.
SCRIPT = """
import os, signal
from detcore import core

end_at = os.environ.get("END_AT", "")

def end(place):
    if place == end_at:
        if end_at.endswith("bug"):
            raise ValueError("a bug")
        os.kill(os.getpid(), signal.SIGKILL)

def train(fold, **arguments):
    with core.init(resume=True, max_length={"batches": 6}, **arguments) as context:
        total, steps = fold, context.info.steps_completed
        if context.info.latest_checkpoint is not None:
            with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
                total = int((path / "total").read_text())
        end(f"{fold}-opened")
        for operation in context.searcher.operations():
            while steps < operation.length:
                steps += 1
                trained.append((fold, steps))
                total = 3 * total + steps
                context.train.report_training_metrics(steps, {"total": total})
                if steps % 2 == 0:
                    with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
                        (path / "total").write_text(str(total))
                end(f"{fold}-{steps}")
            operation.report_completed(total)
    end(f"{fold}-after")
    end(f"{fold}-bug")
    return total

trained = []
"""
FOLDS = "print([[train(fold) for fold in range(3)], trained])\n"
TOTALS = [sum(fold * 3**6 * (s == 0) + s * 3 ** (6 - s) for s in range(7)) for fold in range(3)]


@pytest.fixture
def start(home: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Start a script that ends at a given point; return its output."""

    def run(end_at: str = "", code: str = FOLDS) -> str:
        monkeypatch.setenv("END_AT", end_at)
        returncode, stdout, stderr = home.run(SCRIPT + code)
        expected = 1 if end_at.endswith("bug") else -signal.SIGKILL if end_at else 0
        assert returncode == expected, stderr
        return str(stdout + stderr)

    return run


def states(home: Any) -> list[str]:
    with home.database() as database:
        return [experiment.state.value for experiment in database.list_experiments()]


@pytest.mark.parametrize(
    ("ends", "num_trained"),
    [
        (["0-3"], 4 + 6 + 6),
        (["1-5", "0-opened", "1-opened"], 2 + 6),
        (["1-after", "2-1", "2-bug"], 0),
    ],
    ids=["first", "second", "between"],
)
def test_each_call_continues_its_own_run(
    home: Any, start: Any, ends: list[str], num_trained: int
) -> None:
    for end in ends:
        start(end)
    totals, trained = ast.literal_eval(start().splitlines()[0])
    assert totals == TOTALS
    assert len(trained) == num_trained
    assert states(home) == ["COMPLETED"] * 3
    with home.database() as database:
        for trial in (1, 2, 3):
            reports = database.metrics(trial, "training")
            assert [report.steps_completed for report in reports] == list(range(1, 7))


def test_finished_start_is_not_continued(home: Any, start: Any) -> None:
    start()
    assert str(TOTALS) in start()
    assert states(home) == ["COMPLETED"] * 6


def test_complete_runs_are_not_trained_again(start: Any) -> None:
    start("2-bug")
    start("0-opened")  # killed while it restores one
    output = start()
    assert f"[{TOTALS}, []]" in output
    assert output.count("completed by an earlier start of this script; restored from batch 6") == 3


def test_changed_later_call_is_refused(start: Any) -> None:
    code = """
train(0)
train(1, script=core.ScriptExperiment(hparams={{"rate": {}}}))
"""
    start("1-3", code.format(0.1))
    with pytest.raises(AssertionError) as refused:
        start(code=code.format(0.2))
    assert "call 2 of core.init() would continue experiment 2" in str(refused.value)
    assert "hparams.rate is 0.2 instead of 0.1" in str(refused.value)
    assert "detcore experiment archive 1" in str(refused.value)


def test_different_call_order_is_refused(home: Any, start: Any) -> None:
    first, second = (
        f"train({fold}, script=core.ScriptExperiment(name='{name}'))\n"
        for fold, name in enumerate(("pretrain", "tune"))
    )
    start("1-3", first + second)
    with pytest.raises(AssertionError, match=r"has the settings of call 2 \(experiment 2\)"):
        start(code=second + first)
    subprocess.run(
        [sys.executable, "-m", "detcore", "experiment", "archive", "1"],
        check=True,
        env={**os.environ, "DETCORE_HOME": str(home.path)},
    )
    start(code=second + first)
    assert len(states(home)) == 4


def test_different_arguments_are_refused(home: Any, start: Any) -> None:
    settings = "script=core.ScriptExperiment(arguments={{'rate': {}}})"
    code = f"train(0, {settings})\ntrain(1, {settings})\n"
    start("0-1", code.format(1, 2))
    start("1-3", code.format(3, 4))  # a new start: the one before has no checkpoint
    with pytest.raises(AssertionError, match=r"experiment 2 of this .*: rate is 5 instead of 3"):
        start(code=code.format(5, 4))
    with pytest.raises(AssertionError, match=r"would continue .* 3, .*: rate is 5 instead of 4"):
        start(code=code.format(3, 5))
    start(code=code.format(3, 4))
    assert states(home) == ["ERROR", "COMPLETED", "COMPLETED"]


def test_equal_runs_of_children_are_refused(home: Any, start: Any) -> None:
    code = """
import multiprocessing
for fold in range(2):
    child = multiprocessing.get_context("fork").Process(target=train, args=(fold,))
    child.start()
    child.join()
    if child.exitcode:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    start(code=code)
    start(code=code)
    assert states(home) == ["COMPLETED"] * 4
    start("1-3", code)
    with pytest.raises(AssertionError, match="experiments 5, 6 have the same settings"):
        start(code=code)


def test_start_in_progress_is_skipped(home: Any, start: Any) -> None:
    waiting = home.start(
        SCRIPT + "train(0); print('first', flush=True); input(); train(1)\n", until="first"
    )
    assert str(TOTALS) in start()
    assert waiting.communicate("\n", timeout=60)[0] == ""
    assert waiting.returncode == 0
    assert len(states(home)) == 2 + 3


def test_second_context_in_a_trial_is_refused(managed: Any) -> None:
    with managed()[0]:
        pass
    with pytest.raises(RunError, match="trial 1 of detcore run has opened a context before"):
        core.init().start()
