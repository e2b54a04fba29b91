"""A test plugin: checkpoint storage that runs orders, such as a kill, at a chosen commit.

The workers of a suite's runs load it through an entry point. A worker is therefore killed at the
same point in every run, whatever its framework.
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
    """Settings of the storage.

    Attributes:
        root: Checkpoint directory.
        orders: Path of a JSON file. ``{"before": {"2": "kill"}, "after": {"3": "terminate"}}``
            kills the worker when its second checkpoint has all files but no manifest, and sends
            SIGTERM after the third commit. ``"touch:PATH"`` creates a file, and ``"copy:PATH"``
            copies the checkpoint. Separate several orders with commas.
        journal: Path of a file with one line of JSON for each commit.
    """

    root: str
    orders: str
    journal: str


class StageStorage(LocalStorage):
    """Local storage that counts the commits of this process from 1."""

    def __init__(self, settings: StageSettings) -> None:
        super().__init__(settings.root)
        self._settings = settings
        self._num_commits = 0

    def create(self, key: str, data: bytes) -> None:
        """Write a file. For a manifest, run the orders before and after."""
        if not key.endswith(_MANIFEST):
            super().create(key, data)
            return
        self._num_commits += 1
        self._run_orders("before", key)
        super().create(key, data)
        line = {
            "uuid": key.partition("/")[0],
            "num_threads": threading.active_count(),
            "num_files": len(os.listdir("/proc/self/fd")),
            "folder": os.getcwd(),
        }
        with open(self._settings.journal, "a", encoding="utf-8") as journal:
            journal.write(json.dumps(line) + "\n")
        self._run_orders("after", key)

    def _run_orders(self, when: str, key: str) -> None:
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
