"""``detcore experiment``: list, show and archive experiments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from detcore.cli.command_groups import CommandGroup, Lazy
from detcore.cli.output import (
    Column,
    Format,
    NumberColumn,
    format_options,
    print_data,
    print_fields,
    print_heading,
    print_line,
    print_table,
)
from detcore.cli.record_access import master_option, open_client, open_records, shorten_checkpoints
from detcore.cli.shell_completion import experiment_argument
from detcore.contract.values import ExperimentState
from detcore.record_descriptions import (
    can_resume,
    describe_experiment,
    describe_state,
    describe_trials,
    format_duration,
    format_number,
    get_duration_s,
    metric_value,
    sort_key,
    summarize_config,
)

if TYPE_CHECKING:
    from detcore.cli.cli_context import CliContext
    from detcore.records import ExperimentRecord


_LIST_EXAMPLES = """
\b
Examples:
  detcore experiment list
  detcore experiment list --limit 10 --sort metric
  detcore experiment list --state RUNNING --json
"""
_DESCRIBE_EXAMPLES = """
\b
Examples:
  detcore experiment describe 3
  detcore experiment describe 3 --json     for programs, with the complete configuration
"""
_COMMANDS = {
    "list": Lazy("detcore.cli.experiment_commands:list_command", "List experiments."),
    "describe": Lazy("detcore.cli.experiment_commands:describe_command", "Show an experiment."),
    "trials": Lazy(
        "detcore.cli.experiment_trials_command:trials", "List the trials of an experiment."
    ),
    "best": Lazy(
        "detcore.cli.experiment_trials_command:best", "List the best checkpoints of an experiment."
    ),
    "logs": Lazy("detcore.cli.log_commands:experiment_logs", "Show the output of the trials."),
    "plot": Lazy(None, "Draw learning curves and hyperparameters."),
    "wait": Lazy("detcore.cli.control_commands:wait", "Wait until an experiment has ended."),
    "pause": Lazy("detcore.cli.control_commands:pause", "Checkpoint and stop all trials."),
    "resume": Lazy("detcore.cli.control_commands:resume", "Resume an experiment in this terminal."),
    "cancel": Lazy(
        "detcore.cli.control_commands:cancel", "Checkpoint and end all trials for good."
    ),
    "kill": Lazy("detcore.cli.control_commands:kill", "End all trials immediately."),
    "archive": Lazy("detcore.cli.experiment_commands:archive", "Hide an experiment from lists."),
    "unarchive": Lazy(
        "detcore.cli.experiment_commands:unarchive", "Show an archived experiment in lists again."
    ),
    "delete": Lazy(
        "detcore.cli.control_commands:delete", "Delete an experiment's records and checkpoints."
    ),
}
_LISTED_TRIALS = 50


@click.group("experiment", cls=CommandGroup, lazy_commands=_COMMANDS)
def experiment_group() -> None:
    """List, show and plot experiments; pause, resume, cancel and delete them."""


@click.command("list", epilog=_LIST_EXAMPLES)
@click.option("--all", "show_all", is_flag=True, help="Include archived experiments.")
@click.option(
    "--state",
    "states",
    type=click.Choice([state.value for state in ExperimentState], case_sensitive=False),
    multiple=True,
    help="List only experiments in this state (repeatable).",
)
@click.option(
    "--sort",
    type=click.Choice(["id", "name", "metric", "started"]),
    default="id",
    show_default=True,
    help="Sort order; with 'metric', the best experiments come first.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum number; the newest with --sort id, otherwise the first.",
)
@format_options
@master_option
def list_command(
    obj: CliContext,
    show_all: bool,
    states: tuple[str, ...],
    sort: str,
    limit: int | None,
    form: Format,
) -> None:
    """List experiments with their state and best validation."""
    with open_records(obj) as database:
        records = database.list_experiments(
            states=[ExperimentState(state.upper()) for state in states] or None,
            archived=None if show_all else False,
            newest_first=True,
            limit=limit if sort == "id" else None,  # other orders need all experiments
        )[::-1]
        counts = database.count_trials()
        rows = [describe_experiment(database, row, counts.get(row.id, 0)) for row in records]
        rows = _sort_rows(rows, sort)[:limit]
        where = database.url
        num_archived = database.count_experiments(archived=True)
    if print_data(form, {"experiments": rows}, rows, ["id", "name", "state"]):
        return
    if not rows and not states and num_archived and not show_all:
        click.echo(f"{num_archived} archived experiments; --all shows them", err=True)
    elif not rows and not states:
        click.echo(
            f"No experiments in {where} yet.\nStart an experiment:  detcore run CONFIG.yaml",
            err=True,
        )
    else:
        _print_list(rows)


def _sort_rows(rows: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    if by == "metric":
        return sorted(
            rows,
            key=lambda row: sort_key(
                metric_value(row, row["metric"]), smaller_is_better=bool(row["smaller_is_better"])
            ),
        )
    if by == "name":
        return sorted(rows, key=lambda row: (row["name"].casefold(), row["id"]))
    return sorted(rows, key=lambda row: row["created_at" if by == "started" else "id"])


@click.command("describe", epilog=_DESCRIBE_EXAMPLES)
@experiment_argument
@format_options
@master_option
def describe_command(obj: CliContext, experiment_id: int, form: Format) -> None:
    """Show an experiment: its configuration, trials and best validation.

    --csv prints only the trials.
    """
    from detcore.masking import mask_config

    with open_records(obj) as database:
        record = database.get_experiment(experiment_id)
        overview = describe_experiment(
            database, record, database.count_trials().get(experiment_id, 0)
        )
        limit = _LISTED_TRIALS if form == "table" else None
        records = database.list_trials(experiment_id, newest_first=True, limit=limit)[::-1]
        trials = describe_trials(
            database,
            records,
            metric=overview["metric"],
            smaller_is_better=bool(overview["smaller_is_better"]),
        )
        if form == "table":
            shorten_checkpoints(database, trials)
    config: Any = mask_config(dict(record.config))
    document = {**overview, "config": config, "trials": trials}
    if not print_data(form, document, trials, ["id", "state"]):
        _print_experiment(overview, record, config)
        _print_trials(overview, trials, config)


def _make_archive_command(what: str, summary: str, outcome: str) -> click.Command:
    @click.command(what, help=summary)
    @experiment_argument
    @master_option
    def command(obj: CliContext, experiment_id: int) -> None:
        with open_client(obj) as client:
            getattr(client.get_experiment(experiment_id), what)()
        click.echo(f"experiment {experiment_id} is {outcome}")

    return command


archive = _make_archive_command(
    "archive", "Hide an experiment from lists, without deleting anything.", "archived"
)
unarchive = _make_archive_command(
    "unarchive", "Show an archived experiment in lists again.", "no longer archived"
)


def _print_list(rows: list[dict[str, Any]]) -> None:
    print_table(
        [
            NumberColumn("ID", style="bold"),
            Column("NAME", wrap=True),
            Column("STATE", wrap=True, is_state=True),
            "TRIALS",
            Column("BEST", wrap=True),
            "STARTED",
            NumberColumn("TOOK"),
        ],
        [
            [
                row["id"],
                row["name"],
                _state_text(row),
                row["num_trials"],
                _best_text(row, row["metric"]),
                row["created_at"],
                format_duration(get_duration_s(row)),
            ]
            for row in rows
        ],
    )


def _state_text(row: Mapping[str, Any]) -> str:
    state = describe_state(row["state"], is_alive=row["is_alive"])
    if row["state"] in ("RUNNING", "PAUSED") and row["progress"] is not None:
        state += f" {row['progress']:.0%}"
    return f"{state} (archived)" if row["archived"] else state


def _best_text(row: Mapping[str, Any], metric: str | None) -> str:
    value = metric_value(row, metric)
    return "-" if value is None else f"{metric} {format_number(value)}"


def _print_experiment(
    row: dict[str, Any], record: ExperimentRecord, config: Mapping[str, Any]
) -> None:
    print_line(f"experiment {row['id']}: {row['name']}", style="bold")
    state = _state_text(row)
    best, took = row["best_validation"], get_duration_s(row)
    fields = {
        "state": f"{state}: {row['error']}" if row["error"] else state,
        "request": record.control and record.control.value,
        **summarize_config(config),
        "code": row["model_dir"],
        "started": row["created_at"],
        "took": None if took is None else format_duration(took),
        "best": best
        and f"{_best_text(row, row['metric'])} (trial {best['trial_id']}, "
        f"step {best['steps_completed']})",
    }
    print_fields(fields, indent=2)


def _print_trials(
    row: dict[str, Any], trials: list[dict[str, Any]], config: Mapping[str, Any]
) -> None:
    from detcore.cli.experiment_trials_command import print_trials

    print_heading("Trials")
    if not trials:
        print_line("none yet")
        return
    print_trials(trials, row["metric"])
    if len(trials) < row["num_trials"]:
        print_line(
            f"{row['num_trials'] - len(trials)} earlier trials:  "
            f"detcore experiment trials {row['id']}",
            style="dim",
        )
    for trial in trials:
        if trial["error"] and trial["error"] != row["error"]:
            print_line(f"trial {trial['id']}: {trial['error']}")
    click.echo()
    best = row["best_validation"]
    trial_id = best["trial_id"] if best else trials[0]["id"]
    print_line(f"metrics and a plot:  detcore trial describe {trial_id}", style="dim")
    if can_resume(config, row["state"], is_alive=row["is_alive"]):
        print_line(f"resume with:  detcore run --resume {row['id']}", style="dim")
