"""Metric reports of the client, and the ranking of checkpoints."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from detcore.client.arguments import check_text
from detcore.client.client_checkpoint import Checkpoint
from detcore.client.transport import TransportUser
from detcore.contract.errors import NoCheckpointError, PluginNotFoundError
from detcore.record_descriptions import describe_substitute

if TYPE_CHECKING:
    from detcore.client.documents import Document


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """A report of metrics.

    Attributes:
        trial_run_id: Run of the trial that reported it, from 1.
        steps_completed: Batches completed since the first run of the trial.
        end_time: Time of the report.
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


def make_frame(rows: Sequence[Mapping[str, Any]], *, index: tuple[str, Sequence[int]]) -> Any:
    """Return a `pandas.DataFrame`.

    Args:
        rows: Values by column. Missing values become NaN.
        index: Name and values of the index.

    Raises:
        PluginNotFoundError: If pandas is not installed.
    """
    try:
        pandas: Any = importlib.import_module("pandas")
    except ModuleNotFoundError as error:
        raise PluginNotFoundError(
            "a DataFrame requires pandas, which is not installed in this environment.\n"
            "Install it:\n  pip install pandas"
        ) from error
    name, values = index
    return pandas.DataFrame(list(rows), index=pandas.Index(list(values), name=name, dtype="int64"))


class CheckpointOwner(TransportUser):
    """Base class of experiments and trials, whose checkpoints can be ranked by a metric."""

    id: int
    _kind: ClassVar[str]

    def _repr_html_(self) -> str:
        """Return the object as HTML for notebooks, or how to install the HTML view."""
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
        page: str = report.notebook_html(self)
        return page

    def top_checkpoint(
        self, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> Checkpoint:
        """Return the checkpoint with the best validation metric.

        If a trial has no checkpoint at a validated step, the next checkpoint after its best
        validation is used, or its latest checkpoint. A `UserWarning` reports this.

        Args:
            sort_by: Name of the validation metric; default: the searcher's metric.
            smaller_is_better: Whether smaller values are better; default: as in the experiment's
                searcher. Ignored without `sort_by`.

        Raises:
            NoCheckpointError: If no checkpoint has the metric (also an AssertionError).
        """
        direction = None if sort_by is None else smaller_is_better
        return self._top_checkpoints(1, sort_by, direction)[0]

    def _top_checkpoints(
        self, limit: int | None, sort_by: str | None, smaller_is_better: bool | None
    ) -> list[Checkpoint]:
        """Return the best checkpoints, for an experiment one checkpoint per trial.

        Raises:
            NoCheckpointError: If no checkpoint has the metric. For example, its name may be
                mistyped, and the ranking would be arbitrary.
        """
        answer = self._rank_checkpoints(limit, sort_by, smaller_is_better)
        documents = answer["checkpoints"]
        if not documents or documents[0]["value"] is None:
            owner = f"{self._kind} {self.id}"
            raise NoCheckpointError(_explain_missing_metric(owner, answer["metric"], documents))
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
        return [self._make_checkpoint(document) for document in documents]

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

    def _make_checkpoint(self, document: Document) -> Checkpoint:
        return Checkpoint.from_document(document, self._transport, master=self.master)


def _explain_missing_metric(owner: str, metric: str, documents: list[Document]) -> str:
    if not documents:
        return (
            f"{owner} has no complete checkpoint.\n"
            "A checkpoint is saved at the end of training, and every min_checkpoint_period. List "
            "deleted checkpoints: detcore checkpoint list --deleted"
        )
    validations = [item["validation"] for item in documents if item["validation"]]
    names = sorted({name for validation in validations for name in validation["metrics"]})
    reason = f"no checkpoint of {owner} has a numeric validation metric {metric!r}."
    latest = "TrialReference.select_checkpoint(latest=True)"
    if not names:
        return f"{reason}\nNo checkpoint has been validated. Use the latest checkpoint: {latest}"
    return (
        f"{reason}\nValidation metrics: {', '.join(names)}.\n"
        f"Pass one of them as sort_by=, or use the latest checkpoint: {latest}"
    )
