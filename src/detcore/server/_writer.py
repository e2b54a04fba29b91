"""Reports of many senders, written by one thread in few transactions."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy.exc import IntegrityError

from detcore.database._parts import Owner, Part, Position, add_parts, parse_part
from detcore.errors import DatabaseError, DetcoreError, NotFoundError

if TYPE_CHECKING:
    from detcore.database import Database

__all__ = ["BusyError", "RefusedError", "Writer", "unknown_run"]

# Size of one transaction: enough that its own cost does not show, little enough that other writers
# do not wait long.
_PARTS_AT_ONCE = 512
_BYTES_AT_ONCE = 512 * 1024
# Limits of the queue: more is refused, so that a stalled database does not fill the memory.
_WAITING_PARTS = 4096
_WAITING_BYTES = 64 * 2**20


class BusyError(DatabaseError):
    """Too many reports wait to be written."""


class RefusedError(DatabaseError):
    """Records contradict those in the database."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """Lines to write, and the future that their sender waits for."""

    owner: Owner
    first: int
    start: int
    data: bytes
    done: asyncio.Future[Position]


class Writer:
    """Adds parts of spools to the database; each is answered once it is committed.

    Parts that arrive during a transaction are written together by the next one. Its methods are
    called in the event loop, and never wait for the database themselves.
    """

    def __init__(self, database: Database) -> None:
        """Start the thread.

        Args:
            database: The database; not closed by this.
        """
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._waiting: collections.deque[_Order] = collections.deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="detcore-writer", daemon=True)
        self._thread.start()

    def add(self, owner: Owner, *, first: int, start: int, data: bytes) -> asyncio.Future[Position]:
        """Take whole lines of a spool.

        Args:
            owner: Trial and run.
            first: Byte of the spool where its records begin.
            start: Byte where these lines begin; they are left out if its position is another one.
            data: The lines.

        Returns:
            A future of the spool's position, once it is in the database. It raises NotFoundError if
            there is no such run, or the error of the database.

        Raises:
            BusyError: If too many reports wait.
        """
        done = self._loop.create_future()
        order = _Order(owner=owner, first=first, start=start, data=data, done=done)
        with self._changed:
            if (
                self._closing
                or len(self._waiting) >= _WAITING_PARTS
                or self._waiting_bytes >= _WAITING_BYTES
            ):
                raise BusyError(
                    f"{len(self._waiting)} reports of {self._waiting_bytes} bytes are waiting to "
                    "be written, and no more are taken now.\n"
                    "They are safe where they come from; send them again in a moment."
                )
            self._waiting.append(order)
            self._waiting_bytes += len(data)
            self._changed.notify()
        return done

    def close(self) -> None:
        """Write the waiting lines, and end the thread; no more are accepted."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while orders := self._next():
            try:
                answers = self._write([_parsed(order) for order in orders])
            except Exception as error:  # noqa: BLE001  (the senders receive it)
                answers = [error] * len(orders)
            self._loop.call_soon_threadsafe(_answer, orders, answers)

    def _next(self) -> list[_Order]:
        """Wait for orders; return some, or none if this is the end."""
        orders: list[_Order] = []
        size = 0
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            while self._waiting and len(orders) < _PARTS_AT_ONCE and size < _BYTES_AT_ONCE:
                orders.append(self._waiting.popleft())
                size += len(orders[-1].data)
            self._waiting_bytes -= size
        return orders

    def _write(self, parts: Sequence[Part]) -> list[Position | Exception]:
        """Write parts in one transaction; if one of them fails, each in a separate one."""
        try:
            with self._database._write() as connection:
                found = add_parts(connection, parts, of_known_runs=True)
        except DetcoreError:
            raise  # the database is unreachable or full, for all parts
        except Exception as error:
            if len(parts) > 1:
                return [answer for part in parts for answer in self._alone(part)]
            if isinstance(error, IntegrityError):
                raise _refused(parts[0], error) from error
            raise
        return [
            unknown_run(part.owner) if position is None else position
            for part, position in zip(parts, found, strict=True)
        ]

    def _alone(self, part: Part) -> list[Position | Exception]:
        try:
            return self._write([part])
        except Exception as error:  # noqa: BLE001  (the sender receives it)
            return [error]


def _parsed(order: _Order) -> Part:
    return parse_part(order.data, order.owner, first=order.first, start=order.start)


def _answer(orders: Sequence[_Order], answers: Sequence[Position | Exception]) -> None:
    for order, answer in zip(orders, answers, strict=True):
        if order.done.cancelled():
            continue
        if isinstance(answer, Exception):
            order.done.set_exception(answer)
        else:
            order.done.set_result(answer)


def unknown_run(owner: Owner) -> NotFoundError:
    """Return the error for reports of a run that was never started."""
    return NotFoundError(
        f"trial {owner[0]} has no run {owner[1]}, or there is no such trial.\n"
        "Reports belong to a run that was started here; it may have been deleted."
    )


def _refused(part: Part, error: IntegrityError) -> RefusedError:
    return RefusedError(
        f"cannot take in reports of trial {part.owner[0]}, run {part.owner[1]}, from byte "
        f"{part.start} on: {error.orig}.\nThey are there already, or contradict what is."
    )
