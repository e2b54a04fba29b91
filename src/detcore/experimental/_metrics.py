"""Reports of metrics as the client returns them."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detcore.errors import PluginNotFoundError
from detcore.experimental._transport import all_pages

if TYPE_CHECKING:
    from detcore.experimental._transport import Document, Transport

__all__ = [
    "TrainingMetrics",
    "ValidationMetrics",
    "flat",
    "frame",
    "stream_training",
    "stream_validation",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMetrics:
    """A report of training metrics.

    Attributes:
        trial_run_id: Which start of the trial reported it, from 1.
        steps_completed: Batches completed since the trial first started.
        end_time: When it was reported.
        metrics: Values by name.
        batch_metrics: Values of each batch since the last report, oldest first, or None.
    """

    trial_id: int
    trial_run_id: int
    steps_completed: int
    end_time: datetime.datetime
    metrics: Mapping[str, Any]
    batch_metrics: list[Mapping[str, Any]] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ValidationMetrics:
    """A report of validation metrics; see `TrainingMetrics`."""

    trial_id: int
    trial_run_id: int
    steps_completed: int
    end_time: datetime.datetime
    metrics: Mapping[str, Any]


def stream_training(transport: Transport, trial_id: int) -> Iterator[TrainingMetrics]:
    """Yield the training reports of a trial."""
    for document in _reports(transport, trial_id, "training"):
        yield TrainingMetrics(**_common(document), batch_metrics=document["batch_metrics"])


def stream_validation(transport: Transport, trial_id: int) -> Iterator[ValidationMetrics]:
    """Yield the validation reports of a trial."""
    for document in _reports(transport, trial_id, "validation"):
        yield ValidationMetrics(**_common(document))


def _reports(transport: Transport, trial_id: int, kind: str) -> Iterator[Document]:
    return all_pages(
        transport,
        lambda limit, offset: transport.list_metrics(trial_id, kind, limit=limit, offset=offset),
    )


def _common(document: Document) -> dict[str, Any]:
    return {
        "trial_id": document["trial_id"],
        "trial_run_id": document["run_id"],
        "steps_completed": document["steps_completed"],
        "end_time": datetime.datetime.fromisoformat(document["reported_at"]),
        "metrics": document["metrics"],
    }


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


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by names such as ``a.b``."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
