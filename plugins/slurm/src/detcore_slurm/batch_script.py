"""Write the batch script of a trial."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path

from detcore.log.events import CheckpointCommitted
from detcore.log.lines import EventLogDamagedError
from detcore.log.reading import read_event_lines
from detcore_slurm.slurm_settings import SlurmSettings

# A save may take this multiple of the longest save so far.
_SAVE_MARGIN = 2.0


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
    own = {
        f"--job-name={name}": "",
        # Slurm replaces % in this path, and splits it at spaces unless it is quoted.
        f"--output={shlex.quote(str(job_dir).replace('%', '%%') + '/slurm-%j.out')}": "",
        "--open-mode=append": "",
        "--export=NIL": "",
        # Only the batch script is signaled, so that other processes of a worker do not die of it.
        f"--signal=B:USR1@{signal_s}": "",
        "--requeue" if settings.requeue else "--no-requeue": "",
    }
    lines = [f"#SBATCH {option}" for option in (*settings.list_options(slots), *own)]
    command = shlex.join([sys.executable, "-m", "detcore_slurm.batch_job", str(job_dir)])
    return "\n".join(["#!/bin/sh", *lines, "", f"exec {command}", ""])


def find_signal_s(settings: SlurmSettings, log: Path | None) -> int:
    """Return how many seconds before the time limit a trial must save, by its saves so far.

    Args:
        settings: Contains the minimum.
        log: Event log of the trial's last run, or None.
    """
    longest_s = 0.0
    if log is not None:
        try:
            for line in read_event_lines(log):
                if isinstance(line.event, CheckpointCommitted):
                    longest_s = max(longest_s, line.event.total_s or 0.0)
        except (OSError, EventLogDamagedError):
            longest_s = 0.0  # the saves of a lost log are unknown
    # Slurm signals up to a minute early, and accepts at most 65535 seconds.
    return min(max(settings.signal_s, math.ceil(longest_s * _SAVE_MARGIN)), 65535)
