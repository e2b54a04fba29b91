"""Base class and helpers of all groups of queries."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Row, Select, Table, select, true, update
from sqlalchemy.sql.elements import ColumnElement

from detcore.contract.errors import ConfigError, NotFoundError
from detcore.log.lines import encode_document
from detcore.records.connections import mask_url
from detcore.records.engine import transaction
from detcore.records.record_classes import read_rows

_T = TypeVar("_T")
# Databases limit the number of values in a statement.
_MAX_VALUES = 500


def now() -> datetime.datetime:
    """Return the current time in UTC."""
    return datetime.datetime.now(datetime.timezone.utc)


def _call(start: Callable[[], _T]) -> _T:
    return start()


class Queries:
    """Base class of the groups of queries that `Database` combines."""

    def __init__(self, engine: Engine, begin: Callable[..., Any] | None = None) -> None:
        """Initialize the queries.

        Args:
            engine: The database.
            begin: Calls a function that starts a transaction, and returns the function's result.
        """
        self._engine = engine
        self._begin = begin or _call

    def _begin_read(self) -> AbstractContextManager[Connection]:
        return self.transaction(write=False)

    def _read_all(self, record: Callable[..., _T], query: Select[tuple[object, ...]]) -> list[_T]:
        """Return the rows of a query as records."""
        with self._begin_read() as connection:
            return read_rows(record, connection.execute(query))

    def _read_first(
        self, record: Callable[..., _T], query: Select[tuple[object, ...]]
    ) -> _T | None:
        """Return the first row of a query as a record, or None if there are no rows."""
        return next(iter(self._read_all(record, query.limit(1))), None)

    def _read_value(self, query: Select[Any]) -> Any:
        """Return the first column of the first row of a query, or None if there are no rows."""
        with self._begin_read() as connection:
            return connection.execute(query).scalar()

    def _update_row(
        self, table: Table, number: int, /, *conditions: ColumnElement[bool], **changed: object
    ) -> bool:
        """Update the row with an id in a transaction; see `update_row`."""
        with self._begin_write() as connection:
            return update_row(connection, table, number, *conditions, **changed)

    def _begin_write(self) -> AbstractContextManager[Connection]:
        return self.transaction(write=True)

    @contextlib.contextmanager
    def transaction(self, *, write: bool) -> Iterator[Connection]:
        """Run a block in a transaction.

        Args:
            write: Whether the block writes. Writing transactions run one after the other.
        """
        with contextlib.ExitStack() as stack:
            yield self._begin(lambda: stack.enter_context(transaction(self._engine, write=write)))


def update_row(
    connection: Connection,
    table: Table,
    number: int,
    /,
    *conditions: ColumnElement[bool],
    **changed: object,
) -> bool:
    """Update the row with an id if it satisfies the conditions. Return whether it did.

    Raises:
        NotFoundError: If no row has this id; the message lists the valid ids.
    """
    is_updated = update_rows(connection, table, table.c.id == number, *conditions, **changed)
    if not is_updated:
        require_row(connection, table, number)
    return is_updated


def update_rows(
    connection: Connection, table: Table, *conditions: ColumnElement[bool], **changed: object
) -> bool:
    """Update the rows that satisfy the conditions. Return whether there were any."""
    return connection.execute(update(table).where(*conditions).values(**changed)).rowcount > 0


def find_row(connection: Connection, table: Table, number: int) -> Row[Any]:
    """Return the row with an id.

    Raises:
        NotFoundError: If no row has this id; the message lists the valid ids.
    """
    row = connection.execute(select(table).where(table.c.id == number)).fetchone()
    if row is None:
        raise _not_found(connection, table, number)
    return row


def require_row(connection: Connection, table: Table, number: int) -> None:
    """Raise NotFoundError, which lists the valid ids, unless `number` is an id of `table`."""
    if not connection.execute(select(table.c.id).where(table.c.id == number)).fetchone():
        raise _not_found(connection, table, number)


def _not_found(connection: Connection, table: Table, number: int) -> NotFoundError:
    noun = table.name.removesuffix("s")
    numbers = list(connection.execute(select(table.c.id).order_by(table.c.id)).scalars())
    where = mask_url(connection.engine.url)
    if not numbers:
        return NotFoundError(
            f"no {noun} {number}: there are no {noun}s yet in {where}.\n"
            "Start an experiment: detcore run CONFIG.yaml"
        )
    remedy = "List them: detcore experiment list"
    if noun == "trial":
        remedy = "List the trials of an experiment: detcore experiment trials ID"
    return NotFoundError(
        f"no {noun} {number} in {where}.\n"
        f"{noun.capitalize()}s there: {describe_ids(numbers)}.\n"
        f"{remedy}"
    )


def make_in_conditions(
    column: ColumnElement[_T], values: Sequence[_T] | None
) -> list[ColumnElement[bool]]:
    """Return conditions that together select some values, or all; see `_MAX_VALUES`."""
    if values is None:
        return [true()]
    return [
        column.in_(values[start : start + _MAX_VALUES])
        for start in range(0, len(values), _MAX_VALUES)
    ]


def describe_ids(numbers: Iterable[int]) -> str:
    """Return sorted numbers with ranges such as ``1-4, 7``, at most the newest 20 ranges."""
    groups: list[list[int]] = []
    for number in sorted(numbers):
        if groups and number == groups[-1][1] + 1:
            groups[-1][1] = number
        else:
            groups.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in groups]
    return ", ".join(texts if len(texts) <= 20 else ["...", *texts[-20:]])


def check_json_metadata(metadata: object) -> dict[str, Any]:
    """Return a copy of metadata as a dictionary.

    Raises:
        ConfigError: If it is not a dictionary of JSON values.
    """
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise ConfigError(f"metadata is {metadata!r}; expected a dictionary with string keys")
    try:
        encode_document(metadata)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"metadata cannot be stored as JSON: {error}") from error
    return dict(metadata)


def check_strings(what: str, texts: object) -> list[str]:
    """Return a list of strings.

    Raises:
        ConfigError: If it is not a list of strings. A single string is not a list.
    """
    plain = None if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)
    if plain is None or not all(isinstance(text, str) for text in plain):
        raise ConfigError(f"{what} is {texts!r}; expected a list of strings")
    return plain
