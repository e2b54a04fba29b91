"""An experiment, as the client sees it."""

from __future__ import annotations

import enum
import time
from typing import TYPE_CHECKING, Any

from detcore.client.arguments import check_count, check_id
from detcore.client.metric_reports import Ranked, frame
from detcore.client.trial_reference import OrderBy, TrialReference
from detcore.contract.errors import ExperimentPausedError, InvalidArgumentError, RunError
from detcore.contract.values import ExperimentState

if TYPE_CHECKING:
    from detcore.client.client_checkpoint import Checkpoint
    from detcore.client.documents import Document
    from detcore.client.transport import Transport


class TrialSortBy(enum.IntEnum):
    """Sort key of trials; those without a value come last."""

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


class ExperimentReference(Ranked):
    """An experiment: its best checkpoints, its trials, and its control.

    Attributes:
        id: Its id.
    """

    _kind = "experiment"

    def __init__(
        self,
        experiment_id: int,
        master: str | None = None,
        *,
        transport: Transport | None = None,
    ) -> None:
        """Name an experiment; `Determined.get_experiment` makes sure that there is one.

        Args:
            experiment_id: Its id.
            master: See `Determined`.
            transport: The store to ask; default: the store that the environment names.
        """
        super().__init__(master, transport)
        self.id = check_id("experiment_id", experiment_id)

    def __repr__(self) -> str:
        return f"ExperimentReference(id={self.id})"

    @property
    def experiment_id(self) -> int:
        """Its id."""
        return self.id

    @property
    def state(self) -> ExperimentState:
        """Where it stands now."""
        return ExperimentState(self._document()["state"])

    @property
    def progress(self) -> float | None:
        """How much of its search is done, 0 to 1, or None."""
        progress: float | None = self._document()["progress"]
        return progress

    def get_config(self) -> dict[str, Any]:
        """Return its configuration, defaults applied; secrets are shown as ``********``."""
        config: dict[str, Any] = self._document()["config"]
        return config

    # -- trials and checkpoints -------------------------------------------------------------------

    def get_trials(
        self, sort_by: TrialSortBy = TrialSortBy.ID, order_by: OrderBy = OrderBy.ASCENDING
    ) -> list[TrialReference]:
        """Return its trials, all of them.

        Args:
            sort_by: The sort key; trials without a value (no end yet) come last.
            order_by: In which direction.
        """
        key = _SORT_KEYS[TrialSortBy(sort_by)]
        descending = OrderBy(order_by) is OrderBy.DESCENDING
        found = self._transport.list_trials(self.id)
        having = [document for document in found if document[key] is not None]
        having.sort(key=lambda document: (document[key], document["id"]), reverse=descending)
        having += [document for document in found if document[key] is None]
        return [
            TrialReference(document["id"], self.master, transport=self._transport, known=document)
            for document in having
        ]

    def trials_frame(self) -> Any:
        """Return its trials as a `pandas.DataFrame`, which needs pandas.

        Returns:
            A row for each trial, indexed by ``trial_id``: ``state``, ``num_restarts``, ``error``,
            ``steps`` (completed), ``best_value`` of the searcher's metric with its ``best_step``,
            ``checkpoint`` (UUID of the latest), and the hyperparameters as ``hparams.NAME``,
            nested ones with dots. Missing values are NaN.

        Raises:
            PluginNotFoundError: If pandas is not installed.
        """
        from detcore.record_descriptions import flatten

        found = self._transport.list_trials(self.id)
        rows = [
            {
                **{key: document[key] for key in ("state", "num_restarts", "error")},
                "steps": document["steps_completed"],
                "best_value": document["value"],
                "best_step": document["value_steps"],
                "checkpoint": document["latest_checkpoint"],
                **flatten({"hparams": document["hparams"]}),
            }
            for document in found
        ]
        return frame(rows, index=("trial_id", [document["id"] for document in found]))

    def await_first_trial(self, interval: float = 0.1) -> TrialReference:
        """Wait until it has a trial, and return it.

        Args:
            interval: Seconds between two looks.

        Raises:
            RunError: If the experiment is over, or does not run, and has none.
        """
        _check_interval(interval)
        while True:
            document = self._document()  # before the trials, to see all that it made
            trials = self._transport.list_trials(self.id, limit=1)
            if trials:
                first = trials[0]
                return TrialReference(
                    first["id"], self.master, transport=self._transport, known=first
                )
            if document["state"] != ExperimentState.RUNNING.value or not document["is_alive"]:
                raise RunError(
                    f"experiment {self.id} is {document['state']} and has no trial, so there is "
                    "none to wait for."
                )
            time.sleep(interval)

    def top_n_checkpoints(
        self, limit: int, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """Return the best checkpoint of each of the best trials, the best first.

        Trials whose checkpoints all lack the metric, or have NaN, come last.

        Args:
            limit: How many at most, from 1.
            sort_by: Name of the validation metric; default: the searcher's.
            smaller_is_better: Whether smaller values are better; default: as the experiment's
                searcher says. Of no meaning without `sort_by`.

        Raises:
            NoCheckpointError: If there is no checkpoint, or none has that metric (an
                AssertionError, too).
        """
        direction = None if sort_by is None else smaller_is_better
        return self._top_checkpoints(check_count("limit", limit), sort_by, direction)

    # -- control ----------------------------------------------------------------------------------

    def wait(self, interval: float = 5.0) -> ExperimentState:
        """Wait until it is over.

        Args:
            interval: Seconds between two looks.

        Returns:
            COMPLETED, CANCELED or ERROR.

        Raises:
            ExperimentPausedError: If it is paused, or its process is gone: nothing would happen (a
                ValueError, too).
        """
        _check_interval(interval)
        while True:
            document = self._document()
            state = ExperimentState(document["state"])
            if state is ExperimentState.PAUSED or (
                state is ExperimentState.RUNNING and not document["is_alive"]
            ):
                why = "is paused" if state is ExperimentState.PAUSED else (
                    "is recorded as RUNNING, but its process is gone"
                )  # fmt: skip
                raise ExperimentPausedError(
                    f"experiment {self.id} {why}, so there is nothing to wait for.\n"
                    f"Go on with it: .activate(), or detcore run --resume {self.id}"
                )
            if state is not ExperimentState.RUNNING:
                return state
            time.sleep(interval)

    def activate(self) -> None:
        """Continue it in a separate process, which outlives this one.

        A running experiment is left alone. The output of its trials is in their logs.

        Raises:
            RunError: If it is complete, or cannot be started; the message says why.
        """
        self._control("activate")

    def pause(self) -> None:
        """Ask it to save a checkpoint of each trial and to end; `activate` continues it.

        Raises:
            RunError: If it is over.
        """
        self._control("pause")

    def cancel(self) -> None:
        """Ask it to save a checkpoint of each trial, and to end for good.

        Raises:
            RunError: If it is over.
        """
        self._control("cancel")

    def kill(self) -> None:
        """Ask it to end at once, without new checkpoints; of no effect if it is CANCELED.

        Raises:
            RunError: If it is over otherwise.
        """
        self._control("kill")

    def archive(self) -> None:
        """Leave it out of lists."""
        self._control("archive")

    def unarchive(self) -> None:
        """Take it back into lists."""
        self._control("unarchive")

    def delete(self) -> None:
        """Delete it: its checkpoints' files, its trials, their metrics and logs.

        Call it again to finish a deletion that was interrupted.

        Raises:
            RunError: If it is running.
            CheckpointStateError: If a checkpoint of it is in the model registry; nothing was
                deleted.
        """
        self._control("delete")

    def _control(self, action: str) -> None:
        self._transport.control_experiment(self.id, action)

    def _document(self) -> Document:
        return self._transport.get_experiment(self.id)


def _check_interval(interval: float) -> None:
    if not interval > 0:
        raise InvalidArgumentError(f"interval is {interval!r}; expected seconds, more than 0")
