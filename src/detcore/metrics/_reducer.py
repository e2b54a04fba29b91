"""Define reducers, which reduce metrics of many batches and workers to one value."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

__all__ = ["FunctionReducer", "MetricReducer", "interleave"]

T = TypeVar("T")


class MetricReducer(abc.ABC):
    """Reduces a metric in two steps: over the batches of each worker, then over the workers.

    A reducer may have a third method, ``reset(self) -> None``. It is called at the start of each
    evaluation, and must restore the state before the first batch.

    Example, the mean over all records::

        class Mean(MetricReducer):
            def __init__(self):
                self.sum = 0.0
                self.count = 0

            def accumulate(self, metric):
                self.sum += float(metric.sum())
                self.count += metric.size
                return self.sum, self.count

            def cross_slot_reduce(self, per_slot_metrics):
                sums, counts = zip(*per_slot_metrics)
                return sum(sums) / sum(counts)
    """

    @abc.abstractmethod
    def accumulate(self, metric: Any) -> Any:
        """Add the metric of one batch.

        Args:
            metric: The value for one batch, in the structure that the metric was defined with.

        Returns:
            The state of this worker: all that `cross_slot_reduce` needs of the batches so far.
        """

    @abc.abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the value of the metric.

        Args:
            per_slot_metrics: Results of the last `accumulate` of each worker, by rank. Workers
                without a batch are left out; at least one had a batch.
        """


class FunctionReducer(MetricReducer):
    """A reducer that keeps the metric of every batch and calls a function with all of them.

    Args:
        function: Takes the list of the batches' values, in the order of the data (see
            `interleave`), and returns the value of the metric.
    """

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function
        self._batches: list[Any] = []

    def accumulate(self, metric: Any) -> list[Any]:
        """Keep the value of one batch; return all of this worker."""
        self._batches.append(metric)
        return self._batches

    def cross_slot_reduce(self, per_slot_metrics: list[list[Any]]) -> Any:
        """Call the function with the batches of all workers."""
        return self._function(interleave(per_slot_metrics))

    def reset(self) -> None:
        """Forget the batches."""
        self._batches = []


def interleave(per_rank: Sequence[Sequence[T]]) -> list[T]:
    """Return the items of all ranks in turn: the first of each rank, then the second of each.

    Workers read the data in turns (record i belongs to rank ``i % size``), so this is the order of
    the data. Ranks may have different numbers of items, including none.

    Args:
        per_rank: The items of each rank, by rank.
    """
    longest = max((len(items) for items in per_rank), default=0)
    return [items[index] for index in range(longest) for items in per_rank if index < len(items)]
