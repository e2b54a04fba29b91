"""Fork processes that act at the same moment, and print their results.

Commands are JSON lines on standard input. The answer to a command is one line with a JSON list of
the texts of all processes.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import alembic.command  # noqa: F401  (imported once, before forking)
from sqlalchemy import create_engine

from detcore.errors import DetcoreError
from detcore.records import Database, TrialDraft


def act(database: Database, command: dict[str, Any], number: int) -> object:
    action = command["do"]
    if action == "create":
        return database.create_model("shared", description=f"of {number}").id
    if action == "event":
        drafts = [TrialDraft(search_index=i, hparams={"of": number}, seed=i) for i in range(3)]
        return sorted(database.add_search_event(1, number=0, event=None, created=drafts))
    if action == "start":
        return database.start_run(1)
    if action == "restart":
        return database.count_restart(1)
    if action == "register":
        return [register(database, command["checkpoint"]) for _ in range(command["each"])]
    assert action == "record"
    return database.create_experiment(config={}, config_text=None, model_dir="/m", name="x")


def register(database: Database, checkpoint: str) -> int:
    number = database.register_version("shared", checkpoint).number
    database.add_model_metadata("shared", {f"version-{number}": number})
    return number


def live(command: dict[str, Any], number: int, wait: Callable[[], None]) -> str:
    """Wait and act. The database is opened before the wait, or after it with `opens_together`."""
    if command["opens_together"]:
        wait()
    with Database.open(command["url"]) as database:
        if not command["opens_together"]:
            wait()
        try:
            return str(act(database, command, number))
        except DetcoreError as error:
            return "refused: " + str(error).partition("\n")[0]


def answer(command: dict[str, Any]) -> list[str]:
    ready, is_ready = os.pipe()
    gate, opens_gate = os.pipe()
    children = []
    for number in range(command["count"]):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(opens_gate)  # otherwise the read below never returns

            def wait() -> None:
                os.write(is_ready, b"x")
                os.read(gate, 1)

            try:
                text = live(command, number, wait)
            except BaseException:  # noqa: BLE001  (returned to the test)
                text = traceback.format_exc()
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        children.append((pid, reader))
    os.close(is_ready)
    for _ in children:
        os.read(ready, 1)  # empty once all remaining children are ready or dead
    os.close(opens_gate)
    texts = []
    for pid, reader in children:
        with open(reader, encoding="utf-8") as file:
            texts.append(file.read())
        os.waitpid(pid, 0)
    os.close(ready)
    os.close(gate)
    return texts


def main() -> None:
    create_engine("postgresql+psycopg://")  # imports the driver before forking
    print("ready", flush=True)
    for text in sys.stdin:
        print(json.dumps(answer(json.loads(text))), flush=True)


if __name__ == "__main__":
    main()
