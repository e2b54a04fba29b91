"""Define reducers of metrics."""

from __future__ import annotations

import abc
from typing import Any

__all__ = ["MetricReducer"]


class MetricReducer(abc.ABC):
    """Reduces a metric in two steps: over the batches of each worker, then over the workers.

    A reducer may have a third method, ``reset(self) -> None``. It is called at the start of each
    evaluation and must restore the state before the first batch.

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
            The state of this worker: everything that `cross_slot_reduce` needs from the batches so
            far.
        """

    @abc.abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the value of the metric.

        Args:
            per_slot_metrics: Result of the last `accumulate` call on each worker, by rank. Workers
                without a batch are left out. At least one worker had a batch.
        """
