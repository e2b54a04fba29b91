"""Fork children that report or open a database, and kill them after a given time.

Commands come as JSON lines on standard input. The children write each acknowledged sequence
number to standard output as a line; when one is dead, the line "ended" follows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import alembic.command  # noqa: F401  (so that children do not spend their lives importing)
from sqlalchemy import create_engine

from detcore.log.writing import EventLog
from detcore.records import Database, LogFollower


def acknowledge(seq: int) -> None:
    os.write(1, b"%d\n" % seq)


def payload(step: int) -> dict[str, Any]:
    """Return metrics; every third with many batches, so that a write takes longer."""
    batches = [{"loss": step + i / 7} for i in range(2000)] if step % 3 == 0 else None
    return {"steps_completed": step, "metrics": {"loss": 1 / step}, "batch_metrics": batches}


def report(command: dict[str, Any], started: int) -> None:
    log = EventLog(Path(command["log"]), trial_id=command["trial"], run_id=command["run"])
    follower = None
    if command["drain"]:
        database = Database.open(command["url"])
        follower = LogFollower(database)
        follower.follow(log.path)
    os.close(started)
    step = 0
    while True:
        step += 1
        kind = "validation" if step % 5 == 0 else "training"
        acknowledge(log.append(kind, payload(step)))
        if follower is not None and step % 5 == 0:
            follower.stop(30)
            follower = LogFollower(database)
            follower.follow(log.path)


def main() -> None:
    create_engine("postgresql+psycopg://")  # imports the driver once, for all children
    print("ready", flush=True)
    inherited: Database | None = None
    for text in sys.stdin:
        command = json.loads(text)
        if command["do"] == "inherit" and inherited is None:
            inherited = Database.open(command["url"])
            inherited.list_experiments()
        reader, started = os.pipe()
        child = os.fork()
        if child == 0:
            if command["do"] == "report":
                report(command, started)
            elif command["do"] == "open":
                Database.open(command["url"]).close()
            elif inherited is not None:
                acknowledge(inherited.create_experiment(config={}, config_text=None,
                            model_dir="/m", name="child"))  # fmt: skip
            os._exit(0)
        os.close(started)
        if command.get("drain"):
            os.read(reader, 1)  # until it has opened the database, however busy the machine is
        os.close(reader)
        if command["kill_after_s"] is not None:
            time.sleep(command["kill_after_s"])
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.write(1, b"ended %d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
