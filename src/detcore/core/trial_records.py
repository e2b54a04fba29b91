"""The records as a trial's chief sees them: it appends events to its log and asks its runner."""

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


# A deletion waits this long for the runner to take in earlier reports.
_SETTLE_S = 5.0


class TrialRecords:
    """Records the events of a trial, and asks the few questions of its chief.

    Every change is one event, which is safe in the trial's log when the method returns. The runner
    applies it to the records; a script by itself does both. Questions go over the channel and have
    a deadline, so training never waits for the records.

    Args:
        info: The trial.
        log: The log of this run of it.
        channel: Answers questions.
    """

    def __init__(self, info: TrialInfo, log: EventLog, channel: Channel) -> None:
        settings = info.settings
        self._metric, self._smaller_is_better = settings.metric, settings.smaller_is_better
        self._trial_id = info.trial_id
        self._log = log
        self._channel = channel
        # Reports of a killed run beyond the step that this run started from are left out, so that
        # a resumed run decides as an uninterrupted one would.
        self._own_best = info.best_validation
        self._best_of_others: float | None = None

    def append(self, event: events.Event) -> None:
        """Append an event to the trial's log.

        Raises:
            StorageFullError: If there is no room for it.
        """
        self._log.append(event.KIND, events.encode_event(event))

    def ending(self, outcome: ScriptOutcome) -> None:
        """Tell the runner how the run ends, unless it was sent already."""
        if not self._channel.has_sent("finished"):
            fault = {} if outcome.fault is None else {"fault": outcome.fault}
            self._channel.send("finished", state=outcome.label, error=outcome.error, **fault)

    def finished(self, outcome: ScriptOutcome) -> None:
        """Record how the run ended; without room for it, the next process does."""
        try:
            self.append(events.TrialFinished(state=outcome.label, error=outcome.error))
        except StorageFullError as error:
            import logging

            logging.getLogger("detcore").warning("the log lacks the trial's end: %s", error)

    def early_exit(self, reason: EarlyExitReason) -> None:
        """Record why the trial ends early."""
        self._channel.send("early_exit", reason=reason.value)
        if reason is EarlyExitReason.INVALID_HP:
            self.append(events.TrialFailed(error=reason.value))

    def send_status(self, status: str) -> None:
        """Send the status of the trial to the runner."""
        self._channel.send("status", status=status)

    def report(
        self,
        kind: str,
        steps_completed: int,
        metrics: Mapping[str, float],
        batch_metrics: Sequence[Mapping[str, float]] | None = None,
        n_records: int | None = None,
    ) -> None:
        """Record the metrics of an `events.TrainingMetrics` or `events.ValidationMetrics`.

        They are safe when this returns.
        """
        event = events.TrainingReport if kind == "training" else events.ValidationReport
        self.append(
            event(
                steps_completed=steps_completed,
                metrics=metrics,
                batch_metrics=batch_metrics,
                n_records=n_records,
            )
        )
        if kind == "validation" and self._metric is not None:
            self._own_best = self._better(self._own_best, metrics.get(self._metric))

    def best_validation(self) -> float | None:
        """Return the best value of the searcher's metric over all trials of the experiment.

        If the runner does not answer in time, the last known value of the other trials counts.
        """
        if self._metric is None:
            return None
        answer = self._channel.ask(
            "best_of_others", metric=self._metric, smaller_is_better=self._smaller_is_better
        )
        if answer is not None:
            self._best_of_others = answer["value"]
        return self._better(self._own_best, self._best_of_others)

    def _better(self, first: float | None, second: float | None) -> float | None:
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
            trial_id: Ignored: the log is of this trial.
            force: Ignored: a trial cannot delete a checkpoint of the model registry.

        Raises:
            UnavailableError: If the records do not answer now whether files may be deleted. The
                deletion is recorded when they do; the files stay until then, and go when the trial
                starts again.
            NotFoundError: If there is no such checkpoint to delete from.
            CheckpointStateError: If it is in the model registry, or another trial's.
        """
        self.append(change)
        if isinstance(change, events.CheckpointDeleting):
            self._require_state(change.uuid, ("DELETING", "DELETED"))
        elif isinstance(change, events.CheckpointDeleted) and change.resources:
            self._require_state(change.uuid, ("PARTIALLY_DELETED",))

    def list_unfinished_checkpoints(self, storage_url: str) -> Sequence[UnfinishedCheckpoint]:
        """Return the trial's checkpoints in a storage that a killed process left unsettled.

        Raises:
            UnavailableError: If the records do not answer now.
        """
        answer = self._channel.ask(
            "unfinished_checkpoints", timeout_s=_SETTLE_S, storage_url=storage_url
        )
        if answer is None:
            raise UnavailableError("the records of the trial do not answer")
        return [UnfinishedCheckpoint(**found) for found in answer["checkpoints"]]

    def _require_state(self, uuid: str, states: Sequence[str]) -> None:
        """Wait until the records have decided on a deletion; raise unless they allow it."""
        answer = self._channel.ask("checkpoint", timeout_s=_SETTLE_S, uuid=uuid)
        if answer is None:
            raise UnavailableError(
                f"checkpoint {uuid} is not deleted yet: the records, which know whether a model "
                "needs it, do not answer.\nIt is deleted when the trial starts again, or by "
                "detcore checkpoint prune."
            )
        if answer["state"] is None:
            raise NotFoundError(f"no checkpoint {uuid!r} is recorded.")
        if answer["state"] in states:
            return
        if answer["models"]:
            raise CheckpointStateError(
                f"checkpoint {uuid} is in the model registry: {', '.join(answer['models'])}.\n"
                "A model would lose its files. Nothing was deleted.\n"
                "Delete the version of the model first."
            )
        raise CheckpointStateError(
            f"checkpoint {uuid} (of trial {answer['trial_id']}, {answer['state']}) is not deleted "
            f"by trial {self._trial_id}.\nNothing was deleted.\n"
            f"Delete it with: detcore checkpoint delete {uuid}"
        )
