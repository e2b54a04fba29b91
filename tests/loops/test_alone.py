"""The loops as standalone scripts."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from loop_runs import LOOPS, LoopRuns, check_same_training

from detcore.types import ExperimentState

STEPS = 400
# The loops whose frameworks take longest to start take turns.
SLOW = ("jax_loop", "keras_fit")


def in_turns(*loops: str) -> list[Any]:
    return [pytest.param(loop, marks=pytest.mark.soak if loop in SLOW else []) for loop in loops]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("loop", in_turns(*LOOPS))
def test_killed_loop_resumes_bit_identically(loop: str, runs: Callable[[str], LoopRuns]) -> None:
    uninterrupted, broken = runs("whole"), runs("broken")
    uninterrupted.run(*uninterrupted.script(loop, STEPS))

    broken.kill_after_checkpoint(*broken.script(loop, STEPS))
    preempted = broken.start(*broken.script(loop, STEPS))
    broken.wait_for_checkpoint(preempted, more_than=len(broken.manifests()))
    preempted.send_signal(signal.SIGTERM)
    broken.end(preempted, 75)
    assert 0 < broken.newest()[0] < STEPS
    broken.run(*broken.script(loop, STEPS))

    check_training(uninterrupted, broken, loop)
    with broken.database() as database:
        (experiment,) = database.list_experiments()
        assert experiment.state is ExperimentState.COMPLETED
        assert [run.run_id for run in database.list_runs(1)] == [1, 2, 3]


def check_training(whole: LoopRuns, broken: LoopRuns, loop: str) -> None:
    check_same_training(whole, broken)
    assert any(np.any(array) for array in broken.newest()[1].values())
    assert whole.metrics(1, "validation")[0][1]["accuracy"] > 0.8
    if loop != "keras_fit":  # whose loss is the mean since model.fit began
        assert whole.metrics(1, "training") == broken.metrics(1, "training")


# PyTorch in two ranks: test_managed.py.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("loop", in_turns("jax_loop", "keras_fit", "sklearn_loop"))
def test_two_ranks_resume_exactly_after_kill(loop: str, runs: Callable[[str], LoopRuns]) -> None:
    uninterrupted, broken = runs("whole"), runs("broken")
    uninterrupted.run(*uninterrupted.script(loop, 200, ranks=2))

    broken.kill_after_checkpoint(*broken.script(loop, 200, ranks=2))  # takes both ranks along
    assert broken.newest()[0] < 200
    broken.run(*broken.script(loop, 200, ranks=2))

    check_training(uninterrupted, broken, loop)


@pytest.mark.parametrize("loop", in_turns(*LOOPS))
def test_loop_learns_without_detcore(loop: str, runs: Callable[[str], LoopRuns]) -> None:
    here = runs("plain")
    printed = here.run("python3", "-c", _RUN_PLAIN.format(folder=here.storage, loop=loop))
    accuracy = re.findall(r"accuracy:? ([0-9.]+)", printed)[-1]
    assert float(accuracy) > 0.8


_RUN_PLAIN = """
import os, runpy, sys
script = os.path.abspath("plain/{loop}.py")
os.chdir("{folder}")
runpy.run_path(script, run_name="__main__")
"""
