"""Exchange values in a group of ranks: the first one, the hub, collects and answers all calls.

The only module of the core that pickles; see docs/distributed.md. Only frames of ranks that have
proven to belong to the job reach it.
"""

from __future__ import annotations

import contextlib
import pickle  # between proven ranks only: the handshake precedes the first frame
import select
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

from detcore.contract.errors import DistributedError, describe
from detcore.distributed.probe import Answerer, ask
from detcore.distributed.rank_failures import (
    Failure,
    RankPosition,
    find_caller,
    lost,
    mismatch,
    missing,
    place_of,
)
from detcore.distributed.wire import CALL, ERROR, LEAVE, RESULT, Frame, LinkLost, RankChannel

_Packed: TypeAlias = bytes | memoryview
_TICK_S = 0.25
_SETTLE_S = 0.5  # how long a mismatch waits for the other ranks, to find the one that diverges
_LET_HUB_SPEAK_S = 2.0  # the first rank knows which ranks are missing, so it reports first


class Hub:
    """One group of ranks, on its first rank.

    A thread checks the connections four times a second while no collective runs here, so that
    waiting ranks learn of a dead one even if this rank is busy elsewhere.

    Args:
        channels: Index in the group -> connection, for all other ranks.
        members: Ranks over all nodes, by index in the group.
        timeout_s: How long a collective waits for a rank that is alive.
        probes: Index in the group -> connection on which to ask that rank for its current line.
    """

    def __init__(
        self,
        channels: Mapping[int, RankChannel],
        members: list[int],
        *,
        timeout_s: float,
        probes: Mapping[int, RankChannel],
    ) -> None:
        self._channels = dict(channels)
        self._members = members
        self._timeout_s = timeout_s
        self._probes = dict(probes)
        self._positions = dict.fromkeys(range(len(members)), RankPosition())
        # Calls that have arrived: index in the group -> value, if the call carries one.
        self._calls: dict[int, _Packed | None] = {}
        self._kinds: set[tuple[int, str]] = set()  # the collectives of these calls
        self._first_arrival = 0.0
        self._left: dict[int, str] = {}
        self._failure: Failure | None = None
        self._is_active = False
        self._is_closing = False
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread_id = threading.get_ident()
        self._poller = select.poll()
        self._by_descriptor = {channel.fileno(): index for index, channel in channels.items()}
        for channel in channels.values():
            self._poller.register(channel, select.POLLIN)
        self._watcher = threading.Thread(
            target=_watch, args=(weakref.ref(self), self._closed), daemon=True, name="detcore-peers"
        )
        self._watcher.start()

    def exchange(self, name: str, mode: str, value: object) -> list[Any] | None:
        """Take part in a collective.

        Args:
            name: Name of the method that the user called.
            mode: ``"gather"``, ``"allgather"``, ``"broadcast"`` or ``"barrier"``.
            value: This rank's value.

        Returns:
            The values in the order of the group; for a broadcast one value, for a barrier None.

        Raises:
            DistributedError: If not all ranks reach this collective.
        """
        mine = _pack(value) if mode in ("allgather", "broadcast") else None
        site = find_caller()
        with self._lock:
            if self._is_closing:
                raise DistributedError(f"{name}() was called on a context that is closed.")
            self._thread_id = threading.get_ident()
            own = RankPosition(self._positions[0].number + 1, name, site)
            try:
                self._is_active = True
                self._await_all(own)
                return self._answer(mode, value, mine)
            except DistributedError:
                raise
            except BaseException as error:
                self._note(lost(self._members[0], f"left {name}() with {error!r}", self._table()))
                raise
            finally:
                self._is_active = False

    def _await_all(self, own: RankPosition) -> None:
        if self._failure is not None:
            raise self._failure.error()
        self._positions[0] = own
        if not self._calls:
            self._first_arrival = time.monotonic()
        wanted = {own.kind()}
        diverged = None
        while True:
            self._check()
            is_complete = len(self._calls) == len(self._channels)
            now = time.monotonic()
            if self._kinds and self._kinds != wanted:
                diverged = diverged or now
                if is_complete or now - diverged > _SETTLE_S:
                    self._fail(mismatch(self._table([0, *self._calls])))
            elif is_complete:
                return
            remaining = self._first_arrival + self._timeout_s - now
            if remaining <= 0:
                absent = [index for index in self._channels if index not in self._calls]
                self._fail(self._missing(absent))
            if self._is_closing:
                raise DistributedError("the context was closed while a collective was waiting.")
            self._pump(min(remaining, _TICK_S))

    def _pump(self, timeout_s: float) -> None:
        """Read the frames that have arrived."""
        for descriptor, _ in self._poller.poll(max(timeout_s, 0) * 1000):
            index = self._by_descriptor[descriptor]
            try:
                channel = self._channels[index]
                while (frame := channel.receive()) is not None:
                    self._hear(index, frame)
                    if not channel.has_buffered:
                        break
            except (LinkLost, LookupError, ValueError) as reason:
                self._poller.unregister(descriptor)
                self._gone(index, str(reason))

    def _gone(self, index: int, reason: str) -> None:
        if index not in self._left:
            self._left[index] = f"died or lost its connection ({reason})"
            if not self._failure:
                self._note(self._lost(index))

    def _hear(self, index: int, frame: Frame) -> None:
        if frame.kind == CALL:
            # A caller can only supply its own value, whatever index it wrote.
            values = list(_read_parts(frame).values())
            position = RankPosition.from_meta(frame.meta)
            self._arrived(index, position, values[0] if values else None)
        elif frame.kind == LEAVE:
            self._left[index] = str(frame.meta["how"])
        else:
            raise LinkLost("it sent something that it should not send")

    def _arrived(self, index: int, position: RankPosition, value: _Packed | None) -> None:
        if not self._calls and not self._is_active:
            self._first_arrival = time.monotonic()
        self._calls[index] = value
        self._kinds.add(position.kind())
        self._positions[index] = position

    def _check(self) -> None:
        """Raise if the current collective cannot complete."""
        if self._failure is None and self._left and (self._is_active or self._calls):
            self._note(self._lost(min(self._left)))
        if self._failure is not None and self._is_active:
            raise self._failure.error()

    def _lost(self, index: int) -> Failure:
        return lost(self._members[index], self._left[index], self._table())

    def _missing(self, indices: list[int]) -> Failure:
        answers = ask(self._probes, indices)
        now = {self._members[index]: answer for index, answer in answers.items()}
        if 0 in indices:
            frame = sys._current_frames().get(self._thread_id)
            now[self._members[0]] = f"at {place_of(frame)}"
        ranks = [self._members[index] for index in indices]
        return missing(ranks, self._timeout_s, self._table(), now)

    def _table(self, indices: list[int] | None = None) -> dict[int, RankPosition]:
        chosen = range(len(self._members)) if indices is None else sorted(indices)
        return {self._members[index]: self._positions[index] for index in chosen}

    def _answer(self, mode: str, value: object, mine: _Packed | None) -> list[Any] | None:
        parts, self._calls, self._kinds = self._calls, {}, set()
        self._send_results(mode, mine, parts)
        self._check()
        if mode == "barrier":
            return None
        if mode == "broadcast":
            return [value]
        return [value, *[_load(parts[index]) for index in range(1, len(self._members))]]

    def _send_results(
        self, mode: str, mine: _Packed | None, parts: Mapping[int, _Packed | None]
    ) -> None:
        outgoing: dict[int, _Packed] = {}
        if mine is not None:
            outgoing[0] = mine
        if mode == "allgather":
            outgoing |= {i: part for i, part in sorted(parts.items()) if part is not None}
        deadline = time.monotonic() + self._timeout_s
        for index, channel in self._channels.items():
            theirs = {i: part for i, part in outgoing.items() if i != index}
            try:
                _send_parts(channel, RESULT, {}, theirs, deadline=deadline)
            except LinkLost:
                self._left.setdefault(index, "died or lost its connection")

    def _fail(self, failure: Failure) -> NoReturn:
        self._note(failure)
        raise failure.error()

    def _note(self, failure: Failure) -> None:
        """Remember a failure and send it to all ranks that still listen."""
        self._failure = failure
        meta = {"kind": failure.kind, "ranks": failure.ranks, "text": failure.text}
        for channel in self._channels.values():
            with contextlib.suppress(LinkLost):
                channel.send(ERROR, meta, deadline=time.monotonic() + 0.2)

    def look(self) -> None:
        """Check the connections if no collective runs here; for the watching thread."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._is_closing:
                return
            self._pump(0)
            self._check()
            waited = time.monotonic() - self._first_arrival
            if self._calls and self._failure is None and waited > self._timeout_s:
                self._note(
                    self._missing([i for i in range(len(self._members)) if i not in self._calls])
                )
        finally:
            self._lock.release()

    def close(self, how: str) -> None:
        """Notify the others that this rank leaves, and why; a collective waiting here raises."""
        self._is_closing = True
        with self._lock:
            self._closed.set()
            for channel in self._channels.values():
                with contextlib.suppress(LinkLost):
                    channel.send(LEAVE, {"how": how}, deadline=time.monotonic() + 0.2)
                channel.close()
            for probe in self._probes.values():
                probe.close()
        if self._watcher is not threading.current_thread():
            self._watcher.join()


class Spoke:
    """One group of ranks, on a rank that is not its first.

    Args:
        channel: Connection to the first rank.
        index: Index of this rank in the group.
        members: Ranks over all nodes, by index in the group.
        timeout_s: How long a collective waits for a rank that is alive.
        probe: Connection on which the first rank asks for this rank's current line.
    """

    def __init__(
        self,
        channel: RankChannel,
        index: int,
        members: list[int],
        *,
        timeout_s: float,
        probe: RankChannel,
    ) -> None:
        self._channel = channel
        self._index = index
        self._members = members
        self._others = [i for i in range(len(members)) if i != index]
        self._timeout_s = timeout_s
        self._answerer = Answerer(probe)
        self._position = RankPosition()
        self._failure: Failure | None = None
        self._is_closing = False
        self._lock = threading.Lock()
        self._poller = select.poll()
        self._poller.register(channel, select.POLLIN)

    def exchange(self, name: str, mode: str, value: object) -> list[Any] | None:
        """Take part in a collective; see `Hub.exchange`."""
        mine = _pack(value) if mode in ("gather", "allgather") else None
        site = find_caller()
        with self._lock:
            if self._is_closing:
                raise DistributedError(f"{name}() was called on a context that is closed.")
            if self._failure is not None:
                raise self._failure.error()
            self._answerer.thread_id = threading.get_ident()
            self._position = RankPosition(self._position.number + 1, name, site)
            try:
                frame = self._ask(mine)
            except DistributedError:
                raise
            except BaseException:
                # A partial frame may have been sent. The others see this rank leave.
                self._failure = self._lost(f"can no longer be asked: {name}() was interrupted")
                self._channel.close()
                raise
            return self._results(mode, value, _read_parts(frame))

    def _ask(self, mine: _Packed | None) -> Frame:
        """Return the first rank's answer."""
        deadline = time.monotonic() + self._timeout_s + _LET_HUB_SPEAK_S
        position = self._position
        # After rank 0 is gone, its last message may still be readable.
        with contextlib.suppress(LinkLost):
            self._call(mine, deadline)
        try:
            frame = self._wait(deadline)
        except LinkLost as error:
            self._failure = self._lost(f"died or lost its connection ({error})")
            raise self._failure.error() from error
        if frame is None:
            table = {self._members[0]: RankPosition(), self._members[self._index]: position}
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

    def _call(self, mine: _Packed | None, deadline: float) -> None:
        position = self._position
        meta = {"number": position.number, "name": position.name, "site": position.site}
        parts = {} if mine is None else {self._index: mine}
        _send_parts(self._channel, CALL, meta, parts, deadline=deadline)

    def _wait(self, deadline: float) -> Frame | None:
        """Return the next frame, or None if none comes before the deadline."""
        while True:
            frame = self._channel.receive()
            remaining = deadline - time.monotonic()
            if frame is not None or remaining <= 0:
                return frame
            if self._is_closing:
                raise DistributedError("the context was closed while a collective was waiting.")
            self._poller.poll(min(remaining, _TICK_S) * 1000)

    def _lost(self, how: str) -> Failure:
        return lost(self._members[0], how, {self._members[self._index]: self._position})

    def _results(self, mode: str, value: object, parts: Mapping[int, _Packed]) -> list[Any] | None:
        if mode == "broadcast":
            return [_load(parts[0])]
        if mode != "allgather":
            return None
        values = [_load(parts[i]) for i in self._others]
        values.insert(self._index, value)
        return values

    def close(self, how: str) -> None:
        """Notify the others that this rank leaves, and why; a collective waiting here raises."""
        self._is_closing = True
        with self._lock:
            with contextlib.suppress(LinkLost):
                self._channel.send(LEAVE, {"how": how}, deadline=time.monotonic() + 0.2)
            self._channel.close()
        self._answerer.close()


