"""``detcore experiment``: what was run."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from detcore.cli._context import CliContext
    from detcore.database import Database, ExperimentRecord, MetricRecord, TrialRecord

__all__ = [
    "best_of",
    "can_resume",
    "describe_state",
    "duration_s",
    "experiment_group",
    "flatten",
    "open_records",
    "searcher_metric",
]

_LIST_EXAMPLES = """
\b
Examples:
  detcore experiment list
  detcore experiment list --json
"""
_DESCRIBE_EXAMPLES = """
\b
Examples:
  detcore experiment describe 3
  detcore experiment describe 3 --json     with the whole configuration, for programs
"""


# Of a checkpoint's UUID in a table with many columns; commands take a beginning of a UUID.
_UUID_SHOWN = 8


@click.group("experiment")
def experiment_group() -> None:
    """List and describe experiments."""


@experiment_group.command("list", epilog=_LIST_EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_obj
def list_command(obj: CliContext, as_json: bool) -> None:
    """List all experiments, with their state and best validation."""
    from detcore.cli._output import print_json

    with open_records(obj) as database:
        experiments = database.list_experiments()
        counts = database.count_trials()
        rows = [_overview(database, row, counts.get(row.id, 0)) for row in experiments]
        if as_json:
            print_json({"experiments": rows})
        elif not rows:
            click.echo(
                f"There are no experiments in {database.url} yet.\n"
                "Train one:  detcore run CONFIG.yaml",
                err=True,
            )
        else:
            _print_list(rows)


@experiment_group.command("describe", epilog=_DESCRIBE_EXAMPLES)
@click.argument("experiment_id", type=int, metavar="EXPERIMENT_ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_obj
def describe_command(obj: CliContext, experiment_id: int, as_json: bool) -> None:
    """Show an experiment: its configuration, trials and best validation."""
    from detcore.cli._output import print_json
    from detcore.config import mask_config

    with open_records(obj) as database:
        record = database.get_experiment(experiment_id)
        trials = database.list_trials(experiment_id)
        overview = _overview(database, record, len(trials))
        described = [_describe_trial(database, record, trial) for trial in trials]
        config: Any = mask_config(dict(record.config))
        if as_json:
            print_json({**overview, "config": config, "trials": described})
            return
    _print_experiment(overview, config)
    _print_trials(overview, described, config)


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


def best_of(record: MetricRecord | None) -> dict[str, Any] | None:
    """Return a best validation as ``--json`` shows it."""
    if record is None:
        return None
    return {
        "trial_id": record.trial_id,
        "steps_completed": record.steps_completed,
        "metrics": dict(record.metrics),
    }


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


def _overview(database: Database, record: ExperimentRecord, num_trials: int) -> dict[str, Any]:
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
        "num_trials": num_trials,
        "metric": metric,
        "smaller_is_better": smaller,
        "best_validation": best_of(best),
    }


def _describe_trial(
    database: Database, experiment: ExperimentRecord, trial: TrialRecord
) -> dict[str, Any]:
    metric, smaller = searcher_metric(experiment.config)
    best = None
    if metric is not None:
        best = database.trial_best_validation(trial.id, metric, smaller_is_better=bool(smaller))
    running = trial.state.value == "RUNNING"
    latest = database.latest_checkpoint(trial.id)
    return {
        "id": trial.id,
        "state": trial.state.value,
        "is_alive": database.run_is_alive(trial.id) if running else False,
        "host": trial.host,
        "error": trial.error,
        "num_runs": len(database.list_runs(trial.id)),
        "steps_completed": database.trial_steps_completed(trial.id),
        "hparams": dict(trial.hparams),
        "best_validation": best_of(best),
        "latest_checkpoint": latest.uuid if latest else None,
    }


def _print_list(rows: list[dict[str, Any]]) -> None:
    from detcore.cli._output import Column, format_duration, format_time, print_table

    print_table(
        [
            Column("ID", align="right", style="bold"),
            Column("NAME", wrap=True),
            Column("STATE", wrap=True),
            Column("TRIALS", align="right"),
            Column("BEST", wrap=True),
            Column("STARTED"),
            Column("TOOK", align="right"),
        ],
        [
            [
                str(row["id"]),
                row["name"],
                describe_state(row["state"], row["is_alive"], row["host"]),
                str(row["num_trials"]),
                _best_text(row, row["metric"]),
                format_time(row["created_at"]),
                format_duration(_took(row)),
            ]
            for row in rows
        ],
    )


def _took(row: Mapping[str, Any]) -> float | None:
    """Return how long an experiment has been there, or None if it died at an unknown time."""
    if row["state"] == "RUNNING" and row["is_alive"] is False:
        return None
    return duration_s(row["created_at"], row["ended_at"])


def _best_text(row: Mapping[str, Any], metric: str | None) -> str:
    from detcore.cli._output import format_number

    best = row["best_validation"]
    if best is None or metric is None:
        return "-"
    return f"{metric} {format_number(best['metrics'][metric])}"


def _print_experiment(row: dict[str, Any], config: Mapping[str, Any]) -> None:
    from detcore.cli._output import format_duration, format_time, print_fields, print_line

    print_line(f"experiment {row['id']}: {row['name']}", style="bold")
    state = describe_state(row["state"], row["is_alive"], row["host"])
    fields = {"state": f"{state}: {row['error']}" if row["error"] else state}
    fields |= _summarize(config)
    fields["code"] = row["model_dir"]
    fields["started"] = format_time(row["created_at"])
    if _took(row) is not None:
        fields["took"] = format_duration(_took(row))
    best = row["best_validation"]
    if best is not None:
        fields["best"] = (
            f"{_best_text(row, row['metric'])} (trial {best['trial_id']}, "
            f"step {best['steps_completed']})"
        )
    print_fields(fields, indent=2)


def _summarize(config: Mapping[str, Any]) -> dict[str, str]:
    """Return what of a configuration decides how training went."""
    fields: dict[str, str] = {}
    for name in ("description", "entrypoint"):
        if config.get(name):
            fields[name] = str(config[name])
    metric, smaller = searcher_metric(config)
    if metric is not None:
        length = _length(config["searcher"].get("max_length"))
        direction = "smaller" if smaller else "larger"
        fields["searcher"] = f"{config['searcher'].get('name')}, {metric} ({direction} is better)"
        fields["length"] = length or "-"
    for name, key in (
        ("validation", "min_validation_period"),
        ("checkpoint", "min_checkpoint_period"),
    ):
        period = _length(config.get(key))
        if period is not None:
            fields[name] = f"every {period}"
    storage = config.get("checkpoint_storage")
    if storage:
        text = flatten(storage) if isinstance(storage, Mapping) else {"": str(storage)}
        fields["storage"] = " ".join(f"{k}={v}" if k else v for k, v in text.items())
    seed = (config.get("reproducibility") or {}).get("experiment_seed")
    if seed is not None:
        fields["seed"] = str(seed)
    return fields


def _length(value: object) -> str | None:
    """Return ``{"epochs": 5}`` as ``5 epochs``; None for nothing and for never."""
    if isinstance(value, Mapping):
        return next((f"{count} {unit}" for unit, count in value.items() if count), None)
    return str(value) if value else None


def _print_trials(
    row: dict[str, Any], trials: list[dict[str, Any]], config: Mapping[str, Any]
) -> None:
    from detcore.cli._output import Column, print_heading, print_line, print_table

    print_heading("Trials")
    if not trials:
        print_line("none yet")
        return
    same, varied = _split_hparams(trials)
    if same:
        print_line("all with " + " ".join(f"{name}={value}" for name, value in same.items()))
    print_table(
        [
            Column("ID", align="right", style="bold"),
            Column("STATE", wrap=True),
            Column("STEPS", align="right"),
            Column("BEST", wrap=True),
            Column("RUNS", align="right"),
            Column("CHECKPOINT"),
            Column("HYPERPARAMETERS" if varied else "", wrap=True),
        ],
        [
            [
                str(trial["id"]),
                trial_state(trial),
                str(trial["steps_completed"]),
                _best_at(trial, row["metric"]),
                str(trial["num_runs"]),
                (trial["latest_checkpoint"] or "-")[:_UUID_SHOWN],
                _hparams_text(trial, varied),
            ]
            for trial in trials
        ],
    )
    for trial in trials:
        if trial["error"] and trial["error"] != row["error"]:
            print_line(f"trial {trial['id']}: {trial['error']}")
    click.echo()
    print_line(f"metrics and a plot:  detcore trial describe {trials[0]['id']}", style="dim")
    if can_resume(config, row["state"], row["is_alive"]):
        print_line(f"go on with it:  detcore run --resume {row['id']}", style="dim")


def _split_hparams(trials: list[dict[str, Any]]) -> tuple[dict[str, str], list[str]]:
    """Return the hyperparameters that all trials share, and the names of the others."""
    flat = [flatten(trial["hparams"]) for trial in trials]
    shared = dict(set(flat[0].items()).intersection(*[tree.items() for tree in flat]))
    same = {name: value for name, value in flat[0].items() if name in shared}
    varied = {name: None for tree in flat for name in tree if name not in same}
    return same, list(varied)


def _hparams_text(trial: Mapping[str, Any], names: list[str]) -> str:
    flat = flatten(trial["hparams"])
    return " ".join(f"{name}={flat[name]}" for name in names if name in flat)


def trial_state(trial: Mapping[str, Any]) -> str:
    """Return a trial's state for people."""
    if not trial["num_runs"]:
        return "not started"
    return describe_state(trial["state"], trial["is_alive"], trial["host"])


def _best_at(trial: Mapping[str, Any], metric: str | None) -> str:
    best = trial["best_validation"]
    text = _best_text(trial, metric)
    return text if best is None else f"{text} at {best['steps_completed']}"
