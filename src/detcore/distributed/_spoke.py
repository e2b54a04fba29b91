"""Every other rank's side of a group: it calls the first rank and waits for its answer."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from typing import Any

from detcore.distributed._failure import Failure, Position, call_site, lost, missing
from detcore.distributed._parts import read_parts, send_parts
from detcore.distributed._probe import Answerer
from detcore.distributed._values import Packed, pack
from detcore.distributed._wire import CALL, ERROR, LEAVE, RESULT, Channel, Frame, LinkLost
from detcore.errors import DistributedError

__all__ = ["Spoke"]

_LET_HUB_SPEAK_S = 0.95  # the first rank knows who is missing; its word comes before our own
_TICK_S = 0.25


class Spoke:
    """One group of ranks, on a rank that is not its first.

    Args:
        channel: Connection to the first rank.
        index: Index of this rank in the group.
        members: Ranks over all nodes, by index in the group.
        timeout_s: How long a collective waits for a rank that lives.
        answerer: Tells the first rank which line this rank is at.
    """

    def __init__(
        self,
        channel: Channel,
        index: int,
        members: list[int],
        *,
        timeout_s: float,
        answerer: Answerer | None = None,
    ) -> None:
        self._channel = channel
        self._index = index
        self._members = members
        self._timeout_s = timeout_s
        self._answerer = answerer
        self._position = Position()
        self._failure: Failure | None = None
        self._is_closing = False
        self._lock = threading.Lock()
        self._poller = select.poll()
        self._poller.register(channel, select.POLLIN)

    def exchange(self, name: str, mode: str, value: object) -> list[Any] | None:
        """Take part in a collective; see `Hub.exchange`."""
        mine = pack(value) if mode in ("gather", "allgather") else None
        site = call_site()
        with self._lock:
            if self._is_closing:
                raise DistributedError(f"{name}() was called on a context that is closed.")
            if self._failure is not None:
                raise self._failure.error()
            if self._answerer is not None:
                self._answerer.thread_id = threading.get_ident()
            self._position = Position(self._position.number + 1, name, site)
            try:
                frame = self._ask(mine)
            except DistributedError:
                raise
            except BaseException:
                # Half a frame may be on its way. The others see this rank leave.
                self._failure = self._lost(f"can no longer be asked: {name}() was interrupted")
                self._channel.close()
                raise
            finally:
                if mine is not None:
                    mine.close()
            return self._results(mode, value, read_parts(frame))

    def _ask(self, mine: Packed | None) -> Frame:
        deadline = time.monotonic() + self._timeout_s + _LET_HUB_SPEAK_S
        position = self._position
        meta = {"number": position.number, "name": position.name, "site": position.site}
        parts = {} if mine is None else {self._index: mine}
        # When rank 0 is gone, why it went may still be there to be read.
        with contextlib.suppress(LinkLost):
            send_parts(self._channel, CALL, meta, parts, deadline=deadline)
        try:
            frame = self._wait(deadline)
        except LinkLost as error:
            self._failure = self._lost(f"died or lost its connection ({error})")
            raise self._failure.error() from error
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

    def _wait(self, deadline: float) -> Frame | None:
        while True:
            remaining = deadline - time.monotonic()
            self._poller.poll(max(min(remaining, _TICK_S), 0) * 1000)
            frame = self._channel.receive()
            if frame is not None or remaining <= 0:
                return frame
            if self._is_closing:
                raise DistributedError("the context was closed while a collective was waiting.")

    def _lost(self, how: str) -> Failure:
        return lost(self._members[0], how, {self._members[self._index]: self._position})

    def _results(self, mode: str, value: object, parts: dict[int, Packed]) -> list[Any] | None:
        try:
            if mode == "broadcast":
                return [parts[0].load()]
            if mode != "allgather":
                return None
            indices = range(len(self._members))
            return [value if i == self._index else parts[i].load() for i in indices]
        finally:
            for part in parts.values():
                part.close()

    def close(self, how: str) -> None:
        """Tell the others that this rank leaves, and why; a collective that waits here raises."""
        self._is_closing = True
        with self._lock:
            with contextlib.suppress(LinkLost):
                self._channel.send(LEAVE, {"how": how}, deadline=time.monotonic() + 0.2)
            self._channel.close()
        if self._answerer is not None:
            self._answerer.close()
