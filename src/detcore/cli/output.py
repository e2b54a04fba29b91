"""Output of commands: tables for people, plain columns for pipes, JSON for programs.

On a terminal, rich draws tables (with ``NO_COLOR`` and ``COLUMNS``). Otherwise a table consists of
aligned columns under one header line. It is never truncated, so that ``awk`` and ``cut`` can read
it. rich is imported on first use.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import functools
import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import click

from detcore.record_descriptions import flatten, format_hparam, format_number, format_time

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


Format = Literal["table", "json", "csv"]
_Command = TypeVar("_Command", bound=Callable[..., Any])
# Spreadsheets interpret a string with one of these first characters as a formula.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|Infinity)", re.ASCII)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
# rich styles of states by their first word in lower case.
_STATE_STYLES = {
    word: style
    for style, words in {
        "cyan": "active running",
        "dim": "deleted deleting not",  # not started
        "green": "completed ended stopped",
        "red": "damaged error",
        "yellow": "canceled interrupted partially_deleted paused waiting",
    }.items()
    for word in words.split()
}
SHORT_UUID = 8  # length of UUID prefixes on a terminal, if the prefix is unique
_PROCESS_GONE = "(process gone)"
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# Control characters except tabs and line ends, characters that change the text direction, and lone
# surrogates, which terminals cannot encode.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        title: The header.
        align: Alignment of the values.
        wrap: Whether a long value may wrap to the next line on a terminal. Such columns shrink
            first if a table is too wide.
        style: rich style of the values on a terminal.
        is_state: Whether the values are states, which are coloured on a terminal.
    """

    title: str
    align: Literal["left", "right"] = "left"
    wrap: bool = False
    style: str = ""
    is_state: bool = False


_RIGHT = (int, float, type(None))
NumberColumn = functools.partial(Column, align="right")


def make_console() -> Console:
    """Return a console for the current standard output."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def print_table(columns: Sequence[Column | str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under a header.

    Args:
        columns: The columns or their titles. For a title, numbers are aligned to the right, and
            values of a column ``state`` are states.
        rows: Values: strings, numbers, times, or None. Each row has a value for each column.
    """
    console = make_console()
    if console.is_terminal:
        console.print(make_table(columns, rows))
        return
    columns, cells = _lay_out(columns, rows)
    titles = [column.title for column in columns]
    table = [[" ".join(printable(v).split()) for v in row] for row in [titles, *cells]]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    for row in table:
        aligned = [
            cell.rjust(width) if column.align == "right" else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        click.echo("  ".join(aligned).rstrip())


def make_table(columns: Sequence[Column | str], rows: Sequence[Sequence[object]]) -> Table:
    """Return the table that `print_table` draws on a terminal."""
    from rich.table import Table
    from rich.text import Text

    columns, cells = _lay_out(columns, rows)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            Text(printable(column.title)),
            justify=column.align,
            style=column.style,
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
        )
    for row in cells:
        table.add_row(
            *[
                state_text(value) if column.is_state else Text(printable(value))
                for column, value in zip(columns, row, strict=True)
            ]
        )
    return table


def _lay_out(
    columns: Sequence[Column | str], rows: Sequence[Sequence[object]]
) -> tuple[list[Column], list[list[str]]]:
    """Return all columns as `Column`, and the values as strings."""
    full = []
    for index, column in enumerate(columns):
        if isinstance(column, str):
            is_right = bool(rows) and all(isinstance(row[index], _RIGHT) for row in rows)
            align: Literal["left", "right"] = "right" if is_right else "left"
            column = Column(column, align, is_state=column.lower() == "state")
        full.append(column)
    return full, [[_format_cell(value) for value in row] for row in rows]


def _format_cell(value: object) -> str:
    if isinstance(value, datetime.datetime):
        return format_time(value)
    return format_number(value)


def state_text(state: str) -> Text:
    """Return a state for a terminal, with its first word in the colour of the state.

    The console omits colours if ``NO_COLOR`` is set.
    """
    from rich.text import Text

    text = Text(printable(state))
    word = state.partition(" ")[0].rstrip(":")
    style = "red" if _PROCESS_GONE in state else _STATE_STYLES.get(word.lower(), "")
    if style:
        text.stylize(style, 0, len(word))
    return text


def print_fields(fields: Mapping[str, object], *, indent: int = 0) -> None:
    """Print ``name  value`` lines with aligned values. A field ``state`` is coloured.

    Fields with the value None are omitted.
    """
    from rich.table import Table
    from rich.text import Text

    console = make_console()
    lines = {
        printable(name): printable(_format_cell(value))
        for name, value in fields.items()
        if value is not None
    }
    width = max(map(len, lines), default=0)
    if not console.is_terminal:
        for name, value in lines.items():
            click.echo(f"{' ' * indent}{name.ljust(width)}  {value}".rstrip())
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, min_width=width)
    grid.add_column(overflow="fold")
    for name, value in lines.items():
        text = state_text(value) if name == "state" else Text(value)
        grid.add_row(Text(" " * indent + name, style="dim"), text)
    console.print(grid)


def print_heading(text: str) -> None:
    """Print a heading after an empty line."""
    click.echo()
    print_line(text, style="bold")


