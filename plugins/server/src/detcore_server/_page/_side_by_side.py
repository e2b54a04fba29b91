"""Trials side by side: their hyperparameters and metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from detcore.describe import format_number

if TYPE_CHECKING:
    from detcore_report import Curve, ExperimentView


MAX_SIDE_BY_SIDE = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A row of a table.

    Attributes:
        name: Label of the row.
        cells: One for each trial.
        differs: Whether the row is a hyperparameter whose values differ.
    """

    name: str
    cells: Sequence[str]
    differs: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Tables with a column for each trial.

    Attributes:
        hyperparameters: Those that differ come first.
        metrics: The last value of each, and the best of the one that decides.
    """

    hyperparameters: Sequence[Line]
    metrics: Sequence[Line]


def compare(view: ExperimentView) -> Compared:
    """Return the trials of a view side by side."""
    names = dict.fromkeys(name for trial in view.trials for name in trial.hparams)
    lines = []
    for name in names:
        cells = [
            format_number(trial.hparams[name]) if name in trial.hparams else "-"
            for trial in view.trials
        ]
        values = {
            repr(trial.hparams[name]) if name in trial.hparams else None for trial in view.trials
        }
        lines.append(Line(name, cells, len(values) > 1))
    return Compared(
        hyperparameters=sorted(lines, key=lambda line: not line.differs),
        metrics=_metrics(view),
    )


def _metrics(view: ExperimentView) -> list[Line]:
    best = [format_number(trial.value) for trial in view.trials]
    at = [format_number(trial.value_step) for trial in view.trials]
    rows = [Line(f"best {view.metric or 'metric'}", best), Line("reached at step", at)]
    for chart in view.charts:
        curves = {curve.trial_id: curve for curve in chart.curves}
        cells = [_last(curves.get(trial.id)) for trial in view.trials]
        rows.append(Line(f"last {chart.metric} ({chart.kind})", cells))
    return rows


def _last(curve: Curve | None) -> str:
    if curve is None or not curve.points:
        return "-"
    step, value = curve.points[-1]
    return f"{format_number(value)} at {step}"
