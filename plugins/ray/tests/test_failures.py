"""What dies while a trial runs: a node, a worker, the runner, and what speaks to Ray for it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import is_running, wait_until_gone
from ray_nodes import RayNodes
from ray_runs import RayRuns

from detcore_ray.messages import Line

Expect = Callable[[int], dict[str, Any]]


@pytest.fixture
def fast(nodes: RayNodes) -> Iterator[RayNodes]:
    """Two more nodes, which have what no other has."""
    names = ("doomed", "spare")
    for name in names:
        nodes.add(name, resources={"fast": 2})
    yield nodes
    for name in names:
        if name in nodes.names():
            nodes.kill(name)


def driver_of(runner: int) -> int:
    """Return the process that speaks to Ray for a runner."""
    children = Path(f"/proc/{runner}/task/{runner}/children").read_text().split()
    (found,) = [
        int(pid)
        for pid in children
        if "detcore_ray.driver_process.driver" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    return found


ON_FAST = {"resources": {"fast": 1}, "strategy": "SPREAD"}


@pytest.mark.parametrize("slots", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_a_node_that_dies_in_the_middle_of_a_trial(
    detcore: RayRuns, expect: Expect, fast: RayNodes, slots: int
) -> None:
    """The trial starts again on another node, and ends as it would have, bit for bit."""
    expected = expect(slots)
    process = detcore.begin(
        hyperparameters=detcore.slow(pause_from=20),
        resources={"slots_per_trial": slots},
        max_restarts=1,
        launcher=ON_FAST,
    )
    pids = detcore.pids()
    victim = fast.of_process(pids[-1])
    died = re.escape(f"(Ray node {fast.ray_id(victim)[:8]}) died")
    detcore.has_checkpoints(2)
    fast.kill(victim)
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stdout + stderr
    assert detcore.trial(1).num_restarts == 1
    assert detcore.state() == expected
    lost = re.search(rf"ray: rank \d was lost: node \S+ {died}", stdout)
    assert lost, stdout
    assert re.search(r"\ntrial 1 failed\b.* It starts again", stdout[lost.end() :]), stdout
    assert not any(map(is_running, pids))


def test_an_actor_that_is_killed_takes_its_worker_with_it(detcore: RayRuns) -> None:
    process = detcore.begin(hyperparameters=detcore.slow(pause_from=1))
    (pid,) = detcore.pids()
    actor = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(actor, signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 1
    assert wait_until_gone([pid], 60) == []
    assert "rank 0 was lost: its actor on node" in stdout, stdout + stderr


def test_a_runner_that_is_killed_leaves_no_worker_and_is_gone_on_with(
    detcore: RayRuns, expect: Expect
) -> None:
    """The lock is held until the workers are gone: whoever resumes at once waits for that."""
    expected = expect(2)
    slow = detcore.slow(pause_from=10)
    process = detcore.begin(hyperparameters=slow, resources={"slots_per_trial": 2})
    pids = detcore.pids()
    detcore.has_checkpoints(1)
    process.kill()
    finished = detcore("run", "--resume", 1, "--json")
    assert not any(map(is_running, pids))
    assert finished.code == 0, finished.output
    assert detcore.state() == expected


@pytest.mark.soak
def test_what_speaks_to_ray_may_be_killed_too(detcore: RayRuns, expect: Expect) -> None:
    """Ray ends the actors, and a new one goes on."""
    expected = expect(1)
    process = detcore.begin(hyperparameters=detcore.slow(pause_from=10), max_restarts=1)
    (pid,) = detcore.pids()
    detcore.has_checkpoints(1)
    os.kill(driver_of(process.pid), signal.SIGKILL)
    stdout, _ = process.communicate(timeout=200)
    assert process.returncode == 0, stdout
    assert not is_running(pid)
    killed = "ray: the process that speaks to Ray was killed by SIGKILL\n"
    assert re.search(r"trial 1 failed\b.* It starts again", stdout.partition(killed)[2]), stdout
    assert detcore.state() == expected


@pytest.mark.soak
def test_a_worker_that_hears_nothing_ends_by_itself(detcore: RayRuns, expect: Expect) -> None:
    """What speaks to Ray stands still, as beyond a broken network."""
    expected = expect(1)
    slow = detcore.slow(pause_from=10)
    process = detcore.begin(hyperparameters=slow, max_restarts=1, launcher={"lease_s": 10})
    (pid,) = detcore.pids()
    detcore.has_checkpoints(1)
    driver = driver_of(process.pid)
    os.kill(driver, signal.SIGSTOP)
    try:
        assert wait_until_gone([pid], 60) == []
    finally:
        os.kill(driver, signal.SIGCONT)
    stdout, _ = process.communicate(timeout=200)
    assert process.returncode == 0, stdout
    assert "rank 0 was lost: its actor on node" in stdout
    assert detcore.state() == expected


def test_a_line_ends_where_the_other_end_died_before_it_read_everything() -> None:
    ours, theirs = socket.socketpair()
    line = Line(ours)
    line.say("kill")
    theirs.close()
    with contextlib.closing(line):
        assert list(line.heard()) == []
