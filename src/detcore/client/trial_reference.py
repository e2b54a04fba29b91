"""A trial, as the client sees it."""

from __future__ import annotations

import collections
import datetime
import enum
import itertools
import os
import time
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from detcore.client.arguments import check_id, check_keys, check_text
from detcore.client.metric_reports import Ranked, TrainingMetrics, ValidationMetrics, frame
from detcore.contract.errors import InvalidArgumentError, NoCheckpointError, NotFoundError, describe
from detcore.contract.values import ModelOrderBy, TrialState

if TYPE_CHECKING:
    from detcore.client.client_checkpoint import Checkpoint
    from detcore.client.documents import Document
    from detcore.client.transport import Transport


# One class under the names that both generations of the API give it.
OrderBy = ModelOrderBy
TrialOrderBy = ModelOrderBy
CheckpointOrderBy = ModelOrderBy


class CheckpointSortBy(enum.IntEnum):
    """Sort key of checkpoints."""

    UNSPECIFIED = 0
    UUID = 1
    BATCH_NUMBER = 3
    START_TIME = 4
    END_TIME = 5
    SEARCHER_METRIC = 7


_POLL_INTERVAL_S = 0.3
_PAGE_LINES = 1000
_SORT_KEYS = {
    CheckpointSortBy.UUID: "uuid",
    CheckpointSortBy.BATCH_NUMBER: "steps_completed",
    CheckpointSortBy.START_TIME: "started_at",
    CheckpointSortBy.END_TIME: "committed_at",
}


