"""A plugin of the suites' own: a folder of checkpoints where something happens at a chosen commit.

Loaded into the workers of a suite's runs, through entry points as any plugin. So a worker is killed
at the same place each time, whatever framework trains in it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from pathlib import Path

import pydantic

from detcore.plugins import StorageType, hookimpl
from detcore.storage import LocalStorage

_SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM}
_MANIFEST = "manifest.json"


class StageSettings(pydantic.BaseModel):
    """Settings: where files go, and the orders to carry out.

    Attributes:
        root: The folder of checkpoints.
        orders: A JSON file: ``{"before": {"2": "kill"}, "after": {"3": "terminate"}}`` kills the
            worker when its second checkpoint has all files but no manifest, and asks it to make
            way when the third is committed. ``"touch:PATH"`` makes a file, ``"copy:PATH"`` copies
            the checkpoint; several are joined by commas.
        journal: Where each commit is noted, as a line of JSON.
    """

    root: str
    orders: str
    journal: str


class StageStorage(LocalStorage):
    """A folder; the commits of this process are counted from 1."""

    def __init__(self, settings: StageSettings) -> None:
        super().__init__(settings.root)
        self._settings = settings
        self._num_commits = 0

    def create(self, key: str, data: bytes) -> None:
        """Write a file; for a manifest, follow the orders around it."""
        if not key.endswith(_MANIFEST):
            super().create(key, data)
            return
        self._num_commits += 1
        self._follow("before", key)
        super().create(key, data)
        line = {
            "uuid": key.partition("/")[0],
            "num_threads": threading.active_count(),
            "num_files": len(os.listdir("/proc/self/fd")),
            "folder": os.getcwd(),
        }
        with open(self._settings.journal, "a", encoding="utf-8") as journal:
            journal.write(json.dumps(line) + "\n")
        self._follow("after", key)

    def _follow(self, when: str, key: str) -> None:
        path = Path(self._settings.orders)
        orders = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for order in filter(None, orders.get(when, {}).get(str(self._num_commits), "").split(",")):
            verb, _, argument = order.partition(":")
            if verb == "copy":
                shutil.copytree(Path(self._settings.root, key).parent, argument)
            elif verb == "touch":
                Path(argument).touch()
            else:
                os.kill(os.getpid(), _SIGNALS[verb])


@hookimpl
def detcore_register_storage() -> StorageType:
    """Register the storage."""
    return StorageType(
        name="testing-stage",
        schemes=(),
        settings="detcore_testing.framework.stage:StageSettings",
        backend="detcore_testing.framework.stage:StageStorage",
    )
