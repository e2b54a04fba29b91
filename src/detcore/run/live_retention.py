"""Deleting the checkpoints that an experiment does not keep, while its trials train."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.checkpoint import apply_retention
from detcore.contract.errors import DetcoreError
from detcore.records import ingest_event_logs

if TYPE_CHECKING:
    from detcore.records import Database, RetentionPlan
    from detcore.storage import StorageBackend


_POLL_INTERVAL_S = 1.0
# A pass looks at the records of all experiments: it takes at most a twentieth of the time.
_REST = 20
_LATER_S = 60.0
# `at_work` waits no longer at its end; the next pass continues the deletions.
_END_S = 5.0


class Retention:
    """Deletes, in a separate thread, checkpoints that are not kept, soon after each commit.

    Args:
        database: The records; they may be away at times.
        experiment_id: Whose checkpoints.
        home: The folder with the event logs of the trials.
        open_storage: Opens the experiment's storage.
        notice: Called with messages for the user.

    Attributes:
        num_deleted: How many were deleted.
    """

    def __init__(
        self,
        database: Database,
        experiment_id: int,
        *,
        home: Path,
        open_storage: Callable[[], AbstractContextManager[StorageBackend]],
        notice: Callable[[str], None],
    ) -> None:
        self.num_deleted = 0
        self._database = database
        self._experiment_id = experiment_id
        self._home = home
        self._open_storage = open_storage
        self._notice = notice
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Delete from time to time during the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join(_END_S)

    def apply(self) -> RetentionPlan:
        """Make one pass.

        Raises:
            DetcoreError: If something could not be deleted; the next pass does it.
        """
        with self._lock, self._open_storage() as storage:
            ingest_event_logs(self._database, self._home)
            plan = apply_retention(self._database, storage, self._experiment_id)
        self.num_deleted += len(plan.deleted)
        return plan

    def _run(self) -> None:
        seen, wait_s, is_told = 0, _POLL_INTERVAL_S, False
        while not self._is_over.wait(wait_s):
            began = time.monotonic()
            wait_s = _POLL_INTERVAL_S
            try:
                count = self._database.count_checkpoints(self._experiment_id)
                if count == seen:
                    continue
                seen = count - len(self.apply().deleted)
            except (DetcoreError, OSError) as error:
                if not is_told:
                    is_told = True
                    self._notice(
                        "checkpoints that are not kept cannot be deleted now, and are later: "
                        f"{error}"
                    )
                wait_s = _LATER_S
            wait_s = max(wait_s, _REST * (time.monotonic() - began))
