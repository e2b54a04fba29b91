"""``detcore plugins deliver``: send observers the events that they missed."""

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
  0  nothing waits any more
  1  something still waits; the table says why
"""


@click.command(epilog=_EPILOG)
@click.option(
    "--experiment", "experiment_id", type=EXPERIMENT_ID, metavar="ID", help="Only its trials."
)
@click.option("--dry-run", is_flag=True, help="Say what waits, and deliver nothing.")
@click.option(
    "--forget",
    "forgotten",
    type=PLUGIN_NAME,
    metavar="PLUGIN",
    help="Drop what waits for this plugin, such as one that was uninstalled.",
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
    """Send plugins that observe trials the events that they missed.

    Events that a plugin could not deliver, because its service was unreachable, wait in the event
    logs of the trials. The runner of an experiment delivers the events of its running trials.
    """
    if dry_run and forgotten is not None:
        raise click.UsageError("give --dry-run or --forget, not both")
    obj: CliContext = ctx.obj
    with open_records(obj) as database:
        if experiment_id is not None:
            database.get_experiment(experiment_id)  # raises if there is none
        home = obj.environment.home
        names = {
            cursor.plugin
            for cursor in database.list_cursors(experiment_id=experiment_id)
            if list_waiting(home, [cursor], OBSERVER_HOOKS)
        }
        observers: dict[str, Observer] = {}
        if names and forgotten is None:
            observers = {found.entry.name: found for found in obj.plugin_manager().observers()}
        rows = [
            _deliver(
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
    _show(rows, as_json=as_json)
    ctx.exit(1 if any(row["waiting"] for row in rows) else 0)


def _deliver(
    name: str,
    observer: Observer | None,
    *,
    database: Database,
    home: Path,
    experiment_id: int | None,
    dry_run: bool,
    is_forgotten: bool,
) -> dict[str, Any]:
    """Deliver or drop the events that wait for a plugin; return its row of the table."""
    row: dict[str, Any] = {"plugin": name, "delivered": 0, "forgotten": 0, "note": ""}
    if is_forgotten:
        cursors = database.list_cursors(plugin=name, experiment_id=experiment_id)
        row["forgotten"] = drop_events(database, home, cursors)
    elif observer is None:
        row["note"] = (
            f"not installed, or switched off; to drop it: detcore plugins deliver --forget {name}"
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
        row["note"] = "the trial runs, or another process delivers it now"
    return row


def _show(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
    elif not rows:
        print_line("nothing waits")
    else:
        columns: list[Column | str] = [*_TITLES[:-1], Column("note", wrap=True)]
        print_table(columns, [[_cell(title, row[title]) for title in _TITLES] for row in rows])


def _cell(title: str, value: Any) -> object:
    if title == "since" and value is not None:
        return datetime.datetime.fromtimestamp(value, datetime.timezone.utc)
    if isinstance(value, list):
        shown = ", ".join(map(str, value[:5])) + (" and more" if len(value) > 5 else "")
        return shown or "-"
    return "-" if value == "" else value
