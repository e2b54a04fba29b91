"""The event log by itself, and the thread that moves it into the records."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from sqlalchemy import event

from detcore.errors import DatabaseError, StorageFullError
from detcore.log.writing import EventLog
from detcore.records import Database, LogFollower, ingest_event_logs
from detcore.records.log_follower import _ingest_or_warn
from detcore.records.log_ingestion import LogPosition

if TYPE_CHECKING:
    from tests.database.conftest import Store

PROGRAMS = Path(__file__).parent / "programs"


def metrics(step: int, **values: object) -> dict[str, object]:
    return {"steps_completed": step, "metrics": values or {"loss": 1 / (step + 1)}}


def following(database: Database, log: Path) -> LogFollower:
    follower = LogFollower(database)
    follower.follow(log)
    return follower


def fill_disk(folder: Path) -> Path:
    """Fill the file system of a folder with a file; return the file."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096) == 4096 and os.statvfs(folder).f_bavail:
            pass
    return ballast


@pytest.fixture
def log(store: Store) -> Iterator[EventLog]:
    log = EventLog(store.log(), trial_id=store.trial_id, run_id=store.run_id)
    yield log
    log.close()


def test_lines_are_json_that_any_program_reads(store: Store, log: EventLog) -> None:
    assert log.append("training", metrics(5, loss=math.nan, text="ä\n")) == 1
    assert log.append("progress", {"length": 10}) == 2
    head, first, second = [json.loads(line) for line in store.log().read_text().splitlines()]
    assert (head["trial_id"], head["run_id"]) == (store.trial_id, store.run_id)
    assert first["payload"]["metrics"] == {"loss": "NaN", "text": "ä\n"}
    assert (second["seq"], second["kind"], second["payload"]) == (2, "progress", {"length": 10})


def test_numbers_come_back_as_they_were(store: Store, log: EventLog) -> None:
    values = {
        "nan": math.nan,
        "inf": math.inf,
        "low": -math.inf,
        "float32": np.float32(0.1),
        "nan32": np.float32("nan"),
        "float64": np.float64(0.1),
        "int64": np.int64(2**40),
        "array": np.arange(3),
        "tiny": 5e-324,
        "nested": {"a": [1, math.nan]},
        "text": "x",
    }
    batches = [{"loss": 0.1 + i / 3} for i in range(4)] + [{"loss": math.inf}]
    log.append("validation", {**metrics(3, **values), "batch_metrics": batches})
    assert ingest_event_logs(store.database, store.home) == 1
    (record,) = store.database.metrics(store.trial_id, "validation")
    found = dict(record.metrics)
    assert math.isnan(found.pop("nan"))
    assert math.isnan(found.pop("nan32"))
    nested = found.pop("nested")
    assert nested["a"][0] == 1
    assert math.isnan(nested["a"][1])
    assert found == {
        "inf": math.inf,
        "low": -math.inf,
        "float32": float(np.float32(0.1)),
        "float64": 0.1,
        "int64": 2**40,
        "array": [0, 1, 2],
        "tiny": 5e-324,
        "text": "x",
    }
    assert record.batch_metrics == batches
    assert (record.trial_id, record.run_id, record.seq) == (store.trial_id, store.run_id, 1)


def test_what_is_not_json_is_refused_and_leaves_nothing(store: Store, log: EventLog) -> None:
    size = store.log().stat().st_size
    with pytest.raises(TypeError, match="Path is not JSON"):
        log.append("training", metrics(1, x=Path()))
    assert store.log().stat().st_size == size
    log.append("training", metrics(1))
    assert ingest_event_logs(store.database, store.home) == 1


def test_sequence_numbers_go_on_after_reopening(store: Store, log: EventLog) -> None:
    assert [log.append("progress", {"at": i}) for i in range(3)] == [1, 2, 3]
    # Longer than the block that is read from the end.
    log.append("training", {**metrics(1), "batch_metrics": [{"loss": 0.5}] * 20_000})
    log.close()
    again = EventLog(store.log(), trial_id=store.trial_id, run_id=store.run_id)
    assert again.append("progress", {"at": 4}) == 5
    again.close()
    assert ingest_event_logs(store.database, store.home) == 5


def test_threads_may_report_at_once(store: Store, log: EventLog) -> None:
    def work() -> None:
        for step in range(200):
            log.append("training", metrics(step))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ingest_event_logs(store.database, store.home) == 800
    rows = store.database.metrics(store.trial_id, "training")
    assert sorted(row.seq or 0 for row in rows) == list(range(1, 801))


def test_a_second_process_may_not_report_for_the_same_run(store: Store, log: EventLog) -> None:
    code = (
        "import sys; from pathlib import Path; from detcore.log.writing import EventLog\n"
        "EventLog(Path(sys.argv[1]), trial_id=int(sys.argv[2]), run_id=int(sys.argv[3]))"
    )
    arguments = [str(log.path), str(store.trial_id), str(store.run_id)]
    other = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert other.returncode == 1
    assert f"the event log {log.path} is in use by another process" in other.stderr


