"""Exchange values in a group of ranks. The first rank, the hub, collects and answers all calls.

This is the only module of the core that pickles; see docs/distributed.md. It receives only frames
of ranks that have proven to belong to the job.
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
from detcore.distributed.probe import Answerer, query_locations
from detcore.distributed.rank_failures import (
    Failure,
    RankPosition,
    describe_location,
    find_caller,
    make_lost_failure,
    make_mismatch_failure,
    make_missing_failure,
)
from detcore.distributed.wire import CALL, ERROR, LEAVE, RESULT, Frame, LinkLostError, RankChannel

_Packed: TypeAlias = bytes | memoryview
_TICK_S = 0.25
_MISMATCH_WAIT_S = 0.5  # wait for the calls of other ranks, to find out which rank diverges
_HUB_HEAD_START_S = 2.0  # the hub knows which ranks are missing, so it reports first


class Hub:
    """A group of ranks, on its first rank.

    A thread checks the connections four times a second while no collective runs here. Waiting ranks
    then learn of a dead rank even if this rank is busy elsewhere.

    Args:
        channels: Connections to all other ranks, by index in the group.
        members: Ranks over all nodes, by index in the group.
        timeout_s: Seconds for which a collective waits for a rank that is alive.
        probes: Connections for requesting the current line of a rank, by index in the group.
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
        # Received calls: the value, if the call carries one, by index in the group.
        self._calls: dict[int, _Packed | None] = {}
        self._keys: set[tuple[int, str]] = set()  # the collectives of these calls
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
            target=_watch_connections,
            args=(weakref.ref(self), self._closed),
            daemon=True,
            name="detcore-peers",
        )
        self._watcher.start()

    def exchange(self, name: str, mode: str, value: object) -> list[Any] | None:
        """Take part in a collective.

        Args:
            name: Name of the method that the user called.
            mode: ``"gather"``, ``"allgather"``, ``"broadcast"`` or ``"barrier"``.
            value: This rank's value.

        Returns:
            The values in the order of the group. A broadcast returns one value, a barrier None.

        Raises:
            DistributedError: If not all ranks reach this collective.
        """
        packed = _pickle_value(value) if mode in ("allgather", "broadcast") else None
        site = find_caller()
        with self._lock:
            if self._is_closing:
                raise DistributedError(f"{name}() was called on a context that is closed.")
            self._thread_id = threading.get_ident()
            position = RankPosition(self._positions[0].number + 1, name, site)
            try:
                self._is_active = True
                self._await_all(position)
                return self._finish_collective(mode, value, packed)
            except DistributedError:
                raise
            except BaseException as error:
                self._broadcast_failure(
                    make_lost_failure(
                        self._members[0], f"left {name}() with {error!r}", self._list_positions()
                    )
                )
                raise
            finally:
                self._is_active = False

    def _await_all(self, position: RankPosition) -> None:
        if self._failure is not None:
            raise self._failure.to_error()
        self._positions[0] = position
        if not self._calls:
            self._first_arrival = time.monotonic()
        expected_keys = {position.collective_key()}
        diverged_at = None
        while True:
            self._check_failure()
            is_complete = len(self._calls) == len(self._channels)
            now = time.monotonic()
            if self._keys and self._keys != expected_keys:
                diverged_at = diverged_at or now
                if is_complete or now - diverged_at > _MISMATCH_WAIT_S:
                    self._raise_failure(
                        make_mismatch_failure(self._list_positions([0, *self._calls]))
                    )
            elif is_complete:
                return
            remaining = self._first_arrival + self._timeout_s - now
            if remaining <= 0:
                missing_indices = [index for index in self._channels if index not in self._calls]
                self._raise_failure(self._find_missing(missing_indices))
            if self._is_closing:
                raise DistributedError("the context was closed while a collective was waiting.")
            self._read_frames(min(remaining, _TICK_S))

    def _read_frames(self, timeout_s: float) -> None:
        """Handle the frames that have arrived."""
        for descriptor, _ in self._poller.poll(max(timeout_s, 0) * 1000):
            index = self._by_descriptor[descriptor]
            try:
                channel = self._channels[index]
                while (frame := channel.receive()) is not None:
                    self._handle_frame(index, frame)
                    if not channel.has_buffered:
                        break
            except (LinkLostError, LookupError, ValueError) as reason:
                self._poller.unregister(descriptor)
                self._record_exit(index, str(reason))

    def _record_exit(self, index: int, reason: str) -> None:
        if index not in self._left:
            self._left[index] = f"died or lost its connection ({reason})"
            if not self._failure:
                self._broadcast_failure(self._make_lost_failure(index))

    def _handle_frame(self, index: int, frame: Frame) -> None:
        if frame.kind == CALL:
            # A caller can only supply its own value, regardless of the index in the frame.
            values = list(_read_parts(frame).values())
            position = RankPosition.from_meta(frame.meta)
            self._record_call(index, position, values[0] if values else None)
        elif frame.kind == LEAVE:
            self._left[index] = str(frame.meta["how"])
        else:
            raise LinkLostError("it sent an unexpected frame")

    def _record_call(self, index: int, position: RankPosition, value: _Packed | None) -> None:
        if not self._calls and not self._is_active:
            self._first_arrival = time.monotonic()
        self._calls[index] = value
        self._keys.add(position.collective_key())
        self._positions[index] = position

    def _check_failure(self) -> None:
        """Raise if the current collective cannot complete."""
        if self._failure is None and self._left and (self._is_active or self._calls):
            self._broadcast_failure(self._make_lost_failure(min(self._left)))
        if self._failure is not None and self._is_active:
            raise self._failure.to_error()

    def _make_lost_failure(self, index: int) -> Failure:
        return make_lost_failure(self._members[index], self._left[index], self._list_positions())

    def _find_missing(self, indices: list[int]) -> Failure:
        answers = query_locations(self._probes, indices)
        now = {self._members[index]: answer for index, answer in answers.items()}
        if 0 in indices:
            frame = sys._current_frames().get(self._thread_id)
            now[self._members[0]] = f"at {describe_location(frame)}"
        ranks = [self._members[index] for index in indices]
        return make_missing_failure(ranks, self._timeout_s, self._list_positions(), now)

    def _list_positions(self, indices: list[int] | None = None) -> dict[int, RankPosition]:
        selected = range(len(self._members)) if indices is None else sorted(indices)
        return {self._members[index]: self._positions[index] for index in selected}

    def _finish_collective(
        self, mode: str, value: object, packed: _Packed | None
    ) -> list[Any] | None:
        parts, self._calls, self._keys = self._calls, {}, set()
        self._send_results(mode, packed, parts)
        self._check_failure()
        if mode == "barrier":
            return None
        if mode == "broadcast":
            return [value]
        return [value, *[_unpickle_value(parts[index]) for index in range(1, len(self._members))]]

    def _send_results(
        self, mode: str, packed: _Packed | None, parts: Mapping[int, _Packed | None]
    ) -> None:
        outgoing: dict[int, _Packed] = {}
        if packed is not None:
            outgoing[0] = packed
        if mode == "allgather":
            outgoing |= {i: part for i, part in sorted(parts.items()) if part is not None}
        deadline = time.monotonic() + self._timeout_s
        for index, channel in self._channels.items():
            parts_to_send = {i: part for i, part in outgoing.items() if i != index}
            try:
                _send_parts(channel, RESULT, {}, parts_to_send, deadline=deadline)
            except LinkLostError:
                self._left.setdefault(index, "died or lost its connection")

    def _raise_failure(self, failure: Failure) -> NoReturn:
        self._broadcast_failure(failure)
        raise failure.to_error()

    def _broadcast_failure(self, failure: Failure) -> None:
        """Store a failure and send it to all ranks that still listen."""
        self._failure = failure
        meta = {"kind": failure.kind, "ranks": failure.ranks, "text": failure.text}
        for channel in self._channels.values():
            with contextlib.suppress(LinkLostError):
                channel.send(ERROR, meta, deadline=time.monotonic() + 0.2)

    def check_connections(self) -> None:
        """Check the connections if no collective runs here. Called by the watching thread."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._is_closing:
                return
            self._read_frames(0)
            self._check_failure()
            waited_s = time.monotonic() - self._first_arrival
            if self._calls and self._failure is None and waited_s > self._timeout_s:
                self._broadcast_failure(
                    self._find_missing(
                        [i for i in range(len(self._members)) if i not in self._calls]
                    )
                )
        finally:
            self._lock.release()

    def close(self, how: str) -> None:
        """Notify the others that this rank leaves, and why; a collective waiting here raises."""
        self._is_closing = True
        with self._lock:
            self._closed.set()
            for channel in self._channels.values():
                with contextlib.suppress(LinkLostError):
                    channel.send(LEAVE, {"how": how}, deadline=time.monotonic() + 0.2)
                channel.close()
            for probe in self._probes.values():
                probe.close()
        if self._watcher is not threading.current_thread():
            self._watcher.join()


class Spoke:
    """A group of ranks, on a rank that is not its first.

    Args:
        channel: Connection to the first rank.
        index: Index of this rank in the group.
        members: Ranks over all nodes, by index in the group.
        timeout_s: Seconds for which a collective waits for a rank that is alive.
        probe: Connection on which the first rank requests this rank's current line.
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
        packed = _pickle_value(value) if mode in ("gather", "allgather") else None
        site = find_caller()
        with self._lock:
            if self._is_closing:
                raise DistributedError(f"{name}() was called on a context that is closed.")
            if self._failure is not None:
                raise self._failure.to_error()
            self._answerer.thread_id = threading.get_ident()
            self._position = RankPosition(self._position.number + 1, name, site)
            try:
                frame = self._request_result(packed)
            except DistributedError:
                raise
            except BaseException:
                # A partial frame may have been sent. The other ranks see this rank leave.
                self._failure = self._make_lost_failure(
                    f"can no longer be reached: {name}() was interrupted"
                )
                self._channel.close()
                raise
            return self._unpack_results(mode, value, _read_parts(frame))

    def _request_result(self, packed: _Packed | None) -> Frame:
        """Return the result frame of the first rank."""
        deadline = time.monotonic() + self._timeout_s + _HUB_HEAD_START_S
        position = self._position
        # After the exit of rank 0, its last message may still be readable.
        with contextlib.suppress(LinkLostError):
            self._send_call(packed, deadline)
        try:
            frame = self._wait_for_frame(deadline)
        except LinkLostError as error:
            self._failure = self._make_lost_failure(f"died or lost its connection ({error})")
            raise self._failure.to_error() from error
        if frame is None:
            table = {self._members[0]: RankPosition(), self._members[self._index]: position}
            self._failure = make_missing_failure([self._members[0]], self._timeout_s, table, {})
        elif frame.kind == ERROR:
            self._failure = Failure.from_meta(frame.meta)
        elif frame.kind == LEAVE:
            self._failure = self._make_lost_failure(str(frame.meta["how"]))
        elif frame.kind == RESULT:
            return frame
        else:
            self._failure = self._make_lost_failure("sent an unexpected frame")
        raise self._failure.to_error()

    def _send_call(self, packed: _Packed | None, deadline: float) -> None:
        position = self._position
        meta = {"number": position.number, "name": position.name, "site": position.site}
        parts = {} if packed is None else {self._index: packed}
        _send_parts(self._channel, CALL, meta, parts, deadline=deadline)

    def _wait_for_frame(self, deadline: float) -> Frame | None:
        """Return the next frame, or None at the deadline."""
        while True:
            frame = self._channel.receive()
            remaining = deadline - time.monotonic()
            if frame is not None or remaining <= 0:
                return frame
            if self._is_closing:
                raise DistributedError("the context was closed while a collective was waiting.")
            self._poller.poll(min(remaining, _TICK_S) * 1000)

    def _make_lost_failure(self, how: str) -> Failure:
        return make_lost_failure(
            self._members[0], how, {self._members[self._index]: self._position}
        )

    def _unpack_results(
        self, mode: str, value: object, parts: Mapping[int, _Packed]
    ) -> list[Any] | None:
        if mode == "broadcast":
            return [_unpickle_value(parts[0])]
        if mode != "allgather":
            return None
        values = [_unpickle_value(parts[i]) for i in self._others]
        values.insert(self._index, value)
        return values

    def close(self, how: str) -> None:
        """Notify the others that this rank leaves, and why; a collective waiting here raises."""
        self._is_closing = True
        with self._lock:
            with contextlib.suppress(LinkLostError):
                self._channel.send(LEAVE, {"how": how}, deadline=time.monotonic() + 0.2)
            self._channel.close()
        self._answerer.close()


Group: TypeAlias = Hub | Spoke
"""A group of ranks that exchange values, on one of its ranks."""


def _pickle_value(value: object) -> bytes:
    """Serialize a value.

    Raises:
        DistributedError: If the value cannot be pickled.
    """
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise DistributedError(
            f"{describe(value)} cannot be sent to other workers: {error}.\n"
            "Only values that can be pickled can be sent. Send the parts that can be pickled."
        ) from error


def _unpickle_value(part: _Packed | None) -> Any:
    """Return the value of another rank. The caller owns its arrays."""
    if part is None:
        raise ValueError("a rank called gather without a value")
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
        LinkLostError: If the other end has exited.
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


def _watch_connections(reference: weakref.ref[Hub], closed: threading.Event) -> None:
    while not closed.wait(_TICK_S):
        hub = reference()
        if hub is None:
            return
        hub.check_connections()
        del hub
