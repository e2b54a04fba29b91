"""Record of the workers of a run that may still be alive, so that no two runs of a trial overlap.

While workers may run, a file exists in the trial's directory. It remains if the supervising process
is killed. Workers exit when they receive no message for the duration of their lease. The next run
may therefore start after that time, at the latest.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detcore_ray.worker_node.node_processes import end_process

_NAME = "ray-workers.json"
# The file is touched four times per lease. This factor allows for delays.
_SLACK = 1.5


class Lease:
    """Marks the workers of a run as possibly alive.

    Args:
        trial_dir: The trial's directory.
        lease_s: Seconds without a message after which workers exit.
    """

    def __init__(self, trial_dir: Path, lease_s: float) -> None:
        self._path = trial_dir / _NAME
        self._lease_s = lease_s
        self.renewal_period_s = lease_s / 4
        trial_dir.mkdir(parents=True, exist_ok=True)
        self._write_file(None)

    def record_processes(self, processes: Sequence[Mapping[str, Any]]) -> None:
        """Record processes, as described by `describe_process`."""
        # Without the record, the next run waits for the whole lease.
        with contextlib.suppress(OSError):
            self._write_file(list(processes))

    def renew(self) -> None:
        """Mark the workers as still possibly alive."""
        with contextlib.suppress(OSError):
            os.utime(self._path)

    def end(self) -> None:
        """Delete the record, once all workers have certainly exited."""
        self._path.unlink(missing_ok=True)

    def _write_file(self, processes: list[Mapping[str, Any]] | None) -> None:
        partial = self._path.with_suffix(".part")
        partial.write_text(json.dumps({"lease_s": self._lease_s, "processes": processes}))
        partial.replace(self._path)


def read_remaining_s(trial_dir: Path) -> float:
    """Return for how many seconds workers of an earlier run may live; 0 if all have exited.

    Workers on this machine are killed.
    """
    path = trial_dir / _NAME
    try:
        touched = path.stat().st_mtime
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return 0.0
    if record["processes"] is not None and all(map(end_process, record["processes"])):
        return 0.0
    lease_s = float(record["lease_s"]) * _SLACK
    # A clock that was set back must not prolong the wait.
    return min(lease_s, max(0.0, touched + lease_s - time.time())) if math.isfinite(lease_s) else 0