def test_a_reader_that_looks_for_a_moment_does_not_keep_a_process_from_reporting(
    store: Store, log: EventLog
) -> None:
    log.close()
    descriptor = os.open(log.path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    release = threading.Timer(0.2, os.close, [descriptor])
    release.start()
    with EventLog(log.path, trial_id=store.trial_id, run_id=store.run_id) as again:
        assert again.append("progress", {}) == 1
    release.join()


def test_an_event_log_of_another_run_is_refused(store: Store, log: EventLog) -> None:
    log.close()
    with pytest.raises(DatabaseError, match="belongs to trial 1, run 1, not to trial 1, run 2"):
        EventLog(store.log(), trial_id=1, run_id=2)


def test_a_file_that_is_no_event_log_is_refused_and_left_alone(store: Store) -> None:
    path = store.log()
    path.parent.mkdir(parents=True)
    path.write_text("precious notes\n")
    with pytest.raises(DatabaseError, match=r"does not start like an event log.*'precious notes"):
        EventLog(path, trial_id=1, run_id=1)
    assert path.read_text() == "precious notes\n"


def test_nothing_is_reported_to_a_closed_event_log(store: Store, log: EventLog) -> None:
    log.close()
    log.close()
    with pytest.raises(DatabaseError, match="is closed; nothing was reported"):
        log.append("training", metrics(1))


@pytest.mark.parametrize(
    "payload",
    [
        None,
        {"metrics": {"loss": 1}},
        {"steps_completed": "many", "metrics": {}},
        {"steps_completed": 2**63, "metrics": {}},
        {"steps_completed": 1, "metrics": [1]},
        {"steps_completed": 1, "metrics": {}, "batch_metrics": "x"},
        {"steps_completed": 1, "metrics": {}, "batch_metrics": 5},
        {"steps_completed": 1, "metrics": {}, "batch_metrics": {"loss": 1}},
        {"steps_completed": 1, "metrics": {}, "batch_metrics": [{}, None]},
    ],
)
def test_a_report_of_another_shape_is_kept_and_does_not_hold_up_others(
    store: Store, log: EventLog, payload: object
) -> None:
    log.append("training", payload)
    log.append("training", metrics(7))
    assert ingest_event_logs(store.database, store.home) == 2
    (event,) = store.database.events(store.trial_id, "training")
    assert event.payload == payload
    assert len(store.database.metrics(store.trial_id, "training")) == 1


def test_a_full_disk_is_an_error_that_says_how_much_is_missing(tmp_path: Path) -> None:
    with pytest.raises(
        StorageFullError, match=r"no space left for a report of .* in /dev/full"
    ) as caught:
        EventLog(Path("/dev/full"), trial_id=1, run_id=1)
    assert caught.value.missing_bytes is not None
    assert caught.value.missing_bytes >= 1


def test_an_event_log_goes_on_once_there_is_room_again(store: Store, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 100_000)
    log = EventLog(small_disk / "events-1.jsonl", trial_id=store.trial_id, run_id=store.run_id)
    acknowledged: list[int] = []
    with pytest.raises(StorageFullError, match=r"at least .* bytes are missing"):  # noqa: PT012
        while True:
            acknowledged.append(log.append("training", metrics(len(acknowledged))))
    assert log.path.read_bytes().endswith(b"\n")  # what did not fit was cut off
    ballast.unlink()
    acknowledged.append(log.append("training", metrics(100_000)))
    log.close()
    follower = following(store.database, log.path)
    follower.stop(10)
    rows = store.database.metrics(store.trial_id, "training")
    assert [row.seq for row in rows] == acknowledged


def test_a_damaged_line_is_told_of_and_the_others_are_kept(store: Store, log: EventLog) -> None:
    for step in range(5):
        log.append("training", metrics(step, loss=0.25))
    log.close()
    lines = store.log().read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"0.25", b"0.75")
    store.log().write_bytes(b"\n".join(lines))
    assert ingest_event_logs(store.database, store.home) == 5
    rows = store.database.metrics(store.trial_id, "training")
    assert [row.seq for row in rows] == [1, 3, 4, 5]
    (event,) = store.database.events(store.trial_id, "damaged")
    assert "0.75" in event.payload["text"]


