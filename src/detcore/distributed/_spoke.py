"""Call the first rank and wait for its answer, on every other rank of a group."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Mapping
from typing import Any

from detcore.contract.errors import DistributedError
from detcore.distributed._board import Board, Waiter
from detcore.distributed._failure import CallSites, Failure, Position, lost, missing
from detcore.distributed._probe import Answerer
from detcore.distributed._segments import Segments, Shared, read_parts, send_parts
from detcore.distributed._values import LARGE, Inline, Packed, pack
from detcore.distributed._wire import CALL, ERROR, LEAVE, RESULT, Channel, Frame, LinkLost

__all__ = ["Spoke"]

_LET_HUB_SPEAK_S = 0.95  # the first rank knows which ranks are missing, so it reports first
_TICK_S = 0.25


class Spoke:
    """One group of ranks, on a rank that is not its first.

    Args:
        channel: Connection to the first rank.
        index: Index of this rank in the group.
        members: Ranks over all nodes, by index in the group.
        timeout_s: How long a collective waits for a rank that is alive.
        probe: Connection on which the first rank asks for this rank's current line.
        board: Memory that the ranks share, on one machine.
        segments: Shared memory for large values, on one machine.
    """

    def __init__(
        self,
        channel: Channel,
        index: int,
        members: list[int],
        *,
        timeout_s: float,
        probe: Channel,
        board: Board | None = None,
        segments: Segments | None = None,
    ) -> None:
        self._channel = channel
        self._index = index
        self._members = members
        self._sites = CallSites()
        self._others = [i for i in range(len(members)) if i != index]
        self._timeout_s = timeout_s
        self._board = board
        self._segments = segments
        self._answerer = Answerer(probe, None if segments is None else segments.trim)
        self._position = Position()
        self._failure: Failure | None = None
        self._is_closing = False
        self._lock = threading.Lock()
        pollers = (select.poll(), select.poll())  # for even and odd collectives
        for number, poller in enumerate(pollers):
            if board is not None:
                poller.register(board.release_descriptor(number), select.POLLIN)
            poller.register(channel, select.POLLIN)
        ranks = 0 if board is None else board.size
        self._waiters = [Waiter(poller, ranks) for poller in pollers]

    def exchange(self, name: str, mode: str, value: object) -> list[Any] | None:
        """Take part in a collective; see `Hub.exchange`."""
        mine = self._prepare(mode, value) if mode in ("gather", "allgather") else None
        site = self._sites.caller()
        with self._lock:
            if self._is_closing:
                raise DistributedError(f"{name}() was called on a context that is closed.")
            if self._failure is not None:
                raise self._failure.error()
            self._answerer.thread_id = threading.get_ident()
            self._position = Position(self._position.number + 1, name, site)
            try:
                frame = self._ask(mine)
            except DistributedError:
                raise
            except BaseException:
                # A partial frame may have been sent. The others see this rank leave.
                self._failure = self._lost(f"can no longer be asked: {name}() was interrupted")
                self._channel.close()
                raise
            finally:
                if isinstance(mine, Shared):
                    mine.close()
            if frame is None:
                return self._board_results(mode, value)
            return self._results(mode, value, read_parts(frame, self._segments))

    def _prepare(self, mode: str, value: object) -> Packed | Shared:
        packed = pack(value)
        if self._segments is None or packed.size < LARGE:
            return packed
        readers = [0] if mode == "gather" else self._others
        return self._segments.put(packed, readers)

    def _ask(self, mine: Packed | Shared | None) -> Frame | None:
        """Return the first rank's answer, or None if it released the collective on the board."""
        deadline = time.monotonic() + self._timeout_s + _LET_HUB_SPEAK_S
        position = self._position
        # After rank 0 is gone, its last message may still be readable.
        with contextlib.suppress(LinkLost):
            self._call(mine, deadline)
        try:
            is_released, frame = self._wait(deadline)
        except LinkLost as error:
            self._failure = self._lost(f"died or lost its connection ({error})")
            raise self._failure.error() from error
        if is_released:
            return None
        if frame is None:
            table = {self._members[0]: Position(), self._members[self._index]: position}
            self._failure = missing([self._members[0]], self._timeout_s, table, {})
        elif frame.kind == ERROR:
            self._failure = Failure.from_meta(frame.meta)
        elif frame.kind == LEAVE:
            self._failure = self._lost(str(frame.meta["how"]))
        elif frame.kind == RESULT:
            return frame
        else:
            self._failure = self._lost("sent something that it should not send")
        raise self._failure.error()

    def _call(self, mine: Packed | Shared | None, deadline: float) -> None:
        position = self._position
        if (
            self._board is not None
            and not isinstance(mine, Shared)
            and self._board.write(self._index, position, mine)
        ):
            self._board.ring(self._index)
            return
        meta = {"number": position.number, "name": position.name, "site": position.site}
        parts = {} if mine is None else {self._index: mine}
        send_parts(self._channel, CALL, meta, parts, deadline=deadline)

    def _wait(self, deadline: float) -> tuple[bool, Frame | None]:
        """Return whether the collective was released, or the received frame; neither if late."""
        number = self._position.number
        waiter = self._waiters[number & 1]
        while True:
            remaining = deadline - time.monotonic()
            ready = waiter.wait(min(remaining, _TICK_S))
            # An available result takes precedence over later events.
            if self._board is not None and self._board.is_released(number, ready):
                return True, None
            frame = self._channel.receive()
            if frame is not None or remaining <= 0:
                return False, frame
            if self._is_closing:
                raise DistributedError("the context was closed while a collective was waiting.")

    def _lost(self, how: str) -> Failure:
        return lost(self._members[0], how, {self._members[self._index]: self._position})

    def _board_results(self, mode: str, value: object) -> list[Any] | None:
        assert self._board is not None
        if mode == "broadcast":
            return self._board.values([0], self._position.number)
        if mode != "allgather":
            return None
        values = self._board.values(self._others, self._position.number)
        values.insert(self._index, value)
        return values

    def _results(
        self, mode: str, value: object, parts: Mapping[int, Inline | Shared]
    ) -> list[Any] | None:
        try:
            if mode == "broadcast":
                return [parts[0].load()]
            if mode != "allgather":
                return None
            values = [parts[i].load() for i in self._others]
            values.insert(self._index, value)
            return values
        finally:
            for part in parts.values():
                part.close()

    def close(self, how: str) -> None:
        """Notify the others that this rank leaves, and why; a collective waiting here raises."""
        self._is_closing = True
        with self._lock:
            with contextlib.suppress(LinkLost):
                self._channel.send(LEAVE, {"how": how}, deadline=time.monotonic() + 0.2)
            self._channel.close()
            if self._segments is not None:
                self._segments.close()
            if self._board is not None:
                self._board.close()
        self._answerer.close()
