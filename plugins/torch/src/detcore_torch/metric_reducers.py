"""Reducers that combine the metrics of many batches, on one or more workers."""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidExperimentError, MetricError, describe
from detcore.metrics import FunctionReducer as BatchFunction
from detcore.metrics import Mean, Sum, interleave
from detcore.metrics import MetricReducer as BatchReducer
from detcore_torch.libraries import torch

if TYPE_CHECKING:
    from detcore.distributed import DistributedContext


class Reducer(enum.Enum):
    """The reduction of the values that `PyTorchTrial.evaluate_batch` returns for each batch.

    Attributes:
        AVG: The mean over records: a batch's weight is its number of records.
        SUM: The sum.
        MAX: The maximum.
        MIN: The minimum.
    """

    AVG = 1
    SUM = 2
    MAX = 3
    MIN = 4


class MetricReducer(abc.ABC):
    """A metric that is not a mean over batches; registered with ``context.wrap_reducer``.

    The trial passes values to a method that the subclass adds (such as ``update``) from
    ``train_batch`` or ``evaluate_batch``.
    """

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget all values; called before each validation, and after each training report."""

    @abc.abstractmethod
    def per_slot_reduce(self) -> Any:
        """Return the values of this worker that `cross_slot_reduce` needs."""

    @abc.abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the metric, or metrics by name if it was wrapped without a name.

        Args:
            per_slot_metrics: The results of `per_slot_reduce` on each worker, by rank.
        """


class FunctionReducer(MetricReducer):
    """A reducer that calls a function with the values of all batches, in the data's order.

    Args:
        function: Called with the list of the values that were passed to `update`.
    """

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function
        self._values: list[Any] = []

    def reset(self) -> None:
        """Forget all values."""
        self._values = []

    def update(self, value: Any) -> None:
        """Add the value of one batch."""
        self._values.append(value)

    def per_slot_reduce(self) -> list[Any]:
        """Return the values of this worker."""
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: list[list[Any]]) -> Any:
        """Call the function with the values of all workers."""
        return self._function(interleave(per_slot_metrics))


@dataclasses.dataclass(frozen=True, slots=True)
class WrappedReducer:
    """A reducer with its metric's name and uses."""

    reducer: MetricReducer
    name: str | None
    for_training: bool
    for_validation: bool

    def combine_workers(self, per_slot_metrics: list[Any]) -> dict[str, float]:
        """Return the metrics over all workers, by name.

        Raises:
            MetricError: If they are not numbers.
        """
        result = self.reducer.cross_slot_reduce(per_slot_metrics)
        if self.name is not None:
            return {self.name: as_number(self.name, result)}
        if not isinstance(result, Mapping):
            raise InvalidExperimentError(
                f"{type(self.reducer).__name__} was wrapped without a name, and its "
                f"cross_slot_reduce returned {describe(result)}.\n"
                'Give it a name (context.wrap_reducer(reducer, "name")), or return metrics by name.'
            )
        return {str(name): as_number(str(name), value) for name, value in result.items()}


def reduce_over_workers(
    reducers: Sequence[WrappedReducer], distributed: DistributedContext
) -> dict[str, float]:
    """Return the metrics of reducers over all workers, by name, and reset the reducers."""
    if not reducers:
        return {}
    states = distributed.allgather([reducer.reducer.per_slot_reduce() for reducer in reducers])
    metrics: dict[str, float] = {}
    for reducer, parts in zip(reducers, zip(*states, strict=True), strict=True):
        metrics.update(reducer.combine_workers(list(parts)))
        reducer.reducer.reset()
    return metrics


def batch_reducer(reducer: Reducer) -> BatchReducer:
    """Return the reducer of one metric for one validation."""
    if reducer is Reducer.AVG:
        return Mean()
    if reducer is Reducer.SUM:
        return Sum()
    return BatchFunction(max if reducer is Reducer.MAX else min)


def as_number(name: str, value: Any) -> float:
    """Return a metric's value as a number.

    Raises:
        MetricError: If it is not a number.
    """
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise MetricError(
                f"the metric {name!r} is a tensor of shape {tuple(value.shape)}.\n"
                "A metric is one number: return its mean, or use context.wrap_reducer."
            )
        return float(value.item())
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise MetricError(
            f"the metric {name!r} is {describe(value)}, which is not a number.\n"
            "Return a number or a tensor of one element."
        ) from error
