"""Call Slurm's commands, without a shell."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from detcore.environment import child_environment, read_prefixed
from detcore.errors import WorkerError

_TIMEOUT_S = 60.0
# Slurm's commands fail while slurmctld restarts.
_RETRY_S = 2.0
_UNREACHABLE = re.compile(
    "Unable to contact slurm controller|Connection refused|Socket timed out|Zero Bytes were trans"
    "|slurm_persist_conn|Backup controller|in standby",
    re.IGNORECASE,
)
_AVAILABLE_STATES = {"idle", "mixed", "allocated", "completing", "planned", "reserved"}
_FIELDS = "JobID:20,State:20,RestartCnt:12,EndTime:24,Reason:60"
# Inherited from a job in which the runner itself runs, these would change the options.
_INPUT_VARIABLES = ("SBATCH_", "SLURM_", "SRUN_", "SALLOC_")
_KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
# Words of Slurm's refusals, and the options that they are about.
_REFUSALS = (
    ("partition", ("--partition",)),
    ("account", ("--account",)),
    ("time limit|--time", ("--time",)),
    ("memory|--mem", ("--mem",)),
    ("gres|gpu|tres", ("--gpus",)),
    ("qos", ("--qos",)),
    ("feature", ("--constraint",)),
    ("reservation", ("--reservation",)),
    (
        "node count|more processors|node configuration",
        ("--mem", "--gpus", "--cpus-per-task", "--nodes", "--ntasks"),
    ),
)
# Options that cannot be reduced.
_MINIMA = ("--ntasks=1", "--cpus-per-task=1")


class SlurmUnreachableError(WorkerError):
    """Raised when slurmctld does not answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job according to Slurm.

    Attributes:
        name: Slurm's name of the state, such as ``"RUNNING"``.
        restarts: How often the job was requeued.
        reason: Why it waits or ended.
    """

    name: str
    restarts: int = 0
    reason: str = ""

    @property
    def is_pending(self) -> bool:
        """Whether the job waits for nodes, perhaps again."""
        return self.name in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")

    @property
    def is_active(self) -> bool:
        """Whether processes of the job may run."""
        return self.name in (
            "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING",
            "STAGE_OUT", "RESIZING",
        )  # fmt: skip

    @property
    def is_over(self) -> bool:
        """Whether the job has ended for good."""
        return not self.is_pending and not self.is_active


GONE = JobState("UNKNOWN")


def submit_job(script: Path, options: Mapping[str, str], *, after: int | None = None) -> int:
    """Submit a batch script, and return the id of its job.

    Args:
        script: The script.
        options: Its options with the settings that they follow from, for messages.
        after: A job that must have ended first.

    Raises:
        WorkerError: If Slurm refuses the job.
    """
    dependency = [] if after is None else [f"--dependency=afterany:{after}"]
    output = _call_for_job(["sbatch", "--parsable", *dependency, str(script)], options)
    # Such as "12;cluster".
    return int(output.strip().splitlines()[-1].partition(";")[0])


def check_job(script: Path, options: Mapping[str, str]) -> None:
    """Let Slurm check a batch script without submitting it.

    Raises:
        WorkerError: If Slurm would refuse the job.
    """
    try:
        _call_for_job(["sbatch", "--test-only", str(script)], options)
    except SlurmUnreachableError:
        raise
    except WorkerError as error:
        # If a node is down at the moment, the job may only have to wait.
        states = call_slurm(["sinfo", "--noheader", "--Node", "--format=%T"]).split()
        if "allocation failure" not in str(error) or {*states} <= _AVAILABLE_STATES:
            raise


def query_jobs(jobs: Sequence[int]) -> dict[int, JobState]:
    """Return the states of jobs. A job that Slurm has forgotten is `GONE`.

    Raises:
        SlurmUnreachableError: If slurmctld does not answer.
    """
    if not jobs:
        return {}
    listing = ",".join(map(str, jobs))
    command = ["squeue", "--noheader", "--states=all", f"--jobs={listing}", f"--Format={_FIELDS}"]
    try:
        output = call_slurm(command)
    except SlurmUnreachableError:
        raise
    except WorkerError as error:
        if "Invalid job id" not in str(error):
            raise SlurmUnreachableError(f"squeue: {error}") from error
        output = ""  # the only job is unknown
    states = dict.fromkeys(jobs, GONE)
    for line in output.splitlines():
        job, name, restarts, _, *reason = line.split(maxsplit=4)
        states[int(job)] = JobState(name, int(restarts), " ".join(reason).strip())
    return states


def list_draining_jobs(jobs: Sequence[int]) -> list[int]:
    """Return the jobs on nodes that an administrator drains. Slurm lets them run to their end.

    Raises:
        WorkerError: If slurmctld does not answer.
    """
    if not jobs:
        return []
    command = ["sinfo", "--noheader", "--Node", "--states=draining", "--format=%N"]
    listing = ",".join(sorted({*call_slurm(command).split()}))
    if not listing:
        return []
    output = call_slurm(["squeue", "--noheader", f"--nodelist={listing}", "--Format=JobID:20"])
    return [job for job in map(int, output.split()) if job in jobs]


def find_job(name: str) -> int | None:
    """Return the job with a name, or None.

    Raises:
        SlurmUnreachableError: If slurmctld does not answer.
    """
    output = call_slurm(
        ["squeue", "--noheader", "--states=all", f"--name={name}", "--Format=JobID:20"]
    )
    return max(map(int, output.split()), default=None)


def requeue_job(job: int) -> bool:
    """Put an ended job back into the queue; return whether Slurm allows it."""
    try:
        call_slurm(["scontrol", "requeue", str(job)])
    except SlurmUnreachableError:
        raise
    except WorkerError:
        return False
    return True


def cancel_job(job: int, *options: str) -> None:
    """Cancel a job. Its processes get SIGTERM, and later SIGKILL.

    Args:
        job: The job. It is ignored if it has ended.
        options: Options of scancel.

    Raises:
        WorkerError: If slurmctld does not answer.
    """
    try:
        call_slurm(["scancel", "--quiet", *options, str(job)])
    except SlurmUnreachableError:
        raise
    except WorkerError as error:
        if "Invalid job id" not in str(error):
            raise


def call_slurm(command: Sequence[str], *, tries: int = 1) -> str:
    """Run a command of Slurm, and return its standard output.

    Args:
        command: The command with its arguments.
        tries: How often to try while slurmctld does not answer.

    Raises:
        WorkerError: If the command fails or is missing, with its message.
    """
    if shutil.which(command[0]) is None:
        raise WorkerError(
            f"{command[0]} was not found: Slurm is not installed on this machine.\n"
            "Start the run on a login node of the cluster, or train here with:  --launcher local"
        )
    while True:
        try:
            return _call_once(command)
        except SlurmUnreachableError:
            tries -= 1
            if tries <= 0:
                raise
            time.sleep(_RETRY_S)


def _call_once(command: Sequence[str]) -> str:
    inherited = read_prefixed(_INPUT_VARIABLES)
    try:
        finished = subprocess.run(
            command,
            env=child_environment({}, without=set(inherited) - {*_KEPT_VARIABLES}),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmUnreachableError(f"{command[0]} did not run: {error}") from error
    if finished.returncode == 0:
        return finished.stdout
    message = finished.stderr.strip() or f"exit code {finished.returncode}"
    if _UNREACHABLE.search(message):
        raise SlurmUnreachableError(
            f"{message}\nThe controller of Slurm does not answer. Try again when "
            "'scontrol ping' says that it is up."
        )
    raise WorkerError(message)


def _call_for_job(command: Sequence[str], options: Mapping[str, str]) -> str:
    """Run sbatch. If it refuses the job, the error names the options that are the cause."""
    try:
        return call_slurm(command, tries=2 if command[1] == "--test-only" else 1)
    except SlurmUnreachableError:
        raise
    except WorkerError as error:
        message = str(error)
        if "not found: Slurm" in message:
            raise
        prefixes = tuple(
            prefix
            for words, blamed_prefixes in _REFUSALS
            if re.search(words, message, re.IGNORECASE)
            for prefix in blamed_prefixes
        )
        blamed = {
            option: setting
            for option, setting in options.items()
            if (option.startswith(prefixes) and option not in _MINIMA) or option in message
        } or options
        listed = " or ".join(f"{option} ({setting})" for option, setting in blamed.items())
        refusal = WorkerError(f"Slurm refuses the job of a trial: {message}\nCorrect {listed}.")
        refusal.setting = "launcher" if blamed is options else next(iter(blamed.values()))
        raise refusal from error
