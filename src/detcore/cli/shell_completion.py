"""Shell completion of experiment ids, trial ids and plugin names.

A shell waits for completions at each press of the tab key. So they are read without importing the
database packages, without creating or migrating a database, and without contacting a server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


# Key of the context under which a command line being completed stores its ``--master``.
MASTER_TYPED = "detcore.master"
_MAX_SHOWN = 50
_SQLITE_WAIT_S = 0.2
_SQLITE = "sqlite:///"
_EXPERIMENTS = "SELECT id, state, name FROM experiments ORDER BY id DESC"
_TRIALS = (
    "SELECT trials.id, trials.state, 'experiment ' || trials.experiment_id FROM trials "
    "ORDER BY trials.id DESC"
)
_Row = tuple[int, str, str]
_Completions = Iterable[tuple[str, str]]  # values and their descriptions


class _Completed:
    """Completes values with the results of `find`. Failures are ignored."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return values that start with a prefix."""
        from click.shell_completion import CompletionItem

        try:
            completions = list(self.find(ctx, incomplete))
        except Exception:  # noqa: BLE001  (a traceback in the line being typed would help no user)
            return []
        return [CompletionItem(value, help=_to_line(text)) for value, text in completions]

    def find(self, ctx: click.Context, incomplete: str) -> _Completions:
        """Return values that start with a prefix."""
        raise NotImplementedError


class _RecordId(_Completed, click.types.IntParamType):
    """A whole number that is the id of a record."""

    def __init__(self, query: str) -> None:
        self._query = query

    def find(self, ctx: click.Context, incomplete: str) -> _Completions:
        """Return the newest ids that start with a prefix."""
        from detcore.environment import read_environment

        environment = read_environment()
        if ctx.meta.get(MASTER_TYPED) or environment.master:
            return []  # the ids are on a server
        rows = _read_sqlite(environment.database_url, self._query)
        matches = [row for row in rows if str(row[0]).startswith(incomplete)]
        return [(str(number), f"{state} {text}") for number, state, text in matches[:_MAX_SHOWN]]


class _PluginName(_Completed, click.types.StringParamType):
    """The name of an installed plugin."""

    def find(self, _ctx: click.Context, incomplete: str) -> _Completions:
        """Return the names that start with a prefix."""
        from detcore.environment import read_environment
        from detcore.plugins import PluginManager

        manager = PluginManager(read_environment(), on_problem=lambda problem: None)
        return [
            (entry.name, f"from {entry.distribution}")
            for entry in manager.index()
            if entry.name.startswith(incomplete)
        ]


def _read_sqlite(url: str, query: str) -> Iterable[_Row]:
    """Return rows of an existing SQLite file. Other databases are too slow for completion."""
    import sqlite3
    import urllib.parse

    if not url.startswith(_SQLITE):
        return []
    path = Path(urllib.parse.unquote(url.removeprefix(_SQLITE).partition("?")[0]))
    if not path.is_file():
        return []
    where = f"{path.as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(where, uri=True, timeout=_SQLITE_WAIT_S)) as connection:
        return connection.execute(query).fetchall()


def _to_line(text: str) -> str:
    """Return a text as one line, because the completion protocol ends values at line ends."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:60]


EXPERIMENT_ID = _RecordId(_EXPERIMENTS)
"""Type of an argument or option for the id of an experiment, with shell completion."""
TRIAL_ID = _RecordId(_TRIALS)
PLUGIN_NAME = _PluginName()
experiment_argument = click.argument("experiment_id", type=EXPERIMENT_ID)
trial_argument = click.argument("trial_id", type=TRIAL_ID)