def print_line(text: str = "", *, style: str = "") -> None:
    """Print text without truncating it. The style is only for terminals."""
    text = printable(text)
    if style and (console := make_console()).is_terminal:
        console.print(text, style=style, soft_wrap=True)
    else:
        click.echo(text)


def pick_fields(names: Iterable[str], record: object) -> dict[str, Any]:
    """Return some fields of a record, by name."""
    return {name: getattr(record, name) for name in names}


def print_json(value: object) -> None:
    """Print one JSON document.

    Dataclasses, enums, times and paths become plain values; NaN and the infinities become the
    strings ``"NaN"``, ``"Infinity"``, ``"-Infinity"``, because JSON has no numbers for them.
    """
    click.echo(json.dumps(plain_value(value), indent=2, allow_nan=False))


def print_data(
    form: Format,
    document: object,
    rows: Iterable[Mapping[str, object]],
    columns: Sequence[str] = (),
) -> bool:
    """Print JSON or CSV if the form requests it. Return whether it does.

    Args:
        form: As `format_options` passes it.
        document: As for `print_json`.
        rows: As for `print_csv`.
        columns: As for `print_csv`.
    """
    if form == "json":
        print_json(document)
    elif form == "csv":
        print_csv(rows, columns)
    return form != "table"


def print_csv(
    rows: Iterable[Mapping[str, object]],
    columns: Sequence[str] = (),
    *,
    with_header: bool = True,
) -> None:
    """Print rows as CSV (RFC 4180), under a header line.

    Nested values become columns with dotted names, such as ``hparams.layers.count``. A list becomes
    JSON, and None becomes an empty cell. A string that a spreadsheet would interpret as a formula
    is prefixed with an apostrophe, and control characters are escaped. Numbers are unchanged.

    Args:
        rows: Values by name, as for `print_json`.
        columns: The first columns, which are also printed without rows.
        with_header: Whether to print the names of the columns.
    """
    flat = [flatten(plain_value(row)) for row in rows]
    names = dict.fromkeys(columns)
    for row in flat:
        names.update(dict.fromkeys(row))
    # A group that is None in one row (no best validation yet) does not become a column.
    groups = {name[:at] for name in names for at, sign in enumerate(name) if sign == "."}
    header = [name for name in names if name not in groups or any(row.get(name) for row in flat)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    if with_header:
        writer.writerow([_guard_formula(name) for name in header])
    writer.writerows([[format_csv_cell(row.get(name)) for name in header] for row in flat])
    click.echo(text.getvalue(), nl=False)


def format_csv_cell(value: object) -> str:
    """Return a value as `print_csv` writes it, before quoting."""
    plain = plain_value(value)
    if plain in (None, {}):
        return ""
    return _guard_formula(plain) if isinstance(plain, str) else json.dumps(plain)


def _guard_formula(text: str) -> str:
    text = printable(text)
    is_formula = text.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be deleted, without deleting anything."
)


def format_options(command: _Command) -> _Command:
    """Add ``--json`` and ``--csv`` to a command, and pass the choice as argument `form`."""

    @functools.wraps(command)
    def call(*args: Any, as_json: bool, as_csv: bool, **kwargs: Any) -> Any:
        if as_json and as_csv:
            raise click.UsageError("give --json or --csv, not both")
        form: Format = "json" if as_json else "csv" if as_csv else "table"
        return command(*args, form=form, **kwargs)

    csv_option = click.option("--csv", "as_csv", is_flag=True, help="Print CSV, for spreadsheets.")
    return cast("_Command", json_option(csv_option(call)))


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation, unless `yes` is set. The answer "no" ends the command.

    Raises:
        click.UsageError: If standard input is not a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            "cannot ask for confirmation without a terminal; pass --yes to delete without asking"
        )
    click.confirm(question, abort=True)


def count_of(number: int, noun: str) -> str:
    """Return ``"1 file"``, ``"2 files"``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_hparams(flat: Mapping[str, object]) -> str:
    """Return hyperparameters as ``name=value`` pairs."""
    texts = {
        name: format_number(value) if isinstance(value, float) else format_hparam(value)
        for name, value in flat.items()
    }
    return " ".join(f"{name}={text}" for name, text in texts.items())


def plain_value(value: object) -> Any:
    """Return a value as a JSON value; see `print_json`."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return str(getattr(value, "value", value))  # includes members of string enums
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: plain_value(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_value(item) for item in value]
    if isinstance(value, datetime.datetime):
        return value.isoformat(timespec="milliseconds")
    return str(value)


def printable(text: str, *, keep_colours: bool = False) -> str:
    r"""Return a string that is safe to print on a terminal.

    Control characters become escapes such as ``\x1b``, because they could rewrite the screen,
    change the window title, or write to the clipboard. Colours are removed.

    Args:
        text: Output of a trial, or a name that a user chose.
        keep_colours: Whether to keep colours.
    """
    if text.isprintable():
        return text
    if not keep_colours:
        return _CONTROL.sub(_escape_match, _COLOUR.sub("", text))
    parts, end = [], 0
    for colour in _COLOUR.finditer(text):
        parts += [_CONTROL.sub(_escape_match, text[end : colour.start()]), colour[0]]
        end = colour.end()
    return "".join([*parts, _CONTROL.sub(_escape_match, text[end:])])


def _escape_match(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
