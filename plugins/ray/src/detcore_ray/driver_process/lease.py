"""Record of the workers of a run that may still live, so that no two runs of a trial overlap.

While workers may run, a file in the trial's folder says so. It remains if the process that
supervises them is killed. Workers end by themselves once they have heard nothing for the time of
their lease, so after that time, at the latest, the next run may begin.
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
# The file is touched four times in this time.
_SLACK = 1.5


class Lease:
    """Says that the workers of a run may be there.

    Args:
        trial_dir: The trial's folder.
        lease_s: Time after which workers end that hear nothing, in seconds.
    """

    def __init__(self, trial_dir: Path, lease_s: float) -> None:
        self._path = trial_dir / _NAME
        self._lease_s = lease_s
        self.every_s = lease_s / 4
        trial_dir.mkdir(parents=True, exist_ok=True)
        self._write(None)

    def note(self, processes: Sequence[Mapping[str, Any]]) -> None:
        """Record processes by their descriptions from `describe_process`."""
        # Without this they may be anywhere, which is waited for.
        with contextlib.suppress(OSError):
            self._write(list(processes))

    def touch(self) -> None:
        """Say that they may still be there."""
        with contextlib.suppress(OSError):
            os.utime(self._path)

    def end(self) -> None:
        """All of them are surely gone."""
        self._path.unlink(missing_ok=True)

    def _write(self, processes: list[Mapping[str, Any]] | None) -> None:
        partial = self._path.with_suffix(".part")
        partial.write_text(json.dumps({"lease_s": self._lease_s, "processes": processes}))
        partial.replace(self._path)


def left_over_s(trial_dir: Path) -> float:
    """Return how long workers of an earlier run may still be there; 0 if they are surely gone.

    Those of this machine are ended.
    """
    path = trial_dir / _NAME
    try:
        touched = path.stat().st_mtime
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return 0.0
    if told["processes"] is not None and all(map(end_process, told["processes"])):
        return 0.0
    lease_s = float(told["lease_s"]) * _SLACK
    # A clock that was set back must not make anybody wait for longer.
    return min(lease_s, max(0.0, touched + lease_s - time.time())) if math.isfinite(lease_s) else 0
