"""Read, copy, repair and delete the files of recorded checkpoints, for the client and commands."""

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
    "ACTIVE": "is not complete: it is being saved, or saving it was interrupted",
    "DAMAGED": "is damaged (see detcore checkpoint repair)",
    "DELETED": "was deleted",
    "DELETING": "was being deleted when its process ended",
}


class CheckpointFiles:
    """The files of recorded checkpoints, in the storages that the records name.

    Each storage is opened once, and closed with the block.

    Args:
        database: The records.
        environment: Location of the records.
        make_plugins: Makes the registry of storage types; default: all that are installed.
        progress_to: The stream on which long transfers are shown; None for none.
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

    def storage(self, record: CheckpointRecord) -> StorageBackend:
        """Return the storage that a checkpoint is in."""
        home = self._environment.home
        place = find_recorded_storage(
            record, database=self.database, home=home, plugins=self._find_plugins()
        )
        spec = repr(place.spec)  # two experiments may mean different servers by one URL
        if spec not in self._opened:
            self._opened[spec] = place.open()
            self._stack.callback(self._opened[spec].close)
        return self._opened[spec]

    def readable(self, uuid: str) -> CheckpointRecord:
        """Return the record of a checkpoint whose files can be read.

        Raises:
            CheckpointStateError: If it is not complete, or was deleted.
        """
        record = self.database.get_checkpoint(uuid)
        if record.state not in READABLE:
            raise CheckpointStateError(
                f"checkpoint {record.uuid} {_WHY.get(record.state, record.state)}.\n"
                "List those that are there with: detcore checkpoint list"
            )
        return record

    def manifest(self, record: CheckpointRecord) -> checkpoint.Manifest:
        """Return the manifest of a checkpoint."""
        return checkpoint.read_manifest(self.storage(record), record.uuid)

    def download(self, record: CheckpointRecord, folder: Path) -> checkpoint.Manifest:
        """Copy a checkpoint's files to a folder, each checked."""
        return checkpoint.download_checkpoint(
            self.storage(record), record.uuid, folder, observer=self._observer
        )

    def copy(self, uuid: str, folder: Path) -> None:
        """Make a folder a complete copy of a checkpoint, unless it is one.

        Raises:
            CheckpointStateError: If it is not complete, or was deleted.
            DetcoreError: As `detcore.checkpoint.copy_checkpoint`.
        """
        if not checkpoint.is_complete_copy(folder, uuid):
            record = self.readable(uuid)
            checkpoint.copy_checkpoint(self.storage(record), record.uuid, folder)

    def faults(self, record: CheckpointRecord) -> list[checkpoint.Fault]:
        """Read a checkpoint and return its faults, or the reason why it cannot be read."""
        try:
            return checkpoint.verify_checkpoint(
                self.storage(record), record.uuid, observer=self._observer
            )
        except DetcoreError as error:  # a storage that is away must not hide what others hold
            return [checkpoint.Fault(record.storage_url, str(error).partition("\n")[0])]

    def settle(self, records: Iterable[CheckpointRecord]) -> None:
        """Settle the unfinished ones among checkpoints, of trials whose processes are gone."""
        from detcore.run import hold_experiment_lock, recover_trial

        unsettled = [record for record in records if record.state in _UNSETTLED]
        uuids = {record.uuid for record in unsettled}
        trials = {(record.trial_id, record.storage_url): record for record in unsettled}
        for (trial_id, _), record in trials.items():
            trial = self.database.get_trial(trial_id)
            if self.database.is_experiment_alive(record.experiment_id):
                continue
            with hold_experiment_lock(self.database, self._environment, record.experiment_id):
                recover_trial(self.database, self.storage(record), trial, uuids=uuids)

    def repair(self, record: CheckpointRecord, *, remove_strays: bool) -> checkpoint.Repair:
        """Record whether a checkpoint can be used; see `repair_checkpoint`."""
        return checkpoint.repair_checkpoint(
            self.database,
            self.storage(record),
            record,
            remove_strays=remove_strays,
            observer=self._observer,
        )

    def require_settled(self, record: CheckpointRecord) -> None:
        """Refuse to delete a checkpoint that is being saved.

        Raises:
            CheckpointStateError: If it is.
        """
        is_alive = self.database.is_experiment_alive(record.experiment_id)
        if record.state == "ACTIVE" and is_alive:
            raise CheckpointStateError(
                f"checkpoint {record.uuid} is being saved by trial {record.trial_id}.\n"
                "Wait until it is complete, or end the trial first."
            )

    def delete(
        self, record: CheckpointRecord, globs: Sequence[str] | None = None, *, force: bool = False
    ) -> None:
        """Delete a checkpoint's files, or those that match.

        Raises:
            CheckpointStateError: If it is being saved or in the model registry, or if patterns are
                given and it is not complete; nothing was deleted.
        """
        self.require_settled(record)
        if globs is not None:
            self.readable(record.uuid)
        # Of a deleted one an interrupted deletion may have left files; its record stays as it is.
        kept = None if record.state == "DELETED" else self.database
        checkpoint.delete_checkpoint(
            self.storage(record), record.uuid, database=kept, globs=globs, force=force
        )

    def plan_pruning(
        self, experiment_id: int, rules: dict[str, int]
    ) -> tuple[RetentionPlan, RetentionPolicy]:
        """Choose which checkpoints of an experiment to keep, by its policy with other rules."""
        from detcore.records import RetentionPolicy, plan_retention

        config = self.database.get_experiment(experiment_id).config
        policy = dataclasses.replace(RetentionPolicy.from_config(config), **rules)
        return plan_retention(self.database, experiment_id, policy=policy), policy

    def prune(
        self, experiment_id: int, plan: RetentionPlan, policy: RetentionPolicy
    ) -> RetentionPlan:
        """Delete checkpoints that a plan does not keep, in one pass over each storage."""
        records = self.database.list_checkpoints(experiment_id=experiment_id)
        by_url = {record.storage_url: record for record in records if record.uuid in plan.deleted}
        kept = dict(plan.kept)
        deleted: list[str] = []
        for record in by_url.values():
            storage = self.storage(record)
            if storage.url != record.storage_url:
                raise CheckpointError(
                    f"checkpoint {record.uuid} is in {record.storage_url}, but the experiment's "
                    f"settings lead to {storage.url}.\nNothing was deleted there."
                )
            done = checkpoint.apply_retention(self.database, storage, experiment_id, policy=policy)
            kept.update(done.kept)
            deleted.extend(done.deleted)
        return dataclasses.replace(plan, kept=kept, deleted=tuple(deleted))
