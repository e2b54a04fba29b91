"""Recorded checkpoints, and the storages that they are in."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING

from detcore.cli._records import open_records
from detcore.errors import DetcoreError

if TYPE_CHECKING:
    from detcore.checkpoint import Fault, RecordedPlace
    from detcore.cli._context import CliContext
    from detcore.database import CheckpointRecord, Database
    from detcore.hooks import PluginManager
    from detcore.storage import StorageBackend

__all__ = ["READABLE", "SHOWN", "CheckpointStore", "open_store", "survey_checkpoints"]

READABLE = ("COMPLETED", "PARTIALLY_DELETED")
SHOWN = ("ACTIVE", "DAMAGED", *READABLE)


class CheckpointStore:
    """The records, and the storages that they name, each opened once."""

    def __init__(self, obj: CliContext, database: Database) -> None:
        from detcore.checkpoint import watch_transfers

        self._home = obj.environment.home
        self._obj = obj
        self._plugins: PluginManager | None = None
        self._stack = contextlib.ExitStack()
        self._places: dict[tuple[int, str], RecordedPlace] = {}
        self._opened: dict[str, StorageBackend] = {}
        self.database = database
        self.observer = watch_transfers(sys.stderr, lines=True)

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        self._stack.close()

    def storage(self, record: CheckpointRecord) -> StorageBackend:
        """Open the storage that a checkpoint is in; one behind a server can be read only."""
        from detcore.checkpoint import find_place
        from detcore.remote import ServerRecords

        if isinstance(self.database, ServerRecords):
            from detcore.experimental import open_remote_checkpoint

            return open_remote_checkpoint(self.database.session, record.uuid)

        if self._plugins is None:
            self._plugins = self._obj.plugin_manager()
        home, plugins = self._home, self._plugins
        key = (record.experiment_id, record.storage_url)
        if key not in self._places:
            self._places[key] = find_place(
                record, database=self.database, home=home, plugins=plugins
            )
        place = self._places[key]
        spec = repr(place.spec)  # two experiments may mean different servers by one URL
        if spec not in self._opened:
            self._opened[spec] = place.open(home=home, plugins=plugins)
            self._stack.callback(self._opened[spec].close)
        return self._opened[spec]

    def faults(self, record: CheckpointRecord) -> list[Fault]:
        """Read a checkpoint and return its faults, or the reason why it cannot be read."""
        from detcore.checkpoint import Fault, verify_checkpoint

        try:
            return verify_checkpoint(self.storage(record), record.uuid, observer=self.observer)
        except DetcoreError as error:  # a storage that is away must not hide what others hold
            return [Fault(record.storage_url, str(error).partition("\n")[0])]


def survey_checkpoints(
    obj: CliContext, database: Database, experiment_id: int, *, verify: bool
) -> list[tuple[CheckpointRecord, list[str] | None]]:
    """Return the checkpoints of an experiment, each with the faults of its files.

    Args:
        obj: Selects the records.
        database: The records, open.
        experiment_id: The experiment.
        verify: Whether to read the files; the faults of those that were not read are None.
    """
    found: list[tuple[CheckpointRecord, list[str] | None]] = []
    with CheckpointStore(obj, database) as store:
        for record in database.list_checkpoints(experiment_id=experiment_id, states=SHOWN):
            faults = None
            if verify and record.state in READABLE:
                faults = [str(fault) for fault in store.faults(record)]
            found.append((record, faults))
    return found


@contextlib.contextmanager
def open_store(obj: CliContext) -> Iterator[CheckpointStore]:
    """Open the records, with everything that workers have reported so far."""
    with open_records(obj) as database, CheckpointStore(obj, database) as store:
        yield store
