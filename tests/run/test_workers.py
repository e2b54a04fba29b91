"""Trials of several workers, through the command line; the toy framework adds up gradients."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from processes import is_running
from toy_command import MODEL_DIR, Detcore, worker_pids

TWO = {"slots_per_trial": 2}


def final_state(detcore: Detcore, *words: object) -> dict[str, Any]:
    """Run a trial to its end; return the state of all workers in its latest checkpoint."""
    finished = detcore.run_checked("run", *words, "--json")
    folder = detcore.home / "checkpoints" / finished.summary["trials"][0]["latest_checkpoint"]
    files = sorted(folder.rglob("toy.json"))
    return {str(path.relative_to(folder)): json.loads(path.read_text()) for path in files}


@pytest.mark.parametrize("victim", [0, 1])
def test_run_resumes_exactly_after_killed_worker(detcore: Detcore, victim: int) -> None:
    expected = final_state(detcore, detcore.config(resources=TWO), MODEL_DIR)
    assert sorted(expected) == ["toy.json", "workers/1/toy.json"]

    slow = detcore.slow(pause_from=20)
    config = detcore.config(hyperparameters=slow, resources=TWO)
    process = detcore.start("run", config, MODEL_DIR)
    pids = worker_pids(process)
    detcore.wait_for(lambda: len(detcore.committed()) > 5)
    os.kill(pids[victim], signal.SIGKILL)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 1, stdout
    assert not any(is_running(pid) for pid in pids)
    detcore.hurry()
    assert final_state(detcore, "--resume", 2) == expected


def test_interrupt_reaches_workers_at_same_batch(detcore: Detcore) -> None:
    expected = final_state(detcore, detcore.config(resources=TWO), MODEL_DIR)
    slow = detcore.slow(pause_from=10)
    config = detcore.config(hyperparameters=slow, resources=TWO, scheduling_unit=100)
    process = detcore.start("run", config, MODEL_DIR)
    worker_pids(process)
    detcore.wait_for(lambda: len(detcore.committed()) > 4)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 75, stdout

    # Another signal, to one worker alone, is an interrupt of all.
    process = detcore.start("run", "--resume", 2)
    pids = worker_pids(process)
    before = len(detcore.committed())
    detcore.wait_for(lambda: len(detcore.committed()) > before)
    os.kill(pids[1], signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 75
    detcore.hurry()
    assert final_state(detcore, "--resume", 2) == expected


def test_worker_exception_ends_all_workers(detcore: Detcore) -> None:
    config = detcore.config(entrypoint="model_def:Raises", resources=TWO)
    finished = detcore.run_failing("run", config, MODEL_DIR)
    assert "the user's own mistake at batch 7" in finished.stdout


LOST = """
import os, time
from detcore import core
place = core.DistributedContext.from_env()
try:
    with core.init(distributed=place) as context:
        if place.rank == 0:
            context.train.report_training_metrics(1, {"loss": 1.0})
        place.allgather(None)
        if place.rank:
            raise ValueError(f"my mistake {object()}")
        place.allgather(None)
finally:
    time.sleep(place.rank)
"""


def test_failed_rank_is_blamed_when_rank_0_ends_first(
    detcore: Detcore,
) -> None:
    (detcore.tmp_path / "train.py").write_text(LOST)
    config = detcore.config(entrypoint="python3 train.py", resources=TWO, max_restarts=2)
    finished = detcore("run", config, detcore.tmp_path, "--json")
    assert finished.summary["error"].startswith("rank 1: ValueError: my mistake")
    [trial] = finished.summary["trials"]
    assert trial["num_restarts"] == 1  # the second time it is certain
