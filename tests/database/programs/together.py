"""Do one thing together with other processes, once a file appears; print what came of it.

Arguments: the database's URL, the file, what to do, and a number of this process's own.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from detcore.database import Database, TrialDraft
from detcore.errors import DetcoreError


def act(database: Database, what: str, number: int) -> object:
    if what == "create":
        return database.create_model("shared", description=f"of {number}").id
    if what == "event":
        drafts = [TrialDraft(search_index=i, hparams={"of": number}, seed=i) for i in range(3)]
        return sorted(database.add_search_event(1, number=0, event=None, created=drafts))
    if what == "start":
        return database.start_run(1)
    return database.count_restart(1)


url, go, what, number = sys.argv[1:]
with Database.open(url) as database:
    print("ready", flush=True)
    while not Path(go).exists():
        time.sleep(0.001)
    try:
        print(act(database, what, int(number)))
    except DetcoreError as error:
        print("refused:", str(error).partition("\n")[0])
