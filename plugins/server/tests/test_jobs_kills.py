"""Tests that a submitted experiment survives a server kill and a reboot."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from job_server import MODEL_DIR, JobServer, toy_config, wait_for
from toy_command import Detcore

from detcore.records import Database


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return line
    raise AssertionError(f"it ended before it said {pattern!r}: {lines}")


def weights(home: Path, database_url: str) -> tuple[list[float], dict[str, object]]:
    """Return an experiment's final weights and random state."""
    with Database.open(database_url) as database:
        (trial,) = database.list_trials(1)
        latest = database.latest_checkpoint(trial.id)
    assert latest is not None
    assert latest.steps_completed == 40
    state = json.loads((home / "checkpoints" / latest.uuid / "toy.json").read_text())
    return state["weights"], state["noise"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], dict[str, object]]:
    """Result of a local run without a server."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with Detcore(folder) as detcore:
        path = folder / "toy.yaml"
        path.write_text(yaml.safe_dump(toy_config()))
        finished = detcore("run", path, MODEL_DIR, "--json")
        assert finished.code == 0, finished.output
        return weights(detcore.home, f"sqlite:///{detcore.home / 'detcore.db'}")


GATED = """
import time
from pathlib import Path
from model_def import Line

class Gated(Line):
    def on_batch(self, step):
        gate = Path(self.context.get_hparam("gates"), str(step))
        while gate.with_suffix(".shut").exists():
            gate.touch()  # says that it is running
            time.sleep(0.02)
"""


@pytest.mark.soak
def test_server_kills_and_reboot_keep_result(
    tmp_path: Path, undisturbed: tuple[list[float], dict[str, object]]
) -> None:
    """One command follows the experiment through all interruptions to the end."""
    gates, code = tmp_path / "gates", tmp_path / "code"
    shutil.copytree(MODEL_DIR, code, ignore=shutil.ignore_patterns("__pycache__"))
    gates.mkdir()
    (code / "gated.py").write_text(GATED)
    for step in (15, 25):
        (gates / f"{step}.shut").touch()
    path = tmp_path / "toy.yaml"
    changes = {"entrypoint": "gated:Gated", "hyperparameters__gates": str(gates)}
    path.write_text(yaml.safe_dump(toy_config(**changes)))
    with JobServer(tmp_path / "jobs") as jobs:

        def num_runs() -> int:
            with jobs.database() as database:
                (trial,) = database.list_trials(1)
                return len(database.list_runs(trial.id))

        following = jobs.client.start("run", path, code, "--master", jobs.url)
        wait_for((gates / "15").exists, following)

        # Kill only the server: the runner continues.
        runner = jobs.runner_of(1)
        jobs.server.kill()
        jobs.server.start()
        (gates / "15.shut").unlink()
        read_until(following, "batch 20: validation")
        wait_for((gates / "25").exists, following)
        assert jobs.runner_of(1) == runner
        assert num_runs() == 1

        # Crash the machine: the next server starts a runner, which resumes.
        jobs.reboot(1)
        jobs.server.start()
        line = read_until(following, "from batch")
        assert re.search(r"from batch (10|20) ", line), line
        (gates / "25").unlink()  # its creator, the previous worker, has ended
        wait_for((gates / "25").exists, following)
        assert num_runs() == 2

        # Shut the machine down: this is no pause by a user.
        os.kill(jobs.runner_of(1), signal.SIGTERM)
        read_until(following, "SIGTERM: the trial checkpoints")
        (gates / "25.shut").unlink()
        # Before a possible kill it starts no save that may stay incomplete.
        read_until(following, r"from batch 2\d ")

        stdout, stderr = following.communicate(timeout=120)
        assert following.returncode == 0, (stdout, stderr)
        assert "experiment 1: completed\n  trial 1: 40 batches" in stdout
        assert num_runs() == 3
        assert weights(jobs.server.home, jobs.server.database_url) == undisturbed
