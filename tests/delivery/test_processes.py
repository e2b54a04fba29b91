"""Real scripts, runners and commands with an observer that is killed, delayed or late."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import wait_until
from toy_command import MODEL_DIR, toy_config

from detcore.records import Database, ingest_event_logs

Watched = Any

FIVE_REPORTS = """
from detcore import core
with core.init() as context:
    for step in range(1, 6):
        context.train.report_training_metrics(step, {"loss": 1 / step})
    with context.checkpoint.store_path({"steps_completed": 5}) as (path, uuid):
        (path / "weights").write_text("w")
    context.train.report_validation_metrics(5, {"accuracy": 0.5})
"""
ALL_OF_THEM = ["started", *["training"] * 5, "checkpoint", "validation", "finished"]
RESUMING = """
import sys, time
from detcore import core
stop_at = int(sys.argv[1])
with core.init(resume=True) as context:
    step = context.info.steps_completed
    while step < 300:
        step += 1
        context.train.report_training_metrics(step, {"loss": 1 / step})
        if step % 20 == 0:
            with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
                (path / "weights").write_text("w")
        print(step, flush=True)
        time.sleep(0.002 if step < stop_at else 0.3)  # so that it does not end before it is killed
"""


def hooks_of(calls: list[dict[str, Any]]) -> list[str]:
    return [event["hook"] for event in calls]


def check_nothing_is_missing_or_double(watched: Watched, trial_id: int = 1) -> None:
    """Compare the plugin's calls with the records, which come from the same event log."""
    calls = [event for event in watched.told() if event["trial"] == trial_id]
    once = [event for event in calls if not event["repeat"]]
    keys = [(event["run"], event["number"]) for event in calls]
    # In order; repeated events are adjacent and marked as repeats.
    assert keys == sorted(keys)
    assert len({(event["run"], event["number"]) for event in once}) == len(once)
    path = watched.home / "detcore.db"
    with Database.open(f"sqlite:///{path}") as database:
        ingest_event_logs(database, watched.home)
        checkpoints = database.list_checkpoints(trial_id=trial_id, states=["COMPLETED", "DELETED"])
    query = (
        "SELECT run_id, seq, steps_completed, metrics FROM metrics WHERE trial_id = ? AND kind = ?"
    )
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(query, (trial_id, "training")).fetchall()
    expected_values = {
        (run, seq): (steps, json.loads(metrics)) for run, seq, steps, metrics in rows
    }
    events = {
        (event["run"], event["number"]): (event["steps"], event["metrics"])
        for event in calls
        if event["hook"] == "training"
    }
    assert events == expected_values
    noted = {event["uuid"] for event in calls if event["hook"] == "checkpoint"}
    assert noted == {record.uuid for record in checkpoints}


def test_script_events_are_delivered_to_the_end(watched: Watched) -> None:
    watched.install("watch")
    process = watched.start(watched.write(FIVE_REPORTS + "    import time; time.sleep(600)\n"))
    wait_until(lambda: len(watched.told()) == 8)  # the process is alive and waits for input
    assert process.poll() is None
    process.kill()
    process.communicate()
    assert hooks_of(watched.told()) == ALL_OF_THEM[:-1]
    watched.script(FIVE_REPORTS)
    # The next script recovers the killed run, and any process delivers its end.
    calls = [event for event in watched.told() if event["trial"] == 2]
    assert hooks_of(calls) == ALL_OF_THEM
    assert calls[-1]["state"] == "COMPLETED"
    watched.deliver()
    # The process may have been killed before it recorded the delivery of the last event.
    first = [event for event in watched.told() if event["trial"] == 1 and not event["repeat"]]
    assert hooks_of(first) == ALL_OF_THEM
    assert first[-1]["state"] == "ERROR"
    assert "killed" in first[-1]["error"]
    assert watched.open_cursors() == []


def test_no_files_are_written_without_observer(watched: Watched) -> None:
    watched.install_source(
        "other", "from detcore import hookimpl\n@hookimpl\ndef detcore_register_framework(): ...\n"
    )
    watched.script(FIVE_REPORTS)
    (trial_dir,) = watched.home.glob("experiments/*/trials/*")
    files = sorted(path.name for path in trial_dir.iterdir())
    assert files == ["events-1.jsonl", "run-1.json", "tensorboard"]
    assert watched.deliver() == "all events are delivered\n"


