"""Access to the records for commands. `detcore.record_descriptions` formats records."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from detcore.cli.shell_completion import MASTER_TYPED

if TYPE_CHECKING:
    from detcore.cli.cli_context import CliContext
    from detcore.client import Determined, Transport
    from detcore.records import Database, LogLine, TrialRecord


_Command = TypeVar("_Command")


def master_option(command: _Command) -> _Command:
    """Add the option ``--master`` to a command, and pass a `CliContext` as first argument."""

    def choose(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        obj: CliContext | None = ctx.obj
        if obj is None:  # shell completion runs no command
            ctx.meta[MASTER_TYPED] = value
            return
        ctx.obj = dataclasses.replace(obj, master=value or obj.environment.master)

    option = click.option(
        "--master",
        metavar="URL",
        expose_value=False,
        callback=choose,
        help="Server to use.  [default: DETCORE_MASTER, or the records in DETCORE_HOME]",
    )
    return cast("_Command", option(click.pass_obj(cast("Any", command))))


@contextlib.contextmanager
def open_records(obj: CliContext, *, is_again: bool = False) -> Iterator[Database]:
    """Open the records, including all reports of workers so far.

    The records of a server are read-only.

    Args:
        obj: Selects the records.
        is_again: Whether the command has already printed the URL of the records.
    """
    with contextlib.closing(_open_transport(obj)) as transport:
        if obj.master is not None and not is_again:
            click.echo(f"records of {transport.records().url}", err=True)
        yield transport.records()


@contextlib.contextmanager
def open_client(obj: CliContext) -> Iterator[Determined]:
    """Open the client on the records that `open_records` shows, to change them."""
    from detcore.client import Determined

    with Determined(transport=_open_transport(obj)) as client:
        yield client


def _open_transport(obj: CliContext) -> Transport:
    from detcore.client import EmbeddedTransport

    if obj.master is None:
        return EmbeddedTransport(obj.environment)
    from detcore.client.http import connect

    return connect(obj.master, None, None, obj.environment)


def uuid_shortener(database: Database) -> Callable[[str], str]:
    """Return a function that shortens UUIDs in tables. Commands accept the shortened UUIDs.

    On a terminal, a UUID is shortened to a prefix if no other checkpoint has the same prefix. The
    UUID is not shortened in other cases.
    """
    from detcore.cli.output import SHORT_UUID, make_console

    if not make_console().is_terminal:
        return str
    shared = set(database.list_shared_prefixes(SHORT_UUID))
    return lambda uuid: uuid if uuid[:SHORT_UUID] in shared else uuid[:SHORT_UUID]


def shorten_checkpoints(database: Database, trials: list[dict[str, Any]]) -> None:
    """Shorten the UUIDs of described trials as `uuid_shortener` does."""
    short = uuid_shortener(database)
    for trial in trials:
        trial["latest_checkpoint"] = short(trial["latest_checkpoint"] or "-")


def read_log(database: Database, trial: TrialRecord, position: int) -> tuple[list[LogLine], int]:
    """Return lines of a trial's log from a position on, and the position after them."""
    from detcore.client.http import ServerRecords
    from detcore.records import read_output_log

    if isinstance(database, ServerRecords):
        return database.read_log(trial.id, position)
    if trial.trial_dir is None:
        return [], position
    return read_output_log(Path(trial.trial_dir), position)
