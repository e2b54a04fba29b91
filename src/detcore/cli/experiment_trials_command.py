"""``detcore experiment trials`` and ``best``: the trials and checkpoints of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from detcore.cli.output import (
    Column,
    Format,
    NumberColumn,
    format_hparams,
    format_options,
    make_console,
    pick_fields,
    print_data,
    print_line,
    print_table,
    printable,
)
from detcore.cli.record_access import (
    master_option,
    open_records,
    shorten_checkpoints,
    uuid_shortener,
)
from detcore.cli.shell_completion import experiment_argument
from detcore.contract.errors import NotFoundError
from detcore.record_descriptions import (
    describe_substitute,
    describe_trials,
    flatten,
    format_bytes,
    format_number,
    metric_value,
    trial_state,
)

if TYPE_CHECKING:
    from detcore.cli.cli_context import CliContext
    from detcore.records import Database, RankedCheckpoint


_EXAMPLES = """
\b
Examples:
  detcore experiment trials 3 --sort metric --limit 10     the best ten
  detcore experiment trials 3 --csv > trials.csv
"""
_BEST_EXAMPLES = """
\b
Examples:
  detcore experiment best 3
  detcore experiment best 3 -n 5 --metric accuracy --larger-is-better
  detcore checkpoint download $(detcore experiment best 3 --uuid)
"""
_BEST_FIELDS = (
    "uuid", "trial_id", "steps_completed", "size_bytes", "committed_at", "storage_url",
)  # fmt: skip
# Narrower terminals show fewer columns, to leave room for the hyperparameters.
_WIDE = 100


@click.command(epilog=_EXAMPLES)
@experiment_argument
@click.option(
    "--sort",
    type=click.Choice(["id", "metric", "steps", "state"]),
    default="id",
    show_default=True,
    help="Sort order; with 'metric', the best trials come first.",
)
@click.option("--metric", metavar="NAME", help="Metric to show.  [default: the searcher's metric]")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Maximum number of trials.")
@format_options
@master_option
def trials(
    obj: CliContext,
    experiment_id: int,
    sort: str,
    metric: str | None,
    limit: int | None,
    form: Format,
) -> None:
    """List trials with their state, best validation and hyperparameters.

    The experiment's smaller_is_better also applies to --metric.
    """
    with open_records(obj) as database:
        metric, rows = _read_trials(database, experiment_id, sort=sort, metric=metric, limit=limit)
        if form == "table":
            shorten_checkpoints(database, rows)
    document = {"experiment_id": experiment_id, "metric": metric, "trials": rows}
    if print_data(form, document, rows, ["id", "state"]):
        return
    if rows:
        print_trials(rows, metric)
    else:
        click.echo(f"experiment {experiment_id} has no trials yet", err=True)


def _read_trials(
    database: Database,
    experiment_id: int,
    *,
    sort: str,
    metric: str | None,
    limit: int | None,
) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the metric that ranks trials, and the trials as plain values.

    Args:
        database: The records.
        experiment_id: The experiment.
        sort: "id", "metric", "steps" or "state".
        metric: Name of the metric; None means the searcher's metric.
        limit: Maximum number of trials.

    Raises:
        NotFoundError: If no experiment has this id.
    """
    searcher = database.get_experiment(experiment_id).searcher
    metric, smaller = metric or searcher.metric, searcher.smaller_is_better is not False
    if sort == "metric" and metric is not None:
        ranked = database.top_trials(
            experiment_id, metric=metric, smaller_is_better=smaller, limit=limit
        )
        records = [row.trial for row in ranked]
    else:
        # Other orders need all trials before the first trials are known.
        records = database.list_trials(experiment_id, limit=limit if sort == "id" else None)
    rows = describe_trials(database, records, metric=metric, smaller_is_better=smaller)
    if sort == "steps":
        rows.sort(key=lambda row: -row["steps_completed"])
    elif sort == "state":
        order = ("RUNNING", "PAUSED", "COMPLETED", "CANCELED", "ERROR")
        rows.sort(key=lambda row: order.index(row["state"]))
    return metric, rows[:limit]


def print_trials(rows: Sequence[dict[str, Any]], metric: str | None) -> None:
    """Print the hyperparameters that all trials share, and a table of the trials."""
    same, varied = _split_hparams(rows)
    if same:
        print_line(f"all with {format_hparams(same)}")
    console = make_console()
    is_narrow = console.is_terminal and console.width < _WIDE
    has_rungs = any(row["rung"] is not None for row in rows)
    has_labels = any(row["labels"] for row in rows)
    has_jobs = any(row["job"] for row in rows)
    columns: list[Column | str] = [
        NumberColumn("ID", style="bold"),
        Column("STATE", wrap=True, is_state=True),
        *(["JOB"] if has_jobs else []),
        "STEPS",
        *(["RUNG"] if has_rungs else []),
        Column("BEST", wrap=True),
        *([] if is_narrow else ["RUNS", "CHECKPOINT"]),
        *([Column("LABELS", wrap=True)] if has_labels else []),
        Column("HYPERPARAMETERS" if varied else "", wrap=True),
    ]
    cells = [
        [
            row["id"],
            trial_state(row),
            *([row["job"]] if has_jobs else []),
            row["steps_completed"],
            *([row["rung"]] if has_rungs else []),
            _best_at(row, metric),
            *([] if is_narrow else [row["num_runs"], row["latest_checkpoint"]]),
            *([", ".join(row["labels"])] if has_labels else []),
            format_hparams({k: v for k, v in flatten(row["hparams"]).items() if k in varied}),
        ]
        for row in rows
    ]
    print_table(columns, cells)