Group: TypeAlias = Hub | Spoke
"""Ranks that exchange values, as one of them sees it."""


def _pack(value: object) -> bytes:
    """Serialize a value.

    Raises:
        DistributedError: If it cannot be pickled.
    """
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise DistributedError(
            f"{describe(value)} cannot be sent to other workers: {error}.\n"
            "Only values that can be pickled can be sent; send the parts that can."
        ) from error


def _load(part: _Packed | None) -> Any:
    """Return the value of another rank; its arrays belong to the caller."""
    if part is None:
        raise ValueError("a rank came to gather without a value")
    return pickle.loads(part)  # noqa: S301  (proven ranks only)


def _send_parts(
    channel: RankChannel,
    kind: int,
    meta: dict[str, Any],
    parts: Mapping[int, _Packed],
    *,
    deadline: float,
) -> None:
    """Send a frame with values, by index in the group.

    Raises:
        LinkLost: If the other end has exited.
    """
    table = [(index, len(part)) for index, part in parts.items()]
    channel.send(kind, {**meta, "parts": table}, [*parts.values()], deadline=deadline)


def _read_parts(frame: Frame) -> dict[int, _Packed]:
    """Return the values in a frame, by index in the group."""
    parts: dict[int, _Packed] = {}
    start = 0
    for index, size in frame.meta["parts"]:
        parts[index] = frame.body[start : start + size]
        start += size
    return parts


def _watch(reference: weakref.ref[Hub], closed: threading.Event) -> None:
    while not closed.wait(_TICK_S):
        hub = reference()
        if hub is None:
            return
        hub.look()
        del hub
