"""Settings and clusters that cannot run a trial: each message names the cause and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import SlurmRuns
from toy_command import MODEL_DIR, Detcore

from detcore.errors import RunError
from detcore_slurm import SlurmLauncher


@pytest.mark.parametrize(
    ("launcher", "slots", "expected"),
    [
        ({"partition": "nope"}, 1, ["invalid partition specified: nope", "--partition=nope"]),
        ({}, 99, ["Requested node configuration is not available", "--ntasks=99  (from resources"]),
        ({"lines": ["--no-such-option"]}, 1, ["--no-such-option"]),
        ({"time": "soon"}, 1, ["Invalid --time specification", "launcher.time"]),
    ],
)
def test_refused_options_show_message_of_slurm(
    detcore: SlurmRuns, launcher: dict[str, Any], slots: int, expected: list[str]
) -> None:
    """Nothing is recorded, and no job is submitted."""
    config = detcore.slurm_config(
        launcher=launcher, resources={"slots_per_trial": slots},
        hyperparameters={"global_batch_size": 128, "learning_rate": 0.05},
    )  # fmt: skip
    failed = detcore("run", config, MODEL_DIR)
    assert failed.code == 1, failed.output
    assert [text for text in expected if text not in failed.output] == [], failed.output
    assert "Traceback" not in failed.output
    assert "PAUSED" not in detcore("experiment", "list").output
    assert detcore.cluster.list_jobs() == []


def test_missing_slurm_is_reported(tmp_path: Path) -> None:
    with Detcore(tmp_path) as detcore:
        detcore._variables["PATH"] = "/nowhere"
        failed = detcore("run", detcore.config(launcher={"name": "slurm"}), MODEL_DIR)
    assert failed.code == 1
    assert "sinfo was not found: Slurm is not installed on this machine" in failed.output
    assert "--launcher local" in failed.output


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"partition": "a\n#SBATCH --uid=0"},
            "launcher.partition: .* does not fit into an #SBATCH",
        ),
        ({"account": "a b"}, "launcher.account: 'a b' contains a space"),
        ({"lines": ["--qos=x\nrm -rf /"]}, "does not fit into an #SBATCH line"),
        ({"lines": ["touch /tmp/x"]}, "is not an option"),
        ({"lines": ["--signal=KILL"]}, "the launcher sets --signal itself"),
        ({"lines": ["-n4"]}, "the launcher sets"),
        ({"shared_dir": "events"}, "not an absolute path"),
        ({"nodez": 2}, "launcher.nodez"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(RunError, match=text):
        SlurmLauncher(**settings)


def test_directory_that_nodes_do_not_see(detcore: SlurmRuns, cluster: SlurmCluster) -> None:
    """The job cannot import detcore, as on a node without the shared directory."""
    python = detcore.folder / "python"
    python.write_text("#!/bin/sh\necho no such directory >&2\nexit 1\n")
    python.chmod(0o755)
    script = f"import sys; sys.executable = {str(python)!r}; from detcore.cli import main; main()"
    config = detcore.slurm_config(max_restarts=0)
    failed = detcore.python("-c", script, "run", config, MODEL_DIR)
    assert failed.code == 1
    assert "has ended (FAILED), but has written nothing into" in failed.output
    assert "launcher.shared_dir" in failed.output
    assert "slurm: no such directory" in failed.output