def test_command_delivers_waiting_script_events(watched: Watched) -> None:
    watched.install("watch", "other")
    down = watched.down()
    _, stderr = watched.script(FIVE_REPORTS)
    outage = "its service is unreachable, and its events are kept for later: the tracker is down"
    assert stderr.count(outage) == 1
    assert "detcore plugins deliver" in stderr
    assert hooks_of(watched.told("other")) == ALL_OF_THEM  # not delayed
    (row,) = json.loads(watched.deliver("--dry-run", "--json", code=1))
    assert (row["plugin"], row["waiting"], row["trials"], row["note"]) == ("watch", 9, [1], "")
    (row,) = json.loads(watched.deliver("--json", code=1))
    assert row["note"] == "the tracker is down"
    down.unlink()
    (row,) = json.loads(watched.deliver("--json"))
    assert (row["delivered"], row["waiting"]) == (9, 0)
    calls = watched.told()
    assert hooks_of(calls) == ALL_OF_THEM
    # Without the start of a checkpoint, which has no hook.
    assert [event["number"] for event in calls] == [1, 2, 3, 4, 5, 6, 8, 9, 10]
    assert [event["repeat"] for event in calls] == [True] + 8 * [False]
    times = [event["time"] for event in calls]
    assert times == sorted(times)  # the time of the event, not of the delivery
    assert [event["time"] for event in watched.told("other")] == times
    assert watched.deliver() == "all events are delivered\n"
    assert len(watched.told()) == 9


def test_events_of_removed_plugin_can_be_dropped(watched: Watched) -> None:
    watched.install("watch")
    watched.down()
    watched.script(FIVE_REPORTS)
    watched.more["DETCORE_DISABLE_PLUGINS"] = "watch"
    text = watched.deliver(code=1)
    assert "not installed or disabled" in text
    assert "detcore plugins deliver --forget watch" in text
    watched.run("-m", "detcore", "plugins", "deliver", "--forget", "watch", "--dry-run", code=2)
    _, typo = watched.run(
        "-m", "detcore", "plugins", "deliver", "--forget", "watch", "--experiment", "99", code=1
    )
    assert "no experiment 99 in " in typo
    (row,) = json.loads(watched.deliver("--forget", "watch", "--experiment", "1", "--json"))
    assert (row["forgotten"], row["waiting"]) == (9, 0)
    assert watched.deliver() == "all events are delivered\n"


def test_kill_inside_hook_repeats_only_that_event(watched: Watched) -> None:
    watched.install("watch")
    (watched.folder / "watch.kill-at-4").touch()
    watched.script(FIVE_REPORTS + "    import time; time.sleep(60)\n", code=-signal.SIGKILL)
    watched.deliver()
    calls = [(event["number"], event["repeat"]) for event in watched.told()]
    expected = [(1, False), (2, False), (3, False), (4, False), (4, True), (5, False)]
    assert calls[:6] == expected
    assert [number for number, repeat in calls if repeat] == [4]


def test_repeated_kills_lose_and_double_no_event(
    watched: Watched,
) -> None:
    watched.install("watch")
    script = watched.write(RESUMING)
    for stop_at in (35, 70, 130, 131):
        process = watched.start(script, stop_at)
        if stop_at == 70:
            watched.down()
        for line in process.stdout:
            if int(line) >= stop_at:
                break
        process.kill()
        process.communicate()
        if stop_at == 130:
            (watched.folder / "watch.down").unlink()
    watched.run(script, 1000)
    watched.deliver()
    check_nothing_is_missing_or_double(watched)
    assert max(event["run"] for event in watched.told()) == 5
    assert watched.told()[-1]["state"] == "COMPLETED"


def test_hanging_plugin_delays_nothing_else(watched: Watched) -> None:
    watched.install("watch")
    watched.install_source(
        "stuck",
        "import threading\nfrom detcore import hookimpl\n"
        "@hookimpl\ndef detcore_training_metrics(): threading.Event().wait()\n",
    )
    watched.more["DETCORE_DELIVERY_WAIT_S"] = "5"
    _, stderr = watched.script(FIVE_REPORTS)
    assert hooks_of(watched.told()) == ALL_OF_THEM
    assert "plugin stuck has not received all events of 1 trial yet" in stderr
    assert watched.open_cursors() == ["stuck"]


def test_end_skips_unreachable_service(watched: Watched) -> None:
    watched.install_source(
        "hole",
        "import os, threading\nfrom detcore import hookimpl\n"
        "from detcore.errors import UnavailableError\n"
        "@hookimpl\ndef detcore_training_metrics(event):\n"
        "    if event.is_repeat:\n"
        "        open(os.environ['WATCH_FOLDER'] + '/stuck', 'w').close()\n"
        "        threading.Event().wait()\n"
        "    raise UnavailableError('away')\n",
    )
    watched.more["DETCORE_DELIVERY_WAIT_S"] = "1000"
    watched.script(
        "import os, time\nfrom detcore import core\n"
        "with core.init() as context:\n"
        "    context.train.report_training_metrics(1, {'loss': 1.0})\n"
        "    while not os.path.exists('stuck'):\n"
        "        time.sleep(0.01)\n"
    )  # ends long before 1000 seconds, when `run` would time out
    assert watched.open_cursors() == ["hole"]


def test_only_chief_delivers_events(watched: Watched) -> None:
    watched.install("watch")
    watched.write(
        "from detcore import core\n"
        "with core.init(distributed=core.DistributedContext.from_env()) as context:\n"
        "    if context.distributed.rank == 0:\n"
        "        context.train.report_training_metrics(1, {'loss': 1.0})\n"
    )
    watched.run("-m", "detcore", "launch", "-n", "2", "--", "python", "train.py")
    assert hooks_of(watched.told()) == ["started", "training", "finished"]
    assert len({event["pid"] for event in watched.told()}) == 1


