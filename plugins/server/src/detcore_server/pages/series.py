"""Curve data for charts in the browser."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from detcore_server.users.authentication import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from detcore.records import Database, MetricCurve, TrialRecord


# Maximum number of points in a response, so that the browser stays fast.
_MAX_POINTS = 40_000
_MIN_PARTS = 40
_MAX_CHECKPOINTS = 1000
# Maximum number of trials in a chart.
_TrialIds = Annotated[str, Query(pattern="^[0-9]{1,9}(,[0-9]{1,9}){0,199}$")]
_Step = Annotated[int, Query(ge=0, le=2**63 - 1)]

router = APIRouter()


@router.get("/ui/series")
def get_series(
    state: State,
    metric: str,
    kind: Literal["training", "validation"],
    trials: _TrialIds,
    first: _Step = 0,
    last: _Step = 2**63 - 1,
    width: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    database = state.database
    trial_ids = [int(number) for number in trials.split(",")]
    parts = max(_MIN_PARTS, min(width, _MAX_POINTS // (2 * len(trial_ids))))
    records = database.get_trials(trial_ids)
    answers = []
    for experiment_id in dict.fromkeys(record.experiment_id for record in records.values()):
        state.ingest_reports(experiment_id)
        config = database.get_experiment(experiment_id).config
        curves = database.metric_curves(
            experiment_id, kind, metric, parts=parts, trial_ids=trial_ids, steps=(first, last)
        )
        saved_steps = _saved_steps(database, experiment_id, first, last)
        answers += [
            _answer(records[number], curve, config, saved_steps.get(number, ()))
            for number, curve in curves.items()
        ]
    return JSONResponse({"trials": answers})


def _answer(
    trial: TrialRecord, curve: MetricCurve, config: Mapping[str, object], saved: Sequence[int]
) -> dict[str, object]:
    """Return a curve. Non-finite values are counted and omitted."""
    points = [
        (step, value, moment)
        for (step, value), moment in zip(curve.points, curve.times, strict=True)
        if _is_finite(value)
    ]
    return {
        "id": trial.id,
        "steps": [step for step, _, _ in points],
        "values": [value for _, value, _ in points],
        "seconds": [round(moment - trial.created_at.timestamp(), 3) for _, _, moment in points],
        "steps_per_epoch": _steps_per_epoch(trial, config),
        "saved": saved,
        "num_not_finite": len(curve.points) - len(points) + curve.num_nan,
    }


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # the integer exceeds the float range
        return False


def _steps_per_epoch(trial: TrialRecord, config: Mapping[str, object]) -> float | None:
    """Return the steps per epoch, or None if the configuration does not define them."""
    num_records, size = config.get("records_per_epoch"), trial.hparams.get("global_batch_size")
    if isinstance(num_records, int) and isinstance(size, int) and num_records > 0 and size > 0:
        return num_records / size
    return None


def _saved_steps(
    database: Database, experiment_id: int, first: int, last: int
) -> dict[int, list[int]]:
    """Return the checkpoint steps by trial."""
    steps: dict[int, list[int]] = {}
    for record in database.list_checkpoints(experiment_id=experiment_id)[-_MAX_CHECKPOINTS:]:
        if record.state == "COMPLETED" and first <= record.steps_completed <= last:
            steps.setdefault(record.trial_id, []).append(record.steps_completed)
    return steps
