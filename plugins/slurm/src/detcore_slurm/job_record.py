"""The record of a trial's job, which a runner reads after an earlier runner was killed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from detcore_slurm.run_folder import replace_file

_FILE = "job.json"


@dataclasses.dataclass(slots=True, kw_only=True)
class JobRecord:
    """The last job of a trial. It is written before the job is submitted.

    Attributes:
        job_dir: Directory of the trial's jobs.
        name: Unique name of the job, by which it is found if its id was not written any more.
        run_id: The run of the trial that the job works on.
        slots: Number of workers.
        options: Options of sbatch. A job with other options cannot be requeued.
        signal_s: Seconds before the time limit at which the trial saves.
        job: Id of the job; 0 before it is submitted.
        is_closed: Whether the runner has seen the end of the run.
        continues: Whether the run was preempted, so that the job may be requeued.
    """

    job_dir: Path
    name: str
    run_id: int
    slots: int
    options: list[str]
    signal_s: int
    job: int = 0
    is_closed: bool = False
    continues: bool = False

    @classmethod
    def read(cls, job_dir: Path) -> JobRecord | None:
        """Return the record of a trial's last job, or None."""
        try:
            text = (job_dir / _FILE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return cls(**{**json.loads(text), "job_dir": job_dir})

    def write(self) -> None:
        """Replace the record in the directory."""
        values = dataclasses.asdict(self)
        del values["job_dir"]
        replace_file(self.job_dir / _FILE, json.dumps(values))

    def close_run(self) -> None:
        """Record that the runner has seen the end of the run."""
        self.is_closed = True
        self.write()
