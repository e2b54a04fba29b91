"""Test the event log, and the thread that copies it into the records."""

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
    from tests.records.conftest import Store

PROGRAMS = Path(__file__).parent / "programs"


def metrics(step: int, **values: object) -> dict[str, object]:
    return {"steps_completed": step, "metrics": values or {"loss": 1 / (step + 1)}}


def following(database: Database, log: Path) -> LogFollower:
    follower = LogFollower(database)
    follower.follow(log)
    return follower


def fill_disk(folder: Path) -> Path:
    """Fill the file system of a folder with a file, and return the file."""
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


def test_event_log_lines_are_standard_json(store: Store, log: EventLog) -> None:
    assert log.append("training", metrics(5, loss=math.nan, text="ä\n")) == 1
    assert log.append("progress", {"length": 10}) == 2
    head, first, second = [json.loads(line) for line in store.log().read_text().splitlines()]
    assert (head["trial_id"], head["run_id"]) == (store.trial_id, store.run_id)
    assert first["payload"]["metrics"] == {"loss": "NaN", "text": "ä\n"}
    assert (second["seq"], second["kind"], second["payload"]) == (2, "progress", {"length": 10})


def test_event_log_preserves_numbers(store: Store, log: EventLog) -> None:
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
    recorded = dict(record.metrics)
    assert math.isnan(recorded.pop("nan"))
    assert math.isnan(recorded.pop("nan32"))
    nested = recorded.pop("nested")
    assert nested["a"][0] == 1
    assert math.isnan(nested["a"][1])
    assert recorded == {
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


def test_event_log_rejects_non_json_values(store: Store, log: EventLog) -> None:
    size = store.log().stat().st_size
    with pytest.raises(TypeError, match="Path is not JSON"):
        log.append("training", metrics(1, x=Path()))
    assert store.log().stat().st_size == size
    log.append("training", metrics(1))
    assert ingest_event_logs(store.database, store.home) == 1


def test_sequence_continues_after_reopening(store: Store, log: EventLog) -> None:
    assert [log.append("progress", {"at": i}) for i in range(3)] == [1, 2, 3]
    # Longer than the block that is read at the end.
    log.append("training", {**metrics(1), "batch_metrics": [{"loss": 0.5}] * 20_000})
    log.close()
    again = EventLog(store.log(), trial_id=store.trial_id, run_id=store.run_id)
    assert again.append("progress", {"at": 4}) == 5
    again.close()
    assert ingest_event_logs(store.database, store.home) == 5


def test_threads_may_report_concurrently(store: Store, log: EventLog) -> None:
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


def test_second_process_cannot_open_event_log(store: Store, log: EventLog) -> None:
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


def test_lock_check_does_not_block_event_log(store: Store, log: EventLog) -> None:
    log.close()
    descriptor = os.open(log.path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    release = threading.Timer(0.2, os.close, [descriptor])
    release.start()
    with EventLog(log.path, trial_id=store.trial_id, run_id=store.run_id) as again:
        assert again.append("progress", {}) == 1
    release.join()


def test_event_log_of_another_run_is_rejected(store: Store, log: EventLog) -> None:
    log.close()
    with pytest.raises(DatabaseError, match="belongs to trial 1, run 1, not to trial 1, run 2"):
        EventLog(store.log(), trial_id=1, run_id=2)


def test_other_file_is_rejected_as_event_log(store: Store) -> None:
    path = store.log()
    path.parent.mkdir(parents=True)
    path.write_text("precious notes\n")
    with pytest.raises(DatabaseError, match=r"does not start like an event log.*'precious notes"):
        EventLog(path, trial_id=1, run_id=1)
    assert path.read_text() == "precious notes\n"


def test_closed_event_log_rejects_reports(store: Store, log: EventLog) -> None:
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
def test_malformed_report_does_not_block_others(
    store: Store, log: EventLog, payload: object
) -> None:
    log.append("training", payload)
    log.append("training", metrics(7))
    assert ingest_event_logs(store.database, store.home) == 2
    (event,) = store.database.events(store.trial_id, "training")
    assert event.payload == payload
    assert len(store.database.metrics(store.trial_id, "training")) == 1


def test_full_disk_error_reports_missing_bytes(tmp_path: Path) -> None:
    with pytest.raises(
        StorageFullError, match=r"no space left for a report of .* in /dev/full"
    ) as caught:
        EventLog(Path("/dev/full"), trial_id=1, run_id=1)
    assert caught.value.missing_bytes is not None
    assert caught.value.missing_bytes >= 1


def test_event_log_continues_after_full_disk(store: Store, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 100_000)
    log = EventLog(small_disk / "events-1.jsonl", trial_id=store.trial_id, run_id=store.run_id)
    acknowledged: list[int] = []
    with pytest.raises(StorageFullError, match=r"at least .* bytes are missing"):  # noqa: PT012
        while True:
            acknowledged.append(log.append("training", metrics(len(acknowledged))))
    assert log.path.read_bytes().endswith(b"\n")  # the incomplete line was removed
    ballast.unlink()
    acknowledged.append(log.append("training", metrics(100_000)))
    log.close()
    follower = following(store.database, log.path)
    follower.stop(10)
    rows = store.database.metrics(store.trial_id, "training")
    assert [row.seq for row in rows] == acknowledged


def test_damaged_line_is_recorded_and_skipped(store: Store, log: EventLog) -> None:
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


def test_truncated_event_log_is_skipped(
    store: Store, log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(5):
        log.append("training", metrics(step))
    log.close()
    ingest_event_logs(store.database, store.home)
    store.log().write_bytes(store.log().read_bytes()[:300])
    follower = following(store.database, store.log())
    follower.stop(30)
    assert not follower._thread.is_alive()  # it would use a closed database
    other = store.log(2)
    other.write_text("something else\n" * 9)
    store.database.start_run(store.trial_id)
    with caplog.at_level(logging.WARNING):
        assert ingest_event_logs(store.database, store.home) == 0
    assert "has 300 bytes, but" in caplog.text
    assert f"{other} does not start like an event log" in caplog.text
    assert len(store.database.metrics(store.trial_id, "training")) == 5


def test_event_log_of_other_database_is_ignored(store: Store) -> None:
    # A deleted database left this log of the same trial number in the same home.
    stale = EventLog(store.log(2), trial_id=store.trial_id, run_id=2)
    stale.append("training", metrics(1, loss=99))
    stale.close()
    assert ingest_event_logs(store.database, store.home) == 0
    store.database.set_trial_dir(store.trial_id, str(store.log().parent))
    assert store.database.start_run(store.trial_id) == 3
    assert ingest_event_logs(store.database, store.home) == 0
    assert store.database.metrics(store.trial_id, "training") == []


def test_stop_ingests_all_reports(store: Store, log: EventLog) -> None:
    for start in range(1, 300, 50):
        follower = following(store.database, store.log())
        numbers = [log.append("training", metrics(step)) for step in range(start, start + 50)]
        follower.stop(10)
        assert len(store.database.metrics(store.trial_id, "training")) == numbers[-1]


def test_ingestion_is_one_transaction(store: Store, log: EventLog) -> None:
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


def test_follower_ingests_reports(store: Store, log: EventLog) -> None:
    follower = following(store.database, store.log())
    log.append("training", metrics(1))
    for _ in range(6000):
        if store.database.metrics(store.trial_id, "training"):
            break
        threading.Event().wait(0.01)
    assert store.database.metrics(store.trial_id, "training")
    follower.stop(10)


def test_locked_database_does_not_block_reports(store: Store, log: EventLog) -> None:
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
    assert holder.poll() is None  # the lock was held throughout
    assert store.database.metrics(store.trial_id, "training") == []
    holder.communicate(b"")
    follower.stop(60)
    assert len(store.database.metrics(store.trial_id, "training")) == 1000


def test_unreadable_log_does_not_delay_others(store: Store, log: EventLog) -> None:
    other = EventLog(store.log(99), trial_id=99, run_id=1)  # this trial does not exist
    other.append("training", metrics(1))
    other.close()
    follower = following(store.database, other.path)
    follower.follow(log.path)
    log.append("training", metrics(1))
    follower.stop(10)
    assert len(store.database.metrics(store.trial_id, "training")) == 1


@pytest.mark.timeout(40)  # the wait for other failures is longer
def test_script_explains_full_disk(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_ingestion_survives_full_disk(store: Store, small_disk: Path) -> None:
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


def test_unreadable_log_does_not_hide_others(
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
