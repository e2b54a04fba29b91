"""Verification of checkpoints for the web pages."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from detcore.errors import DetcoreError, RunError

if TYPE_CHECKING:
    from detcore.records import CheckpointRecord
    from detcore_server.server_database import ServerDatabase
    from detcore_server.server_settings import ServerSettings


READABLE = ("COMPLETED", "PARTIALLY_DELETED")
# Each check reads a complete checkpoint, so more concurrency would only be slower.
_AT_ONCE = 2
_MAX_WAITING = 50


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Check of a checkpoint's files.

    Attributes:
        user: User who requested the check.
        asked_at: Time of the request.
        ended_at: Time of the end, or None if the check is in progress.
        faults: Differences from the saved checkpoint.
        error: Error message if the files could not be read, or None.
    """

    user: str
    asked_at: datetime.datetime
    ended_at: datetime.datetime | None = None
    faults: Sequence[str] = ()
    error: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether the check has finished."""
        return self.ended_at is not None

    @property
    def is_good(self) -> bool:
        """Whether every file is intact."""
        return self.is_over and not self.faults and self.error is None


class Verifier:
    """Checks checkpoints in threads. Results are kept until the server ends.

    Methods may be called from any thread.

    Args:
        settings: Settings of the server.
        database: Records of the server.
    """

    def __init__(self, settings: ServerSettings, database: ServerDatabase) -> None:
        self._settings = settings
        self._database = database
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        self._results: dict[str, Verification] = {}

    def get(self, uuid: str) -> Verification | None:
        """Return the latest check of a checkpoint, or None."""
        with self._lock:
            return self._results.get(uuid)

    def start(self, record: CheckpointRecord, user: str) -> None:
        """Start checking a checkpoint, unless a check is in progress.

        Raises:
            RunError: If the checkpoint's state does not allow a check, or too many checks wait.
        """
        if record.state not in READABLE:
            raise RunError(
                f"the files of checkpoint {record.uuid} cannot be checked: it is {record.state}."
            )
        with self._lock:
            previous = self._results.get(record.uuid)
            if previous is not None and not previous.is_over:
                return
            if sum(not result.is_over for result in self._results.values()) >= _MAX_WAITING:
                raise RunError(f"{_MAX_WAITING} checks are already in progress. Try again later.")
            verification = Verification(user=user, asked_at=_now())
            self._results[record.uuid] = verification
        # The thread ends with the server. Only the result is lost.
        threading.Thread(
            target=self._run, args=(record, verification), name="verify", daemon=True
        ).start()

    def _run(self, record: CheckpointRecord, verification: Verification) -> None:
        faults: list[str] = []
        message: str | None = "the check was interrupted"
        try:
            with self._slots:
                faults, message = self._find_faults(record), None
        except DetcoreError as error:
            message = str(error)
        finally:
            result = dataclasses.replace(
                verification, ended_at=_now(), faults=faults, error=message
            )
            with self._lock:
                self._results[record.uuid] = result

    def _find_faults(self, record: CheckpointRecord) -> list[str]:
        from detcore.checkpoint import verify_checkpoint
        from detcore.storage import open_recorded

        storage = open_recorded(
            record,
            database=self._database,
            home=self._settings.environment.home,
            plugins=self._settings.plugins,
        )
        with contextlib.closing(storage):
            return [str(fault) for fault in verify_checkpoint(storage, record.uuid)]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
