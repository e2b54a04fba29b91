"""The program of a batch script: ``python -m detcore_slurm.batch_job DIRECTORY``.

It claims the run that the runner has prepared, and starts one task per rank. A job that Slurm has
requeued waits here until the runner has prepared the next run.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

from detcore.environment import child_environment, read_variables
from detcore_slurm.run_folder import Appender, RunFolder

_POLL_S = 0.5
# A runner that was killed must be started again in this time.
_WAIT_FOR_RUN_S = 3600.0
_EXIT_NO_RUN = 75
# A requeued job with the variable of its first start would look for the options of sbatch.
_EXPORT = "SLURM_EXPORT_ENV"


def main(job_dir: Path) -> int:
    """Run the trial's next run, and return the exit code of the job."""
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received_number, _frame: received.append(received_number))
    folder = _claim_run(job_dir, received)
    if folder is None:
        return _EXIT_NO_RUN
    start = folder.read_start()
    process = subprocess.Popen(
        [
            "srun", f"--ntasks={len(start['ranks'])}", "--kill-on-bad-exit=0", "--wait=0",
            "--export=ALL", "--distribution=block", "--mpi=none", "--input=none", "--quiet",
            sys.executable, "-m", "detcore_slurm.rank_task", str(folder.path),
        ],
        env=child_environment({"PYTHONUNBUFFERED": "1"}, without=[_EXPORT]),
        stdin=subprocess.DEVNULL,
        # Slurm signals the process group of the batch script, and srun would kill its tasks.
        start_new_session=True,
    )  # fmt: skip
    signals = Appender(folder.signals)
    code: int | None = None
    while code is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(_POLL_S)
        while received:  # also those of which the tasks have died
            signals.add_line(signal=received.pop(0))
        signals.flush()
    return code


def _claim_run(job_dir: Path, received: list[int]) -> RunFolder | None:
    """Wait for an unclaimed run of this job, and claim it; None if none appears in time."""
    names = ("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_RESTART_COUNT", "SLURMD_NODENAME")
    values = read_variables(names)
    deadline = time.monotonic() + _WAIT_FOR_RUN_S
    while time.monotonic() < deadline and not received:
        folder = RunFolder.find_newest(job_dir)
        if folder is not None and folder.read_start()["job_name"] == values["SLURM_JOB_NAME"]:
            claim = {
                "job": int(values["SLURM_JOB_ID"]),
                "restarts": int(values.get("SLURM_RESTART_COUNT", "0")),
                "node": values.get("SLURMD_NODENAME", ""),
                "time": time.time(),
            }
            if folder.claim(claim):
                return folder
        time.sleep(_POLL_S)
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
