"""`ExperimentReference`, the client's view of an experiment."""

from __future__ import annotations

import enum
import time
from typing import TYPE_CHECKING, Any

from detcore.client.arguments import check_count, check_id
from detcore.client.metric_reports import CheckpointOwner, make_frame
from detcore.client.trial_reference import OrderBy, TrialReference
from detcore.contract.errors import ExperimentPausedError, InvalidArgumentError, RunError
from detcore.contract.values import ExperimentState

if TYPE_CHECKING:
    from detcore.client.client_checkpoint import Checkpoint
    from detcore.client.documents import Document
    from detcore.client.transport import Transport


class TrialSortBy(enum.IntEnum):
    """Sort key of trials. Trials without a value come last."""

    UNSPECIFIED = 0
    ID = 1
    START_TIME = 4
    END_TIME = 5
    STATE = 6
    RESTARTS = 12


_SORT_KEYS = {
    TrialSortBy.UNSPECIFIED: "id",
    TrialSortBy.ID: "id",
    TrialSortBy.START_TIME: "created_at",
    TrialSortBy.END_TIME: "ended_at",
    TrialSortBy.STATE: "state",
    TrialSortBy.RESTARTS: "num_restarts",
}


class ExperimentReference(CheckpointOwner):
    """An experiment: its best checkpoints, its trials, and its control.

    Attributes:
        id: Id of the experiment.
    """

    _kind = "experiment"

    def __init__(
        self,
        experiment_id: int,
        master: str | None = None,
        *,
        transport: Transport | None = None,
    ) -> None:
        """Create a reference. `Determined.get_experiment` also checks that the experiment exists.

        Args:
            experiment_id: Id of the experiment.
            master: See `Determined`.
            transport: The store to use; default: the store of the environment.
        """
        super().__init__(master, transport)
        self.id = check_id("experiment_id", experiment_id)

    def __repr__(self) -> str:
        return f"ExperimentReference(id={self.id})"

    @property
    def experiment_id(self) -> int:
        """Id of the experiment."""
        return self.id

    @property
    def state(self) -> ExperimentState:
        """Current state."""
        return ExperimentState(self._read_document()["state"])

    @property
    def progress(self) -> float | None:
        """Completed fraction of the search, 0 to 1, or None."""
        progress: float | None = self._read_document()["progress"]
        return progress

    def get_config(self) -> dict[str, Any]:
        """Return the configuration with defaults. Secrets are masked with ``********``."""
        config: dict[str, Any] = self._read_document()["config"]
        return config

    # -- trials and checkpoints -------------------------------------------------------------------

    def get_trials(
        self, sort_by: TrialSortBy = TrialSortBy.ID, order_by: OrderBy = OrderBy.ASCENDING
    ) -> list[TrialReference]:
        """Return all trials of the experiment.

        Args:
            sort_by: Sort key. Trials without a value, such as no end time yet, come last.
            order_by: Sort direction.
        """
        key = _SORT_KEYS[TrialSortBy(sort_by)]
        descending = OrderBy(order_by) is OrderBy.DESCENDING
        documents = self._transport.list_trials(self.id)
        ordered = [document for document in documents if document[key] is not None]
        ordered.sort(key=lambda document: (document[key], document["id"]), reverse=descending)
        ordered += [document for document in documents if document[key] is None]
        return [
            TrialReference(document["id"], self.master, transport=self._transport, known=document)
            for document in ordered
        ]

    def trials_frame(self) -> Any:
        """Return the trials as a `pandas.DataFrame`. Requires pandas.

        Returns:
            A row for each trial, indexed by ``trial_id``: ``state``, ``num_restarts``, ``error``,
            ``steps`` (completed), ``best_value`` of the searcher's metric with its ``best_step``,
            ``checkpoint`` (UUID of the latest checkpoint), and hyperparameters as ``hparams.NAME``,
            with dots in nested names. Missing values are NaN.

        Raises:
            PluginNotFoundError: If pandas is not installed.
        """
        from detcore.record_descriptions import flatten

        documents = self._transport.list_trials(self.id)
        rows = [
            {
                **{key: document[key] for key in ("state", "num_restarts", "error")},
                "steps": document["steps_completed"],
                "best_value": document["value"],
                "best_step": document["value_steps"],
                "checkpoint": document["latest_checkpoint"],
                **flatten({"hparams": document["hparams"]}),
            }
            for document in documents
        ]
        return make_frame(rows, index=("trial_id", [document["id"] for document in documents]))

    def await_first_trial(self, interval: float = 0.1) -> TrialReference:
        """Wait for the first trial, and return it.

        Args:
            interval: Poll interval in seconds.

        Raises:
            RunError: If the experiment has no trial and is not running.
        """
        _check_interval(interval)
        while True:
            document = self._read_document()  # read before the trials, so that no trial is missed
            trials = self._transport.list_trials(self.id, limit=1)
            if trials:
                first = trials[0]
                return TrialReference(
                    first["id"], self.master, transport=self._transport, known=first
                )
            if document["state"] != ExperimentState.RUNNING.value or not document["is_alive"]:
                raise RunError(
                    f"experiment {self.id} is {document['state']} and has no trial to wait for.\n"
                    f"Resume it: detcore run --resume {self.id}"
                )
            time.sleep(interval)

    def top_n_checkpoints(
        self, limit: int, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """Return the best checkpoint of each of the best trials, the best first.

        Trials whose checkpoints all lack the metric, or have NaN, come last.

        Args:
            limit: Maximum number of checkpoints; at least 1.
            sort_by: Name of the validation metric; default: the searcher's metric.
            smaller_is_better: Whether smaller values are better; default: as in the experiment's
                searcher. Ignored without `sort_by`.

        Raises:
            NoCheckpointError: If no checkpoint has the metric (also an AssertionError).
        """
        direction = None if sort_by is None else smaller_is_better
        return self._top_checkpoints(check_count("limit", limit), sort_by, direction)

    # -- control ----------------------------------------------------------------------------------

    def wait(self, interval: float = 5.0) -> ExperimentState:
        """Wait until the experiment ends.

        Args:
            interval: Poll interval in seconds.

        Returns:
            COMPLETED, CANCELED or ERROR.

        Raises:
            ExperimentPausedError: If it is paused, or its process has exited, so that it would
                never end (also a ValueError).
        """
        _check_interval(interval)
        while True:
            document = self._read_document()
            state = ExperimentState(document["state"])
            if state is ExperimentState.PAUSED or (
                state is ExperimentState.RUNNING and not document["is_alive"]
            ):
                is_paused = state is ExperimentState.PAUSED
                why = "is paused" if is_paused else "is RUNNING, but its process has exited"
                raise ExperimentPausedError(
                    f"experiment {self.id} {why}, so it will not end.\n"
                    f"Resume it: .activate(), or detcore run --resume {self.id}"
                )
            if state is not ExperimentState.RUNNING:
                return state
            time.sleep(interval)

    def activate(self) -> None:
        """Resume the experiment in a separate process, which outlives this process.

        Has no effect on a running experiment. The output of the trials is in their logs.

        Raises:
            RunError: If it is complete, or cannot be started. The message contains the reason.
        """
        self._send_control("activate")

    def pause(self) -> None:
        """Request that it checkpoints all trials and stops. `activate` resumes it.

        Raises:
            RunError: If it has ended.
        """
        self._send_control("pause")

    def cancel(self) -> None:
        """Request that it checkpoints all trials and ends for good.

        Raises:
            RunError: If it has ended.
        """
        self._send_control("cancel")

    def kill(self) -> None:
        """Request that it ends immediately, without new checkpoints. No-op if it is CANCELED.

        Raises:
            RunError: If it has ended in another state.
        """
        self._send_control("kill")

    def archive(self) -> None:
        """Hide the experiment in lists."""
        self._send_control("archive")

    def unarchive(self) -> None:
        """Show the experiment in lists again."""
        self._send_control("unarchive")

    def delete(self) -> None:
        """Delete the experiment with its checkpoints, trials, metrics and logs.

        Call this again to finish an interrupted deletion.

        Raises:
            RunError: If it is running.
            CheckpointStateError: If one of its checkpoints is in the model registry. Nothing was
                deleted.
        """
        self._send_control("delete")

    def _send_control(self, action: str) -> None:
        self._transport.control_experiment(self.id, action)

    def _read_document(self) -> Document:
        return self._transport.get_experiment(self.id)


def _check_interval(interval: float) -> None:
    if not interval > 0:
        raise InvalidArgumentError(
            f"interval is {interval!r}; expected a positive number of seconds"
        )
