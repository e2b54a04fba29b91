"""Reports of metrics as the client returns them."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from detcore.client.arguments import check_text
from detcore.client.client_checkpoint import Checkpoint
from detcore.client.transport import Connected
from detcore.contract.errors import NoCheckpointError, PluginNotFoundError
from detcore.record_descriptions import describe_substitute

if TYPE_CHECKING:
    from detcore.client.documents import Document


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """A report of metrics.

    Attributes:
        trial_run_id: Which start of the trial reported it, from 1.
        steps_completed: Batches completed since the trial first started.
        end_time: When it was reported.
        metrics: Values by name.
    """

    trial_id: int
    trial_run_id: int
    steps_completed: int
    end_time: datetime.datetime
    metrics: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMetrics(_Report):
    """A report of training metrics.

    Attributes:
        batch_metrics: Values of each batch since the last report, oldest first, or None.
    """

    batch_metrics: list[Mapping[str, Any]] | None = None


class ValidationMetrics(_Report):
    """A report of validation metrics."""

    __slots__ = ()


def frame(rows: Sequence[Mapping[str, Any]], *, index: tuple[str, Sequence[int]]) -> Any:
    """Return a table.

    Args:
        rows: Values by column; those that a row lacks become NaN.
        index: Name and values of the index.

    Raises:
        PluginNotFoundError: If pandas is not installed.
    """
    try:
        pandas: Any = importlib.import_module("pandas")
    except ModuleNotFoundError as error:
        raise PluginNotFoundError(
            "a table needs pandas, which is not installed in this environment.\n"
            "  pip install pandas"
        ) from error
    name, values = index
    return pandas.DataFrame(list(rows), index=pandas.Index(list(values), name=name, dtype="int64"))


class Ranked(Connected):
    """An experiment or a trial: its checkpoints can be ranked by a metric."""

    id: int
    _kind: ClassVar[str]

    def _repr_html_(self) -> str:
        """Return the object as HTML, for notebooks, or how to get it."""
        from detcore.optional_distributions import (
            MissingDistributionError,
            import_distribution,
            install_command,
        )

        try:
            report = import_distribution("detcore_report", needed_by="its page")
        except MissingDistributionError:
            import html

            how = html.escape(install_command("detcore-report"))
            return f"<pre>{html.escape(repr(self))}</pre><p>Tables and curves: {how}</p>"
        shown: str = report.notebook_html(self)
        return shown

    def top_checkpoint(
        self, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> Checkpoint:
        """Return the checkpoint with the best validation metric.

        If a trial has no checkpoint at a validated step, the checkpoint nearest after its best
        validation, else its latest one, stands in. A `UserWarning` says so.

        Args:
            sort_by: Name of the validation metric; default: the searcher's.
            smaller_is_better: Whether smaller values are better; default: as the experiment's
                searcher says. Of no meaning without `sort_by`.

        Raises:
            NoCheckpointError: If no checkpoint has that metric (an AssertionError, too).
        """
        direction = None if sort_by is None else smaller_is_better
        return self._top_checkpoints(1, sort_by, direction)[0]

    def _top_checkpoints(
        self, limit: int | None, sort_by: str | None, smaller_is_better: bool | None
    ) -> list[Checkpoint]:
        """Return the best checkpoints; of an experiment, one of each trial.

        Raises:
            NoCheckpointError: If there is no checkpoint, or none has the metric: where the name of
                a metric is mistyped, any checkpoint would be as good as another.
        """
        answer = self._rank_checkpoints(limit, sort_by, smaller_is_better)
        documents = answer["checkpoints"]
        if not documents or documents[0]["value"] is None:
            owner = f"{self._kind} {self.id}"
            raise NoCheckpointError(_explain(owner, answer["metric"], documents))
        for document in documents:
            if document["value_steps"] not in (None, document["steps_completed"]):
                warnings.warn(
                    describe_substitute(
                        metric=answer["metric"],
                        value=document["value"],
                        trial_id=document["trial_id"],
                        value_steps=document["value_steps"],
                        steps_completed=document["steps_completed"],
                    ),
                    stacklevel=3,
                )
        return [self._checkpoint(document) for document in documents]

    def _rank_checkpoints(
        self, limit: int | None, sort_by: str | None, smaller_is_better: bool | None
    ) -> Document:
        of_experiment = self._kind == "experiment"
        return self._transport.top_checkpoints(
            experiment_id=self.id if of_experiment else None,
            trial_id=None if of_experiment else self.id,
            metric=None if sort_by is None else check_text("sort_by", sort_by),
            smaller_is_better=smaller_is_better,
            limit=limit,
            distinct_trials=of_experiment,
        )

    def _checkpoint(self, document: Document) -> Checkpoint:
        return Checkpoint.from_document(document, self._transport, master=self.master)


def _explain(owner: str, metric: str, documents: list[Document]) -> str:
    if not documents:
        return (
            f"{owner} has no complete checkpoint.\n"
            "One is saved at the end of training, and before as often as min_checkpoint_period "
            "says. See those that were deleted: detcore checkpoint list --deleted"
        )
    validations = [found["validation"] for found in documents if found["validation"]]
    known = sorted({name for validation in validations for name in validation["metrics"]})
    there = (
        f"Validation metrics there: {', '.join(known)}."
        if known
        else "None of the trials was validated."
    )
    return (
        f"no checkpoint of {owner} has a number for the validation metric {metric!r}, so none is "
        f"the best.\n{there}\n"
        "Name one of them by sort_by=, or take the latest one: "
        "TrialReference.select_checkpoint(latest=True)"
    )
