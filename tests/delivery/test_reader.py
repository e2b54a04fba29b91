"""Delivery of one trial to one plugin: order, outages, failures, locks, damage."""

from __future__ import annotations

import logging
import math
import os
import threading
from typing import Any

import pytest

from detcore.errors import DatabaseError, UnavailableError
from detcore.log import reading
from detcore.log.events import TrialFinished
from detcore.log.reading import event_log_path
from detcore.log.writing import EventLog
from detcore.plugins import delivery
from detcore.plugins.delivery import Delivery, append_to_killed, deliver_events, drop_events

# (pytest imports conftest.py with importlib, so only the fixture knows its class)
Box = Any


def test_events_are_delivered_in_order_once(box: Box) -> None:
    log = box.start_run()
    reader = box.reader()
    for step in range(1, 400):
        box.report(log, step)
        if step % 97 == 0:
            assert reader.deliver_waiting()
    box.end_run(log)
    assert reader.deliver_waiting()
    assert box.numbers() == [(1, number, False) for number in range(1, 402)]
    assert [name for name, _ in box.told[:2]] == ["trial_started", "training_metrics"]
    assert box.told[-1][0] == "trial_finished"
    assert box.open_runs() == []
    assert reader.num_delivered == 401


def test_hook_arguments_are_read_only(box: Box) -> None:
    log = box.start_run()
    metrics = {"loss": math.nan, "huge": math.inf}
    batches = [{"loss": 0.5}, {"loss": 0.25}]
    payload = {"steps_completed": 4, "metrics": metrics, "batch_metrics": batches}
    log.append("training", payload)
    box.reader().deliver_waiting()
    arguments = box.told[1][1]
    assert arguments["steps_completed"] == 4
    assert math.isnan(arguments["metrics"]["loss"])
    assert arguments["metrics"]["huge"] == math.inf
    assert arguments["batch_metrics"] == tuple(batches)
    for mapping in (arguments["metrics"], arguments["batch_metrics"][0]):
        with pytest.raises(TypeError, match="does not support item assignment"):
            mapping["loss"] = 0.0


def test_events_are_kept_while_service_is_down(box: Box) -> None:
    box.start_run(num_reports=3)
    down = True
    box.failure = lambda hook, arguments: (
        UnavailableError("no route") if down and arguments.get("steps_completed") == 2 else None
    )
    reader = box.reader()
    for _ in range(3):
        assert not reader.deliver_waiting()
    assert reader.problem == "no route"
    assert box.numbers() == [(1, 1, False), (1, 2, False)]
    assert box.waiting() == 2
    down = False
    assert reader.deliver_waiting()
    assert box.numbers()[2:] == [(1, 3, True), (1, 4, False)]
    assert reader.problem is None


