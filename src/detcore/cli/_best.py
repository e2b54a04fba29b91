"""``detcore experiment best``: the best checkpoints of an experiment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from detcore.cli._completion import EXPERIMENT_ID
from detcore.cli._output import choose_format, format_options, pick
from detcore.cli._records import master_option, open_records, uuid_shortener
from detcore.contract.errors import NotFoundError
from detcore.describe import searcher_metric

if TYPE_CHECKING:
    from detcore.cli._context import CliContext

__all__ = ["best"]

_FIELDS = (
    "uuid", "trial_id", "steps_completed", "size_bytes", "committed_at", "storage_url",
)  # fmt: skip

_EXAMPLES = """
\b
Examples:
  detcore experiment best 3
  detcore experiment best 3 -n 5 --metric accuracy --larger-is-better
  detcore checkpoint download $(detcore experiment best 3 --uuid)
"""


@click.command(epilog=_EXAMPLES)
@click.argument("experiment_id", type=EXPERIMENT_ID, metavar="EXPERIMENT_ID")
@click.option(
    "-n", "number", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
    help="How many, the best first.",
)  # fmt: skip
@click.option("--metric", metavar="NAME", help="Which validation metric; default: the searcher's.")
@click.option(
    "--smaller-is-better/--larger-is-better",
    default=None,
    help="Default: as the experiment's searcher has it.",
)
@click.option("--uuid", "only_uuids", is_flag=True, help="Print nothing but UUIDs.")
@format_options
@master_option
@click.pass_obj
def best(
    obj: CliContext,
    experiment_id: int,
    number: int,
    metric: str | None,
    smaller_is_better: bool | None,
    only_uuids: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """List the best checkpoints of an experiment: those that were validated at their step.

    Checkpoints without that metric come last, and so do those with NaN.
    """
    from detcore.cli._output import print_csv, print_json

    form = choose_format(as_json, as_csv)
    if only_uuids and form != "table":
        raise click.UsageError("give --uuid, --json or --csv, not two of them")
    with open_records(obj) as database:
        own, own_direction = searcher_metric(database.get_experiment(experiment_id).config)
        asked, metric = metric, metric or own
        if metric is None:
            raise click.UsageError(
                f"experiment {experiment_id} has no searcher metric; name one with --metric"
            )
        if smaller_is_better is None:
            smaller_is_better = own_direction is not False
        ranked = database.top_checkpoints(
            experiment_id=experiment_id,
            metric=metric,
            smaller_is_better=smaller_is_better,
            limit=number,
        )
        rows = [
            {**pick(_FIELDS[:3], row.checkpoint), "value": row.value}
            | pick(_FIELDS[3:], row.checkpoint)
            for row in ranked
        ]
        short = uuid_shortener(database)
        if rows and rows[0]["value"] is None:
            # Where the name is wrong, any checkpoint would be as good as another.
            known = database.metric_names(experiment_id)
            names = [name for kind, name in known if kind == "validation"]
            if asked is not None or (names and metric not in names):
                raise NotFoundError(_explain(experiment_id, metric, names, is_own=asked is None))
    if not rows:
        raise NotFoundError(
            f"experiment {experiment_id} has no whole checkpoint (yet).\n"
            f"See what there is: detcore checkpoint list --experiment {experiment_id}"
        )
    if only_uuids:
        click.echo("\n".join(row["uuid"] for row in rows))
    elif form == "json":
        print_json({"experiment_id": experiment_id, "metric": metric,
                    "smaller_is_better": smaller_is_better, "checkpoints": rows})  # fmt: skip
    elif form == "csv":
        print_csv(rows)
    else:
        _print(rows, metric, short)


def _explain(experiment_id: int, metric: str, names: list[str], *, is_own: bool) -> str:
    text = (
        f"no checkpoint of experiment {experiment_id} has a validation metric {metric!r} that is "
        f"a number.\nValidation metrics there: {', '.join(names) or 'none yet'}."
    )
    if is_own:
        text += f"\nName one of them: detcore experiment best {experiment_id} --metric {names[0]}"
    return text


def _print(rows: list[dict[str, Any]], metric: str, short: Callable[[str], str]) -> None:
    from detcore.cli._output import Column, format_bytes, format_number, print_table

    print_table(
        [
            Column("UUID"),
            Column(metric, align="right", wrap=True),
            Column("TRIAL", align="right"),
            Column("STEP", align="right"),
            Column("SIZE", align="right"),
        ],
        [
            [
                short(row["uuid"]),
                format_number(row["value"]),
                str(row["trial_id"]),
                str(row["steps_completed"]),
                format_bytes(row["size_bytes"]),
            ]
            for row in rows
        ],
    )
