"""Telling one plugin of one trial: order, outages, failures, locks, damage."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import Any

import pytest

from detcore._log import event_log_path
from detcore.errors import UnavailableError
from detcore.hooks.delivery import (
    Cursor,
    Mailbox,
    count_waiting,
    deliver_waiting,
    find_mailboxes,
    tell_end_of_killed,
)

# (pytest imports conftest.py under importlib: its class is known to the fixture alone)
Box = Any


def test_events_are_told_in_their_order_once(box: Box) -> None:
    log = box.start_run()
    courier = box.courier()
    for step in range(1, 400):
        box.report(log, step)
        if step % 97 == 0:
            assert courier.deliver()
    box.end_run(log)
    assert courier.deliver()
    assert box.numbers() == [(1, number, False) for number in range(1, 402)]
    assert [name for name, _ in box.told[:2]] == ["trial_started", "training_metrics"]
    assert box.told[-1][0] == "trial_finished"
    assert box.mailbox().runs() == []
    assert courier.num_told == 401


def test_values_are_what_was_reported_and_cannot_be_changed(box: Box) -> None:
    log = box.start_run()
    metrics = {"loss": math.nan, "huge": math.inf}
    batches = [{"loss": 0.5}, {"loss": 0.25}]
    payload = {"steps_completed": 4, "metrics": metrics, "batch_metrics": batches}
    log.append("training", payload)
    box.courier().deliver()
    arguments = box.told[1][1]
    assert arguments["steps_completed"] == 4
    assert math.isnan(arguments["metrics"]["loss"])
    assert arguments["metrics"]["huge"] == math.inf
    assert arguments["batch_metrics"] == tuple(batches)
    for mapping in (arguments["metrics"], arguments["batch_metrics"][0]):
        with pytest.raises(TypeError, match="does not support item assignment"):
            mapping["loss"] = 0.0


def test_while_a_service_is_away_everything_of_its_plugin_is_kept(box: Box) -> None:
    box.start_run(num_reports=3)
    down = True
    box.failure = lambda hook, arguments: (
        UnavailableError("no route") if down and arguments.get("steps_completed") == 2 else None
    )
    courier = box.courier()
    for _ in range(3):
        assert not courier.deliver()
    assert courier.problem == "no route"
    assert box.numbers() == [(1, 1, False), (1, 2, False)]
    assert count_waiting(box.mailbox()).num_events == 2
    down = False
    assert courier.deliver()
    assert box.numbers()[2:] == [(1, 3, True), (1, 4, False)]
    assert courier.problem is None


@pytest.mark.parametrize("failure", [OSError("disk"), SystemExit(3), ConnectionError("refused")])
def test_any_other_failure_is_named_once_and_counts_as_told(
    failure: BaseException, box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    log = box.start_run(num_reports=3)
    box.failure = lambda hook, _: failure if hook == "detcore_training_metrics" else None
    box.end_run(log)
    with caplog.at_level(logging.WARNING, logger="detcore.plugins"):
        assert deliver_waiting(box.observer(), [box.mailbox()]) == (5, None)
    assert caplog.messages[0].startswith(
        "plugin watch (detcore-watch 1.0): detcore_training_metrics failed; training continues"
        f": {type(failure).__name__}: {failure} ("
    )
    assert caplog.messages[1:] == [
        "plugin watch (detcore-watch 1.0): detcore_training_metrics failed 3 times in all"
    ]
    assert [name for name, _ in box.told] == ["trial_started", "trial_finished"]
    assert box.mailbox().runs() == []


def test_a_keyboard_interrupt_in_a_command_is_the_users(box: Box) -> None:
    box.start_run()
    box.failure = lambda *_: KeyboardInterrupt()
    courier = box.courier()
    with pytest.raises(KeyboardInterrupt):
        courier.deliver()
    courier.close()
    box.failure = lambda *_: None
    box.courier().deliver()
    assert box.numbers() == [(1, 1, True)]


def test_one_at_a_time_delivers(box: Box) -> None:
    log = box.start_run()
    first, second = box.courier(), box.courier()
    assert first.deliver()
    box.report(log, 1)
    assert second.deliver()
    assert second.num_told == 0
    assert first.deliver()
    first.close()
    box.report(log, 2)
    assert second.deliver()
    assert box.numbers() == [(1, 1, False), (1, 2, False), (1, 3, False)]


def test_it_stops_between_two_events_when_it_is_asked_to(box: Box) -> None:
    box.start_run(num_reports=3)
    assert not box.courier().deliver(lambda: len(box.told) == 2)
    assert len(box.told) == 2


def test_runs_follow_each_other_and_a_killed_one_ends_where_it_was_killed(box: Box) -> None:
    first = box.start_run(1, num_reports=1)
    first.close()  # killed: no end
    second = box.start_run(2, num_reports=1)
    courier = box.courier()
    courier.deliver()
    assert box.numbers() == [(1, 1, False), (1, 2, False), (2, 1, False), (2, 2, False)]
    assert box.mailbox().runs() == [2]
    second.close()
    courier.deliver()  # nobody has the event log open any more
    assert box.mailbox().runs() == []


def test_the_end_of_a_killed_run_is_told_also_where_it_was_taken_for_over(box: Box) -> None:
    log = box.start_run(num_reports=1)
    log.close()  # killed
    courier = box.courier()
    courier.deliver()
    assert box.mailbox().runs() == []
    told: Any = {"trial_id": 7, "run_id": 1, "state": "ERROR", "error": "killed"}
    assert tell_end_of_killed(box.folder, **told)
    assert not tell_end_of_killed(box.folder, **told)  # once
    courier.deliver()
    assert [name for name, _ in box.told][1:] == ["training_metrics", "trial_finished"]
    assert box.mailbox().runs() == []


def test_a_run_that_the_plugin_did_not_observe_is_left_out(box: Box) -> None:
    for run_id in (1, 2, 3):
        log = box.start_run(run_id)
        box.end_run(log)
    box.mailbox().close_run(2)  # switched off then
    box.courier().deliver()
    assert [run for run, _, _ in box.numbers()] == [1, 1, 3, 3]


def test_a_line_that_is_being_written_is_waited_for(box: Box) -> None:
    log = box.start_run(num_reports=1)
    path = event_log_path(box.folder, 1)
    whole = path.read_bytes()
    box.report(log, 2)
    line = path.read_bytes()[len(whole) :]
    os.truncate(path, len(whole) + 10)
    courier = box.courier()
    courier.deliver()
    assert len(box.told) == 2
    with path.open("ab") as file:
        file.write(line[10:])
    courier.deliver()
    assert len(box.told) == 3


def test_an_unfinished_line_of_a_killed_run_ends_it(box: Box) -> None:
    log = box.start_run(num_reports=1)
    log.close()
    with event_log_path(box.folder, 1).open("ab") as file:
        file.write(b'{"crc":"0123')
    box.courier().deliver()
    assert len(box.told) == 2
    assert box.mailbox().runs() == []


def test_a_damaged_line_is_said_and_left_out(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    log = box.start_run(num_reports=3)
    box.end_run(log)
    path = event_log_path(box.folder, 1)
    path.write_bytes(path.read_bytes().replace(b'"loss":0.5', b'"loss":0.6'))
    box.courier().deliver()
    assert [number for _, number, _ in box.numbers()] == [1, 2, 4, 5]
    (message,) = caplog.messages
    assert "checksum is wrong" in message
    assert str(path) in message


@pytest.mark.parametrize(
    ("kind", "payload"),
    [("checkpoint_committed", [1]), ("validation", {"metrics": {"loss": 1.0}}), ("training", "x")],
)
def test_a_line_that_is_no_event_holds_up_nothing(kind: str, payload: Any, box: Box) -> None:
    log = box.start_run()
    log.append(kind, payload)
    box.report(log, 1)
    assert count_waiting(box.mailbox()).num_events == 2
    assert box.courier().deliver()
    assert [number for _, number, _ in box.numbers()] == [1, 3]


@pytest.mark.parametrize("damage", ["gone", "shorter", "no event log"])
def test_a_run_that_cannot_be_read_is_said_and_does_not_hold_up_the_next(
    damage: str, box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    first = box.start_run(1, num_reports=1)
    earlier = box.courier()
    earlier.deliver()
    earlier.close()
    first.close()
    path = event_log_path(box.folder, 1)
    if damage == "gone":
        path.unlink()
    elif damage == "shorter":
        os.truncate(path, len(path.read_bytes()) // 2)
    else:
        path.write_bytes(b"x" * 5000)
    second = box.start_run(2)
    box.end_run(second)
    box.told.clear()
    assert box.courier().deliver()
    assert [run for run, _, _ in box.numbers()] == [2, 2]
    assert "cannot be told of run 1" in caplog.messages[0]


def test_a_cursor_that_was_not_written_to_its_end_is_the_one_before(box: Box) -> None:
    mailbox = box.mailbox()
    mailbox.add_run(1)
    assert mailbox.acquire()
    cursors = [Cursor(run_id=1, offset=100 * n, trying=n) for n in range(5)]
    for cursor in cursors:
        mailbox.write(cursor)
        assert box.mailbox().read() == cursor
    path: Path = mailbox.folder / "cursor"
    data = bytearray(path.read_bytes())
    place = data.index(b" 5 1 400 4 ")
    data[place : place + 4] = b"????"
    path.write_bytes(bytes(data))
    assert box.mailbox().read() == cursors[-2]
    path.write_bytes(b"")
    assert box.mailbox().read() == Cursor()


def test_what_waits_is_found_and_can_be_forgotten(tmp_path: Path, box: Box) -> None:
    home = tmp_path / "home"
    box.folder = home / "experiments" / "3" / "trials" / "12"
    box.start_run(num_reports=1)
    Mailbox(home / "experiments" / "3" / "trials" / "7", "a/b c").add_run(1)
    found = [(box.trial_dir.name, box.plugin) for box in find_mailboxes(home)]
    assert found == [("7", "a/b c"), ("12", "watch")]
    assert list(find_mailboxes(home, experiment_id=4)) == []
    waiting = count_waiting(box.mailbox())
    assert waiting.num_events == 2
    assert count_waiting(box.mailbox(), ["detcore_trial_started"]).num_events == 1
    courier = box.courier()
    courier.deliver(lambda: True)
    assert not box.mailbox().forget()  # somebody delivers
    courier.close()
    assert box.mailbox().forget()
    assert count_waiting(box.mailbox()).num_events == 0