@pytest.mark.parametrize("failure", [OSError("disk"), SystemExit(3), ConnectionError("refused")])
def test_other_failures_are_logged_once(
    failure: BaseException, box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    log = box.start_run(num_reports=3)
    box.failure = lambda hook, _: failure if hook == "detcore_training_metrics" else None
    box.end_run(log)
    with caplog.at_level(logging.WARNING, logger="detcore.plugins"):
        assert deliver_events(box.database, box.home, box.observer()) == (5, None)
    assert caplog.messages[0].startswith(
        "plugin watch (detcore-watch 1.0): detcore_training_metrics failed; training continues"
        f": {type(failure).__name__}: {failure} ("
    )
    assert caplog.messages[1:] == [
        "plugin watch (detcore-watch 1.0): detcore_training_metrics failed 3 times in all"
    ]
    assert [name for name, _ in box.told] == ["trial_started", "trial_finished"]
    assert box.open_runs() == []


def test_keyboard_interrupt_in_command_propagates(box: Box) -> None:
    box.start_run()
    box.failure = lambda *_: KeyboardInterrupt()
    reader = box.reader()
    with pytest.raises(KeyboardInterrupt):
        reader.deliver_waiting()
    reader.close()
    box.failure = lambda *_: None
    box.reader().deliver_waiting()
    assert box.numbers() == [(1, 1, True)]


def test_only_one_process_delivers_at_a_time(box: Box) -> None:
    box.start_run(num_reports=1)
    other_cursors = []

    def deliver_meanwhile(*_: object) -> None:
        other = box.reader()
        assert other.deliver_waiting()
        other_cursors.append(other.num_delivered)

    box.failure = deliver_meanwhile
    assert box.reader().deliver_waiting()
    assert other_cursors == [0, 0]
    assert box.numbers() == [(1, 1, False), (1, 2, False)]


def test_delivery_stops_between_events(box: Box) -> None:
    box.start_run(num_reports=3)
    assert not box.reader().deliver_waiting(should_stop=lambda: len(box.told) == 2)
    assert len(box.told) == 2
    box.reader().deliver_waiting()
    assert [is_repeat for _, _, is_repeat in box.numbers()] == [False] * 4


def test_runs_are_delivered_in_sequence(box: Box) -> None:
    first = box.start_run(num_reports=1)
    first.close()  # killed without an end
    box.start_run(num_reports=1)
    box.reader().deliver_waiting()
    assert box.numbers() == [(1, 1, False), (1, 2, False), (2, 1, False), (2, 2, False)]
    assert box.open_runs() == [2]


def test_end_of_killed_run_reopens_cursor(box: Box) -> None:
    box.start_run(num_reports=1).close()  # killed
    box.reader().deliver_waiting()
    trial = box.database.get_trial(1)
    later = box.start_run()
    box.reader().deliver_waiting()
    assert box.open_runs() == [2]
    end = TrialFinished(state="ERROR", error="killed")
    assert append_to_killed(box.database, trial, end)
    assert not append_to_killed(box.database, trial, end)  # once
    box.reader().deliver_waiting()
    assert box.told[-1][0] == "trial_finished"
    assert box.numbers()[-1] == (1, 3, False)
    box.end_run(later)
    box.reader().deliver_waiting()
    assert box.open_runs() == []


def test_event_after_end_is_delivered(box: Box) -> None:
    log = box.start_run()
    box.end_run(log)
    find = box.database.move_cursor

    def append_meanwhile(cursor: Any) -> None:
        find(cursor)
        if cursor.is_finished:  # like another process between the end and its record
            box.database.move_cursor = find
            with EventLog(log.path, trial_id=1, run_id=1) as again:
                box.report(again, 1)

    box.database.move_cursor = append_meanwhile
    box.reader().deliver_waiting()
    box.reader().deliver_waiting()
    assert [number for _, number, _ in box.numbers()] == [1, 2, 3]


def test_killed_run_without_observers_is_skipped(box: Box) -> None:
    box.start_run(observers=[]).close()
    end = TrialFinished(state="ERROR", error="killed")
    before = event_log_path(box.folder, 1).read_bytes()
    assert not append_to_killed(box.database, box.database.get_trial(1), end)
    assert event_log_path(box.folder, 1).read_bytes() == before


def test_unobserved_run_is_skipped(box: Box) -> None:
    for observers in (["watch"], [], ["watch"]):
        box.end_run(box.start_run(observers=observers))
    box.reader().deliver_waiting()
    assert [run for run, _, _ in box.numbers()] == [1, 1, 3, 3]


def test_run_of_other_home_is_skipped(box: Box) -> None:
    log = box.start_run(num_reports=1)
    path = event_log_path(box.folder, 1)
    away = path.rename(path.with_suffix(".away"))
    box.end_run(box.start_run())
    box.reader().deliver_waiting()
    assert [run for run, _, _ in box.numbers()] == [2, 2]
    away.rename(path)
    box.end_run(log)
    box.reader().deliver_waiting()
    assert [run for run, _, _ in box.numbers()] == [2, 2, 1, 1, 1]


@pytest.mark.parametrize(("num_moves", "repeats"), [(0, []), (1, []), (2, [(1, 4, True)])])
def test_failed_cursor_update_repeats_no_event(
    num_moves: int, repeats: list[Any], box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_CHUNK_BYTES", 200)
    box.start_run(num_reports=3)
    move = box.database.move_cursor
    moves: list[Any] = []

    def refuse(cursor: Any) -> None:
        moves.append(cursor)
        if len(moves) > num_moves:
            raise DatabaseError("the records are unreachable")
        move(cursor)

    box.database.move_cursor = refuse
    with pytest.raises(DatabaseError, match="unreachable"):
        box.reader().deliver_waiting()
    box.database.move_cursor = move
    box.reader().deliver_waiting()
    assert box.numbers() == [*((1, number, False) for number in range(1, 5)), *repeats]


def test_each_log_part_uses_one_transaction(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_CHUNK_BYTES", 1500)
    box.end_run(box.start_run(num_reports=20))
    moves: list[tuple[int, int]] = []
    move = box.database.move_cursor

    def count(cursor: Any) -> None:
        moves.append((len(box.told), cursor.trying))
        move(cursor)

    monkeypatch.setattr(box.database, "move_cursor", count)
    box.reader().deliver_waiting()
    # Before each part with its last number, and at the end.
    first, second = moves[0][1], moves[1][1]
    assert moves == [(0, first), (first, second), (second, 22), (22, 22)]
    assert 5 < first < second < 22


def test_unfinished_line_of_live_run_is_awaited(box: Box) -> None:
    log = box.start_run(num_reports=1)
    path = event_log_path(box.folder, 1)
    content = path.read_bytes()
    box.report(log, 2)
    line = path.read_bytes()[len(content) :]
    os.truncate(path, len(content) + 10)
    reader = box.reader()
    reader.deliver_waiting()
    assert len(box.told) == 2
    with path.open("ab") as file:
        file.write(line[10:])
    reader.deliver_waiting()
    assert len(box.told) == 3


def test_unfinished_line_of_killed_run_ends_it(box: Box) -> None:
    log = box.start_run(num_reports=1)
    log.close()
    with event_log_path(box.folder, 1).open("ab") as file:
        file.write(b'{"crc":"0123')
    box.end_run(box.start_run())
    for _ in range(2):
        box.reader().deliver_waiting()
    assert box.numbers() == [(1, 1, False), (1, 2, False), (2, 1, False), (2, 2, False)]
    assert box.open_runs() == []


def test_damaged_line_is_logged_and_skipped(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    log = box.start_run(num_reports=3)
    box.end_run(log)
    path = event_log_path(box.folder, 1)
    path.write_bytes(path.read_bytes().replace(b'"loss":0.5', b'"loss":0.6'))
    box.reader().deliver_waiting()
    assert [number for _, number, _ in box.numbers()] == [1, 2, 4, 5]
    (message,) = caplog.messages
    assert "checksum is wrong" in message
    assert str(path) in message


@pytest.mark.parametrize(
    ("kind", "payload"),
    [("checkpoint_committed", [1]), ("validation", {"metrics": {"loss": 1.0}}), ("training", "x")],
)
def test_invalid_event_line_is_skipped(kind: str, payload: Any, box: Box) -> None:
    log = box.start_run()
    log.append(kind, payload)
    box.report(log, 1)
    assert box.waiting() == 2
    assert box.reader().deliver_waiting()
    assert [number for _, number, _ in box.numbers()] == [1, 3]


@pytest.mark.parametrize("damage", ["shorter", "no log"])
def test_unreadable_run_does_not_block_next(
    damage: str, box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    first = box.start_run(num_reports=1)
    box.reader().deliver_waiting()
    first.close()
    path = event_log_path(box.folder, 1)
    if damage == "shorter":
        os.truncate(path, len(path.read_bytes()) // 2)
    else:
        path.write_bytes(b"x" * 5000)
    second = box.start_run()
    box.end_run(second)
    box.told.clear()
    assert box.reader().deliver_waiting()
    assert [run for run, _, _ in box.numbers()] == [2, 2]
    assert "cannot receive the events of run 1" in caplog.messages[0]


def test_waiting_events_are_counted_and_dropped(box: Box) -> None:
    box.start_run(num_reports=1)
    assert box.waiting() == 2
    assert box.waiting(["detcore_trial_started"]) == 1
    cursors = box.database.list_cursors(plugin="watch")
    dropped = []

    def drop_meanwhile(*_: object) -> None:
        dropped.append(drop_events(box.database, box.home, cursors))

    box.failure = drop_meanwhile
    box.reader().deliver_waiting(should_stop=lambda: len(dropped) == 1)
    assert dropped == [0]  # a reader holds the lock
    # Old cursors drop nothing, because the reader has moved the cursors since.
    assert drop_events(box.database, box.home, cursors) == 1
    assert box.waiting() == 0
    assert box.open_runs() == [1], "it reports more, which is not dropped"


def test_one_thread_serves_all_plugins(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_MAX_TURN_S", 60.0)
    box.end_run(box.start_run(num_reports=1, observers=["watch", "other"]))
    threads = set()
    box.failure = lambda *_: threads.add(threading.get_ident())
    observers = [box.observer(), box.observer("other")]
    assert Delivery(box.database, box.home, observers, experiment_id=1).close(60) == {}
    assert len(threads) == 1
    assert len(box.told) == 6


def test_cursors_are_deleted_with_experiment(box: Box) -> None:
    box.start_run()
    box.database.delete_experiment(1)
    assert box.database.list_cursors() == []
