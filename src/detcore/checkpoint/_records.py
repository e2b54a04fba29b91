"""Declare the records that saving, deleting and settling checkpoints require."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from detcore.database import CheckpointRecord
    from detcore.hooks import CheckpointSaved

__all__ = ["CheckpointRecords", "RecoveryRecords"]


class CheckpointRecords(Protocol):
    """Records the states of checkpoints: a trial's log, or a `detcore.database.Database`."""

    def checkpoint_started(
        self,
        *,
        uuid: str,
        trial_id: int,
        experiment_id: int,
        storage_url: str,
        steps_completed: int,
    ) -> None:
        """Record that a checkpoint is being written."""

    def checkpoint_committed(
        self,
        uuid: str,
        *,
        metadata: Mapping[str, object],
        resources: Mapping[str, int],
        steps_completed: int,
        saved: CheckpointSaved | None = None,
    ) -> None:
        """Record that a checkpoint is complete; `saved` describes it for observers."""

    def checkpoint_deleting(self, uuid: str, *, force: bool = False) -> None:
        """Record that all files of a checkpoint are about to be deleted."""

    def checkpoint_deleted(
        self, uuid: str, *, resources: Mapping[str, int] | None = None, force: bool = False
    ) -> None:
        """Record that files of a checkpoint were deleted, or that some are about to be."""

    def checkpoint_damaged(self, uuid: str) -> None:
        """Record that files of a checkpoint are missing or have changed."""


class RecoveryRecords(CheckpointRecords, Protocol):
    """Records that also list the checkpoints that a killed process left."""

    def list_checkpoints(
        self, *, trial_id: int, states: Iterable[str] | None = None
    ) -> list[CheckpointRecord]:
        """Return the checkpoints of a trial, oldest first."""
