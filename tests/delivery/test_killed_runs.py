"""Events that a killed run could not report are delivered by another process."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
import yaml
from processes import wait_until

Watched = Any

KILLED_AT_COMMIT = """
import os, signal
from detcore import core
from detcore.log.writing import EventLog

append = EventLog.append
def append_or_die(self, kind, payload):
    if kind == "checkpoint_committed":
        os.kill(os.getpid(), signal.SIGKILL)
    return append(self, kind, payload)
EventLog.append = append_or_die

with core.init() as context:
    with context.checkpoint.store_path({"steps_completed": 5}) as (path, uuid):
        (path / "weights").write_text("w")
"""
KILLED_AS_IT_RECORDS = """
import os, signal, sys
from detcore.cli import main
from detcore.log.events import CheckpointCommitted
from detcore.records import Database

record = Database.record_checkpoint
def record_or_die(self, change, **options):
    if sys.argv[1] == "after":
        record(self, change, **options)
    if isinstance(change, CheckpointCommitted):
        os.kill(os.getpid(), signal.SIGKILL)
Database.record_checkpoint = record_or_die

main(["checkpoint", "repair", "--all"])
"""
KILLED_BEFORE_FINISH = """
import os, signal, sys
from detcore.cli import main
from detcore.run.search_loop import SearchLoop

SearchLoop._finish_trial = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


@pytest.mark.parametrize("killed", ["before", "after", "never"])
def test_repaired_checkpoint_is_delivered_once(killed: str, watched: Watched) -> None:
    watched.install("watch")
    watched.script(KILLED_AT_COMMIT, code=-signal.SIGKILL)
    if killed != "never":
        watched.run("-c", KILLED_AS_IT_RECORDS, killed, code=-signal.SIGKILL)
    watched.run("-m", "detcore", "checkpoint", "repair", "--all")
    watched.deliver()
    (uuids,) = [event for event in watched.told() if event["hook"] == "checkpoint"]
    assert uuids["steps"] == 5


def test_damaged_log_does_not_block_repair(watched: Watched) -> None:
    watched.install("watch")
    watched.script(KILLED_AT_COMMIT, code=-signal.SIGKILL)
    watched.run("-m", "detcore", "checkpoint", "list")
    (log,) = watched.home.glob("experiments/*/trials/*/events-1.jsonl")
    log.write_bytes(log.read_bytes().replace(b"event_log", b"other_log"))
    _, stderr = watched.run("-m", "detcore", "checkpoint", "repair", "--all")
    assert f"plugins do not receive an event of trial 1: {log} " in stderr
    stdout, _ = watched.run("-m", "detcore", "checkpoint", "list", "--json")
    assert [uuids["state"] for uuids in json.loads(stdout)] == ["COMPLETED"]


@pytest.mark.parametrize(("command", "state"), [("pause", "PAUSED"), ("cancel", "CANCELED")])
def test_end_set_by_command_is_delivered(command: str, state: str, watched: Watched) -> None:
    watched.install("watch")
    process = watched.start(
        watched.write(
            "import time\nfrom detcore import core\n"
            "with core.init() as context:\n"
            "    context.train.report_training_metrics(1, {'loss': 1.0})\n"
            "    time.sleep(600)\n"
        )
    )
    wait_until(lambda: len(watched.told()) == 2)
    process.kill()
    process.communicate()
    watched.run("-m", "detcore", "experiment", command, 1)
    watched.run("-m", "detcore", "experiment", command, 1)  # delivered once
    watched.deliver()
    calls = [event for event in watched.told() if not event["repeat"]]
    assert [event["hook"] for event in calls] == ["started", "training", "finished"]
    assert calls[-1]["state"] == state
    assert watched.open_cursors() == []


def test_end_from_killed_runner_is_delivered(watched: Watched) -> None:
    watched.install("watch")
    config = watched.folder / "config.yaml"
    searcher = {
        "name": "random", "metric": "loss", "max_trials": 2, "max_length": {"batches": 1},
        "max_concurrent_trials": 1,
    }  # fmt: skip
    settings = {"entrypoint": "python3 train.py", "searcher": searcher, "max_restarts": 0}
    config.write_text(yaml.safe_dump(settings))
    watched.write(
        "import os, signal\nfrom detcore import core\n"
        "with core.init() as context:\n"
        "    if context.info.trial_id == 1:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    for operation in context.searcher.operations():\n"
        "        context.train.report_validation_metrics(1, {'loss': 1.0})\n"
        "        operation.report_completed(1.0)\n"
    )
    command = ("run", config, watched.folder)
    watched.run("-c", KILLED_BEFORE_FINISH, *command, code=-signal.SIGKILL)
    assert "finished" not in [event["hook"] for event in watched.told()]
    watched.run("-m", "detcore", "run", "--resume", 1)
    watched.deliver()
    ends = {e["trial"]: e["state"] for e in watched.told() if e["hook"] == "finished"}
    assert ends == {1: "ERROR", 2: "COMPLETED"}
    assert watched.open_cursors() == []


KILLED_WITH_ITS_RUNNER = """
import os, signal
from pathlib import Path
from detcore import core
from detcore.log.writing import EventLog

append = EventLog.append
def append_or_die(self, kind, payload):
    if kind == "checkpoint_committed":
        os.kill(int(Path(LOCK).read_text().split()[0]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return append(self, kind, payload)

with core.init() as context:
    if context.info.run_id == 1:
        EventLog.append = append_or_die
        with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
            (path / "weights").write_text("w")
    for operation in context.searcher.operations():
        context.train.report_validation_metrics(operation.length, {"loss": 1.0})
        operation.report_completed(1.0)
"""


def test_checkpoint_found_on_resume_precedes_end(watched: Watched) -> None:
    watched.install("watch")
    lock = watched.home / "detcore.db-locks" / "1"
    watched.write(f"LOCK = {str(lock)!r}\n{KILLED_WITH_ITS_RUNNER}")
    config = watched.folder / "config.yaml"
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 1}}
    config.write_text(yaml.safe_dump({"entrypoint": "python3 train.py", "searcher": searcher}))
    watched.run("-m", "detcore", "run", config, watched.folder, code=-signal.SIGKILL)
    watched.run("-m", "detcore", "run", "--resume", 1)
    watched.deliver()
    calls = [event["hook"] for event in watched.told() if not event["repeat"]]
    assert calls == ["started", "checkpoint", "finished", "started", "validation", "finished"]
