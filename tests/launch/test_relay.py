"""The log of a trial on a machine without a shared file system."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from detcore.errors import WorkerError
from detcore.launch.nodes import LogCopy, LogSource, create_log, read_log_header
from detcore.log.reading import event_log_path, is_event_log_in_use, read_event_log
from detcore.log.writing import EventLog
from detcore.types import TrialInfo


@pytest.fixture
def here(tmp_path: Path) -> TrialInfo:
    """A trial, on the runner's machine."""
    return TrialInfo(
        experiment_id=1, trial_id=4, run_id=2, trial_seed=0, hparams={}, config={}, model_dir="/",
        trial_dir=str(tmp_path / "here" / "4"),
    )  # fmt: skip


@pytest.fixture
def there(here: TrialInfo, tmp_path: Path) -> TrialInfo:
    """The same trial, with the directories of another machine."""
    return dataclasses.replace(here, trial_dir=str(tmp_path / "there" / "4"))


def log_of(info: TrialInfo) -> Path:
    return event_log_path(Path(info.trial_dir), info.run_id)


def open_log(info: TrialInfo) -> EventLog:
    return EventLog(log_of(info), trial_id=info.trial_id, run_id=info.run_id)


def test_copy_equals_log(here: TrialInfo, there: TrialInfo) -> None:
    create_log(here)
    source = LogSource(there, read_log_header(here))
    copy = LogCopy(here)
    worker = open_log(there)
    for step in range(5):
        worker.append("training", {"steps_completed": step, "metrics": {"loss": 0.5}})
        part = source.read()
        copy.append(*part)
        copy.append(*part)  # a lost answer is repeated
        assert log_of(here).read_bytes() == log_of(there).read_bytes()
    assert source.read()[1] == b""
    assert is_event_log_in_use(log_of(here))
    copy.close()
    assert not is_event_log_in_use(log_of(here))
    worker.close()


def test_half_written_line_is_not_sent(here: TrialInfo, there: TrialInfo) -> None:
    create_log(here)
    source = LogSource(there, read_log_header(here))
    worker = open_log(there)
    worker.append("status", {"a": 1})
    worker.close()
    with log_of(there).open("ab") as file:
        file.write(b'{"crc":"00')
    start, lines = source.read()
    assert (start, lines.count(b"\n")) == (len(read_log_header(here)), 1)
    assert source.read(is_over=True)[1] == b""


def test_shared_file_is_not_sent(here: TrialInfo) -> None:
    create_log(here)
    source = LogSource(here, read_log_header(here))
    with open_log(here) as worker:
        worker.append("status", {"a": 1})
    assert source.is_shared
    assert source.read()[1] == b""
    assert len(list(read_event_log(log_of(here)).parse_lines())) == 1


def test_stale_log_of_same_run_is_replaced(here: TrialInfo, there: TrialInfo) -> None:
    with open_log(there) as stale:
        stale.append("status", {"of": "another home"})
    create_log(here)
    source = LogSource(there, read_log_header(here))
    assert not source.is_shared
    assert log_of(there).read_bytes() == read_log_header(here)


def test_missing_lines_raise(here: TrialInfo) -> None:
    with pytest.raises(WorkerError, match="the log of trial 4 is missing"):
        read_log_header(here)
    create_log(here)
    copy = LogCopy(here)
    with pytest.raises(WorkerError, match=r"has \d+ bytes here, and continues at 9999"):
        copy.append(9999, b"x\n")
    copy.close()
