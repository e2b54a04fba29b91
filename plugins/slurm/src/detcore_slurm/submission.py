"""Submit the job of a run, or requeue the trial's preempted job."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcore_slurm.batch_script import make_script
from detcore_slurm.job_record import JobRecord
from detcore_slurm.run_folder import RunFolder
from detcore_slurm.slurm_commands import (
    GONE,
    JobState,
    cancel_job,
    check_job,
    find_job,
    query_jobs,
    requeue_job,
    submit_job,
)
from detcore_slurm.slurm_settings import SlurmSettings

_SCRIPT = "batch.sh"
# A job whose node is down may be completing for hours.
_COMPLETING_TIMEOUT_S = 120.0


class Submission:
    """Submits the job of a run as soon as Slurm answers, once.

    Args:
        settings: The resources.
        record: The job; receives the id.
        previous: The trial's last job, or None.
        start: Data for the nodes.
    """

    def __init__(
        self,
        settings: SlurmSettings,
        record: JobRecord,
        previous: JobRecord | None,
        start: Mapping[str, Any],
    ) -> None:
        self._settings = settings
        self._record = record
        self._previous = previous if previous is not None and previous.job else None
        self._start = start
        self._folder = RunFolder.of_run(record.job_dir, record.run_id)
        self._is_prepared = False
        self._after: int | None = None
        self._deadline = time.monotonic() + _COMPLETING_TIMEOUT_S

    def submit(self) -> bool:
        """Submit the job; return False if the earlier job has not ended yet.

        Raises:
            SlurmUnreachableError: If slurmctld does not answer. Try again.
            WorkerError: If Slurm refuses the job.
        """
        record = self._record
        if self._is_prepared and not record.job:
            record.job = find_job(record.name) or 0  # the answer to an earlier call may be lost
        elif not self._is_prepared and not self._prepare():
            return False
        if not record.job:
            script = write_script(
                self._settings,
                self._folder.path,
                slots=record.slots,
                name=record.name,
                job_dir=record.job_dir,
                signal_s=record.signal_s,
            )
            options = self._settings.list_options(record.slots)
            record.job = submit_job(script, options, after=self._after)
        record.write()
        return True

    def _prepare(self) -> bool:
        """Requeue the earlier job if possible, and write the data for the nodes."""
        record, previous = self._record, self._previous
        if previous is not None:
            state = query_jobs([previous.job])[previous.job]
            if state.name == "COMPLETING" and time.monotonic() < self._deadline:
                return False
            if self._can_requeue(previous, state):
                record.name, record.job = previous.name, previous.job
                record.signal_s = previous.signal_s
            elif not state.is_over:
                cancel_job(previous.job)
            self._after = None if state is GONE else previous.job
        self._folder.write_start({**self._start, "job_name": record.name})
        record.write()
        self._is_prepared = True
        return True

    def _can_requeue(self, previous: JobRecord, state: JobState) -> bool:
        """Whether the trial's preempted job can run it again, in the same place of the queue."""
        record = self._record
        fits = (previous.options, previous.slots) == (record.options, record.slots)
        if not (fits and previous.continues and self._settings.requeue):
            return False
        if previous.signal_s < record.signal_s:
            return False
        # Slurm itself requeues preempted jobs, and those of a lost node.
        return state.is_pending or state.is_active or requeue_job(previous.job)


def check_submission(settings: SlurmSettings, folder: Path, *, slots: int) -> None:
    """Let Slurm check the job of a trial without submitting it.

    Raises:
        WorkerError: If Slurm would refuse the job.
    """
    script = write_script(
        settings,
        folder,
        slots=slots,
        name="detcore-check",
        job_dir=folder,
        signal_s=settings.signal_s,
    )
    check_job(script, settings.list_options(slots))


def write_script(settings: SlurmSettings, folder: Path, **options: Any) -> Path:
    """Write a batch script into a directory; see `make_script`."""
    script = folder / _SCRIPT
    script.write_text(make_script(settings, **options))
    return script
