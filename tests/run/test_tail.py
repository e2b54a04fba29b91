"""Events that a display reads from a log, including truncated, damaged and missing logs."""

from __future__ import annotations

from pathlib import Path

from detcore.log.events import TrainingReport, TrialStarted, encode_event
from detcore.log.writing import EventLog
from detcore.run.running_trial import LogTail


def report(log: EventLog, step: int) -> TrainingReport:
    event = TrainingReport(steps_completed=step, metrics={"loss": float("nan") if not step else 1})
    log.append(event.KIND, encode_event(event))
    return event


def test_tail_yields_each_event_once(tmp_path: Path) -> None:
    path = tmp_path / "events-1.jsonl"
    tail = LogTail(path)
    assert list(tail.read_new_events()) == []
    with EventLog(path, trial_id=1, run_id=1) as log:
        assert list(tail.read_new_events()) == []
        log.append(TrialStarted.KIND, {"run_id": 1})
        first = report(log, 1)
        assert list(tail.read_new_events()) == [TrialStarted(run_id=1), first]
        assert list(tail.read_new_events()) == []
        many = [report(log, step) for step in range(2, 5000)]
        assert list(tail.read_new_events()) == many
        data = path.read_bytes()
        last = report(log, 5000)
        line = path.read_bytes()[len(data) :]
        path.write_bytes(data + line[:20])
        assert list(tail.read_new_events()) == []
        path.write_bytes(data + line)
        assert list(tail.read_new_events()) == [last]


def test_tail_skips_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "events-1.jsonl"
    with EventLog(path, trial_id=1, run_id=1) as log:
        report(log, 1)
        begin = path.stat().st_size
        report(log, 2)
        third = report(log, 3)
    data = bytearray(path.read_bytes())
    data[begin + 40] ^= 1
    path.write_bytes(data)
    assert list(LogTail(path).read_new_events())[-1] == third
    assert len(list(LogTail(path).read_new_events())) == 2


def test_tail_of_other_file_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "events-1.jsonl"
    path.write_bytes(b"not a log\n" * 1000)
    assert list(LogTail(path).read_new_events()) == []
    path.unlink()
    path.mkdir()
    assert list(LogTail(path).read_new_events()) == []
