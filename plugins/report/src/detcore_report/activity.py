"""The activity of running trials."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from detcore.types import Length, TrialState, Unit

if TYPE_CHECKING:
    from detcore.records import Database, ExperimentRecord, MetricRecord, TrialRecord


_NUM_RECENT = 50


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """A running trial at this moment.

    Attributes:
        trial: The trial.
        phase: "starting", "training", "saving" (a checkpoint), or "stopping" (on request).
        steps_completed: Steps at its latest report.
        progress: Completed fraction of its planned length, 0 to 1; None if unknown.
        steps_per_second: Speed over the latest reports of its current run; None if unknown.
        left_s: Estimated seconds to the end of its planned length; None if unknown.
        reported_at: Time of its last report, or None.
        training: Metrics of its latest training report.
        validation: The latest value of the searcher's metric, or None.
    """

    trial: TrialRecord
    phase: str
    steps_completed: int
    progress: float | None
    steps_per_second: float | None
    left_s: float | None
    reported_at: datetime.datetime | None
    training: Mapping[str, float]
    validation: float | None


def read_activities(
    database: Database,
    experiment: ExperimentRecord,
    *,
    only: int | None = None,
    at_most: int | None = None,
) -> list[Activity]:
    """Return the activity of the running trials of an experiment.

    Args:
        database: The records.
        experiment: The experiment.
        only: Only this trial; None for all trials.
        at_most: Maximum number of trials, smallest ids first; None for all trials.
    """
    running = database.list_trials(experiment.id, states=[TrialState.RUNNING])
    selected = [trial for trial in running if only in (None, trial.id)]
    return [_read_activity(database, experiment, trial) for trial in selected[:at_most]]


def time_left(
    experiment: ExperimentRecord, activities: Sequence[Activity], *, steps_completed: int
) -> float | None:
    """Return the estimated seconds to the end of a search, or None if unknown.

    Args:
        experiment: The experiment.
        activities: Activities of all its running trials, whose speeds are summed.
        steps_completed: Total steps of all trials.
    """
    speeds = [
        activity.steps_per_second
        for activity in activities
        if activity.steps_per_second is not None
    ]
    if len(activities) == 1 and experiment.searcher.name == "single":
        return activities[0].left_s
    return _estimate_rest_s(steps_completed, experiment.progress, sum(speeds) or None)


def _read_activity(
    database: Database, experiment: ExperimentRecord, trial: TrialRecord
) -> Activity:
    metric = experiment.searcher.metric
    training = _read_newest(database, trial, "training")
    validations = _read_newest(database, trial, "validation")
    # A run that starts at a checkpoint reports fewer steps than a run that crashed after it.
    current_rows = [row for row in (*training, *validations) if row.run_id == trial.run_id]
    counted = current_rows or [*training[-1:], *validations[-1:]]
    latest = max((row.steps_completed for row in counted), default=0)
    times = [row.reported_at for row in counted if row.reported_at]
    progress = _compute_progress(experiment, trial, latest)
    speed = _compute_speed([row for row in current_rows if row.kind == "training"] or current_rows)
    values = training[-1].metrics if training else {}
    return Activity(
        trial=trial,
        phase=_find_phase(database, experiment, trial, has_reported=bool(current_rows)),
        steps_completed=latest,
        progress=progress,
        steps_per_second=speed,
        left_s=_estimate_rest_s(latest, progress, speed),
        reported_at=max(times, default=None),
        training={name: value for name, value in values.items() if isinstance(value, (int, float))},
        validation=validations[-1].metrics.get(metric) if validations and metric else None,
    )


def _read_newest(database: Database, trial: TrialRecord, kind: str) -> list[MetricRecord]:
    """Return reports of the current run, or of previous runs if it has no reports."""
    rows = database.metrics(
        trial.id, kind, with_batches=False, newest=_NUM_RECENT, run_id=trial.run_id
    )
    return rows or database.metrics(trial.id, kind, with_batches=False, newest=_NUM_RECENT)


def _find_phase(
    database: Database, experiment: ExperimentRecord, trial: TrialRecord, *, has_reported: bool
) -> str:
    if experiment.control is not None or trial.control is not None:
        return "stopping"
    run = trial.current_run
    # A checkpoint that started before this run is left from a crash.
    if run is not None and any(
        checkpoint.started_at >= run.started_at
        for checkpoint in database.list_checkpoints(trial_id=trial.id, states=["ACTIVE"])
    ):
        return "saving"
    return "training" if has_reported else "starting"


def _compute_progress(experiment: ExperimentRecord, trial: TrialRecord, steps: int) -> float | None:
    """Return the completed fraction of a trial's planned length, or None if unknown."""
    length = experiment.searcher.max_length
    steps_per_unit = _compute_steps_per_unit(experiment, trial, length)
    if steps_per_unit is None or length is None:
        return experiment.progress if experiment.searcher.name == "single" else None
    num_steps = steps_per_unit * (trial.length or length.count)
    return min(1.0, steps / num_steps) if num_steps else None


def _compute_steps_per_unit(
    experiment: ExperimentRecord, trial: TrialRecord, length: Length | None
) -> float | None:
    """Return the number of steps per unit of a search's lengths, or None if unknown."""
    unit = length.unit if length is not None else None
    if unit is Unit.BATCHES:
        return 1.0
    num_records = experiment.config.get("records_per_epoch")
    size = trial.hparams.get("global_batch_size")
    if not isinstance(size, int) or size < 1:
        return None
    if unit is Unit.RECORDS:
        return 1.0 / size
    if unit is Unit.EPOCHS and isinstance(num_records, int) and num_records > 0:
        return float(math.ceil(num_records / size))
    return None


def _compute_speed(rows: Sequence[MetricRecord]) -> float | None:
    if len(rows) < 2 or rows[0].reported_at is None or rows[-1].reported_at is None:
        return None
    seconds = (rows[-1].reported_at - rows[0].reported_at).total_seconds()
    steps = rows[-1].steps_completed - rows[0].steps_completed
    return steps / seconds if seconds > 0 and steps > 0 else None


def _estimate_rest_s(steps: int, progress: float | None, speed: float | None) -> float | None:
    if not progress or speed is None:
        return None
    return steps * (1 - progress) / progress / speed
