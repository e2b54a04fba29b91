"""A running experiment at this moment."""

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
        disks: Where its files are, on this machine.
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
        home: Folder of the records' files.
    """
    record = view.record
    activities = read_activities(database, record, at_most=_ROWS)
    counts = Counter(activity.phase for activity in activities)
    # The view has only the best of very many trials.
    counts["waiting"] = len(database.list_trials(record.id, states=[TrialState.PAUSED]))
    summaries = database.summarize_trials(record.id, metric=None)
    steps = sum(summary.steps_completed for summary in summaries.values())
    return Now(
        activities=activities,
        counts={phase: count for phase, count in counts.items() if count},
        left_s=time_left(record, activities, steps_completed=steps),
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
