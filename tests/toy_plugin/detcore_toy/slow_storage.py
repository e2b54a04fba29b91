"""A slow directory storage, like a distant object store, that can also fail and kill."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pydantic

from detcore.errors import StorageError
from detcore.storage import FileDigest
from detcore_storage import FsspecStorage

__all__ = ["SlowSettings", "SlowStorage", "open_slow"]


class SlowSettings(pydantic.BaseModel):
    """Directory of the files, and path of the orders file, which is read for each operation.

    The JSON object in the orders file may contain ``save_s`` (seconds per checkpoint), ``fail``,
    and ``kill_at_delete`` (number of the file deletion at which the process is killed). At the
    start of each save, a line with ``save_s`` is written to a file with the suffix ``.begun``.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    root: str
    orders: str


class SlowStorage(FsspecStorage):
    """Hide from detcore that the storage is a local directory."""

    def __init__(self, settings: SlowSettings) -> None:
        super().__init__(Path(settings.root).as_uri())
        self._orders = Path(settings.orders)
        self._num_deletes = 0

    def _read_orders(self) -> dict[str, Any]:
        return dict(json.loads(self._orders.read_text())) if self._orders.exists() else {}

    def delete(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        if any(not key.startswith(".") for key in keys):
            self._num_deletes += 1
            if self._num_deletes == self._read_orders().get("kill_at_delete"):
                os.kill(os.getpid(), signal.SIGKILL)
        super().delete(keys)

    def put_tree(self, pairs: Sequence[Any], *, progress: Any = None) -> dict[str, FileDigest]:
        orders = self._read_orders()
        if orders.get("fail"):
            raise StorageError(f"the bucket {self.url} is gone")
        save_s = float(orders.get("save_s", 0.0))
        with self._orders.with_suffix(".begun").open("a") as begun:
            begun.write(f"{save_s}\n")
        end = time.monotonic() + save_s
        while time.monotonic() < end:
            time.sleep(0.02)
            if progress is not None:
                progress(0)
        return super().put_tree(pairs, progress=progress)


def open_slow(settings: SlowSettings) -> SlowStorage:
    return SlowStorage(settings)
