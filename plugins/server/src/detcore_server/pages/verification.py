"""Verification of checkpoints against their manifests, for the web pages."""

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
# Each reads all of a checkpoint: more at once would only be slower.
_AT_ONCE = 2
_MAX_WAITING = 50


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A check of a checkpoint's files.

    Attributes:
        user: The user who requested it.
        asked_at: When it was requested.
        ended_at: When it was done; None: it is not.
        faults: Differences from the checkpoint as saved; empty: none.
        error: Why the files could not be read, or None.
    """

    user: str
    asked_at: datetime.datetime
    ended_at: datetime.datetime | None = None
    faults: Sequence[str] = ()
    error: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether there is a result."""
        return self.ended_at is not None

    @property
    def is_good(self) -> bool:
        """Whether every file is as it was saved."""
        return self.is_over and not self.faults and self.error is None


class Verifier:
    """Checks checkpoints in separate threads; results are kept until the server ends.

    Methods may be called from any thread.

    Args:
        settings: Settings of the server.
        database: Its records.
    """

    def __init__(self, settings: ServerSettings, database: ServerDatabase) -> None:
        self._settings = settings
        self._database = database
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        self._results: dict[str, Verification] = {}

    def get(self, uuid: str) -> Verification | None:
        """Return the newest check of a checkpoint, or None."""
        with self._lock:
            return self._results.get(uuid)

    def start(self, record: CheckpointRecord, user: str) -> None:
        """Begin to check a checkpoint, unless a check is in progress.

        Raises:
            RunError: If its files cannot be checked in its state, or too many others wait.
        """
        if record.state not in READABLE:
            raise RunError(
                f"checkpoint {record.uuid} is {record.state}: there are no complete files to check."
            )
        with self._lock:
            known = self._results.get(record.uuid)
            if known is not None and not known.is_over:
                return
            if sum(not found.is_over for found in self._results.values()) >= _MAX_WAITING:
                raise RunError(
                    f"{_MAX_WAITING} checkpoints are being checked already: try again later."
                )
            asked = Verification(user=user, asked_at=_now())
            self._results[record.uuid] = asked
        # It ends with the server: only the result is lost.
        threading.Thread(target=self._run, args=(record, asked), name="verify", daemon=True).start()

    def _run(self, record: CheckpointRecord, asked: Verification) -> None:
        faults: list[str] = []
        told: str | None = "the check was interrupted"
        try:
            with self._slots:
                faults, told = self._check(record), None
        except DetcoreError as error:
            told = str(error)
        finally:
            done = dataclasses.replace(asked, ended_at=_now(), faults=faults, error=told)
            with self._lock:
                self._results[record.uuid] = done

    def _check(self, record: CheckpointRecord) -> list[str]:
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
