"""The records of a trial that ``detcore trial describe`` and ``plot`` show."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from detcore.contract.errors import NotFoundError
from detcore.record_descriptions import describe_trials, trial_state

if TYPE_CHECKING:
    from detcore.data import ResumeComparison
    from detcore.records import (
        CheckpointRecord,
        Database,
        ExperimentRecord,
        MetricRecord,
        TrialRecord,
    )

KINDS = ("validation", "training")
NUM_SHOWN = 20
# If a trial has more reports, only the newest are read.
_MANY = 5000
_PARTS = 1000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialFacts:
    """The records of a trial that commands show.

    Attributes:
        state: State for users, as `trial_state` returns it.
        num_reports: Number of reports of each kind.
        reports: Reports of each kind, only the newest if there are many.
        resumes: Comparisons of resumed runs with the steps that were trained before.
    """

    trial: TrialRecord
    experiment: ExperimentRecord
    state: str
    is_alive: bool
    num_reports: Mapping[str, int]
    reports: Mapping[str, Sequence[MetricRecord]]
    best: MetricRecord | None
    checkpoints: Sequence[CheckpointRecord]
    num_runs: int
    num_damaged: int
    resumes: Sequence[ResumeComparison]

    @property
    def metric(self) -> str | None:
        return self.experiment.searcher.metric

    def has_all(self, kind: str) -> bool:
        """Whether all reports of a kind were read."""
        return len(self.reports[kind]) == self.num_reports[kind]

    @property
    def steps_completed(self) -> int:
        last = [rows[-1].steps_completed for rows in self.reports.values() if rows]
        return max(last, default=0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricSeries:
    """A metric over steps."""

    metric: str
    kind: str
    points: Sequence[tuple[int, float]]


def read_trial(
    database: Database, trial_id: int, plot_metric: str | None, full_kinds: Sequence[str]
) -> tuple[TrialFacts, MetricSeries | None]:
    """Read a trial, and the series to plot, or None if no metric was reported.

    Args:
        database: The records.
        trial_id: The trial.
        plot_metric: The metric to plot; None means the searcher's metric.
        full_kinds: Kinds whose reports are all read, even if there are many.

    Raises:
        NotFoundError: If the trial does not exist, or the metric was never reported.
    """
    from detcore.records import list_resumes

    trial = database.get_trial(trial_id)
    experiment = database.get_experiment(trial.experiment_id)
    metric, smaller = experiment.searcher.metric, experiment.searcher.smaller_is_better
    best = None
    if metric is not None:
        best = database.trial_best_validation(trial_id, metric, smaller_is_better=bool(smaller))
    (row,) = describe_trials(database, [trial], metric=None, smaller_is_better=bool(smaller))
    num_reports = {kind: database.count_metrics(trial_id, kind) for kind in KINDS}
    reports = {
        kind: database.metrics(
            trial_id,
            kind,
            with_batches=False,
            newest=None if kind in full_kinds or num_reports[kind] <= _MANY else NUM_SHOWN,
        )
        for kind in KINDS
    }
    facts = TrialFacts(
        trial=trial,
        experiment=experiment,
        state=trial_state(row),
        is_alive=row["is_alive"],
        num_reports=num_reports,
        reports=reports,
        best=best,
        checkpoints=database.list_checkpoints(trial_id=trial_id),
        num_runs=row["num_runs"],
        num_damaged=len(database.events(trial_id, "damaged")),
        resumes=list_resumes(database.events(trial_id, "resume_compared")),
    )
    try:
        return facts, _choose_series(database, facts, plot_metric)
    except NotFoundError:
        if all(map(facts.has_all, KINDS)):
            raise
    return read_trial(database, trial_id, plot_metric, KINDS)


def _choose_series(
    database: Database, facts: TrialFacts, plot_metric: str | None
) -> MetricSeries | None:
    names = {kind: list_names(rows, facts.metric) for kind, rows in facts.reports.items()}
    candidates = [(kind, name) for kind in KINDS for name in names[kind]]
    for name in (plot_metric,) if plot_metric is not None else (facts.metric, None):
        for kind, candidate in candidates:
            if name in (None, candidate):
                points = _read_points(database, facts, kind, candidate)
                return MetricSeries(metric=candidate, kind=kind, points=points)
    if plot_metric is None:
        return None
    listed = [f"{', '.join(names[kind])} ({kind})" for kind in KINDS if names[kind]]
    raise NotFoundError(
        f"trial {facts.trial.id} has not reported a metric {plot_metric!r}.\n"
        f"Reported metrics: {'; '.join(listed) or 'none yet'}."
    )


def _read_points(
    database: Database, facts: TrialFacts, kind: str, metric: str
) -> Sequence[tuple[int, float]]:
    if facts.has_all(kind):
        numbers = [row for row in facts.reports[kind] if _is_number(row.metrics.get(metric))]
        return [(row.steps_completed, float(row.metrics[metric])) for row in numbers]
    trial = facts.trial
    curves = database.metric_curves(
        trial.experiment_id, kind, metric, parts=_PARTS, trial_ids=[trial.id]
    )
    return curves[trial.id].points if trial.id in curves else ()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def list_names(rows: Sequence[MetricRecord], first: str | None) -> list[str]:
    """Return the names of numeric metrics, the metric `first` first."""
    names = {name for row in rows for name, value in row.metrics.items() if _is_number(value)}
    return sorted(names, key=lambda name: (name != first, name))
