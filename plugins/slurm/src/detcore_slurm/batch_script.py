"""Write the batch script of a trial."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from detcore_slurm.slurm_settings import SlurmSettings

# A save may take this multiple of the longest save so far.
_SAVE_MARGIN = 2.0
_MAX_SIGNAL_S = 65535  # the maximum that sbatch accepts


def make_script(
    settings: SlurmSettings, *, slots: int, name: str, job_dir: Path, signal_s: int
) -> str:
    """Return a batch script that starts the tasks of a trial.

    Args:
        settings: The resources.
        slots: Number of workers.
        name: Name of the job.
        job_dir: Directory of the trial's jobs, which the nodes must see.
        signal_s: Seconds before the time limit at which the trial saves.
    """
    own_options = {
        f"--job-name={name}": "",
        # Slurm replaces % in this path, and splits it at spaces unless it is quoted.
        f"--output={shlex.quote(str(job_dir).replace('%', '%%') + '/slurm-%j.out')}": "",
        "--open-mode=append": "",
        "--export=NIL": "",
        # Only the batch script is signaled, so that other processes of a worker do not die of it.
        f"--signal=B:USR1@{signal_s}": "",
        "--requeue" if settings.requeue else "--no-requeue": "",
    }
    lines = [f"#SBATCH {option}" for option in (*settings.list_options(slots), *own_options)]
    command = shlex.join([sys.executable, "-m", "detcore_slurm.batch_job", str(job_dir)])
    return "\n".join(["#!/bin/sh", *lines, "", f"exec {command}", ""])


def find_signal_s(settings: SlurmSettings, durations_s: Sequence[float]) -> int:
    """Return how many seconds before the time limit a trial must save.

    Args:
        settings: Contains the minimum.
        durations_s: How long the saves of the trial's last run took.
    """
    needed_s = math.ceil(max(durations_s, default=0.0) * _SAVE_MARGIN)
    return min(max(settings.signal_s, needed_s), _MAX_SIGNAL_S)
