"""Delete the checkpoints that an experiment does not keep, while its trials train."""

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
# A pass reads the records of all experiments. This factor limits passes to a twentieth of the time.
_MIN_PAUSE_FACTOR = 20
_RETRY_DELAY_S = 60.0
# Maximum wait at the end of `delete_in_background`; the next pass continues the deletions.
_JOIN_TIMEOUT_S = 5.0


class Retention:
    """Deletes checkpoints that are not kept, soon after each commit, in a separate thread.

    Args:
        database: The records, which may be unreachable at times.
        experiment_id: The experiment.
        home: The home directory, with the event logs of the trials.
        open_storage: Opens the experiment's storage.
        notice: Called with messages for the user.

    Attributes:
        num_deleted: Number of deleted checkpoints.
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
        self._thread = threading.Thread(target=self._run_passes, name="retention", daemon=True)

    @contextlib.contextmanager
    def delete_in_background(self) -> Iterator[None]:
        """Delete checkpoints periodically during the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join(_JOIN_TIMEOUT_S)

    def apply_policy(self) -> RetentionPlan:
        """Delete all checkpoints that are not kept.

        Raises:
            DetcoreError: If a checkpoint could not be deleted; the next pass repeats the deletion.
        """
        with self._lock, self._open_storage() as storage:
            ingest_event_logs(self._database, self._home)
            plan = apply_retention(self._database, storage, self._experiment_id)
        self.num_deleted += len(plan.deleted)
        return plan

    def _run_passes(self) -> None:
        num_seen, wait_s, was_reported = 0, _POLL_INTERVAL_S, False
        while not self._is_over.wait(wait_s):
            started_at = time.monotonic()
            wait_s = _POLL_INTERVAL_S
            try:
                count = self._database.count_checkpoints(self._experiment_id)
                if count == num_seen:
                    continue
                num_seen = count - len(self.apply_policy().deleted)
            except (DetcoreError, OSError) as error:
                if not was_reported:
                    was_reported = True
                    self._notice(
                        "checkpoints that are not kept cannot be deleted now; retrying later: "
                        f"{error}"
                    )
                wait_s = _RETRY_DELAY_S
            wait_s = max(wait_s, _MIN_PAUSE_FACTOR * (time.monotonic() - started_at))
