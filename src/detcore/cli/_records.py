"""What commands and pages know of experiments and trials, as plain values."""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detcore.cli._context import CliContext
    from detcore.database import Database, ExperimentRecord, MetricRecord, TrialRecord, TrialSummary

__all__ = [
    "best_of",
    "can_resume",
    "describe_experiment",
    "describe_state",
    "describe_trials",
    "duration_s",
    "flatten",
    "metric_value",
    "open_records",
    "searcher_metric",
    "sort_key",
    "took_s",
    "trial_state",
]


# More trials than this are summed up all at once.
_FEW = 20


@contextlib.contextmanager
def open_records(obj: CliContext) -> Iterator[Database]:
    """Open the database, with everything in it that workers have reported so far."""
    from detcore.database import Database, ingest_spools

    with Database.open(obj.environment.database_url) as database:
        ingest_spools(database, obj.environment.home)
        yield database


def describe_state(state: str, is_alive: bool | None, host: str | None) -> str:
    """Return a state for people: a process that is gone is not running.

    Args:
        state: The recorded state.
        is_alive: Whether the process is there; None if it is on another host.
        host: Where the process is.
    """
    if state != "RUNNING":
        return state
    if is_alive is None:
        return f"RUNNING on {host}"
    return state if is_alive else "RUNNING (process gone)"


def trial_state(trial: Mapping[str, Any]) -> str:
    """Return the state of a trial of `describe_trials` for people."""
    if not trial["num_runs"] and trial["state"] == "PAUSED":
        return "not started"
    return describe_state(trial["state"], trial["is_alive"], trial["host"])


def searcher_metric(config: Mapping[str, Any]) -> tuple[str | None, bool | None]:
    """Return the metric that decides, and whether smaller is better, where that is configured."""
    searcher = config.get("searcher")
    if not isinstance(searcher, Mapping) or not searcher.get("metric"):
        return None, None
    return str(searcher["metric"]), bool(searcher.get("smaller_is_better", True))


def duration_s(start: datetime.datetime | None, end: datetime.datetime | None) -> float | None:
    """Return the seconds between two moments, up to now where the end is open."""
    if start is None:
        return None
    end = end or datetime.datetime.now(datetime.timezone.utc)
    return max(0.0, (end - start).total_seconds())


def took_s(row: Mapping[str, Any]) -> float | None:
    """Return how long an experiment has been there, or None if it died at an unknown time."""
    if row["state"] == "RUNNING" and row["is_alive"] is False:
        return None
    return duration_s(row["created_at"], row["ended_at"])


def best_of(record: MetricRecord | None) -> dict[str, Any] | None:
    """Return a best validation as ``--json`` shows it."""
    if record is None:
        return None
    return {
        "trial_id": record.trial_id,
        "steps_completed": record.steps_completed,
        "metrics": dict(record.metrics),
    }


def metric_value(row: Mapping[str, Any], metric: str | None) -> float | None:
    """Return the metric of an experiment's or a trial's best validation, or None."""
    best = row["best_validation"]
    if best is None or metric is None:
        return None
    value = best["metrics"].get(metric)
    return None if value is None else float(value)


def sort_key(value: float | None, *, smaller_is_better: bool) -> tuple[int, float]:
    """Return what sorts metrics, the best first: those that are missing or NaN are the last."""
    if value is None or math.isnan(value):
        return 1, 0.0
    return 0, value if smaller_is_better else -value


def can_resume(config: Mapping[str, Any], state: str, is_alive: bool | None) -> bool:
    """Return whether ``detcore run --resume`` would go on with an experiment."""
    # A script that ran by itself is started again by whoever started it.
    return state != "COMPLETED" and is_alive is False and not config.get("is_standalone")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as ``a.b`` and text."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def describe_experiment(
    database: Database, record: ExperimentRecord, num_trials: int
) -> dict[str, Any]:
    """Return an experiment in short, with its best validation."""
    metric, smaller = searcher_metric(record.config)
    best = None
    if metric is not None:
        best = database.best_validation(record.id, metric, smaller_is_better=bool(smaller))
    running = record.state.value == "RUNNING"
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state.value,
        "is_alive": database.experiment_is_alive(record.id) if running else False,
        "host": record.process.host if record.process else None,
        "error": record.error,
        "model_dir": record.model_dir,
        "created_at": record.created_at,
        "ended_at": record.ended_at,
        "archived": record.archived,
        "progress": record.progress,
        "num_trials": num_trials,
        "metric": metric,
        "smaller_is_better": smaller,
        "best_validation": best_of(best),
    }


def describe_trials(
    database: Database,
    trials: Sequence[TrialRecord],
    *,
    metric: str | None,
    smaller_is_better: bool,
) -> list[dict[str, Any]]:
    """Return trials of one experiment in short, each with its best validation by a metric."""
    if not trials:
        return []
    if len(trials) > _FEW:
        summaries = database.summarize_trials(
            trials[0].experiment_id, metric=metric, smaller_is_better=smaller_is_better
        )
    else:
        summaries = {
            trial.id: _summarize(database, trial.id, metric, smaller_is_better) for trial in trials
        }
    alive = database.runs_alive(trial.id for trial in trials if trial.state.value == "RUNNING")
    return [
        _describe_trial(trial, summaries[trial.id], alive.get(trial.id, False)) for trial in trials
    ]


def _summarize(
    database: Database, trial_id: int, metric: str | None, smaller_is_better: bool
) -> TrialSummary:
    from detcore.database import TrialSummary

    best = None
    if metric is not None:
        best = database.trial_best_validation(trial_id, metric, smaller_is_better=smaller_is_better)
    latest = database.latest_checkpoint(trial_id)
    return TrialSummary(
        num_runs=len(database.list_runs(trial_id)),
        steps_completed=database.trial_steps_completed(trial_id),
        best=best,
        latest_checkpoint=latest.uuid if latest else None,
    )


def _describe_trial(
    trial: TrialRecord, summary: TrialSummary, is_alive: bool | None
) -> dict[str, Any]:
    return {
        "id": trial.id,
        "state": trial.state.value,
        "is_alive": is_alive,
        "host": trial.host,
        "error": trial.error,
        "num_runs": summary.num_runs,
        "num_restarts": trial.num_restarts,
        "steps_completed": summary.steps_completed,
        "search_index": trial.search_index,
        "length": trial.length,
        "rung": trial.rung,
        "hparams": dict(trial.hparams),
        "best_validation": best_of(summary.best),
        "latest_checkpoint": summary.latest_checkpoint,
    }
