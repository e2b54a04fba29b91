"""What a display reads of a log: each event once, also of one that is cut, damaged or not there."""

from __future__ import annotations

from pathlib import Path

from detcore.log.events import TrainingReport, TrialStarted, encode_event
from detcore.log.writing import EventLog
from detcore.run.running_trial import LogTail


def report(log: EventLog, step: int) -> TrainingReport:
    event = TrainingReport(steps_completed=step, metrics={"loss": float("nan") if not step else 1})
    log.append(event.KIND, encode_event(event))
    return event


def test_each_event_comes_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "events-1.jsonl"
    tail = LogTail(path)
    assert list(tail.read()) == []
    with EventLog(path, trial_id=1, run_id=1) as log:
        assert list(tail.read()) == []
        log.append(TrialStarted.KIND, {"run_id": 1})
        first = report(log, 1)
        assert list(tail.read()) == [TrialStarted(run_id=1), first]
        assert list(tail.read()) == []
        many = [report(log, step) for step in range(2, 5000)]
        assert list(tail.read()) == many
        whole = path.read_bytes()
        last = report(log, 5000)
        line = path.read_bytes()[len(whole) :]
        path.write_bytes(whole + line[:20])
        assert list(tail.read()) == []
        path.write_bytes(whole + line)
        assert list(tail.read()) == [last]


def test_a_damaged_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events-1.jsonl"
    with EventLog(path, trial_id=1, run_id=1) as log:
        report(log, 1)
        begin = path.stat().st_size
        report(log, 2)
        third = report(log, 3)
    data = bytearray(path.read_bytes())
    data[begin + 40] ^= 1
    path.write_bytes(data)
    assert list(LogTail(path).read())[-1] == third
    assert len(list(LogTail(path).read())) == 2


def test_a_file_that_is_no_log_has_no_events(tmp_path: Path) -> None:
    path = tmp_path / "events-1.jsonl"
    path.write_bytes(b"not a log\n" * 1000)
    assert list(LogTail(path).read()) == []
    path.unlink()
    path.mkdir()
    assert list(LogTail(path).read()) == []
