"""The chief's access to the records: it appends events to its log and queries its runner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from detcore.contract.errors import (
    CheckpointStateError,
    NotFoundError,
    StorageFullError,
    UnavailableError,
)
from detcore.contract.values import UnfinishedCheckpoint
from detcore.core.context_options import EarlyExitReason
from detcore.log import events

if TYPE_CHECKING:
    from detcore.contract.values import TrialInfo
    from detcore.core.channel import Channel
    from detcore.core.trial_outcome import ScriptOutcome
    from detcore.log.writing import EventLog


# Maximum wait of a deletion for the runner to ingest earlier reports.
_INGEST_TIMEOUT_S = 5.0


class TrialRecords:
    """Records the events of a trial, and queries the records for its chief.

    Every change is one event, which is durable in the trial's log when the method returns. The
    runner applies it to the records. Queries go over the channel and have a timeout, so training
    never waits for the records.

    Args:
        info: The trial.
        log: Event log of this run of the trial.
        channel: Control channel that answers queries.
    """

    def __init__(self, info: TrialInfo, log: EventLog, channel: Channel) -> None:
        settings = info.settings
        self._metric, self._smaller_is_better = settings.metric, settings.smaller_is_better
        self._trial_id = info.trial_id
        self._log = log
        self._channel = channel
        # Reports of a killed run after the step from which this run started are left out, so that
        # a resumed run makes the same decisions as an uninterrupted run.
        self._own_best = info.best_validation
        self._best_of_others: float | None = None

    def append_event(self, event: events.Event) -> None:
        """Append an event to the trial's log.

        Raises:
            StorageFullError: If the disk is full.
        """
        self._log.append(event.KIND, events.encode_event(event))

    def announce_end(self, outcome: ScriptOutcome) -> None:
        """Send the outcome to the runner, unless it was sent before."""
        if not self._channel.has_sent("finished"):
            fault = {} if outcome.fault is None else {"fault": outcome.fault}
            self._channel.send("finished", state=outcome.label, error=outcome.error, **fault)

    def record_end(self, outcome: ScriptOutcome) -> None:
        """Record the outcome. If the disk is full, the next process records it."""
        try:
            self.append_event(events.TrialFinished(state=outcome.label, error=outcome.error))
        except StorageFullError as error:
            import logging

            logging.getLogger("detcore").warning(
                "the end of the trial could not be written to its log: %s", error
            )

    def record_early_exit(self, reason: EarlyExitReason) -> None:
        """Record why the trial ends early."""
        self._channel.send("early_exit", reason=reason.value)
        if reason is EarlyExitReason.INVALID_HP:
            self.append_event(events.TrialFailed(error=reason.value))

    def send_status(self, status: str) -> None:
        """Send the status of the trial to the runner."""
        self._channel.send("status", status=status)

    def record_metrics(
        self,
        kind: str,
        steps_completed: int,
        metrics: Mapping[str, float],
        batch_metrics: Sequence[Mapping[str, float]] | None = None,
        n_records: int | None = None,
    ) -> None:
        """Record the metrics of an `events.TrainingMetrics` or `events.ValidationMetrics`.

        They are durable when this returns.
        """
        event = events.TrainingReport if kind == "training" else events.ValidationReport
        self.append_event(
            event(
                steps_completed=steps_completed,
                metrics=metrics,
                batch_metrics=batch_metrics,
                n_records=n_records,
            )
        )
        if kind == "validation" and self._metric is not None:
            self._own_best = self._choose_better(self._own_best, metrics.get(self._metric))

    def get_best_validation(self) -> float | None:
        """Return the best value of the searcher's metric over all trials of the experiment.

        If the runner does not answer in time, the last known value of the other trials is used.
        """
        if self._metric is None:
            return None
        answer = self._channel.query(
            "best_of_others", metric=self._metric, smaller_is_better=self._smaller_is_better
        )
        if answer is not None:
            self._best_of_others = answer["value"]
        return self._choose_better(self._own_best, self._best_of_others)

    def _choose_better(self, first: float | None, second: float | None) -> float | None:
        if second is None or math.isnan(second):
            return first
        if first is None:
            return second
        return min(first, second) if self._smaller_is_better else max(first, second)

    def record_checkpoint(
        self,
        change: events.CheckpointEvent,
        *,
        trial_id: int | None = None,
        force: bool = False,
    ) -> None:
        """Record a change of a checkpoint of this trial; wait until a deletion is allowed.

        Args:
            change: The change.
            trial_id: Ignored: the log belongs to this trial.
            force: Ignored: a trial cannot delete a checkpoint in the model registry.

        Raises:
            UnavailableError: If the records do not answer whether files may be deleted. The
                deletion is recorded when they are reachable again. The files are deleted when the
                trial starts again.
            NotFoundError: If the checkpoint to delete is not recorded.
            CheckpointStateError: If the checkpoint is in the model registry, or belongs to another
                trial.
        """
        self.append_event(change)
        if isinstance(change, events.CheckpointDeleting):
            self._require_state(change.uuid, ("DELETING", "DELETED"))
        elif isinstance(change, events.CheckpointDeleted) and change.resources:
            self._require_state(change.uuid, ("PARTIALLY_DELETED",))

    def list_unfinished_checkpoints(self, storage_url: str) -> Sequence[UnfinishedCheckpoint]:
        """Return the trial's checkpoints in a storage that a killed process left unfinished.

        Raises:
            UnavailableError: If the records do not answer.
        """
        answer = self._channel.query(
            "unfinished_checkpoints", timeout_s=_INGEST_TIMEOUT_S, storage_url=storage_url
        )
        if answer is None:
            raise UnavailableError("the trial's records do not answer")
        return [UnfinishedCheckpoint(**fields) for fields in answer["checkpoints"]]

    def _require_state(self, uuid: str, states: Sequence[str]) -> None:
        """Wait for the records' decision on a deletion; raise an error unless it is allowed."""
        answer = self._channel.query("checkpoint", timeout_s=_INGEST_TIMEOUT_S, uuid=uuid)
        if answer is None:
            raise UnavailableError(
                f"checkpoint {uuid} is not deleted yet: the records, which know whether a model "
                "needs it, do not answer.\nIt is deleted when the trial starts again, or by:  "
                "detcore checkpoint prune"
            )
        if answer["state"] is None:
            raise NotFoundError(f"checkpoint {uuid!r} is not recorded.")
        if answer["state"] in states:
            return
        if answer["models"]:
            raise CheckpointStateError(
                f"checkpoint {uuid} is in the model registry: {', '.join(answer['models'])}.\n"
                "Deleting it would remove the model's files. Nothing was deleted.\n"
                "Delete the model version first."
            )
        raise CheckpointStateError(
            f"trial {self._trial_id} cannot delete checkpoint {uuid} of trial "
            f"{answer['trial_id']} ({answer['state']}).\nNothing was deleted.\n"
            f"Delete it with:  detcore checkpoint delete {uuid}"
        )
