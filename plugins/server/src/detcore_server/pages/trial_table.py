"""Trial table with columns, filter, order and CSV export."""

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
    """Column of the table.

    Attributes:
        key: Name in filters and URLs.
        title: Column head.
        is_right: Whether the column is right-aligned.
        is_shown: Whether the column is shown.
        order: "ascending", "descending", or "" if the table is not sorted by this column.
    """

    key: str
    title: str
    is_right: bool
    is_shown: bool = True
    order: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialTable:
    """The requested table.

    Attributes:
        columns: All columns, including hidden columns.
        rows: Filtered trials in order, with their values by column key.
        num_passed: Number of filtered trials. `rows` may contain fewer trials.
        where: The filter.
        sort: Key of the sort column, with a minus for descending. "": best first.
        error: Error in the filter, or None.
    """

    columns: Sequence[Column]
    rows: Sequence[tuple[TrialView, Mapping[str, object]]]
    num_passed: int
    where: str
    sort: str
    error: str | None

    @property
    def is_chosen(self) -> bool:
        """Whether some columns are hidden."""
        return not all(column.is_shown for column in self.columns)

    def shown(self) -> list[Column]:
        """Return the visible columns."""
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
        where: The filter. "": all trials.
        sort: As in `TrialTable`. Unknown columns are ignored.
        chosen: Keys of the columns to show. Unknown keys are ignored. Empty: all columns.
        max_rows: Maximum number of rows. None: no limit.
    """
    hyperparameters = view.varied
    heads = [
        ("trial", "trial", False), ("state", "state", False), *_list_heads(view, "labels"),
        ("steps", "steps", True),
        ("best", f"best {view.metric or 'metric'}", True), ("step", "at step", True),
        ("last", "last", True),
        *((f"hparams.{name}", name, False) for name in hyperparameters[:_MAX_HYPERPARAMETERS]),
        *_list_heads(view, "notes"),
    ]  # fmt: skip
    keys = [key for key, _, _ in heads]
    shown_keys = set(chosen) & set(keys) or set(keys)
    sort_by, is_down = sort.removeprefix("-"), sort.startswith("-")
    rows = [(trial, _read_values(trial)) for trial in view.trials]
    error = None
    if where.strip():
        try:
            test = parse_filter(where, _filter_names(view, hyperparameters))
        except FilterError as fault:
            error = str(fault)
        else:
            rows = [row for row in rows if test(row[1])]
    if sort_by in keys:
        rows = _sort_rows(rows, sort_by, is_down=is_down)
    order = "descending" if is_down else "ascending"
    return TrialTable(
        columns=[
            Column(key, title, is_right, key in shown_keys, order if key == sort_by else "")
            for key, title, is_right in heads
        ],
        rows=rows[:max_rows],
        num_passed=len(rows),
        where=where,
        sort=sort if sort_by in keys else "",
        error=error,
    )


def table_query(table: TrialTable, others: Sequence[tuple[str, str]]) -> str:
    """Return the URL query for the table's format and `others`."""
    return urllib.parse.urlencode([*others, *_query(table, table.sort)])


def sort_query(table: TrialTable, others: Sequence[tuple[str, str]], column: Column) -> str:
    """Return the URL query that sorts by a column, or reverses its order."""
    is_up = column.order == "ascending"
    return urllib.parse.urlencode(
        [*others, *_query(table, f"-{column.key}" if is_up else column.key)]
    )


def _query(table: TrialTable, sort: str) -> list[tuple[str, str]]:
    columns = [("column", column.key) for column in table.shown()] if table.is_chosen else []
    pairs = [("where", table.where), ("sort", sort)]
    return [*(pair for pair in pairs if pair[1]), *columns]


def table_csv(table: TrialTable) -> str:
    """Return the visible table as CSV. Numbers have all digits."""
    text = io.StringIO()
    writer = csv.writer(text)
    columns = table.shown()
    writer.writerow([format_csv_cell(column.title) for column in columns])
    for _, values in table.rows:
        writer.writerow([_format_csv_cell(values.get(column.key)) for column in columns])
    return text.getvalue()


def _read_values(trial: TrialView) -> dict[str, object]:
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


def _list_heads(view: ExperimentView, key: str) -> list[tuple[str, str, bool]]:
    """Return the column of labels or notes if any trial has them."""
    return [(key, key, False)] if any(getattr(trial, key) for trial in view.trials) else []


def _filter_names(view: ExperimentView, hyperparameters: Sequence[str]) -> dict[str, str]:
    """Return the names allowed in filters, and their keys.

    The last part of a hyperparameter's name is also allowed if it is unique.
    """
    names: dict[str, str] = {}
    hyperparameter_names = dict.fromkeys([*hyperparameters, *view.constants])
    ends: dict[str, list[str]] = {}
    for name in hyperparameter_names:
        ends.setdefault(name.rpartition(".")[2], []).append(name)
    names.update({end: f"hparams.{all_[0]}" for end, all_ in ends.items() if len(all_) == 1})
    names.update({name: f"hparams.{name}" for name in hyperparameter_names})
    if view.metric:
        names[view.metric] = "best"
    names.update({key: key for key in _FIXED})
    names.update({f"hparams.{name}": f"hparams.{name}" for name in hyperparameter_names})
    return names


def _sort_rows(rows: list[_Row], key: str, *, is_down: bool) -> list[_Row]:
    """Sort rows: numbers, then strings. Missing values are last in both orders."""

    def place(row: _Row) -> tuple[bool, float, str]:
        value = row[1].get(key)
        if isinstance(value, (int, float)):
            # The integer may exceed the float range.
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
