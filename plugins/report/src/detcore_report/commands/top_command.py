"""``detcore top``: the running trials, in the terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from detcore.cli import (
    EXPERIMENT_ID,
    Column,
    format_options,
    make_console,
    make_table,
    master_option,
    open_records,
    print_csv,
    print_json,
    print_line,
    print_table,
)
from detcore.record_descriptions import (
    compute_duration_s,
    format_duration,
    format_number,
)
from detcore_report.activity import read_activities

if TYPE_CHECKING:
    from detcore.cli import CliContext
    from detcore.records import Database, ExperimentRecord
    from detcore_report.activity import Activity


_REDRAW_INTERVAL_S = 1.0
_EXAMPLES = """
\b
Examples:
  detcore top
  detcore top --once --json      print JSON
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--once", is_flag=True, help="Print the running trials once and exit (default in pipes)."
)
@click.option(
    "--experiment", "only", type=EXPERIMENT_ID, metavar="ID", help="Only this experiment."
)
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=_REDRAW_INTERVAL_S, show_default=True,
    metavar="SECONDS", help="Refresh interval.",
)  # fmt: skip
@format_options
@master_option
def top(
    obj: CliContext,
    once: bool,
    only: int | None,
    interval: float,
    form: str,
) -> None:
    """Monitor running trials: steps, speed and last metrics. Press Ctrl-C to exit."""
    with open_records(obj) as database:
        if only is not None:
            database.get_experiment(only)  # an unknown id is an error, not an idle experiment
        if form == "table" and not once and make_console().is_terminal:
            _show_live(obj, database, only=only, interval=interval)
            return
        rows, totals = _read_rows(database, only=only)
    if form == "json":
        print_json({"trials": rows, "experiments": totals})
    elif form == "csv":
        print_csv(rows, ["experiment_id", "trial_id"])
    else:
        _print_rows(rows, totals)


def _read_rows(
    database: Database, *, only: int | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the running trials and their experiments as plain values."""
    from detcore.types import ExperimentState

    rows, totals = [], []
    counts = database.count_trials()
    for experiment in database.list_experiments(states=[ExperimentState.RUNNING]):
        if only not in (None, experiment.id):
            continue
        if not database.is_experiment_alive(experiment.id):
            continue
        running = read_activities(database, experiment)
        rows += [_describe_activity(experiment, activity) for activity in running]
        totals.append(
            {
                "experiment_id": experiment.id,
                "name": experiment.name,
                "num_trials": counts.get(experiment.id, 0),
                "num_running": len(running),
                "progress": experiment.progress,
                "elapsed_s": compute_duration_s(experiment.created_at, None),
            }
        )
    return rows, totals


def _describe_activity(experiment: ExperimentRecord, activity: Activity) -> dict[str, Any]:
    metric = experiment.searcher.metric
    return {
        "experiment_id": experiment.id,
        "trial_id": activity.trial.id,
        "state": activity.trial.state.value,
        "phase": activity.phase,
        "rung": activity.trial.rung,
        "steps_completed": activity.steps_completed,
        "progress": activity.progress,
        "steps_per_second": activity.steps_per_second,
        "left_s": activity.left_s,
        "training": dict(activity.training),
        "metric": metric,
        "validation": activity.validation,
    }


def _show_live(obj: CliContext, database: Database, *, only: int | None, interval: float) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from detcore.records import ingest_event_logs

    console = make_console()
    with Live(console=console, screen=False, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            ingest_event_logs(database, obj.environment.home)
            rows, totals = _read_rows(database, only=only)
            fitting = max(1, console.height - len(totals) - 4)
            columns, cells = _make_columns(rows[:fitting])
            parts: list[Any] = [make_table(columns, cells)] if rows else []
            if len(rows) > fitting:
                parts.append(Text(f"{len(rows) - fitting} more trials", style="dim"))
            parts += [Text(line, style="dim") for line in _format_totals(totals)]
            live.update(Group(*parts), refresh=True)
            time.sleep(interval)


def _print_rows(rows: list[dict[str, Any]], totals: list[dict[str, Any]]) -> None:
    if rows:
        print_table(*_make_columns(rows))
    for line in _format_totals(totals):
        print_line(line, style="dim")


def _make_columns(rows: list[dict[str, Any]]) -> tuple[list[Any], list[list[str]]]:
    columns = [
        Column("EXP", align="right"),
        Column("TRIAL", align="right", style="bold"),
        Column("STEPS", align="right"),
        Column("DONE", align="right"),
        Column("STEPS/S", align="right"),
        Column("LEFT", align="right"),
        Column("NOW"),
        Column("TRAINING", wrap=True),
        Column("VALIDATION", wrap=True),
    ]
    cells = []
    for row in rows:
        training = [f"{name} {format_number(value)}" for name, value in row["training"].items()]
        speed, progress = row["steps_per_second"], row["progress"]
        validation = "-"
        if row["validation"] is not None:
            validation = f"{row['metric']} {format_number(row['validation'])}"
        cells.append(
            [
                str(row["experiment_id"]),
                str(row["trial_id"]),
                str(row["steps_completed"]),
                "-" if progress is None else f"{progress:.0%}",
                "-" if speed is None else f"{speed:.0f}" if speed >= 100 else f"{speed:.3g}",
                "-" if row["left_s"] is None else format_duration(row["left_s"]),
                row["phase"],
                "  ".join(training[:3]) or "-",
                validation,
            ]
        )
    return columns, cells


def _format_totals(totals: list[dict[str, Any]]) -> list[str]:
    if not totals:
        return ["no trial is running"]
    lines = []
    for row in totals:
        parts = [f"{row['num_running']} of {row['num_trials']} trials running"]
        if row["progress"] is not None:
            parts.append(f"search {row['progress']:.0%} done")
        parts.append(format_duration(row["elapsed_s"]))
        lines.append(f"experiment {row['experiment_id']} {row['name']}: {', '.join(parts)}")
    return lines
