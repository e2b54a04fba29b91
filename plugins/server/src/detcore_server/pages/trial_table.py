"""The table of trials: its columns, filter and order, and the same as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from detcore.cli import format_csv_cell
from detcore_server.pages.table_filter import FilterError, parse_filter

if TYPE_CHECKING:
    from detcore_report import ExperimentView, TrialView


_FIXED = ("trial", "state", "steps", "best", "step", "last", "labels", "notes")
_MAX_HYPERPARAMETERS = 50
_MAX_ROWS = 200
_MAX_NUMBER = 1.7e308
_Row: TypeAlias = "tuple[TrialView, dict[str, object]]"


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column of the table.

    Attributes:
        key: Its name in filters and URLs.
        title: Its head.
        is_right: Whether it is aligned to the right.
        is_shown: Whether it was chosen.
        order: "ascending", "descending", or "" if the table is not sorted by it.
    """

    key: str
    title: str
    is_right: bool
    is_shown: bool = True
    order: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialTable:
    """The table as it was asked for.

    Attributes:
        columns: All columns; some may not be shown.
        rows: The trials that pass the filter, in order, and their values by the columns' keys.
        num_passed: How many pass; `rows` may be fewer.
        where: The filter.
        sort: The key of the column to sort by, with a minus for descending; "": the best first.
        error: Why the filter cannot be used, or None.
    """

    columns: Sequence[Column]
    rows: Sequence[tuple[TrialView, Mapping[str, object]]]
    num_passed: int
    where: str
    sort: str
    error: str | None

    @property
    def is_chosen(self) -> bool:
        """Whether some columns are not shown."""
        return not all(column.is_shown for column in self.columns)

    def shown(self) -> list[Column]:
        """Return the columns that are shown."""
        return [column for column in self.columns if column.is_shown]


def make_table(
    view: ExperimentView,
    *,
    where: str = "",
    sort: str = "",
    chosen: Sequence[str] = (),
    max_rows: int | None = _MAX_ROWS,
) -> TrialTable:
    """Return the trials of a view as a table.

    Args:
        view: The experiment, with all of its trials.
        where: The filter; "": all.
        sort: As in `TrialTable`; an unknown column is ignored.
        chosen: Keys of the columns to show; unknown ones are ignored; empty: all.
        max_rows: Maximum number of rows; None: all.
    """
    hyperparameters = view.varied
    heads = [
        ("trial", "trial", False), ("state", "state", False), *_heads(view, "labels"),
        ("steps", "steps", True),
        ("best", f"best {view.metric or 'metric'}", True), ("step", "at step", True),
        ("last", "last", True),
        *((f"hparams.{name}", name, False) for name in hyperparameters[:_MAX_HYPERPARAMETERS]),
        *_heads(view, "notes"),
    ]  # fmt: skip
    keys = [key for key, _, _ in heads]
    wanted = set(chosen) & set(keys) or set(keys)
    sort_by, is_down = sort.removeprefix("-"), sort.startswith("-")
    rows = [(trial, _values(trial)) for trial in view.trials]
    error = None
    if where.strip():
        try:
            test = parse_filter(where, _names(view, hyperparameters))
        except FilterError as fault:
            error = str(fault)
        else:
            rows = [row for row in rows if test(row[1])]
    if sort_by in keys:
        rows = _sorted(rows, sort_by, is_down=is_down)
    order = "descending" if is_down else "ascending"
    return TrialTable(
        columns=[
            Column(key, title, is_right, key in wanted, order if key == sort_by else "")
            for key, title, is_right in heads
        ],
        rows=rows[:max_rows],
        num_passed=len(rows),
        where=where,
        sort=sort if sort_by in keys else "",
        error=error,
    )


def table_query(table: TrialTable, others: Sequence[tuple[str, str]]) -> str:
    """Return the query of the page's URL: how the table is shown, and `others`."""
    return urllib.parse.urlencode([*others, *_query(table, table.sort)])


def sort_query(table: TrialTable, others: Sequence[tuple[str, str]], column: Column) -> str:
    """Return the query that sorts by a column, and in the other order if it is sorted by it."""
    is_up = column.order == "ascending"
    return urllib.parse.urlencode(
        [*others, *_query(table, f"-{column.key}" if is_up else column.key)]
    )


def _query(table: TrialTable, sort: str) -> list[tuple[str, str]]:
    columns = [("column", column.key) for column in table.shown()] if table.is_chosen else []
    found = [("where", table.where), ("sort", sort)]
    return [*(pair for pair in found if pair[1]), *columns]


def table_csv(table: TrialTable) -> str:
    """Return the table as it is shown; numbers have all their digits."""
    text = io.StringIO()
    writer = csv.writer(text)
    shown = table.shown()
    writer.writerow([format_csv_cell(column.title) for column in shown])
    for _, values in table.rows:
        writer.writerow([_format_csv_cell(values.get(column.key)) for column in shown])
    return text.getvalue()


def _values(trial: TrialView) -> dict[str, object]:
    return {
        "trial": trial.id,
        "state": trial.state,
        "steps": trial.steps,
        "best": trial.value,
        "step": trial.value_step,
        "last": trial.last,
        "labels": trial.labels,
        "notes": trial.notes,
        **{f"hparams.{name}": value for name, value in trial.hparams.items()},
    }


def _heads(view: ExperimentView, key: str) -> list[tuple[str, str, bool]]:
    """Return the column of labels or notes, if a trial has some."""
    return [(key, key, False)] if any(getattr(trial, key) for trial in view.trials) else []


def _names(view: ExperimentView, hyperparameters: Sequence[str]) -> dict[str, str]:
    """Return the names that a filter may use, and the key of each.

    A hyperparameter may also be named by the end of its name, if no other ends alike.
    """
    names: dict[str, str] = {}
    known = dict.fromkeys([*hyperparameters, *view.constants])
    ends: dict[str, list[str]] = {}
    for name in known:
        ends.setdefault(name.rpartition(".")[2], []).append(name)
    names.update({end: f"hparams.{all_[0]}" for end, all_ in ends.items() if len(all_) == 1})
    names.update({name: f"hparams.{name}" for name in known})
    if view.metric:
        names[view.metric] = "best"
    names.update({key: key for key in _FIXED})
    names.update({f"hparams.{name}": f"hparams.{name}" for name in known})
    return names


def _sorted(rows: list[_Row], key: str, *, is_down: bool) -> list[_Row]:
    """Return rows in order: numbers, then texts; those without a value are last in both orders."""

    def place(row: _Row) -> tuple[bool, float, str]:
        value = row[1].get(key)
        if isinstance(value, (int, float)):
            # An integer may be too large for a float.
            return False, max(-_MAX_NUMBER, min(value, _MAX_NUMBER)), ""
        return True, 0.0, _text(value)

    def is_missing(row: _Row) -> bool:
        value = row[1].get(key)
        return value in (None, (), "") or (isinstance(value, float) and math.isnan(value))

    there = sorted((row for row in rows if not is_missing(row)), key=place, reverse=is_down)
    return [*there, *(row for row in rows if is_missing(row))]


def _text(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)  # labels


def _format_csv_cell(value: object) -> str:
    return format_csv_cell(_text(value) if isinstance(value, tuple) else value)
