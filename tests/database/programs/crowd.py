"""Fork processes that do one thing at the same moment, and tell what came of it.

Commands come as JSON lines on standard input. The answer to each is one line, a JSON list with a
text of each process.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import alembic.command  # noqa: F401  (so that children do not spend their lives importing)
from sqlalchemy import create_engine

from detcore.errors import DetcoreError
from detcore.records import Database, TrialDraft


def act(database: Database, command: dict[str, Any], number: int) -> object:
    what = command["do"]
    if what == "create":
        return database.create_model("shared", description=f"of {number}").id
    if what == "event":
        drafts = [TrialDraft(search_index=i, hparams={"of": number}, seed=i) for i in range(3)]
        return sorted(database.add_search_event(1, number=0, event=None, created=drafts))
    if what == "start":
        return database.start_run(1)
    if what == "restart":
        return database.count_restart(1)
    if what == "register":
        return [register(database, command["checkpoint"]) for _ in range(command["each"])]
    assert what == "record"
    return database.create_experiment(config={}, config_text=None, model_dir="/m", name="x")


def register(database: Database, checkpoint: str) -> int:
    number = database.register_version("shared", checkpoint).number
    database.add_model_metadata("shared", {f"version-{number}": number})
    return number


def live(command: dict[str, Any], number: int, wait: Callable[[], None]) -> str:
    """Wait and act, with the database opened before or, if the command says so, after."""
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
        said, says = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(opens_gate)  # or the end of it would never come

            def wait() -> None:
                os.write(is_ready, b"x")
                os.read(gate, 1)

            try:
                text = live(command, number, wait)
            except BaseException:  # noqa: BLE001  (told to the test)
                text = traceback.format_exc()
            os.write(says, text.encode())
            os._exit(0)
        os.close(says)
        children.append((pid, said))
    os.close(is_ready)
    for _ in children:
        os.read(ready, 1)  # nothing, once all that are left have said so or are dead
    os.close(opens_gate)
    texts = []
    for pid, said in children:
        with open(said, encoding="utf-8") as file:
            texts.append(file.read())
        os.waitpid(pid, 0)
    os.close(ready)
    os.close(gate)
    return texts


def main() -> None:
    create_engine("postgresql+psycopg://")  # for the same reason: it imports the driver
    print("ready", flush=True)
    for text in sys.stdin:
        print(json.dumps(answer(json.loads(text))), flush=True)


if __name__ == "__main__":
    main()