def experiment(watched: Watched, **changes: Any) -> Path:
    checkpoints = watched.home / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    storage = {"type": "directory", "container_path": str(checkpoints)}
    path: Path = watched.folder / f"config-{len(list(watched.folder.glob('config-*')))}.yaml"
    path.write_text(yaml.safe_dump(toy_config(checkpoint_storage=storage, **changes)))
    return path


def test_next_run_delivers_waiting_events(
    watched: Watched,
) -> None:
    watched.install("watch")
    down = watched.down()
    watched.more["DETCORE_DELIVERY_WAIT_S"] = "1"
    stdout, _ = watched.run("-m", "detcore", "run", experiment(watched), MODEL_DIR)
    assert "plugin watch has not received all events of 1 trial yet" in stdout
    assert watched.told() == []
    down.unlink()
    watched.more["DETCORE_DELIVERY_WAIT_S"] = "20"
    search = experiment(
        watched, searcher__name="random", searcher__max_length={"batches": 10},
        searcher__max_trials=2,
    )  # fmt: skip
    watched.run("-m", "detcore", "run", search, MODEL_DIR)
    for trial in (1, 2, 3):
        calls = [event for event in watched.told() if event["trial"] == trial]
        assert hooks_of(calls)[0] == "started"
        assert calls[-1]["state"] == "COMPLETED"
        assert [event["number"] for event in calls] == sorted({e["number"] for e in calls})
        assert len({event["pid"] for event in calls}) == 1
    check_nothing_is_missing_or_double(watched)
    assert watched.open_cursors() == []


def test_runner_delivers_end_of_killed_worker(watched: Watched) -> None:
    watched.install("watch")
    config = experiment(watched, entrypoint="python3 train.py")
    watched.write(
        "import os, signal\nfrom detcore import core\n"
        "with core.init() as context:\n"
        "    context.train.report_training_metrics(1, {'loss': 1.0})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    watched.run("-m", "detcore", "run", config, watched.folder, code=1)
    calls = watched.told()
    assert hooks_of(calls) == ["started", "training", "finished"]
    assert calls[-1]["state"] == "ERROR"
    assert calls[-1]["error"]
    assert watched.open_cursors() == []


def test_damaged_log_fails_trial_but_not_runner(
    watched: Watched,
) -> None:
    watched.install("watch")
    config = experiment(watched, entrypoint="python3 train.py")
    watched.write(
        "import os, signal\nfrom pathlib import Path\nfrom detcore import core\n"
        "with core.init() as context:\n"
        "    Path(context.info.trial_dir, 'events-1.jsonl').write_text('no log\\n')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    stdout, stderr = watched.run("-m", "detcore", "run", config, watched.folder, code=1)
    assert "plugins do not receive an event of trial 1: " in stdout + stderr
    assert "experiment 1: error: the worker ended with exit code 137" in stdout


@pytest.mark.parametrize("value", ["-1", "soon"])
def test_invalid_delivery_wait_is_rejected(value: str, watched: Watched) -> None:
    watched.more["DETCORE_DELIVERY_WAIT_S"] = value
    _, stderr = watched.run("-m", "detcore", "plugins", "deliver", code=2)
    assert f"DETCORE_DELIVERY_WAIT_S is '{value}'" in stderr


def test_events_are_delivered_after_full_disk(watched: Watched) -> None:
    watched.install("watch")
    script = watched.write(
        "from detcore import core\n"
        "from detcore.log.writing import EventLog\n"
        "from detcore.errors import StorageFullError\n"
        "append = EventLog.append\n"
        "def append_or_fail(self, kind, payload):\n"
        "    if kind in ('checkpoint_committed', 'trial_finished'):\n"
        "        raise StorageFullError('no room')\n"
        "    return append(self, kind, payload)\n"
        "with core.init(resume=True) as context:\n"
        "    if context.info.run_id == 1:\n"
        "        EventLog.append = append_or_fail\n"
        "    with context.checkpoint.store_path({'steps_completed': 5}) as (path, uuid):\n"
        "        (path / 'weights').write_text('w')\n"
        "    raise SystemExit(75)\n"
    )
    _, stderr = watched.run(script, code=1)
    assert "StorageFullError: no room" in stderr
    assert "the end of the trial could not be written to its log: no room" in stderr
    assert hooks_of(watched.told()) == ["started"]
    _, stderr = watched.run(script, code=75)
    assert "from batch 5" in stderr  # the checkpoint was complete, although its event is missing
    calls = watched.told()
    assert hooks_of(calls) == 2 * ["started", "checkpoint", "finished"]
    assert [event["run"] for event in calls] == [1, 1, 1, 2, 2, 2]
    assert [event.get("state") for event in calls] == 2 * [None, None, "PAUSED"]
    assert len({event["uuid"] for event in calls if event["hook"] == "checkpoint"}) == 2
    check_nothing_is_missing_or_double(watched)
