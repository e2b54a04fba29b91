"""Describe records in words and tables, for commands, notebooks, reports and the server."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detcore.contract.values import Length
from detcore.masking import (
    mask_config,
)

if TYPE_CHECKING:
    from detcore.contract.values import TrialInfo
    from detcore.records import Database, ExperimentRecord, MetricRecord, TrialRecord, TrialSummary

__all__ = [
    "can_resume",
    "compute_duration_s",
    "describe_best",
    "describe_experiment",
    "describe_start",
    "describe_state",
    "describe_substitute",
    "describe_trials",
    "flatten",
    "format_bytes",
    "format_duration",
    "format_hparam",
    "format_number",
    "format_time",
    "get_duration_s",
    "is_loss",
    "metric_value",
    "sort_key",
    "summarize_config",
    "trial_state",
    "visible_config",
]

_LOSS = re.compile(r"loss|err|mse|mae|perplexity", re.IGNORECASE)
_SCORE = re.compile(r"acc|auc|f1|precision|recall|score|bleu|iou|dice|r2", re.IGNORECASE)
_ONE = {"batches": "batch", "epochs": "epoch", "records": "record"}
_MAX_HPARAM_LENGTH = 80


def format_number(value: object) -> str:
    """Return a metric's value: four significant digits for small floats, ``-`` for None."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def format_hparam(value: object) -> str:
    """Return a hyperparameter's value, without its middle if it is long."""
    text = str(value)
    if len(text) <= _MAX_HPARAM_LENGTH:
        return text
    half = _MAX_HPARAM_LENGTH // 2
    return f"{text[:half]}...{text[-half:]} ({len(text)} characters)"


def format_bytes(size: int | None) -> str:
    """Return a size such as ``1.5 MB`` (powers of 1000), ``-`` for None."""
    if size is None:
        return "-"
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def format_duration(seconds: float | None) -> str:
    """Return a duration as ``1h 02m``, ``3m 05s`` or ``7s``, ``-`` for None."""
    if seconds is None:
        return "-"
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {seconds_left:02d}s" if minutes else f"{seconds_left}s"


def format_time(moment: datetime.datetime | None) -> str:
    """Return a moment in this machine's time zone, ``-`` for None."""
    return "-" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def describe_state(state: str, *, is_alive: bool) -> str:
    """Return a recorded state for users, with a note if the runner has exited."""
    return state if state != "RUNNING" or is_alive else "RUNNING (process gone)"


def trial_state(trial: Mapping[str, Any]) -> str:
    """Return the state of a trial of `describe_trials` for users."""
    if not trial["num_runs"] and trial["state"] == "PAUSED":
        return "not started"
    state = describe_state(trial["state"], is_alive=trial["is_alive"])
    return str(trial["state_detail"] or state)


def describe_start(info: TrialInfo) -> str:
    """Return the starting point of a trial's run, for users."""
    if info.latest_checkpoint is not None:
        return f"from batch {info.steps_completed} (checkpoint {info.latest_checkpoint})"
    if info.source_checkpoint is not None:
        return (
            f"from checkpoint {info.source_checkpoint}, with batches counted from 0 (max_length "
            "is trained in addition to the training in that checkpoint)"
        )
    return "from the start"


def describe_substitute(
    *, metric: str, value: float | None, value_steps: int, trial_id: int, steps_completed: int
) -> str:
    """Return the note that a checkpoint is not at the best validation of its trial."""
    return (
        f"the checkpoint of trial {trial_id} is of step {steps_completed}, but its {metric} of "
        f"{format_number(value)} is of step {value_steps}. No checkpoint of this trial lies at a "
        f"step with a value of {metric}. (checkpoint_policy: all saves one at each validation.)"
    )


def is_loss(metric: str) -> bool | None:
    """Return True if a metric is a loss by its name, False for a score, or None if unknown."""
    return True if _LOSS.search(metric) else False if _SCORE.search(metric) else None


def _find_ranking_metric(
    database: Database, record: ExperimentRecord
) -> tuple[str | None, bool | None]:
    """Return the metric that ranks trials, and whether smaller is better.

    A standalone script has no searcher. The first loss among its validation metrics is used, or the
    first score if it has no loss.
    """
    metric = record.searcher.metric
    if metric is None and record.config.get("is_standalone"):
        names = [name for kind, name in database.metric_names(record.id) if kind == "validation"]
        for smaller in (True, False):
            first_name = next((name for name in names if is_loss(name) is smaller), None)
            if first_name is not None:
                return first_name, smaller
        return None, None
    return metric, record.searcher.smaller_is_better


def compute_duration_s(
    start: datetime.datetime | None, end: datetime.datetime | None
) -> float | None:
    """Return the seconds between two times, or until now if the end is None."""
    if start is None:
        return None
    end = end or datetime.datetime.now(datetime.timezone.utc)
    return max(0.0, (end - start).total_seconds())


def get_duration_s(row: Mapping[str, Any]) -> float | None:
    """Return the duration of an experiment in seconds, or None if it died at an unknown time."""
    if row["state"] == "RUNNING" and not row["is_alive"]:
        return None
    return compute_duration_s(row["created_at"], row["ended_at"])


def describe_best(record: MetricRecord | None) -> dict[str, Any] | None:
    """Return a best validation in the format of ``--json``."""
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
    """Return a key that sorts metrics with the best first: missing values and NaN come last."""
    if value is None or math.isnan(value):
        return 1, 0.0
    return 0, value if smaller_is_better else -value


