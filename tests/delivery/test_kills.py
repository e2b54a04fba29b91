"""Kills during delivery: at every point, and twice at random points."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from detcore.log import reading
from detcore.plugins import delivery
from detcore.plugins.delivery import _EventReader
from detcore.records import Database

# (pytest imports conftest.py with importlib, so only the fixture knows its class)
Box = Any
NUM_EVENTS = 5


class Ledger:
    """A trial with events in three parts of its log, and a file with a plugin's calls."""

    def __init__(self, box: Box, path: Path) -> None:
        self.box = box
        box.end_run(box.start_run(num_reports=NUM_EVENTS - 2))
        (self.start,) = box.database.list_cursors()
        self.lock = box.folder / "observers" / "watch.lock"
        self._path = path
        path.touch()
        box.failure = self._note

    def _note(self, _hook: str, arguments: Any) -> None:
        event = arguments["event"]
        line = f"{event.number} {int(event.is_repeat)}\n".encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, line)
        os.close(descriptor)

    def rewind(self) -> None:
        """Reset all deliveries."""
        self.box.database.move_cursor(self.start)
        self.lock.unlink(missing_ok=True)
        self._path.write_bytes(b"")

    def told(self) -> list[tuple[int, bool]]:
        """Number and repeat flag of each delivered event."""
        lines = (line.split() for line in self._path.read_text().splitlines())
        return [(int(number), repeat == "1") for number, repeat in lines]

    def deliver(self) -> None:
        assert self.box.reader().deliver_waiting()
        assert self.box.open_runs() == []

    def deliver_and_kill(self, point: int, kind: str = "line") -> bool:
        """Deliver in a process that is killed at a point; return whether it reached the point."""
        pid = os.fork()
        if pid == 0:
            try:
                database = Database.open(f"sqlite:///{self.box.home}/detcore.db")
                reader = _EventReader(database, self.box.home, self.box.observer())
                sys.settrace(kill_at(point, kind))
                reader.deliver_waiting()
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        return status == signal.SIGKILL


def kill_at(point: int, kind: str) -> Callable[[FrameType, str, Any], Any]:
    """Return a trace function that kills at the Nth line or instruction of `delivery`."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != delivery.__file__:
            return None
        frame.f_trace_opcodes = kind == "opcode"
        if event == kind:
            if count == point:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
        return trace

    return trace


@pytest.fixture
def ledger(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr(reading, "_CHUNK_BYTES", 400)
    return Ledger(box, tmp_path / "told")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "every"), [("line", 7), pytest.param("opcode", 5, marks=pytest.mark.soak)]
)
def test_kill_repeats_at_most_one_event(kind: str, every: int, ledger: Ledger) -> None:
    is_double = set()
    point = 0
    while ledger.deliver_and_kill(point, kind):
        before = ledger.told()
        assert before == [(number, False) for number in range(1, len(before) + 1)]
        if ledger.box.open_runs():
            ledger.deliver()
        after = ledger.told()[len(before) :]
        first = len(before) + 1
        if after and after[0][1]:  # killed between two marks
            first, _ = after.pop(0)
            is_double.add(first == len(before))
            assert first - len(before) in (0, 1)
            first += 1
        assert after == [(number, False) for number in range(first, NUM_EVENTS + 1)]
        ledger.rewind()
        point += every
    assert is_double == {True, False}


def lose_slot(ledger: Ledger, how: str, old_slot: bytes) -> None:
    """Make the slot of the lock file invalid."""
    slot = ledger.lock.read_bytes()
    if how == "damaged":
        ledger.lock.write_bytes(bytes([slot[0] ^ 64, *slot[1:]]))
    elif how == "cut":
        ledger.lock.write_bytes(slot[:20])
    elif how != "kept":  # renamed, so that no new file has its inode
        ledger.lock.rename(ledger.lock.with_suffix(f".{len(os.listdir(ledger.lock.parent))}"))
    if how == "of another home":  # an earlier copy of this file
        ledger.lock.write_bytes(old_slot)


@pytest.mark.parametrize("how", ["kept", "deleted", "damaged", "cut", "of another home"])
def test_possible_repeats_are_marked(how: str, ledger: Ledger) -> None:
    seeds = random.Random(how)
    for _ in range(10):
        ledger.rewind()
        slots = [b""]
        for _ in range(3):
            ledger.deliver_and_kill(seeds.randrange(300))
            if ledger.lock.exists() and ledger.lock.stat().st_size:
                slots.append(ledger.lock.read_bytes())
                lose_slot(ledger, how, slots[1])
        if ledger.box.open_runs():
            ledger.deliver()
        calls = ledger.told()
        numbers = [number for number, _ in calls]
        assert {*numbers} == {*range(1, NUM_EVENTS + 1)}
        for position, (number, is_repeat) in enumerate(calls):
            assert is_repeat or number not in numbers[:position]
        if how == "kept":
            assert numbers == sorted(numbers)
            assert len(numbers) <= NUM_EVENTS + 3


def test_lost_slot_after_stop_marks_no_repeat(ledger: Ledger) -> None:
    for count in range(NUM_EVENTS):
        ledger.box.reader().deliver_waiting(
            should_stop=lambda count=count: len(ledger.told()) > count
        )
        ledger.lock.unlink()
    assert ledger.told() == [(number, False) for number in range(1, NUM_EVENTS + 1)]


def test_events_waiting_after_kill_are_listed(ledger: Ledger) -> None:
    point = 0
    while len(ledger.told()) < 3:
        ledger.rewind()
        point += 10
        assert ledger.deliver_and_kill(point)
    (row,) = ledger.box.database.list_cursors()
    assert row.byte_offset < reading.event_log_path(ledger.box.folder, 1).stat().st_size // 2
    waiting = ledger.box.waiting()
    assert waiting in (NUM_EVENTS - 3, NUM_EVENTS - 2)
    assert delivery.drop_events(ledger.box.database, ledger.box.home, [row]) == waiting
    assert ledger.box.open_runs() == []