def test_an_event_log_that_shrank_is_left_out_with_a_warning(
    store: Store, log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(5):
        log.append("training", metrics(step))
    log.close()
    ingest_event_logs(store.database, store.home)
    store.log().write_bytes(store.log().read_bytes()[:300])
    follower = following(store.database, store.log())
    follower.stop(30)
    assert not follower._thread.is_alive()  # it would use a database that is closed
    other = store.log(2)
    other.write_text("something else\n" * 9)
    store.database.start_run(store.trial_id)
    with caplog.at_level(logging.WARNING):
        assert ingest_event_logs(store.database, store.home) == 0
    assert "has 300 bytes, but" in caplog.text
    assert f"{other} does not start like an event log" in caplog.text
    assert len(store.database.metrics(store.trial_id, "training")) == 5


def test_an_event_log_of_another_database_is_not_taken_in(store: Store) -> None:
    # Left by a database that was deleted: the same trial number, the same home.
    stale = EventLog(store.log(2), trial_id=store.trial_id, run_id=2)
    stale.append("training", metrics(1, loss=99))
    stale.close()
    assert ingest_event_logs(store.database, store.home) == 0
    store.database.set_trial_dir(store.trial_id, str(store.log().parent))
    assert store.database.start_run(store.trial_id) == 3
    assert ingest_event_logs(store.database, store.home) == 0
    assert store.database.metrics(store.trial_id, "training") == []


def test_stop_brings_everything_into_the_database(store: Store, log: EventLog) -> None:
    for start in range(1, 300, 50):
        follower = following(store.database, store.log())
        numbers = [log.append("training", metrics(step)) for step in range(start, start + 50)]
        follower.stop(10)
        assert len(store.database.metrics(store.trial_id, "training")) == numbers[-1]


def test_records_and_the_position_behind_them_are_one_transaction(
    store: Store, log: EventLog
) -> None:
    def fail_once(_c: object, _cursor: object, sql: str, *_rest: object) -> None:
        if "INTO event_logs" in sql:
            event.remove(store.database._engine, "before_cursor_execute", fail_once)
            raise RuntimeError("between the records and the position")

    log.append("training", metrics(1))
    event.listen(store.database._engine, "before_cursor_execute", fail_once)
    with pytest.raises(RuntimeError, match="between the records and the position"):
        ingest_event_logs(store.database, store.home)
    assert store.database.metrics(store.trial_id, "training") == []
    assert ingest_event_logs(store.database, store.home) == 1


def test_a_follower_moves_reports_while_it_is_open(store: Store, log: EventLog) -> None:
    follower = following(store.database, store.log())
    log.append("training", metrics(1))
    for _ in range(6000):
        if store.database.metrics(store.trial_id, "training"):
            break
        threading.Event().wait(0.01)
    assert store.database.metrics(store.trial_id, "training")
    follower.stop(10)


def test_a_locked_database_does_not_hold_up_reports(store: Store, log: EventLog) -> None:
    follower = following(store.database, store.log())
    holder = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "hold_lock.py"), store.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    for step in range(1000):
        log.append("training", metrics(step))
    follower.stop(0.2)
    assert holder.poll() is None  # the lock was held all the time
    assert store.database.metrics(store.trial_id, "training") == []
    holder.communicate(b"")
    follower.stop(60)
    assert len(store.database.metrics(store.trial_id, "training")) == 1000


def test_a_log_that_cannot_be_moved_delays_no_other(store: Store, log: EventLog) -> None:
    other = EventLog(store.log(99), trial_id=99, run_id=1)  # no such trial
    other.append("training", metrics(1))
    other.close()
    follower = following(store.database, other.path)
    follower.follow(log.path)
    log.append("training", metrics(1))
    follower.stop(10)
    assert len(store.database.metrics(store.trial_id, "training")) == 1


@pytest.mark.timeout(40)  # the wait for other failures is longer
def test_a_script_on_a_full_disk_ends_and_says_what_is_kept(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from detcore import core

    for name in ("DETCORE_DB", "DETCORE_TRIAL_INFO"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DETCORE_HOME", str(small_disk))

    def script() -> None:
        with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
            fill_disk(small_disk)
            for step in range(100_000):
                context.train.report_training_metrics(step, {"loss": 1.0})

    with pytest.raises(StorageFullError, match="to record the end of trial 1") as caught:
        script()
    trial = small_disk / "experiments/1/trials/1"
    assert f"Its reports are kept in {trial}, its checkpoints in file://" in str(caught.value)
    assert (trial / "events-1.jsonl").read_bytes().endswith(b"\n")
    assert "(ERROR: no space left for a report of" in str(
        caught.value
    )  # the first error is not lost


def test_a_full_disk_under_the_database_is_survived(store: Store, small_disk: Path) -> None:
    with Database.open(f"sqlite:///{small_disk / 'detcore.db'}") as database:
        experiment = database.create_experiment(
            config={}, config_text=None, model_dir="/m", name="n"
        )
        trial = database.create_trial(experiment_id=experiment, hparams={}, seed=1)
        log = EventLog(store.log(), trial_id=trial, run_id=1)
        follower = following(database, log.path)
        ballast = fill_disk(small_disk)
        for step in range(500):
            log.append("training", metrics(step))
        with pytest.raises(StorageFullError, match="no space left for records"):
            ingest_event_logs(database, store.home)
        ballast.unlink()
        follower.stop(10)
        assert len(database.metrics(trial, "training")) == 500
        log.close()


def test_an_event_log_that_cannot_be_read_does_not_hide_the_others(
    store: Store, log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.append("training", metrics(5))
    trial_id = store.database.create_trial(experiment_id=store.experiment_id, hparams={}, seed=0)
    damaged = (
        store.log().parents[1]
        / str(trial_id)
        / f"events-{store.database.start_run(trial_id)}.jsonl"
    )
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"no event log\n" * 100)
    assert ingest_event_logs(store.database, store.home) == 1
    assert f"reports were skipped: {damaged}" in caplog.text
    assert _ingest_or_warn(store.database, damaged.with_name("removed.jsonl"), LogPosition()) == 0
    assert "removed.jsonl" in caplog.text