def _split_hparams(rows: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return the hyperparameters that all trials share, and the names of the varied ones."""
    flat = [flatten(row["hparams"]) for row in rows]
    same, varied = {}, []
    for name in dict.fromkeys(name for hparams in flat for name in hparams):
        # Compared as strings, because values may be lists, and True equals 1.
        if len({str(hparams[name]) if name in hparams else None for hparams in flat}) == 1:
            same[name] = flat[0][name]
        else:
            varied.append(name)
    return same, varied


def _best_at(row: dict[str, Any], metric: str | None) -> str:
    value = metric_value(row, metric)
    if value is None:
        return "-"
    return f"{metric} {format_number(value)} at {row['best_validation']['steps_completed']}"


@click.command(epilog=_BEST_EXAMPLES)
@experiment_argument
@click.option(
    "-n", "number", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
    help="Number of checkpoints.",
)  # fmt: skip
@click.option(
    "--metric", metavar="NAME", help="Validation metric.  [default: the searcher's metric]"
)
@click.option(
    "--smaller-is-better/--larger-is-better",
    default=None,
    help="Direction of the metric.  [default: the experiment's smaller_is_better]",
)
@click.option("--uuid", "only_uuids", is_flag=True, help="Print only UUIDs.")
@format_options
@master_option
def best(
    obj: CliContext,
    experiment_id: int,
    number: int,
    metric: str | None,
    smaller_is_better: bool | None,
    only_uuids: bool,
    form: Format,
) -> None:
    """List the best checkpoints of an experiment by the validation at their step.

    For a trial without a checkpoint at a validated step, the next checkpoint after its best
    validation is listed, or its latest checkpoint. Checkpoints without the metric, or with NaN,
    come last.
    """
    if only_uuids and form != "table":
        raise click.UsageError("give only one of --uuid, --json and --csv")
    with open_records(obj) as database:
        searcher = database.get_experiment(experiment_id).searcher
        is_own, metric = metric is None, metric or searcher.metric
        if metric is None:
            raise click.UsageError(
                f"experiment {experiment_id} has no searcher metric; name a metric with --metric"
            )
        if smaller_is_better is None:
            smaller_is_better = searcher.smaller_is_better is not False
        ranked = database.top_checkpoints(
            experiment_id=experiment_id,
            metric=metric,
            smaller_is_better=smaller_is_better,
            limit=number,
        )
        rows = [_describe_ranked(checkpoint) for checkpoint in ranked]
        short = uuid_shortener(database)
        if rows and rows[0]["value"] is None:
            # The name of the metric may be wrong, so the ranking would be arbitrary.
            metrics = database.metric_names(experiment_id)
            names = [name for kind, name in metrics if kind == "validation"]
            raise NotFoundError(_explain_metric(experiment_id, metric, names, is_own=is_own))
    if not rows:
        raise NotFoundError(
            f"experiment {experiment_id} has no complete checkpoint yet.\n"
            f"List all checkpoints: detcore checkpoint list --experiment {experiment_id}"
        )
    _note_stand_ins(rows, metric)
    if only_uuids:
        click.echo("\n".join(row["uuid"] for row in rows))
        return
    document = {
        "experiment_id": experiment_id, "metric": metric,
        "smaller_is_better": smaller_is_better, "checkpoints": rows,
    }  # fmt: skip
    if not print_data(form, document, rows):
        _print_best(rows, metric, short)
        master = f" --master {obj.master}" if obj.master else ""
        command = f"detcore checkpoint download {short(rows[0]['uuid'])}{master}"
        click.echo(f"download the best:  {command}", err=True)


def _describe_ranked(ranked: RankedCheckpoint) -> dict[str, Any]:
    return {
        **pick_fields(_BEST_FIELDS[:3], ranked.checkpoint),
        **pick_fields(("value", "value_steps"), ranked),
        **pick_fields(_BEST_FIELDS[3:], ranked.checkpoint),
    }


def _note_stand_ins(rows: list[dict[str, Any]], metric: str) -> None:
    """Say on stderr which checkpoints rank by a validation at another step than their own."""
    fields = ("trial_id", "steps_completed", "value", "value_steps")
    for row in rows:
        if row["value_steps"] not in (None, row["steps_completed"]):
            note = describe_substitute(metric=metric, **{name: row[name] for name in fields})
            click.echo(printable(f"note: {note}"), err=True)


def _explain_metric(experiment_id: int, metric: str, names: list[str], *, is_own: bool) -> str:
    text = (
        f"no checkpoint of experiment {experiment_id} has a numeric validation metric {metric!r}.\n"
        f"Validation metrics: {', '.join(names) or 'none yet'}."
    )
    if not names:
        text += f"\nList all checkpoints: detcore checkpoint list --experiment {experiment_id}"
    elif is_own and metric not in names:
        text += f"\nUse another metric: detcore experiment best {experiment_id} --metric {names[0]}"
    return text


def _print_best(rows: list[dict[str, Any]], metric: str, short: Callable[[str], str]) -> None:
    print_table(
        [
            "UUID",
            NumberColumn(metric, wrap=True),
            "TRIAL",
            "STEP",
            NumberColumn("SIZE"),
        ],
        [
            [
                short(row["uuid"]),
                row["value"],
                row["trial_id"],
                row["steps_completed"],
                format_bytes(row["size_bytes"]),
            ]
            for row in rows
        ],
    )
