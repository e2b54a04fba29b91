"""Settings and clusters that cannot run a trial: each message names the cause and the remedy."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import SlurmRuns
from toy_command import MODEL_DIR, Detcore, Finished

from detcore.errors import RunError
from detcore_slurm import SlurmLauncher, SlurmSettings
from detcore_slurm.batch_script import find_signal_s


@pytest.mark.parametrize(
    ("launcher", "slots", "expected"),
    [
        ({"partition": "nope"}, 1, ["invalid partition specified: nope", "partition: nope"]),
        ({}, 99, ["Requested node configuration is not available", "slots_per_trial: 99"]),
        ({"memory": "900G"}, 1, ["Requested node configuration", "memory: 900G"]),
        ({"lines": ["--exclusive", "--no-such-option"]}, 1, ["option", "- --no-such-option"]),
        ({"time": "soon"}, 1, ["Invalid --time specification", "time: soon"]),
    ],
)
def test_refused_options_show_message_of_slurm(
    detcore: SlurmRuns, launcher: dict[str, Any], slots: int, expected: list[str]
) -> None:
    """The line of the file is shown, nothing is recorded, and no job is submitted."""
    config = detcore.slurm_config(
        launcher=launcher, resources={"slots_per_trial": slots},
        hyperparameters={"global_batch_size": 128, "learning_rate": 0.05},
    )  # fmt: skip
    failed = detcore("run", config, MODEL_DIR)
    assert failed.code == 2, failed.output
    marked = failed.output.partition("^")[0].splitlines()[-2]
    assert marked.endswith(expected[-1]), failed.output
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


@pytest.mark.parametrize(("save_s", "lead_s"), [(1.0, 120), (90.2, 181), (1e6, 65535)])
def test_signal_comes_before_the_longest_save(save_s: float, lead_s: int) -> None:
    assert find_signal_s(SlurmSettings(), [0.5, save_s]) == lead_s


def test_program_that_nodes_do_not_see(detcore: SlurmRuns, cluster: SlurmCluster) -> None:
    """The job cannot import detcore, as on a node without the shared directory."""
    failed = run_with_python(detcore, "echo no such directory >&2\nexit 1")
    assert failed.code == 1
    assert "has ended (FAILED), but has written nothing into" in failed.output
    assert "launcher.shared_dir" in failed.output
    assert "slurm: no such directory" in failed.output


@pytest.mark.soak
def test_directory_that_nodes_do_not_see(detcore: SlurmRuns, cluster: SlurmCluster) -> None:
    """Both nodes have another directory in the place of the home."""
    nodes = ("n1", "n2")
    for node in nodes:
        cluster.kill_node(node)
        cluster.start_node(node, hidden=detcore.home.parent)
    try:
        cluster.wait_until_idle()
        failed = detcore("run", detcore.slurm_config(max_restarts=0), MODEL_DIR)
    finally:
        for node in nodes:
            cluster.kill_node(node)
            cluster.start_node(node)
        cluster.wait_until_idle()
    assert failed.code == 1
    assert "but has written nothing into" in failed.output
    assert "launcher.shared_dir" in failed.output


@pytest.mark.soak
def test_clock_difference_is_reported(detcore: SlurmRuns) -> None:
    """The clock of the program that starts the job is an hour ahead."""
    code = (
        "import runpy, sys, time; now = time.time; time.time = lambda: now() + 3600; "
        "sys.argv = sys.argv[2:]; runpy.run_module(sys.argv[0], run_name='__main__')"
    )
    finished = run_with_python(detcore, f'exec {sys.executable} -c "{code}" "$@"')
    assert finished.code == 0, finished.output
    assert re.search(r"the clock of n[12] differs by \+36\d\d s", finished.output)
    assert "Synchronize both with NTP" in finished.output


def run_with_python(detcore: SlurmRuns, command: str) -> Finished:
    """Run an experiment whose jobs start with a shell command instead of Python."""
    python = detcore.folder / "python"
    python.write_text(f"#!/bin/sh\n{command}\n")
    python.chmod(0o755)
    script = f"import sys; sys.executable = {str(python)!r}; from detcore.cli import main; main()"
    return detcore.python("-c", script, "run", detcore.slurm_config(max_restarts=0), MODEL_DIR)
