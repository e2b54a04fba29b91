"""The records of a trial's workers, behind a server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detcore.database import ChangeKind
from detcore.errors import (
    CheckpointStateError,
    ContextStateError,
    DetcoreError,
    NotFoundError,
    in_one_line,
)
from detcore.remote._checkpoints import checkpoint_from_document
from detcore.remote._refusal import ServerAway
from detcore.types import TrialState

if TYPE_CHECKING:
    from detcore.database import CheckpointRecord
    from detcore.remote._reach import Reach
    from detcore.remote._sender import SpoolSender
    from detcore.remote._session import Session

__all__ = ["RemoteRecords"]

_LOG = logging.getLogger("detcore.records")
# How long training waits for an answer at most, once in an outage.
_READ_TIMEOUT_S = 2.0
# How long a deletion waits for what was reported before it to reach the server.
_SETTLE_S = 5.0


class RemoteRecords:
    """What a trial's chief needs of the records, where those are behind a server.

    What changes records is appended to the trial's spool, as metrics are: it is safe when the
    method returns, and reaches the server in order, once, when that is there. What is only read is
    asked for; while the server is away nothing waits for it.

    Args:
        session: The server, with a token of the trial.
        trial_id: Which trial.
        append: Adds a record to the trial's spool.
        sender: Sends the spool.
        reach: Whether the server is away, as the sender knows it.
    """

    def __init__(
        self,
        session: Session,
        *,
        trial_id: int,
        append: Callable[[str, object], object],
        sender: SpoolSender,
        reach: Reach,
    ) -> None:
        self._session = session
        self._trial_id = trial_id
        self._append = append
        self._sender = sender
        self._reach = reach
        self._best_of_others: dict[str, float | None] = {}

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._session.url

    # -- what changes records ----------------------------------------------------------------------

    def checkpoint_started(
        self,
        *,
        uuid: str,
        trial_id: int,
        experiment_id: int,
        storage_url: str,
        steps_completed: int,
    ) -> None:
        """Record that a checkpoint of this trial is being written (state ACTIVE)."""
        self._check_trial(trial_id)
        self._add(
            ChangeKind.CHECKPOINT_STARTED,
            uuid=uuid,
            storage_url=storage_url,
            steps_completed=steps_completed,
        )

    def checkpoint_committed(
        self,
        uuid: str,
        *,
        metadata: Mapping[str, object],
        resources: Mapping[str, int],
        steps_completed: int,
    ) -> None:
        """Record that a checkpoint is whole (state COMPLETED)."""
        self._add(
            ChangeKind.CHECKPOINT_COMMITTED,
            uuid=uuid,
            metadata=metadata,
            resources=resources,
            steps_completed=steps_completed,
        )

    def checkpoint_deleting(self, uuid: str, *, force: bool = False) -> None:
        """Record that all files of a checkpoint of this trial are about to be deleted.

        Args:
            uuid: The checkpoint.
            force: Of no meaning here: a trial cannot delete one that is in the model registry.

        Raises:
            ServerAway: If it cannot be told now whether that may be. It is recorded when the
                server is back; its files stay until then, and go with the trial's next start.
            NotFoundError: If there is no such checkpoint.
            CheckpointStateError: If it is in the model registry, or another trial's.
        """
        self._add(ChangeKind.CHECKPOINT_DELETING, uuid=uuid)
        self._require(uuid, ("DELETING", "DELETED"))

    def checkpoint_deleted(
        self, uuid: str, *, resources: Mapping[str, int] | None = None, force: bool = False
    ) -> None:
        """Record that files of a checkpoint were deleted, or, of some of them, are about to be.

        Args:
            uuid: The checkpoint.
            resources: The files that are left; None or none left means that all are gone.
            force: Of no meaning here.

        Raises:
            ServerAway: As `checkpoint_deleting`, where some are left.
            NotFoundError: As `checkpoint_deleting`.
            CheckpointStateError: As `checkpoint_deleting`.
        """
        self._add(ChangeKind.CHECKPOINT_DELETED, uuid=uuid, resources=resources or {})
        if resources:
            self._require(uuid, ("PARTIALLY_DELETED",))

    def checkpoint_damaged(self, uuid: str) -> None:
        """Record that files of a checkpoint are missing or have changed (state DAMAGED)."""
        self._add(ChangeKind.CHECKPOINT_DAMAGED, uuid=uuid)

    def set_trial_state(
        self, trial_id: int, state: TrialState, *, error: str | None = None
    ) -> None:
        """Record that this trial failed; other states are its runner's business."""
        self._check_trial(trial_id)
        self._add(ChangeKind.TRIAL_STATE, state=TrialState(state).value, error=error or "")

    # -- what is only read -------------------------------------------------------------------------

    def get_checkpoint(self, uuid: str) -> CheckpointRecord:
        """Return a checkpoint, whatever its state.

        Raises:
            ServerAway: If the server is away, or does not accept the token.
            NotFoundError: If there is no such checkpoint.
        """
        return checkpoint_from_document(self._ask("checkpoint", uuid=uuid))

    def list_checkpoints(
        self, *, trial_id: int, states: Iterable[str] | None = None
    ) -> list[CheckpointRecord]:
        """Return the checkpoints of this trial, oldest first.

        What was recorded a moment ago may still be on its way.

        Raises:
            ServerAway: If the server is away.
        """
        self._check_trial(trial_id)
        wanted = None if states is None else list(states)
        return list(map(checkpoint_from_document, self._ask("checkpoints", state=wanted)))

    def latest_checkpoint(self, trial_id: int) -> CheckpointRecord | None:
        """Return the COMPLETED checkpoint of this trial with the most steps.

        Raises:
            ServerAway: If the server is away.
        """
        self._check_trial(trial_id)
        found = self._ask("latest-checkpoint")
        return None if found is None else checkpoint_from_document(found)

    def best_of_other_trials(
        self, trial_id: int, metric: str, *, smaller_is_better: bool
    ) -> float | None:
        """Return the best value of a validation metric over the other trials of the experiment.

        While the server is away it is the one that was known last.
        """
        self._check_trial(trial_id)
        try:
            found = self._ask(
                "best-of-others", metric=metric, smaller_is_better=str(smaller_is_better).lower()
            )
        except ServerAway:
            return self._best_of_others.get(metric)
        value = None if found["value"] is None else float(found["value"])
        self._best_of_others[metric] = value
        return value

    def untold_checkpoints(self) -> Sequence[tuple[str, Any]]:
        """Return the events of checkpoints that observers of this trial were not told of.

        None while the server is away; the next start of the trial asks again.
        """
        try:
            found = self._ask("untold-checkpoints")
        except ServerAway as away:
            _LOG.warning(
                "observers are not told now of checkpoints that a killed run saved: %s",
                in_one_line(away),
            )
            return []
        return [(str(event["kind"]), event["payload"]) for event in found]

    # ----------------------------------------------------------------------------------------------

    def _add(self, kind: ChangeKind, **payload: Any) -> None:
        self._append(kind.value, {**payload, "at": time.time()})

    def _check_trial(self, trial_id: int) -> None:
        if trial_id != self._trial_id:
            raise ContextStateError(
                f"trial {self._trial_id} asked {self.url} about trial {trial_id}.\n"
                "The workers of a trial see the records of that trial only."
            )

    def _require(self, uuid: str, states: Sequence[str]) -> None:
        """Wait until the server has decided on a deletion; raise unless it allowed that."""
        put_off = (
            f"checkpoint {uuid} is not deleted yet: {self.url} is away, and it knows whether a "
            "model needs it.\nIt is deleted when the server is back: when the trial starts again, "
            "or by detcore checkpoint prune."
        )
        if self._reach.is_away or not self._sender.settle(_SETTLE_S):
            raise ServerAway(put_off)
        try:
            found = self.get_checkpoint(uuid)
        except ServerAway as away:
            raise ServerAway(put_off) from away
        if found.uuid != uuid:
            raise NotFoundError(f"no checkpoint {uuid!r} is recorded.")
        if found.state not in states:
            raise CheckpointStateError(
                f"checkpoint {uuid} (of trial {found.trial_id}, {found.state}) is not deleted by "
                f"trial {self._trial_id}: it is another trial's, or a model needs it.\n"
                "Nothing was deleted.\n"
                "Delete it where the records are: detcore checkpoint delete, which says why not."
            )

    def _ask(self, what: str, **params: Any) -> Any:
        if self._reach.is_away:
            raise ServerAway(f"the server {self.url} does not answer just now")
        try:
            return self._session.ask(
                "GET",
                f"/api/detcore/v1/worker/trials/{self._trial_id}/{what}",
                params=params,
                timeout_s=_READ_TIMEOUT_S,
                num_tries=1,
            )
        except NotFoundError as error:
            if what == "checkpoint":
                raise
            raise self._useless(error) from error
        except ServerAway:
            self._reach.lost()
            raise
        except DetcoreError as error:
            # A token that has expired, a server that is out of order: to training it is all one.
            self._reach.lost()
            raise self._useless(error) from error

    def _useless(self, error: DetcoreError) -> ServerAway:
        return ServerAway(f"the server {self.url} gives no answer: {error}")
