"""Read, copy, repair and delete the files of recorded checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from detcore import checkpoint
from detcore.contract.errors import (
    CheckpointError,
    CheckpointStateError,
    DetcoreError,
)
from detcore.plugins import PluginManager
from detcore.storage import find_recorded_storage, watch_transfers

if TYPE_CHECKING:
    from typing_extensions import Self

    from detcore.environment import Environment
    from detcore.records import CheckpointRecord, Database, RetentionPlan, RetentionPolicy
    from detcore.storage import StorageBackend


READABLE = ("COMPLETED", "PARTIALLY_DELETED")
SHOWN = ("ACTIVE", "DAMAGED", *READABLE)
_UNSETTLED = ("ACTIVE", "DELETING", "PARTIALLY_DELETED")
_WHY = {
    "ACTIVE": "is not complete: it is being saved, or saving was interrupted",
    "DAMAGED": "is damaged",
    "DELETED": "was deleted",
    "DELETING": "is partly deleted: its deletion was interrupted",
}


class CheckpointFiles:
    """The files of recorded checkpoints in their storages.

    Each storage is opened once, and closed at the end of the ``with`` block.

    Args:
        database: The records.
        environment: Location of the records.
        make_plugins: Creates the plugin manager; default: all installed plugins.
        progress_to: Stream for the progress of long transfers; None for no progress.
    """

    def __init__(
        self,
        database: Database,
        environment: Environment,
        *,
        make_plugins: Callable[[], PluginManager] | None = None,
        progress_to: TextIO | None = None,
    ) -> None:
        self.database = database
        self._environment = environment
        self._find_plugins = functools.cache(
            make_plugins or functools.partial(PluginManager, environment)
        )
        self._observer = None if progress_to is None else watch_transfers(progress_to)
        self._stack = contextlib.ExitStack()
        self._opened: dict[str, StorageBackend] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def open_storage(self, record: CheckpointRecord) -> StorageBackend:
        """Return the open storage of a checkpoint."""
        home = self._environment.home
        place = find_recorded_storage(
            record, database=self.database, home=home, plugins=self._find_plugins()
        )
        spec = repr(place.spec)  # two experiments may mean different servers by one URL
        if spec not in self._opened:
            self._opened[spec] = place.open()
            self._stack.callback(self._opened[spec].close)
        return self._opened[spec]

    def get_readable(self, uuid: str) -> CheckpointRecord:
        """Return the record of a readable checkpoint.

        Raises:
            CheckpointStateError: If it is not complete, or was deleted.
        """
        record = self.database.get_checkpoint(uuid)
        if record.state not in READABLE:
            check = f"Check its files again: detcore checkpoint repair {record.uuid}\n"
            raise CheckpointStateError(
                f"checkpoint {record.uuid} {_WHY.get(record.state, record.state)}.\n"
                f"{check if record.state == 'DAMAGED' else ''}"
                "Choose another checkpoint of the experiment: "
                f"detcore checkpoint list --experiment {record.experiment_id}"
            )
        return record

    def read_manifest(self, record: CheckpointRecord) -> checkpoint.Manifest:
        """Return the manifest of a checkpoint."""
        return checkpoint.read_manifest(self.open_storage(record), record.uuid)

    def download_files(self, record: CheckpointRecord, folder: Path) -> checkpoint.Manifest:
        """Copy a checkpoint's files to a directory, and check each file."""
        return checkpoint.download_checkpoint(
            self.open_storage(record), record.uuid, folder, observer=self._observer
        )

    def copy_files(self, uuid: str, folder: Path) -> None:
        """Make a directory a complete copy of a checkpoint, unless it already is a copy.

        Raises:
            CheckpointStateError: If it is not complete, or was deleted.
            DetcoreError: As `detcore.checkpoint.copy_checkpoint`.
        """
        if not checkpoint.is_complete_copy(folder, uuid):
            record = self.get_readable(uuid)
            checkpoint.copy_checkpoint(self.open_storage(record), record.uuid, folder)

    def find_faults(self, record: CheckpointRecord) -> list[checkpoint.Fault]:
        """Read a checkpoint and return its faults, including the reason if it is unreadable."""
        try:
            return checkpoint.verify_checkpoint(
                self.open_storage(record), record.uuid, observer=self._observer
            )
        except DetcoreError as error:  # an unreachable storage must not hide other checkpoints
            return [checkpoint.Fault(record.storage_url, str(error).partition("\n")[0])]

    def recover_unfinished(self, records: Iterable[CheckpointRecord]) -> None:
        """Recover unfinished checkpoints of trials whose processes have exited."""
        from detcore.run import hold_experiment_lock, recover_trial

        unsettled = [record for record in records if record.state in _UNSETTLED]
        uuids = {record.uuid for record in unsettled}
        trials = {(record.trial_id, record.storage_url): record for record in unsettled}
        for (trial_id, _), record in trials.items():
            trial = self.database.get_trial(trial_id)
            if self.database.is_experiment_alive(record.experiment_id):
                continue
            with hold_experiment_lock(self.database, self._environment, record.experiment_id):
                recover_trial(self.database, self.open_storage(record), trial, uuids=uuids)

    def repair_record(self, record: CheckpointRecord, *, remove_strays: bool) -> checkpoint.Repair:
        """Update the record of a checkpoint from its files; see `repair_checkpoint`."""
        return checkpoint.repair_checkpoint(
            self.database,
            self.open_storage(record),
            record,
            remove_strays=remove_strays,
            observer=self._observer,
        )

    def require_settled(self, record: CheckpointRecord) -> None:
        """Check that a checkpoint is not being saved.

        Raises:
            CheckpointStateError: If it is being saved.
        """
        is_alive = self.database.is_experiment_alive(record.experiment_id)
        if record.state == "ACTIVE" and is_alive:
            raise CheckpointStateError(
                f"checkpoint {record.uuid} is being saved by trial {record.trial_id}.\n"
                f"Wait until it is complete, or end the trial: detcore trial kill {record.trial_id}"
            )

    def delete_files(
        self, record: CheckpointRecord, globs: Sequence[str] | None = None, *, force: bool = False
    ) -> None:
        """Delete a checkpoint's files, or matching files.

        Raises:
            CheckpointStateError: If it is being saved, is in the model registry, or is not complete
                although patterns are passed. Nothing was deleted.
        """
        self.require_settled(record)
        if globs is not None:
            self.get_readable(record.uuid)
        # An interrupted deletion may have left files of a DELETED checkpoint. Its record is final.
        database = None if record.state == "DELETED" else self.database
        checkpoint.delete_checkpoint(
            self.open_storage(record), record.uuid, database=database, globs=globs, force=force
        )

    def plan_pruning(
        self, experiment_id: int, rules: dict[str, int]
    ) -> tuple[RetentionPlan, RetentionPolicy]:
        """Choose which checkpoints of an experiment to keep, by its policy with overrides."""
        from detcore.records import RetentionPolicy, plan_retention

        config = self.database.get_experiment(experiment_id).config
        policy = dataclasses.replace(RetentionPolicy.from_config(config), **rules)
        return plan_retention(self.database, experiment_id, policy=policy), policy

    def prune_checkpoints(
        self, experiment_id: int, plan: RetentionPlan, policy: RetentionPolicy
    ) -> RetentionPlan:
        """Delete the checkpoints that a plan does not keep, in one pass over each storage."""
        records = self.database.list_checkpoints(experiment_id=experiment_id)
        by_url = {record.storage_url: record for record in records if record.uuid in plan.deleted}
        reasons = dict(plan.kept)
        deleted: list[str] = []
        for record in by_url.values():
            storage = self.open_storage(record)
            if storage.url != record.storage_url:
                raise CheckpointError(
                    f"checkpoint {record.uuid} is in {record.storage_url}, but the experiment's "
                    f"settings select {storage.url}.\nNothing was deleted there."
                )
            result = checkpoint.apply_retention(
                self.database, storage, experiment_id, policy=policy
            )
            reasons.update(result.kept)
            deleted.extend(result.deleted)
        return dataclasses.replace(plan, kept=reasons, deleted=tuple(deleted))
