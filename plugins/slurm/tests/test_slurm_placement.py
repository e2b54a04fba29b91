"""Trials on several nodes, scripts in jobs of other users, separate event logs, and searches."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import BATCH, SlurmRuns
from toy_command import MODEL_DIR, Detcore

SCRIPT = """
import json
from detcore import core

with core.init(distributed=core.DistributedContext.from_env()) as context:
    place = context.distributed
    place.barrier()
    print("place", json.dumps([place.rank, place.size, place.local_rank, place.local_size,
                               place.cross_rank, place.cross_size]), flush=True)
"""
BATCH_SCRIPT = """#!/bin/bash
export DETCORE_JOB_KEY=$(openssl rand -hex 16)
export DET_CHIEF_IP=127.0.0.1  # because the node names of this test have no address
srun -N2 -n2 python train.py
detcore run "$1" "$2" --slots 2
"""
FAILING_RANK = """
import os, sys, time
from pathlib import Path

rank = int(os.environ["DETCORE_RANK"])
Path(f"waits-{rank}").touch()
while rank == 0 or not Path("fail").exists():
    time.sleep(0.1)
sys.exit(3)
"""
TWO: dict[str, Any] = {"hyperparameters": BATCH, "resources": {"slots_per_trial": 2}}
ASHA = {"name": "async_halving", "num_rungs": 2, "max_trials": 4, "max_length": {"batches": 8}}


@pytest.fixture(scope="module")
def expected_of_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The final state of two workers on this machine."""
    with Detcore(tmp_path_factory.mktemp("expected")) as local:
        finished = local("run", local.config(**TWO), MODEL_DIR, "--json")
        folder = local.home / "checkpoints" / finished.summary["trials"][0]["latest_checkpoint"]
        paths = sorted(folder.rglob("toy.json"))
        return {str(path.relative_to(folder)): json.loads(path.read_text()) for path in paths}


def test_trial_spans_two_nodes(detcore: SlurmRuns, expected_of_two: dict[str, Any]) -> None:
    """Two workers on two nodes end bit for bit like two workers on one machine."""
    config = detcore.slurm_config(launcher={"nodes": 2}, **TWO)
    detcore.finish(detcore.start("run", config, MODEL_DIR, "--json"))
    assert len(expected_of_two) == 2
    assert detcore.state() == expected_of_two


def test_code_runs_in_job_of_another_user(
    detcore: SlurmRuns, cluster: SlurmCluster, expected_of_two: dict[str, Any]
) -> None:
    """A script finds its ranks on two nodes, and a trial class trains on the first node."""
    folder = detcore.write_code("train.py", SCRIPT)
    batch = folder / "job.sh"
    batch.write_text(BATCH_SCRIPT)
    variables = {**detcore.variables(), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    cluster.run(
        "sbatch", "--wait", "-N2", "-n2", f"--chdir={folder}", "--output=out", str(batch),
        str(detcore.config(**TWO)), str(MODEL_DIR),
        variables=variables,
    )  # fmt: skip
    lines = (folder / "out").read_text().splitlines()
    places = sorted(line.partition(" ")[2] for line in lines if line.startswith("place"))
    assert places == ["[0, 2, 0, 1, 0, 2]", "[1, 2, 0, 1, 1, 2]"], lines
    assert detcore.state(trial_id=2) == expected_of_two, lines


def test_shared_directory_holds_event_logs(detcore: SlurmRuns) -> None:
    """Reports are copied in order and once, also by a runner that follows a running job."""
    shared = detcore.folder / "shared"
    process = detcore.begin(
        hyperparameters=detcore.slow(pause_from=15), launcher={"shared_dir": str(shared)}
    )
    detcore.wait_for_checkpoints(1)
    detcore.kill(process)
    detcore.hurry()
    output = detcore.finish(detcore.start("run", "--resume", 1))
    assert "slurm: following job" in output
    (log,) = shared.glob("*/events-1.jsonl")
    copy = detcore.home / "experiments/1/trials/1/events-1.jsonl"
    assert log.read_bytes() == copy.read_bytes()
    assert not list(copy.parent.glob("slurm*"))
    assert list(log.parent.glob("code-1/model_def.py"))
    detcore.check_records()


@pytest.mark.parametrize(
    ("searcher", "max_slots", "num_kills"),
    [
        ({"name": "random", "max_trials": 4, "max_length": {"batches": 8}}, 2, 1),
        pytest.param(ASHA, 1, 2, marks=pytest.mark.soak),
        pytest.param({**ASHA, "max_trials": 20}, 1, 5, marks=pytest.mark.soak),
    ],
)
def test_search_ends_as_on_one_machine(
    detcore: SlurmRuns, tmp_path: Path, searcher: dict[str, Any], max_slots: int, num_kills: int
) -> None:
    """The runner is killed and started again. The trials of a random search are independent."""
    search = {
        "searcher": {"metric": "val_loss", **searcher},
        "hyperparameters": {
            "global_batch_size": 8,
            "learning_rate": {"type": "log", "base": 10, "minval": -3, "maxval": -1},
        },
        "min_validation_period": {"batches": 4},
        "resources": {"max_slots": max_slots},
    }
    with Detcore(tmp_path / "local") as local:
        expected = local("run", local.config(**search), MODEL_DIR, "--json")
        assert expected.code == 0, expected.output
    process = detcore.start("run", detcore.slurm_config(**search), MODEL_DIR, "--json")
    for count in range(1, num_kills + 1):
        detcore.wait_for_checkpoints(count)
        detcore.kill(process)
        process = detcore.start("run", "--resume", 1, "--json")
    stdout, stderr = process.communicate(timeout=900)
    assert process.returncode == 0, stdout + stderr

    def pick(summary: dict[str, Any]) -> list[dict[str, Any]]:
        trials = [
            {name: value for name, value in trial.items() if "checkpoint" not in name}
            for trial in summary["trials"]
        ]
        return sorted(trials, key=lambda trial: int(trial["trial_id"]))

    assert pick(json.loads(stdout.splitlines()[-1])) == pick(expected.summary)
    detcore.wait_for(lambda: not detcore.cluster.list_jobs(), timeout_s=60)


@pytest.mark.soak
def test_failed_rank_ends_job_without_runner(detcore: SlurmRuns) -> None:
    """The tasks end the remaining ranks themselves, long before any time limit."""
    folder = detcore.write_code("train.py", FAILING_RANK)
    config = detcore.slurm_config(
        entrypoint="python3 train.py", resources={"slots_per_trial": 2}, launcher={"nodes": 2}
    )
    process = detcore.start("run", config, folder)
    detcore.wait_for(lambda: (folder / "waits-0").exists(), timeout_s=100)
    detcore.kill(process)
    (folder / "fail").touch()
    detcore.wait_for(lambda: not detcore.cluster.list_jobs(), timeout_s=120)
