"""Failures while a trial runs: a node, a worker, the runner or the driver process dies."""

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

from detcore_ray.messages import Channel

Expect = Callable[[int], dict[str, Any]]


@pytest.fixture
def fast(nodes: RayNodes) -> Iterator[RayNodes]:
    """Two additional nodes with a resource that other nodes lack."""
    names = ("doomed", "spare")
    for name in names:
        nodes.add(name, resources={"fast": 2})
    yield nodes
    for name in names:
        if name in nodes.names():
            nodes.kill(name)


def driver_of(runner: int) -> int:
    """Return the driver process of a runner."""
    children = Path(f"/proc/{runner}/task/{runner}/children").read_text().split()
    (driver_pid,) = [
        int(pid)
        for pid in children
        if "detcore_ray.driver_process.driver" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    return driver_pid


ON_FAST = {"resources": {"fast": 1}, "strategy": "SPREAD"}


@pytest.mark.parametrize("slots", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_trial_restarts_when_node_dies(
    detcore: RayRuns, expect: Expect, fast: RayNodes, slots: int
) -> None:
    """The trial restarts on another node, and ends bit for bit like an uninterrupted trial."""
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


def test_killed_actor_ends_its_worker(detcore: RayRuns) -> None:
    process = detcore.begin(hyperparameters=detcore.slow(pause_from=1))
    (pid,) = detcore.pids()
    actor = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(actor, signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 1
    assert wait_until_gone([pid], 60) == []
    assert "rank 0 was lost: its actor on node" in stdout, stdout + stderr


def test_killed_runner_leaves_no_worker(detcore: RayRuns, expect: Expect) -> None:
    """The lock is held until the workers have exited, so an immediate resume waits."""
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
def test_trial_restarts_when_driver_is_killed(detcore: RayRuns, expect: Expect) -> None:
    """Ray kills the actors, and the restarted trial resumes."""
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
def test_worker_exits_when_lease_expires(detcore: RayRuns, expect: Expect) -> None:
    """The driver process is stopped, as behind a broken network."""
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


def test_channel_ends_when_peer_dies() -> None:
    near_end, far_end = socket.socketpair()
    channel = Channel(near_end)
    channel.send_message("kill")
    far_end.close()
    with contextlib.closing(channel):
        assert list(channel.read_messages()) == []
