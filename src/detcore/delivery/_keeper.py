"""Telling all plugins of a trial while it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.delivery._courier import Courier
from detcore.delivery._mailbox import Mailbox, subscribe
from detcore.delivery._runs import read_run
from detcore.delivery._thread import AWAY_WAIT_S, DeliveryThread
from detcore.errors import StorageError

if TYPE_CHECKING:
    from detcore.hooks import Observer
    from detcore.types import TrialInfo

__all__ = ["DeliveryKeeper"]


class DeliveryKeeper:
    """Lets the observers be told of a run of a trial, each by a thread of its own."""

    def __init__(self, info: TrialInfo, observers: Sequence[Observer]) -> None:
        """Start the threads; the run's spool is open, and ``run-<n>.json`` is written.

        Raises:
            StorageError: If it cannot be noted who is to be told.
        """
        self._info = info
        self._trial_dir = Path(info.trial_dir)
        names = [observer.entry.name for observer in observers]
        try:
            subscribe(self._trial_dir, names, info.run_id)
        except OSError as error:
            raise StorageError(
                f"it cannot be noted in {self._trial_dir} that {', '.join(names)} observe this "
                f"trial: {error}.\nMake room there, or switch them off: DETCORE_DISABLE_PLUGINS."
            ) from error
        self._threads = [self._start(observer) for observer in observers]

    def close(self, timeout_s: float) -> list[str]:
        """Tell what is left, if that can be done in time; return who was not told everything."""
        for thread in self._threads:
            thread.finish()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            left_s = deadline - time.monotonic()
            # One more try is enough for a service that is known to be away.
            thread.join(min(left_s, AWAY_WAIT_S) if thread.is_away else left_s)
        names = [thread.name for thread in self._threads]
        return [name for name in names if Mailbox(self._trial_dir, name).runs()]

    def _start(self, observer: Observer) -> DeliveryThread:
        name = observer.entry.name
        courier = Courier(Mailbox(self._trial_dir, name), observer, self._read_trial)
        return DeliveryThread(courier, name)

    def _read_trial(self, run_id: int) -> TrialInfo:
        if run_id == self._info.run_id:
            return self._info
        return read_run(self._trial_dir, run_id)
