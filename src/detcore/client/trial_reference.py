"""`TrialReference`, the client's view of a trial."""

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
from detcore.client.metric_reports import (
    CheckpointOwner,
    TrainingMetrics,
    ValidationMetrics,
    make_frame,
)
from detcore.contract.errors import InvalidArgumentError, NoCheckpointError, NotFoundError, describe
from detcore.contract.values import ModelOrderBy, TrialState

if TYPE_CHECKING:
    from detcore.client.client_checkpoint import Checkpoint
    from detcore.client.documents import Document
    from detcore.client.transport import Transport


# Both generations of the API have different names for the same class.
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


class TrialReference(CheckpointOwner):
    """A trial: its checkpoints, metrics and logs.

    Attributes:
        id: Id of the trial.
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
        """Create a reference. `Determined.get_trial` also checks that the trial exists.

        Args:
            trial_id: Id of the trial.
            master: See `Determined`.
            transport: The store to use; default: the store of the environment.
            known: Document of the trial, if the caller has already read it.
        """
        super().__init__(master, transport)
        self.id = check_id("trial_id", trial_id)
        self._known = known

    def __repr__(self) -> str:
        return f"TrialReference(id={self.id})"

    @property
    def trial_id(self) -> int:
        """Id of the trial."""
        return self.id

    @property
    def experiment_id(self) -> int:
        """Id of its experiment."""
        return int(self._get_document()["experiment_id"])

    @property
    def hparams(self) -> dict[str, Any]:
        """Hyperparameters of the trial."""
        return dict(self._get_document()["hparams"])

    @property
    def state(self) -> TrialState:
        """Current state."""
        return TrialState(self._transport.get_trial(self.id)["state"])

    @property
    def labels(self) -> list[str]:
        """Current labels for searching, sorted."""
        return list(self._transport.get_trial(self.id)["labels"])

    @property
    def notes(self) -> str:
        """Current notes, or ""."""
        return str(self._transport.get_trial(self.id)["notes"])

    # -- labels and notes -------------------------------------------------------------------------

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replace its labels.

        Raises:
            InvalidArgumentError: If `labels` is not a list of strings.
        """
        self._transport.update_trial(self.id, labels=check_keys("labels", labels))

    def add_label(self, label: str) -> None:
        """Add a label. Has no effect if the trial already has it."""
        self._transport.update_trial(self.id, add_labels=[check_text("label", label)])

    def remove_label(self, label: str) -> None:
        """Remove a label. Has no effect if the trial does not have it."""
        self._transport.update_trial(self.id, remove_labels=[check_text("label", label)])

    def set_notes(self, notes: str) -> None:
        """Replace its notes.

        Raises:
            InvalidArgumentError: If `notes` is not a string.
        """
        if not isinstance(notes, str):
            raise InvalidArgumentError(f"notes is {describe(notes)}; expected a string")
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
        """Return one checkpoint. Pass exactly one of `latest`, `best` and `uuid`.

        Args:
            latest: Return the checkpoint with the most batches.
            best: Return the checkpoint with the best validation metric; see `top_checkpoint`.
            uuid: Return the checkpoint with this UUID.
            sort_by: Name of the validation metric; only with `best`.
            smaller_is_better: Whether smaller values are better; only with `best`.

        Raises:
            InvalidArgumentError: If none or several of `latest`, `best` and `uuid` are passed, or
                arguments of `best` without it (also an AssertionError and a ValueError).
            NoCheckpointError: If the checkpoint does not exist (also both of these errors).
        """
        selectors = [
            name
            for name, value in (("latest", latest), ("best", best), ("uuid", uuid is not None))
            if value
        ]
        if len(selectors) != 1:
            raise InvalidArgumentError(
                "expected exactly one of latest, best and uuid, got "
                f"{', '.join(selectors) or 'none'}"
            )
        if not best and (sort_by is not None or smaller_is_better is not None):
            raise InvalidArgumentError(
                "sort_by and smaller_is_better require best=True and cannot be used with "
                f"{selectors[0]}"
            )
        if best:
            return self.top_checkpoint(sort_by, smaller_is_better)
        document = self._get_latest() if latest else self._get_by_uuid(check_text("uuid", uuid))
        return self._make_checkpoint(document)

    def get_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: OrderBy | None = None,
    ) -> list[Checkpoint]:
        """Return all complete checkpoints of the trial.

        Args:
            sort_by: Name of a validation metric, or a `CheckpointSortBy`; default: the searcher's
                metric, the best first. Checkpoints without the metric, or with NaN, come last.
            order_by: Sort direction. By default, metrics are sorted with the best first, as in the
                experiment's searcher, and other keys in ascending order. Requires `sort_by`.

        Raises:
            InvalidArgumentError: If `order_by` is passed without `sort_by` (also an
                AssertionError).
        """
        if sort_by is None and order_by is not None:
            raise InvalidArgumentError("order_by requires sort_by; pass both or neither")
        if isinstance(sort_by, CheckpointSortBy) and sort_by in _SORT_KEYS:
            documents = self._transport.list_checkpoints(self.id)
            key = _SORT_KEYS[sort_by]
            descending = order_by is not None and OrderBy(order_by) is OrderBy.DESCENDING
            documents.sort(key=lambda item: (item[key], item["uuid"]), reverse=descending)
            return [self._make_checkpoint(document) for document in documents]
        metric = None if isinstance(sort_by, CheckpointSortBy) else sort_by
        smaller = None if order_by is None else OrderBy(order_by) is OrderBy.ASCENDING
        answer = self._rank_checkpoints(None, metric, smaller)
        return [self._make_checkpoint(document) for document in answer["checkpoints"]]

    # -- metrics and logs -------------------------------------------------------------------------

    def stream_training_metrics(self) -> Iterator[TrainingMetrics]:
        """Yield its training reports in the order of steps.

        If several runs of the trial reported a step, the report of the last run is yielded.
        """
        for document in self._transport.list_metrics(self.id, "training"):
            yield TrainingMetrics(
                **_make_report_fields(document), batch_metrics=document["batch_metrics"]
            )

    def stream_validation_metrics(self) -> Iterator[ValidationMetrics]:
        """Yield its validation reports in the order of steps; see `stream_training_metrics`."""
        for document in self._transport.list_metrics(self.id, "validation"):
            yield ValidationMetrics(**_make_report_fields(document))

    def metrics_frame(self, kind: str = "validation") -> Any:
        """Return its metrics as a `pandas.DataFrame`. Requires pandas.

        Args:
            kind: ``"validation"`` or ``"training"``.

        Returns:
            A row for each report, indexed by ``steps_completed``, with a column for each metric.
            Missing values are NaN.

        Raises:
            InvalidArgumentError: If the kind is unknown.
            PluginNotFoundError: If pandas is not installed.
        """
        if kind not in ("training", "validation"):
            raise InvalidArgumentError(
                f"unknown report kind {kind!r}; expected 'training' or 'validation'"
            )
        reports = self._transport.list_metrics(self.id, kind)
        return make_frame(
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
            follow: Whether to wait for more lines until the trial stops running.
            head: Maximum number of lines, counted from the start.
            tail: Maximum number of lines, counted from the end. `follow` adds new lines.
            rank_ids: Yield only lines of these workers.
            stdtypes: Yield only lines of these streams: "stdout", "stderr", or "detcore" for
                messages of the runner.

        Raises:
            InvalidArgumentError: If `head` is passed with `tail` or `follow`.
        """
        if head is not None and (tail is not None or follow):
            raise InvalidArgumentError("head cannot be used with tail or follow")
        if tail is not None and check_id("tail", tail) < 0:
            raise InvalidArgumentError(f"tail is {tail}; expected 0 or more")
        if head is not None and check_id("head", head) < 0:
            raise InvalidArgumentError(f"head is {head}; expected 0 or more")
        self._transport.get_trial(self.id)  # raises now instead of on first use of the iterator
        lines = self._read_lines(follow, tail, rank_ids, stdtypes)
        return itertools.islice(lines, head)

    def download_event_files(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy its event files to a directory, for TensorBoard.

        Further calls update the directory.

        Args:
            path: The directory; default: ``tensorboard/trial-<id>`` in the working directory.

        Returns:
            The directory.

        Raises:
            NotFoundError: If the trial wrote no event files, or ran on another machine.
        """
        folder = os.path.join("tensorboard", f"trial-{self.id}") if path is None else path
        if not self._transport.download_event_files(self.id, os.path.abspath(folder)):
            raise NotFoundError(
                f"no event files of trial {self.id} on the machine with its records.\n"
                "The trial wrote no event files, or it ran on another machine."
            )
        return os.fspath(folder)

    def cancel(self) -> None:
        """Request that it saves a checkpoint and ends for good. Other trials continue.

        Raises:
            RunError: If it has ended.
        """
        self._transport.control_trial(self.id, "cancel")

    def kill(self) -> None:
        """Request that it ends immediately, without a checkpoint. Other trials continue.

        Raises:
            RunError: If it has ended.
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
        """Yield parts of its log. An empty part marks the current end of the log."""
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

    def _get_latest(self) -> Document:
        document = self._transport.latest_checkpoint(self.id)
        if document is None:
            raise NoCheckpointError(
                f"trial {self.id} has no complete checkpoint.\n"
                "List deleted checkpoints: detcore checkpoint list --deleted"
            )
        return document

    def _get_by_uuid(self, uuid: str) -> Document:
        document = self._transport.get_checkpoint(uuid)
        if document["trial_id"] != self.id:
            raise NoCheckpointError(
                f"checkpoint {document['uuid']} belongs to trial {document['trial_id']}, not to "
                f"trial {self.id}.\nUse Determined.get_checkpoint(uuid) for checkpoints of any "
                "trial."
            )
        return document

    def _get_document(self) -> Document:
        """Return the document of the trial, of which only constant fields may be used."""
        if self._known is None:
            self._known = self._transport.get_trial(self.id)
        return self._known


def _make_report_fields(document: Document) -> dict[str, Any]:
    return {
        "trial_id": document["trial_id"],
        "trial_run_id": document["run_id"],
        "steps_completed": document["steps_completed"],
        "end_time": datetime.datetime.fromisoformat(document["reported_at"]),
        "metrics": document["metrics"],
    }
