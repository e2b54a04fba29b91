"""Reports of many senders, written by one thread in few transactions."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from detcore.database import Position, SpoolPart
from detcore.errors import DatabaseError

if TYPE_CHECKING:
    from detcore_server._database import ServerDatabase

__all__ = ["BusyError", "RefusedError", "Writer"]

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

    lines: SpoolPart
    done: asyncio.Future[Position]


class Writer:
    """Adds parts of spools to the database; each is answered once it is committed.

    Parts that arrive during a transaction are written together by the next one. Its methods are
    called in the event loop, and never wait for the database themselves.
    """

    def __init__(self, database: ServerDatabase) -> None:
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

    def add(self, lines: SpoolPart) -> asyncio.Future[Position]:
        """Take whole lines of a spool.

        Args:
            lines: The lines; they are left out if they begin elsewhere than at its position.

        Returns:
            A future of the spool's position, once it is in the database. It raises NotFoundError if
            there is no such run, or the error of the database.

        Raises:
            BusyError: If too many reports wait.
        """
        done = self._loop.create_future()
        order = _Order(lines=lines, done=done)
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
            self._waiting_bytes += len(lines.lines)
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
                answers = self._write(orders)
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
                size += len(orders[-1].lines.lines)
            self._waiting_bytes -= size
        return orders

    def _write(self, orders: Sequence[_Order]) -> list[Position | Exception]:
        found = self._database.add_spool_lines([order.lines for order in orders])
        return [
            RefusedError(str(each)) if isinstance(each, DatabaseError) else each for each in found
        ]


def _answer(orders: Sequence[_Order], answers: Sequence[Position | Exception]) -> None:
    for order, answer in zip(orders, answers, strict=True):
        if order.done.cancelled():
            continue
        if isinstance(answer, Exception):
            order.done.set_exception(answer)
        else:
            order.done.set_result(answer)
