"""``detcore plugins deliver``: send observers the events that they missed."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import click

from detcore.cli._completion import EXPERIMENT_ID, PLUGIN_NAME
from detcore.cli._output import Column, json_option, print_json, print_line, print_table
from detcore.contract.errors import NotFoundError
from detcore.describe import format_time
from detcore.hooks import OBSERVER_HOOKS
from detcore.hooks.delivery import count_waiting, deliver_waiting, find_mailboxes

if TYPE_CHECKING:
    from pathlib import Path

    from detcore.cli._context import CliContext
    from detcore.hooks import Observer
    from detcore.hooks.delivery import Mailbox


_TITLES = ("plugin", "delivered", "forgotten", "waiting", "trials", "since", "note")
_NUMBERS = ("delivered", "forgotten", "waiting")
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

    Events that a plugin could not deliver, because its service was unreachable, wait in the folders
    of the trials. The runner of an experiment delivers the events of its running trials.
    """
    if dry_run and forgotten is not None:
        raise click.UsageError("give --dry-run or --forget, not both")
    obj: CliContext = ctx.obj
    if experiment_id is not None:
        _require_folder(obj.environment.home, experiment_id)
    by_plugin: dict[str, list[Mailbox]] = {}
    for mailbox in find_mailboxes(obj.environment.home, experiment_id=experiment_id):
        by_plugin.setdefault(mailbox.plugin, []).append(mailbox)
    observers: dict[str, Observer] = {}
    if by_plugin and forgotten is None:
        observers = {found.entry.name: found for found in obj.plugin_manager().observers()}
    rows = [
        _deliver(
            name,
            by_plugin.get(name, []),
            observers.get(name),
            dry_run=dry_run,
            is_forgotten=forgotten is not None,
        )
        for name in (sorted(by_plugin) if forgotten is None else [forgotten])
    ]
    _show(rows, as_json=as_json)
    ctx.exit(1 if any(row["waiting"] for row in rows) else 0)


def _require_folder(home: Path, experiment_id: int) -> None:
    """Refuse the id of an experiment that has no folder on this machine."""
    if not (home / "experiments" / str(experiment_id)).is_dir():
        raise NotFoundError(
            f"no experiment {experiment_id} was run on this machine: "
            f"{home / 'experiments'} has no folder of that name.\n"
            "What waits lies there; without --experiment all of it is delivered."
        )


def _deliver(
    name: str,
    mailboxes: list[Mailbox],
    observer: Observer | None,
    *,
    dry_run: bool,
    is_forgotten: bool,
) -> dict[str, Any]:
    row: dict[str, Any] = {"plugin": name, "delivered": 0, "forgotten": 0, "note": ""}
    if is_forgotten:
        row["forgotten"] = sum(map(_forget, mailboxes))
    elif observer is None:
        row["note"] = (
            f"not installed, or switched off; to drop it: detcore plugins deliver --forget {name}"
        )
    elif not dry_run:
        row["delivered"], problem = deliver_waiting(observer, mailboxes)
        row["note"] = problem or ""
    hooks = OBSERVER_HOOKS if observer is None else observer.hooks
    counts = [(mailbox, count_waiting(mailbox, hooks)) for mailbox in mailboxes]
    waiting = [(mailbox, count) for mailbox, count in counts if count.num_events]
    row["waiting"] = sum(count.num_events for _, count in waiting)
    row["trials"] = [_trial_of(mailbox.trial_dir) for mailbox, _ in waiting]
    row["since"] = min((count.since for _, count in waiting if count.since), default=None)
    if waiting and not row["note"] and not dry_run:
        row["note"] = "the trial runs, or another process delivers it now"
    return row


def _forget(mailbox: Mailbox) -> int:
    """Drop what waits in a mailbox that is not in use; return the number of events."""
    number = count_waiting(mailbox).num_events
    return number if mailbox.forget() else 0


def _trial_of(trial_dir: Path) -> int | str:
    return int(trial_dir.name) if trial_dir.name.isdigit() else trial_dir.name


def _show(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
    elif not rows:
        print_line("nothing waits")
    else:
        columns = [
            Column(title, align="right" if title in _NUMBERS else "left", wrap=title == "note")
            for title in _TITLES
        ]
        print_table(columns, [[_cell(title, row[title]) for title in _TITLES] for row in rows])


def _cell(title: str, value: Any) -> str:
    if title == "since":
        if value is None:
            return "-"
        return format_time(datetime.datetime.fromtimestamp(value, datetime.timezone.utc))
    if isinstance(value, list):
        shown = ", ".join(map(str, value[:5])) + (" and more" if len(value) > 5 else "")
        return shown or "-"
    return str(value) if value != "" else "-"
