"""Current state of a running experiment."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.records import Database
from detcore.types import TrialState
from detcore_report import read_activities, time_left

if TYPE_CHECKING:
    from detcore.records import ExperimentRecord
    from detcore_report import Activity, ExperimentView


_ROWS = 50


@dataclasses.dataclass(frozen=True, slots=True)
class Disk:
    """A directory with the free and total bytes of its disk."""

    folder: str
    free: int
    total: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """State of a running experiment.

    Attributes:
        activities: The first running trials.
        counts: Number of trials by phase, including "waiting".
        left_s: Estimated remaining time in seconds, or None.
        disks: Disks of this machine with files of the experiment.
    """

    activities: Sequence[Activity]
    counts: Mapping[str, int]
    left_s: float | None
    disks: Sequence[Disk]


def read_now(database: Database, view: ExperimentView, home: Path) -> Now:
    """Return the activity of an experiment.

    Args:
        database: The records.
        view: The experiment.
        home: Directory of the records' files.
    """
    record = view.record
    activities = read_activities(database, record, at_most=_ROWS)
    counts = Counter(activity.phase for activity in activities)
    # The view contains only the best of many trials.
    counts["waiting"] = len(database.list_trials(record.id, states=[TrialState.PAUSED]))
    summaries = database.summarize_trials(record.id, metric=None)
    steps = sum(summary.steps_completed for summary in summaries.values())
    return Now(
        activities=activities,
        counts={phase: count for phase, count in counts.items() if count},
        left_s=time_left(record, activities, steps_completed=steps),
        disks=_list_disks(record, home),
    )


def _list_disks(record: ExperimentRecord, home: Path) -> list[Disk]:
    storage = record.config.get("checkpoint_storage")
    host_path = storage.get("host_path") if isinstance(storage, Mapping) else None
    disks = {}
    for folder in (home, Path(host_path)) if isinstance(host_path, str) and host_path else (home,):
        try:
            usage = shutil.disk_usage(folder)
            disks[folder.stat().st_dev] = Disk(str(folder), usage.free, usage.total)
        except (OSError, ValueError):
            continue  # the directory is missing or on another machine
    return list(disks.values())
