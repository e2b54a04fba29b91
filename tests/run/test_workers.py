"""Trials of several workers, through the command line; the toy framework adds up gradients."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import numpy as np
import pytest
from processes import is_running
from toy_command import MODEL_DIR, Detcore, worker_pids

BATCH = {"global_batch_size": 8, "learning_rate": 0.05}


def run(detcore: Detcore, slots: int, **changes: Any) -> str:
    """Run to the end on some workers; return the latest checkpoint."""
    config = detcore.config(resources={"slots_per_trial": slots}, **changes)
    finished = detcore("run", config, MODEL_DIR, "--json")
    assert finished.code == 0, finished.stderr
    return str(finished.summary["trials"][0]["latest_checkpoint"])


def whole_state(detcore: Detcore, uuid: str) -> dict[str, Any]:
    folder = detcore.home / "checkpoints" / uuid
    files = sorted(folder.rglob("toy.json"))
    return {str(path.relative_to(folder)): json.loads(path.read_text()) for path in files}


@pytest.mark.soak
def test_workers_train_one_model_and_count_every_record_once(detcore: Detcore) -> None:
    for number, slots in enumerate((1, 2, 3), 1):
        run(detcore, slots, hyperparameters={**BATCH, "global_batch_size": 6 * slots})
        with detcore.database() as database:
            validations = database.metrics(number, "validation")
            training = database.metrics(number, "training")
        assert [row.n_records for row in validations] == [96] * 4
        assert [row.steps_completed for row in training] == list(range(5, 41, 5))
        assert validations[-1].metrics["val_loss"] < validations[0].metrics["val_loss"]
        # Written once for all workers, not by each.
        assert len(validations) == 4


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_ends_the_run_which_then_resumes_bit_for_bit(
    detcore: Detcore, victim: int
) -> None:
    expected = whole_state(detcore, run(detcore, 2, hyperparameters=BATCH))
    assert sorted(expected) == ["toy.json", "workers/1/toy.json"]

    slow = detcore.slow(pause_from=20)
    config = detcore.config(hyperparameters=slow, resources={"slots_per_trial": 2})
    process = detcore.start("run", config, MODEL_DIR)
    pids = worker_pids(process)
    detcore.wait_for(lambda: len(detcore.committed()) > 5)
    os.kill(pids[victim], signal.SIGKILL)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 1, stdout
    assert not any(is_running(pid) for pid in pids)
    detcore.hurry()

    finished = detcore("run", "--resume", 2, "--json")
    assert finished.code == 0, finished.stderr
    uuid = finished.summary["trials"][0]["latest_checkpoint"]
    assert whole_state(detcore, uuid) == expected


def test_an_interrupt_is_seen_by_all_workers_at_the_same_batch(detcore: Detcore) -> None:
    expected = whole_state(detcore, run(detcore, 2, hyperparameters=BATCH))
    slow = detcore.slow(pause_from=10)
    config = detcore.config(
        hyperparameters=slow, resources={"slots_per_trial": 2}, scheduling_unit=100
    )
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

    finished = detcore("run", "--resume", 2, "--json")
    assert finished.code == 0, finished.stderr
    uuid = finished.summary["trials"][0]["latest_checkpoint"]
    assert whole_state(detcore, uuid) == expected


@pytest.mark.soak
def test_a_trial_goes_on_with_another_number_of_workers(detcore: Detcore) -> None:
    slow = detcore.slow(pause_from=20)
    config = detcore.config(hyperparameters=slow, resources={"slots_per_trial": 2})
    process = detcore.start("run", config, MODEL_DIR)
    worker_pids(process)
    detcore.wait_for(lambda: len(detcore.committed()) > 1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 75
    detcore.hurry()
    before = whole_state(detcore, sorted_checkpoints(detcore)[-1])
    for slots in (3, 1):
        finished = detcore("run", "--resume", 1, "--slots", slots, "--json")
        assert finished.code == 0, finished.stderr
    after = whole_state(detcore, finished.summary["trials"][0]["latest_checkpoint"])
    assert after["toy.json"]["step"] == 40 > before["toy.json"]["step"]
    truth = np.array([1.0, -2.0, 0.5])
    assert distance(after, truth) < distance(before, truth)


def test_what_one_worker_raises_ends_all(detcore: Detcore) -> None:
    config = detcore.config(entrypoint="model_def:Raises", resources={"slots_per_trial": 2})
    finished = detcore("run", config, MODEL_DIR)
    assert finished.code == 1
    assert "the user's own mistake at batch 7" in finished.stdout


def sorted_checkpoints(detcore: Detcore) -> list[str]:
    paths = sorted(detcore.committed(), key=lambda path: path.stat().st_mtime)
    return [path.parent.name for path in paths]


def distance(state: dict[str, Any], truth: Any) -> float:
    return float(np.abs(np.asarray(state["toy.json"]["weights"]) - truth).sum())


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


def test_the_worker_that_raised_is_blamed_where_rank_0_of_a_script_ends_first(
    detcore: Detcore,
) -> None:
    (detcore.tmp_path / "train.py").write_text(LOST)
    config = detcore.config(
        entrypoint="python3 train.py", resources={"slots_per_trial": 2}, max_restarts=2
    )
    finished = detcore("run", config, detcore.tmp_path, "--json")
    assert finished.summary["error"].startswith("rank 1: ValueError: my mistake")
    [trial] = finished.summary["trials"]
    assert trial["num_restarts"] == 1  # the second time it is certain