class TrialReference(Ranked):
    """A trial: its checkpoints, metrics and logs.

    Attributes:
        id: Its id.
    """

    _kind = "trial"

    def __init__(
        self,
        trial_id: int,
        master: str | None = None,
        *,
        transport: Transport | None = None,
        known: Document | None = None,
    ) -> None:
        """Name a trial; `Determined.get_trial` makes sure that there is one.

        Args:
            trial_id: Its id.
            master: See `Determined`.
            transport: The store to ask; default: the store that the environment names.
            known: Its document, if the caller has it already.
        """
        super().__init__(master, transport)
        self.id = check_id("trial_id", trial_id)
        self._known = known

    def __repr__(self) -> str:
        return f"TrialReference(id={self.id})"

    @property
    def trial_id(self) -> int:
        """Its id."""
        return self.id

    @property
    def experiment_id(self) -> int:
        """Id of its experiment."""
        return int(self._lasting()["experiment_id"])

    @property
    def hparams(self) -> dict[str, Any]:
        """Its hyperparameters."""
        return dict(self._lasting()["hparams"])

    @property
    def state(self) -> TrialState:
        """Where it stands now."""
        return TrialState(self._transport.get_trial(self.id)["state"])

    @property
    def labels(self) -> list[str]:
        """Words to find it by, now, sorted."""
        return list(self._transport.get_trial(self.id)["labels"])

    @property
    def notes(self) -> str:
        """A longer text about it, now, or ""."""
        return str(self._transport.get_trial(self.id)["notes"])

    # -- labels and notes -------------------------------------------------------------------------

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replace its labels.

        Raises:
            InvalidArgumentError: If `labels` is not a list of texts.
        """
        self._transport.update_trial(self.id, labels=check_keys("labels", labels))

    def add_label(self, label: str) -> None:
        """Add a label; one that it has already stays once."""
        self._transport.update_trial(self.id, add_labels=[check_text("label", label)])

    def remove_label(self, label: str) -> None:
        """Remove a label, if it has it."""
        self._transport.update_trial(self.id, remove_labels=[check_text("label", label)])

    def set_notes(self, notes: str) -> None:
        """Replace its notes.

        Raises:
            InvalidArgumentError: If `notes` is no text.
        """
        if not isinstance(notes, str):
            raise InvalidArgumentError(f"notes is {describe(notes)}; expected a text")
        self._transport.update_trial(self.id, notes=notes)

    # -- checkpoints ------------------------------------------------------------------------------

    def select_checkpoint(
        self,
        latest: bool = False,
        best: bool = False,
        uuid: str | None = None,
        sort_by: str | None = None,
        smaller_is_better: bool | None = None,
    ) -> Checkpoint:
        """Return one checkpoint; exactly one of `latest`, `best` and `uuid` says which.

        Args:
            latest: The one with the most batches.
            best: The one with the best validation metric; see `top_checkpoint`.
            uuid: The one of this UUID.
            sort_by: Name of the validation metric; only with `best`.
            smaller_is_better: Whether smaller values are better; only with `best`.

        Raises:
            InvalidArgumentError: If none or several are given, or what goes only with `best`
                without it (an AssertionError and a ValueError, too).
            NoCheckpointError: If there is no such checkpoint (both of them, too).
        """
        given = [
            name
            for name, value in (("latest", latest), ("best", best), ("uuid", uuid is not None))
            if value
        ]
        if len(given) != 1:
            raise InvalidArgumentError(
                "exactly one of latest, best and uuid says which checkpoint is meant; given: "
                f"{', '.join(given) or 'none'}"
            )
        if not best and (sort_by is not None or smaller_is_better is not None):
            raise InvalidArgumentError(
                "sort_by and smaller_is_better say which checkpoint is the best: pass best=True "
                f"with them, not {given[0]}"
            )
        if best:
            return self.top_checkpoint(sort_by, smaller_is_better)
        document = self._latest() if latest else self._by_uuid(check_text("uuid", uuid))
        return self._checkpoint(document)

    def get_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: OrderBy | None = None,
    ) -> list[Checkpoint]:
        """Return its complete checkpoints, all of them.

        Args:
            sort_by: Name of a validation metric, or a `CheckpointSortBy`; default: the searcher's
                metric, the best first. Those without the metric, or with NaN, come last.
            order_by: In which direction; default: for a metric the better ones first, as the
                experiment's searcher defines it, else ascending. Needs `sort_by`.

        Raises:
            InvalidArgumentError: If `order_by` is given alone (an AssertionError, too).
        """
        if sort_by is None and order_by is not None:
            raise InvalidArgumentError("order_by is given without sort_by; give both, or neither")
        if isinstance(sort_by, CheckpointSortBy) and sort_by in _SORT_KEYS:
            documents = self._transport.list_checkpoints(self.id)
            key = _SORT_KEYS[sort_by]
            descending = order_by is not None and OrderBy(order_by) is OrderBy.DESCENDING
            documents.sort(key=lambda found: (found[key], found["uuid"]), reverse=descending)
            return [self._checkpoint(document) for document in documents]
        metric = None if isinstance(sort_by, CheckpointSortBy) else sort_by
        smaller = None if order_by is None else OrderBy(order_by) is OrderBy.ASCENDING
        answer = self._rank_checkpoints(None, metric, smaller)
        return [self._checkpoint(document) for document in answer["checkpoints"]]

    # -- metrics and logs -------------------------------------------------------------------------

    def stream_training_metrics(self) -> Iterator[TrainingMetrics]:
        """Yield its training reports in the order of steps.

        Where several runs of the trial reported a step, the last one's is yielded.
        """
        for document in self._transport.list_metrics(self.id, "training"):
            yield TrainingMetrics(**_report(document), batch_metrics=document["batch_metrics"])

    def stream_validation_metrics(self) -> Iterator[ValidationMetrics]:
        """Yield its validation reports in the order of steps; see `stream_training_metrics`."""
        for document in self._transport.list_metrics(self.id, "validation"):
            yield ValidationMetrics(**_report(document))

    def metrics_frame(self, kind: str = "validation") -> Any:
        """Return its metrics as a pandas table, which needs pandas.

        Args:
            kind: ``"validation"`` or ``"training"``.

        Returns:
            A row for each report, indexed by ``steps_completed``, a column for each metric;
            values that a report lacks are NaN.

        Raises:
            InvalidArgumentError: If there is no such kind of reports.
            PluginNotFoundError: If pandas is not installed.
        """
        if kind not in ("training", "validation"):
            raise InvalidArgumentError(f"{kind!r} is no kind of reports; training or validation is")
        reports = self._transport.list_metrics(self.id, kind)
        return frame(
            [report["metrics"] for report in reports],
            index=("steps_completed", [report["steps_completed"] for report in reports]),
        )

    def logs(
        self,
        follow: bool = False,
        *,
        head: int | None = None,
        tail: int | None = None,
        rank_ids: Collection[int] | None = None,
        stdtypes: Collection[str] | None = None,
    ) -> Iterator[str]:
        """Yield the output of its workers, line by line, oldest first.

        Args:
            follow: Whether to wait for more, until the trial does not run any more.
            head: Maximum number of lines, from the beginning.
            tail: Maximum number of lines, up to now (with `follow`, new lines are added).
            rank_ids: Only lines of these workers.
            stdtypes: Only lines of these streams: "stdout", "stderr", or "detcore" for
                messages of the runner.

        Raises:
            InvalidArgumentError: If `head` is given with `tail` or `follow`.
        """
        if head is not None and (tail is not None or follow):
            raise InvalidArgumentError("head is given with tail or follow; give one of them")
        if tail is not None and check_id("tail", tail) < 0:
            raise InvalidArgumentError(f"tail is {tail}; expected 0 or more")
        if head is not None and check_id("head", head) < 0:
            raise InvalidArgumentError(f"head is {head}; expected 0 or more")
        self._transport.get_trial(self.id)  # one that is not there is said now, not at first use
        lines = self._read_lines(follow, tail, rank_ids, stdtypes)
        return itertools.islice(lines, head)

    def download_event_files(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy its event files to a folder, for TensorBoard.

        Called again, it brings the folder up to date.

        Args:
            path: The folder; default: ``tensorboard/trial-<id>`` below the current one.

        Returns:
            The folder.

        Raises:
            NotFoundError: If it has no event files here: it wrote none, or ran on another machine
                and kept them there.
        """
        folder = os.path.join("tensorboard", f"trial-{self.id}") if path is None else path
        if not self._transport.download_event_files(self.id, os.path.abspath(folder)):
            raise NotFoundError(
                f"trial {self.id} has no event files where its records are.\n"
                "It wrote none, or it ran on another machine, which has them."
            )
        return os.fspath(folder)

    def cancel(self) -> None:
        """Ask it to save a checkpoint, and to end for good; the other trials of a search continue.

        Raises:
            RunError: If it is over.
        """
        self._transport.control_trial(self.id, "cancel")

    def kill(self) -> None:
        """Ask it to end at once, without a checkpoint; the other trials of a search continue.

        Raises:
            RunError: If it is over.
        """
        self._transport.control_trial(self.id, "kill")

    def _read_lines(
        self,
        follow: bool,
        tail: int | None,
        rank_ids: Collection[int] | None,
        stdtypes: Collection[str] | None,
    ) -> Iterator[str]:
        def choose(lines: list[Document]) -> list[str]:
            return [
                line["text"]
                for line in lines
                if (rank_ids is None or line["rank"] in rank_ids)
                and (stdtypes is None or line["stream"] in stdtypes)
            ]

        pages = self._read_pages(follow)
        if tail is not None:
            last: collections.deque[str] = collections.deque(maxlen=tail)
            for lines in pages:
                last += choose(lines)
                if not lines:
                    break
            yield from last
        for lines in pages:
            yield from choose(lines)

    def _read_pages(self, follow: bool) -> Iterator[list[Document]]:
        """Yield parts of its log; an empty one where nothing more was printed so far."""
        position = 0
        while True:
            page = self._transport.read_log(self.id, position=position, limit=_PAGE_LINES)
            is_end = page["position"] == position
            position = page["position"]
            if page["lines"] or is_end:
                yield page["lines"]
            if is_end:
                if not follow or page["is_over"]:
                    return
                time.sleep(_POLL_INTERVAL_S)

    def _latest(self) -> Document:
        document = self._transport.latest_checkpoint(self.id)
        if document is None:
            raise NoCheckpointError(
                f"trial {self.id} has no complete checkpoint.\n"
                "See what there was: detcore checkpoint list --deleted"
            )
        return document

    def _by_uuid(self, uuid: str) -> Document:
        document = self._transport.get_checkpoint(uuid)
        if document["trial_id"] != self.id:
            raise NoCheckpointError(
                f"checkpoint {document['uuid']} is of trial {document['trial_id']}, not of trial "
                f"{self.id}.\nDetermined.get_checkpoint(uuid) finds it whatever its trial."
            )
        return document

    def _lasting(self) -> Document:
        """Return what does not change any more."""
        if self._known is None:
            self._known = self._transport.get_trial(self.id)
        return self._known


def _report(document: Document) -> dict[str, Any]:
    return {
        "trial_id": document["trial_id"],
        "trial_run_id": document["run_id"],
        "steps_completed": document["steps_completed"],
        "end_time": datetime.datetime.fromisoformat(document["reported_at"]),
        "metrics": document["metrics"],
    }
