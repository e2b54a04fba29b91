"""Fork children that do what a scenario says, and kill themselves at a crash point.

Reads JSON lines from stdin: first how to open the storage, then one line per child: the scenario,
the bench, the crash point. Prints the number of the signal that ended each child.

The parent never uses the storage, so that every child has connections of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any, NoReturn

from storage_servers import gcs_settings, s3_settings

from detcore.database import Database
from detcore.storage import LocalStorage, StorageBackend
from detcore_storage import GcsStorage, S3Storage
from detcore_testing._crash import CrashPoint, Fuse, Moment
from detcore_testing._crash_bench import Process, open_bench
from detcore_testing._crash_scenarios import SCENARIOS

LIBRARIES = {
    "local": (), "gcs": ("gcsfs",), "seaweedfs": ("botocore.session", "obstore"),
    "moto": ("botocore.session", "obstore"),
}  # fmt: skip


def open_storage(kind: str, place: str, prefix: str, fields: dict[str, Any]) -> StorageBackend:
    if kind == "local":
        return LocalStorage(place)
    if kind == "gcs":
        return GcsStorage(gcs_settings(place, prefix, **fields))
    return S3Storage(s3_settings(place, prefix, **fields))


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


def do(storage: dict[str, Any], task: dict[str, Any]) -> None:
    point = CrashPoint(task["operation"], Moment(task["moment"]))
    with Database.open(task["database"]) as database:
        bench = open_bench(task["bench"], database, open_storage(**storage))
        SCENARIOS[task["scenario"]].act(Process(bench, Fuse(point, die=die, interrupts=True)))


def main() -> None:
    storage = json.loads(sys.stdin.readline())
    for name in LIBRARIES[storage["kind"]]:  # once, rather than in every child
        importlib.import_module(name)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                do(storage, json.loads(line))
            finally:
                os._exit(3)
        _, status = os.waitpid(pid, 0)
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)


main()
