"""The same scripts under `detcore run`: as trials, as a search; and with an object store."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from loop_runs import LoopRuns, arrays_of, check_same_training
from storage_servers import ACCESS_KEY, BUCKET, SECRET_KEY, seaweedfs
from toy_command import worker_pids

from detcore.types import ExperimentState

Runs = Callable[[str], LoopRuns]


def trial_of(runs: LoopRuns, loop: str, batches: int, *more: str) -> list[str]:
    """Return the command that trains a loop as the trial of an experiment."""
    return [
        "detcore", "run", "const.yaml", "--set", f"entrypoint=python3 {loop}.py",
        "--set", f"searcher.max_length.batches={batches}",
        "--set", f"checkpoint_storage={runs.storage}", *more,
    ]  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize("loop", ["jax_loop", "keras_fit"])
def test_script_runs_as_trial(loop: str, runs: Runs) -> None:
    here = runs("here")
    override = "hyperparameters.learning_rate=0.2"
    printed = here.run(*trial_of(here, loop, 60, "--set", override, "--json"))
    summary = json.loads(printed.splitlines()[-1])
    assert summary["state"] == "COMPLETED"
    assert here.newest()[0] == 60
    assert [steps for steps, _ in here.metrics(1, "training")] == [10, 20, 30, 40, 50, 60]
    ((steps, values),) = here.metrics(1, "validation")
    assert steps == 60
    assert summary["trials"][0]["best_validation"] == values["accuracy"]
    with here.database() as database:
        assert database.get_trial(1).hparams["learning_rate"] == 0.2


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_process_trial_resumes_bit_identically(runs: Runs) -> None:
    uninterrupted, broken = runs("whole"), runs("broken")
    uninterrupted.run(*trial_of(uninterrupted, "torch_loop", 300, "--slots", "2"))

    runner = broken.start(*trial_of(broken, "torch_loop", 300, "--slots", "2"))
    pids = worker_pids(runner)
    broken.wait_for_checkpoint(runner)
    os.kill(pids[1], signal.SIGKILL)
    worker_pids(runner)  # the resumed workers
    broken.wait_for_checkpoint(runner, more_than=len(broken.manifests()))
    runner.send_signal(signal.SIGINT)
    broken.end(runner, 75)
    assert 0 < broken.newest()[0] < 300
    broken.run("detcore", "run", "--resume", "1")

    assert check_same_training(uninterrupted, broken) == 300
    assert uninterrupted.metrics(1, "training") == broken.metrics(1, "training")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_script_runs_in_search(runs: Runs) -> None:
    here = runs("here")
    here.run(
        "detcore", "run", "adaptive.yaml", "--set", "entrypoint=python3 sklearn_loop.py",
        "--set", f"checkpoint_storage={here.storage}",
    )  # fmt: skip
    with here.database() as database:
        trials = database.list_trials(1)
    assert len({trial.hparams["learning_rate"] for trial in trials}) == 4
    assert all(trial.state is ExperimentState.COMPLETED for trial in trials)
    trained = [here.metrics(trial.id, "validation")[-1] for trial in trials]
    assert {steps for steps, _ in trained} == {60, 240}
    longest = max(trained, key=lambda found: found[0])
    at_60 = [here.metrics(trial.id, "validation")[0][1]["accuracy"] for trial in trials]
    assert here.metrics(trials[at_60.index(max(at_60))].id, "validation")[-1] == longest
    assert max(values["accuracy"] for _, values in trained) > 0.8


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_loop_killed_during_s3_save_resumes(runs: Runs, tmp_path: Path) -> None:
    uninterrupted, broken = runs("whole"), runs("broken")
    uninterrupted.run(*uninterrupted.script("sklearn_loop", 300))
    with seaweedfs() as url:
        broken.variables = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
        }
        command = ["python3", "sklearn_loop.py", "--steps", 300]
        command += ["--checkpoint-storage", f"s3://{BUCKET}/digits"]
        killed = broken.start(*command)
        broken.wait_for(killed, lambda: bool(saved(broken)))
        killed.kill()
        broken.end(killed, -signal.SIGKILL)
        first = len(saved(broken))
        broken.run(*command)
        uuids = saved(broken)
        assert 0 < first < len(uuids)
        fetched = tmp_path / "fetched"
        broken.run("detcore", "checkpoint", "download", uuids[-1], "-o", fetched)
    assert not list(tmp_path.glob("*/home/checkpoints/*")), "nothing is saved elsewhere"

    steps, expected = uninterrupted.newest()
    arrays = arrays_of(fetched)
    assert json.loads((fetched / "metadata.json").read_text())["steps_completed"] == steps == 300
    assert expected.keys() == arrays.keys()
    assert all(np.array_equal(expected[name], arrays[name]) for name in expected)


def saved(runs: LoopRuns) -> list[str]:
    """Return the committed checkpoints, those with the most steps last."""
    if not (runs.home / "detcore.db").exists():
        return []
    with runs.database() as database:
        checkpoints = database.list_checkpoints(states=["COMPLETED"])
    return [
        record.uuid for record in sorted(checkpoints, key=lambda record: record.steps_completed)
    ]
