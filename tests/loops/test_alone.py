"""The loops as scripts by themselves."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from loop_runs import LOOPS, LoopRuns

from detcore.types import ExperimentState

STEPS = 400
# The loops whose frameworks take longest to start take turns.
SLOW = ("jax_loop", "keras_fit")


def in_turns(*loops: str) -> list[Any]:
    return [pytest.param(loop, marks=pytest.mark.soak if loop in SLOW else []) for loop in loops]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("loop", in_turns(*LOOPS))
def test_a_killed_and_preempted_loop_goes_on_bit_for_bit(
    loop: str, runs: Callable[[str], LoopRuns]
) -> None:
    whole, broken = runs("whole"), runs("broken")
    whole.run(*whole.script(loop, STEPS))

    killed = broken.start(*broken.script(loop, STEPS))
    broken.wait_for_checkpoint(killed)
    killed.kill()
    broken.end(killed, -signal.SIGKILL)
    preempted = broken.start(*broken.script(loop, STEPS))
    broken.wait_for_checkpoint(preempted, more_than=len(broken.manifests()))
    preempted.send_signal(signal.SIGTERM)
    broken.end(preempted, 75)
    assert 0 < broken.newest()[0] < STEPS
    broken.run(*broken.script(loop, STEPS))

    assert_same_training(whole, broken, loop)
    with broken.database() as database:
        (experiment,) = database.list_experiments()
        assert experiment.state is ExperimentState.COMPLETED
        assert [run.run_id for run in database.list_runs(1)] == [1, 2, 3]


def assert_same_training(whole: LoopRuns, broken: LoopRuns, loop: str) -> None:
    (steps, expected), (same_steps, found) = whole.newest(), broken.newest()
    assert steps == same_steps
    assert expected.keys() == found.keys()
    for name in expected:
        assert np.array_equal(expected[name], found[name]), name
    assert any(np.any(array) for array in found.values())
    assert whole.metrics(1, "validation") == broken.metrics(1, "validation")
    assert whole.metrics(1, "validation")[0][1]["accuracy"] > 0.8
    if loop != "keras_fit":  # whose loss is the mean since model.fit began
        assert whole.metrics(1, "training") == broken.metrics(1, "training")


# PyTorch in two ranks: test_managed.py.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("loop", in_turns("jax_loop", "keras_fit", "sklearn_loop"))
def test_two_ranks_of_which_one_was_killed_go_on_bit_for_bit(
    loop: str, runs: Callable[[str], LoopRuns]
) -> None:
    whole, broken = runs("whole"), runs("broken")
    whole.run(*whole.script(loop, 200, ranks=2))

    job = broken.start(*broken.script(loop, 200, ranks=2))
    broken.wait_for_checkpoint(job)
    job.kill()  # takes both ranks along
    broken.end(job, -signal.SIGKILL)
    assert broken.newest()[0] < 200
    broken.run(*broken.script(loop, 200, ranks=2))

    assert_same_training(whole, broken, loop)


@pytest.mark.parametrize("loop", in_turns(*LOOPS))
def test_the_loop_without_detcore_learns_too(loop: str, runs: Callable[[str], LoopRuns]) -> None:
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
