"""A running experiment at this moment, and its use of this machine."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.records import Database
from detcore.types import TrialState
from detcore_report import ProcessUsage, read_activities, time_left

if TYPE_CHECKING:
    from detcore.records import ExperimentRecord
    from detcore_report import Activity, ExperimentView


_ROWS = 50
# Percent are of the time between two looks: over minutes they would say nothing about now.
_LEAST_S, _MOST_S = 1.0, 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Disk:
    """A folder, and the bytes that are free and in all on its disk."""

    folder: str
    free: int
    total: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """A running experiment.

    Attributes:
        activities: Its running trials, the first ones.
        counts: How many trials are in which phase, "waiting" included.
        left_s: About how many seconds the rest takes, or None.
        cpu_percent: Percent of one CPU that its processes use, or None.
        memory_bytes: Resident memory of its processes, or None.
        disks: Where its files are, on this machine.
    """

    activities: Sequence[Activity]
    counts: Mapping[str, int]
    left_s: float | None
    cpu_percent: float | None
    memory_bytes: int | None
    disks: Sequence[Disk]


class Machine:
    """Looks at the processes of this machine; its methods may be called from any thread."""

    def __init__(self) -> None:
        self._usage = ProcessUsage()
        self._lock = threading.Lock()
        self._is_recent = False

    def of_tree(self, pid: int) -> tuple[float | None, int | None]:
        """Return percent of one CPU, and bytes of memory, of a process and its children."""
        with self._lock:
            if self._usage.age_s > _LEAST_S:
                self._is_recent = self._usage.age_s < _MOST_S
                self._usage.sample()
            cpu, memory = self._usage.of_tree(pid)
        return (cpu if self._is_recent else None), memory


def read_now(database: Database, view: ExperimentView, machine: Machine, home: Path) -> Now:
    """Return the activity of an experiment.

    Args:
        database: The records.
        view: The experiment.
        machine: The processes of this machine.
        home: Folder of the records' files.
    """
    record = view.record
    activities = read_activities(database, record, at_most=_ROWS)
    counts = Counter(activity.phase for activity in activities)
    # The view has only the best of very many trials.
    counts["waiting"] = len(database.list_trials(record.id, states=[TrialState.PAUSED]))
    cpu, memory = None, None
    if record.process is not None and view.overview["is_alive"]:
        cpu, memory = machine.of_tree(record.process.pid)
    summaries = database.summarize_trials(record.id, metric=None)
    steps = sum(summary.steps_completed for summary in summaries.values())
    return Now(
        activities=activities,
        counts={phase: count for phase, count in counts.items() if count},
        left_s=time_left(record, activities, steps_completed=steps),
        cpu_percent=cpu,
        memory_bytes=memory,
        disks=_disks(record, home),
    )


def _disks(record: ExperimentRecord, home: Path) -> list[Disk]:
    storage = record.config.get("checkpoint_storage")
    kept = storage.get("host_path") if isinstance(storage, Mapping) else None
    found = {}
    for folder in (home, Path(kept)) if isinstance(kept, str) and kept else (home,):
        try:
            usage = shutil.disk_usage(folder)
            found[folder.stat().st_dev] = Disk(str(folder), usage.free, usage.total)
        except (OSError, ValueError):
            continue  # it is not there, or on another machine
    return list(found.values())
