"""What the workers of a trial need of the records, wherever those are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from detcore.database._records import CheckpointRecord
    from detcore.types import TrialState

__all__ = ["CheckpointRecords", "RecoveryRecords", "SpoolMover", "WorkerRecords"]


class CheckpointRecords(Protocol):
    """Records what becomes of checkpoints; see the methods of `Database` of the same names."""

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
    ) -> None:
        """Record that a checkpoint is whole."""

    def checkpoint_deleting(self, uuid: str, *, force: bool = False) -> None:
        """Record that all files of a checkpoint are about to be deleted."""

    def checkpoint_deleted(
        self, uuid: str, *, resources: Mapping[str, int] | None = None, force: bool = False
    ) -> None:
        """Record that files of a checkpoint were deleted, or, of some of them, are about to be."""


class RecoveryRecords(CheckpointRecords, Protocol):
    """Records of checkpoints that what a killed process left can be settled with."""

    def list_checkpoints(
        self, *, trial_id: int, states: Iterable[str] | None = None
    ) -> list[CheckpointRecord]:
        """Return the checkpoints of a trial, oldest first."""

    def checkpoint_damaged(self, uuid: str) -> None:
        """Record that files of a checkpoint are missing or have changed."""


class WorkerRecords(RecoveryRecords, Protocol):
    """What a trial's chief needs: a `Database`, or a server in front of one.

    What is recorded through a server gets there later where it is away; what is read may raise
    `detcore.errors.UnavailableError` then, or is what was known before, as the methods say.
    """

    @property
    def url(self) -> str:
        """Where the records are, without secrets."""

    def set_trial_state(
        self, trial_id: int, state: TrialState, *, error: str | None = None
    ) -> None:
        """Record where a trial stands."""

    def get_checkpoint(self, uuid: str) -> CheckpointRecord:
        """Return a checkpoint, whatever its state."""

    def latest_checkpoint(self, trial_id: int) -> CheckpointRecord | None:
        """Return the COMPLETED checkpoint of a trial with the most steps."""

    def best_of_other_trials(
        self, trial_id: int, metric: str, *, smaller_is_better: bool
    ) -> float | None:
        """Return the best value of a validation metric over the other trials of an experiment."""


class SpoolMover(Protocol):
    """Moves the records of a spool to where they are kept, in a thread of its own."""

    def flush(self, timeout_s: float) -> None:
        """Wait until what was appended before is there."""

    def close(self, timeout_s: float) -> None:
        """Flush, and end the thread."""
