"""The base class and the helpers of the groups of queries."""

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
# Databases limit how many values a statement has.
_AT_ONCE = 500


def now() -> datetime.datetime:
    """Return the time of a record that is written."""
    return datetime.datetime.now(datetime.timezone.utc)


def _call(start: Callable[[], _T]) -> _T:
    return start()


class Queries:
    """Methods of `Database` that need an engine and nothing else."""

    def __init__(self, engine: Engine, begin: Callable[..., Any] | None = None) -> None:
        """Initialize the queries.

        Args:
            engine: The database.
            begin: Calls the function that starts a transaction, and returns its result.
        """
        self._engine = engine
        self._begin = begin or _call

    def _read(self) -> AbstractContextManager[Connection]:
        return self.transaction(write=False)

    def _read_all(self, record: Callable[..., _T], query: Select[tuple[object, ...]]) -> list[_T]:
        """Return the rows of a query as records."""
        with self._read() as connection:
            return read_rows(record, connection.execute(query))

    def _read_first(
        self, record: Callable[..., _T], query: Select[tuple[object, ...]]
    ) -> _T | None:
        """Return the first row of a query as a record; None without a row."""
        return next(iter(self._read_all(record, query.limit(1))), None)

    def _read_value(self, query: Select[Any]) -> Any:
        """Return the first column of the first row of a query; None without a row."""
        with self._read() as connection:
            return connection.execute(query).scalar()

    def _change(
        self, table: Table, number: int, /, *conditions: ColumnElement[bool], **changed: object
    ) -> bool:
        """Change the row with an id in a transaction; see `change`."""
        with self._write() as connection:
            return change(connection, table, number, *conditions, **changed)

    def _write(self) -> AbstractContextManager[Connection]:
        return self.transaction(write=True)

    @contextlib.contextmanager
    def transaction(self, *, write: bool) -> Iterator[Connection]:
        """Run a block in a transaction.

        Args:
            write: Whether it writes; such transactions wait for each other at their beginning.
        """
        with contextlib.ExitStack() as stack:
            yield self._begin(lambda: stack.enter_context(transaction(self._engine, write=write)))


def change(
    connection: Connection,
    table: Table,
    number: int,
    /,
    *conditions: ColumnElement[bool],
    **changed: object,
) -> bool:
    """Change the row with an id if conditions are true of it; return whether they were.

    Raises:
        NotFoundError: If no row has that id; the message lists the known ones.
    """
    done = change_where(connection, table, table.c.id == number, *conditions, **changed)
    if not done:
        require(connection, table, number)
    return done


def change_where(
    connection: Connection, table: Table, *conditions: ColumnElement[bool], **changed: object
) -> bool:
    """Change the rows of which conditions are true; return whether there were any."""
    return connection.execute(update(table).where(*conditions).values(**changed)).rowcount > 0


def find(connection: Connection, table: Table, number: int) -> Row[Any]:
    """Return the row with an id.

    Raises:
        NotFoundError: If no row has that id; the message lists the known ones.
    """
    row = connection.execute(select(table).where(table.c.id == number)).fetchone()
    if row is None:
        raise _not_found(connection, table, number)
    return row


def require(connection: Connection, table: Table, number: int) -> None:
    """Raise NotFoundError, listing the known ids, unless `number` is an id of `table`."""
    if not connection.execute(select(table.c.id).where(table.c.id == number)).fetchone():
        raise _not_found(connection, table, number)


def _not_found(connection: Connection, table: Table, number: int) -> NotFoundError:
    what = table.name.removesuffix("s")
    known = list(connection.execute(select(table.c.id).order_by(table.c.id)).scalars())
    where = mask_url(connection.engine.url)
    if not known:
        return NotFoundError(
            f"no {what} {number}: there are none yet in {where}.\n"
            "Start one: detcore run CONFIG.yaml"
        )
    return NotFoundError(
        f"no {what} {number} in {where}.\n"
        f"{what.capitalize()}s there: {describe_ids(known)}.\n"
        "See what they are: detcore experiment list"
    )


def among(column: ColumnElement[_T], values: Sequence[_T] | None) -> list[ColumnElement[bool]]:
    """Return conditions that together are true of some values, or of all; see `_AT_ONCE`."""
    if values is None:
        return [true()]
    return [
        column.in_(values[start : start + _AT_ONCE]) for start in range(0, len(values), _AT_ONCE)
    ]


def describe_ids(numbers: Iterable[int]) -> str:
    """Return sorted numbers with runs joined: ``1-4, 7``; the newest 20 groups of many."""
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
        ConfigError: If it is no dictionary of JSON values.
    """
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise ConfigError(f"metadata is {metadata!r}; expected a dictionary with texts as keys")
    try:
        encode_document(metadata)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"metadata cannot be kept as JSON: {error}") from error
    return dict(metadata)


def check_strings(what: str, texts: object) -> list[str]:
    """Return a list of texts.

    Raises:
        ConfigError: If it is something else; one text is no list of texts.
    """
    plain = None if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)
    if plain is None or not all(isinstance(text, str) for text in plain):
        raise ConfigError(f"{what} is {texts!r}; expected a list of texts")
    return plain
