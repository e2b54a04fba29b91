"""The launcher, which submits a job for each trial and follows it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import secrets
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from detcore.environment import child_environment
from detcore.errors import RunError, WorkerError
from detcore.launch import OutputSink
from detcore.launch.nodes import LogSource, read_log_header, read_save_durations
from detcore.types import TrialInfo, TrialSettings
from detcore_slurm.batch_script import find_signal_s
from detcore_slurm.job_record import JobRecord
from detcore_slurm.run_folder import Appender, RunFolder
from detcore_slurm.slurm_commands import (
    GONE,
    SlurmUnreachableError,
    cancel_job,
    find_job,
    list_draining_jobs,
    query_jobs,
)
from detcore_slurm.slurm_settings import SlurmSettings
from detcore_slurm.submission import Submission, check_submission
from detcore_slurm.worker_group import SlurmWorkerGroup

_FOLLOW_S = 0.1
_HEARTBEAT_S = 0.5
_END_TIMEOUT_S = 120.0
_POLLS_PER_DRAIN = 6
_DEVICES = "CUDA_VISIBLE_DEVICES"


class SlurmLauncher:
    """Runs each trial as a Slurm job, with one task per worker.

    The jobs continue if the runner is killed. The next runner finds them (`find_run`, `attach`).

    Args:
        **settings: The fields of `SlurmSettings`.

    Raises:
        RunError: If a setting is unknown or invalid.
    """

    def __init__(self, **settings: Any) -> None:
        try:
            self._settings = SlurmSettings(**settings)
        except ValidationError as error:
            raise RunError(
                "\n".join(
                    f"{'.'.join(map(str, ('launcher', *fault['loc'])))}: "
                    f"{fault['msg'].removeprefix('Value error, ')}"
                    for fault in error.errors(include_url=False)
                )
            ) from error
        self._groups: list[SlurmWorkerGroup] = []
        self._lock = threading.Lock()
        self._cancels: deque[int] = deque()
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None

    def check_trial(self, settings: TrialSettings, *, slots: int) -> None:
        """Let Slurm check the jobs of the trials, without submitting one.

        Args:
            settings: The settings of the trials.
            slots: Number of workers of each trial; >= 1.

        Raises:
            WorkerError: If Slurm would refuse the jobs.
        """
        with tempfile.TemporaryDirectory() as folder:
            check_submission(self._settings, Path(folder), slots=slots)

    def start(
        self,
        info: TrialInfo,
        *,
        home: Path,
        slots: int = 1,
        keep_open: tuple[int, ...] = (),
        on_output: OutputSink,
        disabled_plugins: frozenset[str] = frozenset(),
        allowed_plugins: frozenset[str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> SlurmWorkerGroup:
        """Submit the job of a trial, or requeue its preempted job; see `detcore.launch.Launcher`.

        Raises:
            WorkerError: If Slurm refuses the job.
        """
        if not Path(info.model_dir).is_dir():
            raise WorkerError(f"the directory of the code, {info.model_dir}, does not exist")
        job_dir = self._find_job_dir(Path(info.trial_dir))
        previous = JobRecord.read(job_dir)
        name = f"detcore-e{info.experiment_id}-t{info.trial_id}-{secrets.token_hex(4)}"
        durations_s = read_save_durations(info, run_id=info.run_id - 1)
        record = JobRecord(
            job_dir=job_dir, name=name, run_id=info.run_id, slots=slots,
            options=list(self._settings.list_options(slots)),
            signal_s=find_signal_s(self._settings, durations_s),
        )  # fmt: skip
        start = {
            "info": dataclasses.asdict(self._make_node_info(info)),
            "home": str(home),
            "ranks": list(range(slots)),
            "key": secrets.token_hex(32),
            "environment": child_environment({}),
            "disabled": sorted(disabled_plugins),
            "allowed": None if allowed_plugins is None else sorted(allowed_plugins),
            # The runner's devices are not those of the nodes.
            "variables": {k: v for k, v in (variables or {}).items() if k != _DEVICES},
            "lease_s": self._settings.lease_s,
        }
        submission = Submission(self._settings, record, previous, start)
        try:
            submission.submit()
        except SlurmUnreachableError:
            pass  # the thread submits it later
        except WorkerError:
            record.close_run()
            raise
        return self._follow_run(record, info, keep_open, on_output, submission=submission)

    def find_run(self, trial_dir: Path, *, slots: int) -> int | None:
        """Return the run of a trial whose job an earlier runner has submitted; see `attach`.

        A job that cannot be followed is canceled first, and this waits for its end.

        Args:
            trial_dir: Directory of the trial.
            slots: Number of workers that the trial has now.

        Raises:
            WorkerError: If slurmctld does not answer, or the job does not end.
        """
        record = JobRecord.read(self._find_job_dir(trial_dir))
        if record is None or record.is_closed:
            return None
        if not record.job:
            record.job = find_job(record.name) or 0
            record.write()
        folder = RunFolder.of_run(record.job_dir, record.run_id)
        is_known = record.job and query_jobs([record.job])[record.job] is not GONE
        if record.slots == slots and (is_known or folder.read_claim() is not None):
            return record.run_id
        self._end_job(record)
        return None

    def attach(
        self,
        info: TrialInfo,
        *,
        keep_open: tuple[int, ...] = (),
        on_output: OutputSink,
    ) -> SlurmWorkerGroup:
        """Follow a run that `find_run` has returned.

        Args:
            info: The trial, as the earlier runner has started it.
            keep_open: As for `start`.
            on_output: Called with the output that the earlier runner has not seen.
        """
        record = JobRecord.read(self._find_job_dir(Path(info.trial_dir)))
        assert record is not None  # find_run has found it
        on_output(0, "stderr", f"slurm: following job {record.job}")
        return self._follow_run(record, info, keep_open, on_output)

    def abandon(self, trial_dir: Path) -> None:
        """End the job of a trial that is not trained further, and wait for its end.

        Raises:
            WorkerError: If slurmctld does not answer, or the job does not end.
        """
        record = JobRecord.read(self._find_job_dir(trial_dir))
        if record is not None and not record.is_closed:
            self._end_job(record)

    def close(self) -> None:
        """End the thread that follows the jobs."""
        self._is_closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _find_job_dir(self, trial_dir: Path) -> Path:
        if self._settings.shared_dir is None:
            return trial_dir / "slurm"
        key = hashlib.sha256(str(trial_dir).encode()).hexdigest()[:16]
        return self._settings.shared_dir / key / "slurm"

    def _make_node_info(self, info: TrialInfo) -> TrialInfo:
        """Return a trial as the nodes see it, whose event log exists."""
        if self._settings.shared_dir is None:
            return info
        job_dir = self._find_job_dir(Path(info.trial_dir))
        node_info = dataclasses.replace(info, trial_dir=str(job_dir.parent))
        header = read_log_header(info)
        try:
            if info.code_dir is not None:  # below DETCORE_HOME, which the nodes may not see
                code_dir = job_dir.parent / f"code-{info.run_id}"
                if not code_dir.exists():
                    shutil.copytree(info.code_dir, code_dir)
                node_info = dataclasses.replace(node_info, code_dir=str(code_dir))
            LogSource(node_info, header, start=len(header))
        except OSError as error:
            raise WorkerError(
                f"launcher.shared_dir cannot be used: {error}.\nSet it to a directory that this "
                "machine and the compute nodes share."
            ) from error
        return node_info

    def _end_job(self, record: JobRecord) -> None:
        """Kill a job whose trial is not followed, wait for its end, and record it."""
        commands = Appender(RunFolder.of_run(record.job_dir, record.run_id).commands)
        if record.job:
            with contextlib.suppress(FileNotFoundError):
                commands.add_line(kill=True)
                commands.flush()
            cancel_job(record.job)
        deadline = time.monotonic() + _END_TIMEOUT_S
        while record.job and not query_jobs([record.job])[record.job].is_over:
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"job {record.job} of an earlier run does not end.\nTwo jobs would train the "
                    f"same trial. End it with:  scancel --signal=KILL --full {record.job}"
                )
            time.sleep(_HEARTBEAT_S)
        record.close_run()

    def _follow_run(
        self,
        record: JobRecord,
        info: TrialInfo,
        keep_open: tuple[int, ...],
        on_output: OutputSink,
        *,
        submission: Submission | None = None,
    ) -> SlurmWorkerGroup:
        group = SlurmWorkerGroup(
            record,
            RunFolder.of_run(record.job_dir, record.run_id),
            info=info,
            keep_open=keep_open,
            on_output=on_output,
            node_info=self._make_node_info(info),
            submission=submission,
            cancel=self._cancels.append,
            on_close=self._forget,
        )
        with self._lock:
            self._groups.append(group)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._follow_jobs, name="detcore-slurm", daemon=True
            )
            self._thread.start()
        return group

    def _forget(self, group: SlurmWorkerGroup) -> None:
        with self._lock:
            self._groups.remove(group)

    def _follow_jobs(self) -> None:
        query_at = beat_at = drain_at = 0.0
        while not self._is_closing.wait(_FOLLOW_S):
            with self._lock:
                groups = list(self._groups)
            for group in groups:
                group.follow_safely()
            now = time.monotonic()
            if self._settings.lease_s is not None and now >= beat_at:
                beat_at = now + _HEARTBEAT_S
                for group in groups:
                    group.folder.heartbeat.write_text(secrets.token_hex(8))
            with contextlib.suppress(WorkerError):  # the jobs continue, and this tries again
                while self._cancels:
                    cancel_job(self._cancels[0])
                    self._cancels.popleft()
                if now >= query_at:
                    query_at = now + self._settings.poll_s
                    for group in groups:
                        group.submit_job()
                    submitted = [group for group in groups if group.record.job]
                    states = query_jobs([group.record.job for group in submitted])
                    for group in submitted:
                        group.observe_job(states[group.record.job])
                if now >= drain_at:
                    drain_at = now + _POLLS_PER_DRAIN * self._settings.poll_s
                    draining = list_draining_jobs([group.record.job for group in groups])
                    for group in groups:
                        if group.record.job in draining:
                            group.leave_node()
