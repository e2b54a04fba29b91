"""``detcore plugins deliver``: deliver missed events to observers."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import click

from detcore.cli.output import Column, json_option, print_json, print_line, print_table
from detcore.cli.record_access import open_records
from detcore.cli.shell_completion import EXPERIMENT_ID, PLUGIN_NAME
from detcore.plugins import OBSERVER_HOOKS
from detcore.plugins.delivery import deliver_events, drop_events, list_waiting

if TYPE_CHECKING:
    from pathlib import Path

    from detcore.cli.cli_context import CliContext
    from detcore.plugins import Observer
    from detcore.records import Database


_TITLES = ("plugin", "delivered", "forgotten", "waiting", "trials", "since", "note")
_EPILOG = """
\b
Exit codes:
  0  all events are delivered
  1  some events are still undelivered; the table shows why
"""


@click.command(epilog=_EPILOG)
@click.option(
    "--experiment",
    "experiment_id",
    type=EXPERIMENT_ID,
    metavar="ID",
    help="Deliver only events of this experiment.",
)
@click.option("--dry-run", is_flag=True, help="List undelivered events without delivering them.")
@click.option(
    "--forget",
    "forgotten",
    type=PLUGIN_NAME,
    metavar="PLUGIN",
    help="Drop the undelivered events of this plugin, for example after uninstalling it.",
)
@json_option
@click.pass_context
def deliver(
    ctx: click.Context,
    /,
    experiment_id: int | None,
    dry_run: bool,
    forgotten: str | None,
    as_json: bool,
) -> None:
    """Deliver missed events to plugins that observe trials.

    If the service of a plugin is unreachable, undelivered events stay in the event logs of the
    trials. Events of running trials are delivered by the runner of the experiment.
    """
    if dry_run and forgotten is not None:
        raise click.UsageError("give --dry-run or --forget, not both")
    obj: CliContext = ctx.obj
    with open_records(obj) as database:
        if experiment_id is not None:
            database.get_experiment(experiment_id)  # an unknown id is an error
        home = obj.environment.home
        names = {
            cursor.plugin
            for cursor in database.list_cursors(experiment_id=experiment_id)
            if list_waiting(home, [cursor], OBSERVER_HOOKS)
        }
        observers: dict[str, Observer] = {}
        if names and forgotten is None:
            observers = {item.entry.name: item for item in obj.plugin_manager().observers()}
        rows = [
            _deliver_events(
                name,
                observers.get(name),
                database=database,
                home=home,
                experiment_id=experiment_id,
                dry_run=dry_run,
                is_forgotten=forgotten is not None,
            )
            for name in (sorted(names) if forgotten is None else [forgotten])
        ]
    _print_rows(rows, as_json=as_json)
    ctx.exit(1 if any(row["waiting"] for row in rows) else 0)


def _deliver_events(
    name: str,
    observer: Observer | None,
    *,
    database: Database,
    home: Path,
    experiment_id: int | None,
    dry_run: bool,
    is_forgotten: bool,
) -> dict[str, Any]:
    """Deliver or drop the undelivered events of a plugin. Return its row of the table."""
    row: dict[str, Any] = {"plugin": name, "delivered": 0, "forgotten": 0, "note": ""}
    if is_forgotten:
        cursors = database.list_cursors(plugin=name, experiment_id=experiment_id)
        row["forgotten"] = drop_events(database, home, cursors)
    elif observer is None:
        row["note"] = (
            "not installed or disabled; drop its events with: "
            f"detcore plugins deliver --forget {name}"
        )
    elif not dry_run:
        row["delivered"], problem = deliver_events(
            database, home, observer, experiment_id=experiment_id
        )
        row["note"] = problem or ""
    cursors = database.list_cursors(plugin=name, experiment_id=experiment_id)
    hooks = OBSERVER_HOOKS if observer is None else observer.hooks
    times = list_waiting(home, cursors, hooks)
    row["waiting"] = sum(map(len, times.values()))
    row["trials"] = list(times)
    row["since"] = min((waiting[0] for waiting in times.values()), default=None)
    if times and not row["note"] and not dry_run:
        row["note"] = "the trial is running, or another process is delivering its events"
    return row


def _print_rows(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
    elif not rows:
        print_line("all events are delivered")
    else:
        columns: list[Column | str] = [*_TITLES[:-1], Column("note", wrap=True)]
        print_table(
            columns, [[_format_cell(title, row[title]) for title in _TITLES] for row in rows]
        )


def _format_cell(title: str, value: Any) -> object:
    if title == "since" and value is not None:
        return datetime.datetime.fromtimestamp(value, datetime.timezone.utc)
    if isinstance(value, list):
        text = ", ".join(map(str, value[:5])) + (" and more" if len(value) > 5 else "")
        return text or "-"
    return "-" if value == "" else value