def can_resume(config: Mapping[str, Any], state: str, *, is_alive: bool) -> bool:
    """Return whether ``detcore run --resume`` would continue an experiment."""
    # Only its owner can restart a standalone script.
    return state != "COMPLETED" and not is_alive and not config.get("is_standalone")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by names such as ``a.b``."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def describe_experiment(
    database: Database, record: ExperimentRecord, num_trials: int
) -> dict[str, Any]:
    """Return a summary of an experiment, with its best validation."""
    metric, smaller = _find_ranking_metric(database, record)
    best = None
    if metric is not None:
        best = database.best_validation(record.id, metric, smaller_is_better=bool(smaller))
    is_alive = False
    if record.state.value == "RUNNING":
        record, is_alive = database.observe_experiment(record.id)
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state.value,
        "is_alive": is_alive,
        "error": record.error,
        "model_dir": record.model_dir,
        "created_at": record.created_at,
        "ended_at": record.ended_at,
        "archived": record.archived,
        "progress": record.progress,
        "num_trials": num_trials,
        "metric": metric,
        "smaller_is_better": smaller,
        "best_validation": describe_best(best),
    }


def describe_trials(
    database: Database,
    trials: Sequence[TrialRecord],
    *,
    metric: str | None,
    smaller_is_better: bool,
) -> list[dict[str, Any]]:
    """Return summaries of trials of one experiment, each with its best validation by a metric."""
    if not trials:
        return []
    summaries = database.summarize_trials(
        trials[0].experiment_id,
        metric=metric,
        smaller_is_better=smaller_is_better,
        trial_ids=[trial.id for trial in trials],
    )
    _, is_alive = database.observe_experiment(trials[0].experiment_id)
    details = _describe_state_details(database, trials, summaries)
    return [
        _describe_trial(trial, summaries[trial.id], details.get(trial.id))
        | {"is_alive": is_alive and trial.state.value == "RUNNING"}
        for trial in trials
    ]


def _describe_state_details(
    database: Database, trials: Sequence[TrialRecord], summaries: Mapping[int, TrialSummary]
) -> dict[int, str]:
    """Return, by trial, the part of a search trial's state that its recorded state leaves out.

    A PAUSED trial may wait for a promotion. A COMPLETED trial may have ended before the longest
    length of the search.
    """
    longest = database.get_experiment(trials[0].experiment_id).searcher.max_length
    max_length, unit = (longest.count, longest.unit.value) if longest else (0, "batches")
    details: dict[int, str] = {}
    undecided = []
    for trial in trials:
        if trial.search_index is None or trial.length is None or not summaries[trial.id].num_runs:
            continue
        if trial.state.value == "PAUSED":
            undecided.append(trial)
        elif trial.state.value == "COMPLETED":
            if trial.length < max_length:
                text = f"stopped by the search at {trial.length} of {max_length} {unit}"
                details[trial.id] = text
            elif unit == "batches" and summaries[trial.id].steps_completed < trial.length:
                undecided.append(trial)
    if not undecided:
        return details
    reached = {
        (event["trial"], event["length"])
        for event in database.list_search_events(trials[0].experiment_id)
        if event is not None and event["type"] == "validated"
    }
    for trial in undecided:
        has_reached = (trial.search_index, trial.length) in reached
        if trial.state.value == "COMPLETED" and not has_reached:
            steps = summaries[trial.id].steps_completed
            details[trial.id] = f"ended by its own code at {steps} of {trial.length} {unit}"
        elif trial.state.value == "PAUSED" and has_reached:
            details[trial.id] = "waiting for promotion"
    return details


def _describe_trial(
    trial: TrialRecord, summary: TrialSummary, state_detail: str | None
) -> dict[str, Any]:
    return {
        "id": trial.id,
        "state": trial.state.value,
        "state_detail": state_detail,
        "error": trial.error,
        "num_runs": summary.num_runs,
        "num_restarts": trial.num_restarts,
        "steps_completed": summary.steps_completed,
        "search_index": trial.search_index,
        "length": trial.length,
        "rung": trial.rung,
        "hparams": dict(trial.hparams),
        "labels": list(trial.labels),
        "notes": trial.notes,
        "job": trial.job,
        "best_validation": describe_best(summary.best),
        "latest_checkpoint": summary.latest_checkpoint,
    }


def visible_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return a recorded configuration for users, with secrets masked."""
    recorded: Any = dict(config)
    masked: Any = mask_config(recorded)
    return dict(masked)


def summarize_config(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the main settings of a training, for users."""
    from detcore.records.record_classes import RecordedSearcher, read_length

    fields: dict[str, str] = {}
    for name in ("description", "entrypoint"):
        if config.get(name):
            fields[name] = str(config[name])
    searcher = RecordedSearcher.from_config(config)
    if searcher.metric is not None:
        direction = "minimize" if searcher.smaller_is_better else "maximize"
        fields["searcher"] = f"{searcher.name}, {searcher.metric}, goal: {direction}"
        fields["length"] = _format_length(searcher.max_length) or "-"
    for name, key in (
        ("validation", "min_validation_period"),
        ("checkpoint", "min_checkpoint_period"),
    ):
        period = _format_length(read_length(config.get(key)))
        if period is not None:
            fields[name] = f"every {period.removeprefix('1 ')}"
    storage = config.get("checkpoint_storage")
    if storage:
        text = flatten(storage) if isinstance(storage, Mapping) else {"": storage}
        fields["storage"] = " ".join(f"{k}={v}" if k else v for k, v in text.items())
    seed = (config.get("reproducibility") or {}).get("experiment_seed")
    if seed is not None:
        fields["seed"] = str(seed)
    return fields


def _format_length(length: Length | None) -> str | None:
    """Return a length as ``5 epochs``; None for a missing or zero length."""
    if length is None:
        return None
    unit = length.unit.value
    return f"{length.count} {_ONE.get(unit, unit) if length.count == 1 else unit}"
