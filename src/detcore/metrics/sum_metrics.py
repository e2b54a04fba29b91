"""Compute means, sums, numbers of records, and errors of predicted numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from detcore.contract.errors import MetricError
from detcore.contract.metrics import MetricReducer
from detcore.metrics.batch_parts import match_shapes, take_parts, take_weights
from detcore.metrics.exact_sum import ExactSum, Floats, SumState, merge_sums, ratio, round_sum


class WeightedMean(MetricReducer):
    """A sum of values times weights over the sum of the weights, both exact; a base class."""

    def __init__(self) -> None:
        self._sum = ExactSum()
        self._weight = ExactSum()

    def reset(self) -> None:
        """Forget the batches."""
        self._sum = ExactSum()
        self._weight = ExactSum()

    def _add_batch(
        self, values: Any, weights: Any, *, name: str = "values"
    ) -> tuple[SumState, SumState]:
        """Add the values of a batch, and return the state. `weights` may be None."""
        values = np.asarray(values)
        if weights is None:
            self._sum.add(values)
            self._weight.add(np.float64(values.size))
        else:
            weights = take_weights(weights, values, name=name)
            # Weight 0 marks padding, where the value may be anything, including NaN.
            is_counted = weights > 0
            self._sum.add_products(values[is_counted], weights[is_counted])
            self._weight.add(weights)
        return self._sum.state(), self._weight.state()

    def cross_slot_reduce(self, per_slot_metrics: list[tuple[SumState, SumState]]) -> float:
        """Return the mean; NaN without records, or if all weights are 0."""
        sums = merge_sums([state[0] for state in per_slot_metrics])
        return ratio(sums, merge_sums([state[1] for state in per_slot_metrics]))


class Mean(WeightedMean):
    """The mean of all values.

    Each batch is an array ``(records, ...)`` or a scalar, in which all elements have equal weight;
    or ``{"values": ..., "weights": ...}`` or ``[values, weights]``, with a weight >= 0 per record
    or per element. Values with weight 0 are left out, even if they are NaN. Pass the mean of a
    batch of 32 records as ``{"values": mean, "weights": 32}``.

    The result is a float. It is NaN if a value is NaN, without records, or if all weights are 0.

    Example::

        >>> reducer = Mean()
        >>> reducer.cross_slot_reduce([reducer.accumulate({"values": [1.0, 2.0, 6.0]})])
        3.0
    """

    def accumulate(self, metric: Any) -> tuple[SumState, SumState]:
        """Add the values of one batch; return the exact sums of this worker."""
        return self._add_batch(*take_parts(metric, ["values"], optional=["weights"]))


class Sum(MetricReducer):
    """The sum of all values.

    Each batch is an array of any shape, including a scalar, or ``{"values": ...}``. The values are
    converted to float64. The result is a float. It is rounded only once, so it does not depend on
    the order, even if large values cancel. It is 0.0 without records and NaN if a value is NaN.
    """

    def __init__(self) -> None:
        self._sum = ExactSum()

    def accumulate(self, metric: Any) -> SumState:
        """Add the values of one batch; return the exact sum of this worker."""
        (values,) = take_parts(metric, ["values"])
        self._sum.add(values)
        return self._sum.state()

    def cross_slot_reduce(self, per_slot_metrics: list[SumState]) -> float:
        """Return the sum over all workers."""
        return round_sum(merge_sums(per_slot_metrics))

    def reset(self) -> None:
        """Forget the batches."""
        self._sum = ExactSum()


class Count(MetricReducer):
    """The number of records.

    Each batch is an array ``(records, ...)``, or a dict, list or tuple of arrays with the same
    first axis; a scalar is one record. The values do not matter. The result is an int.
    """

    def __init__(self) -> None:
        self._count = 0

    def accumulate(self, metric: Any) -> int:
        """Count the records of a batch, and return the number on this worker.

        Raises:
            MetricError: If the batch has no array, or its arrays have different numbers of records.
        """
        parts = metric
        if isinstance(metric, Mapping):
            parts = list(metric.values())
        elif not isinstance(metric, list | tuple):
            parts = [metric]
        shapes = [np.shape(part) for part in parts]
        counts = {shape[0] if shape else 1 for shape in shapes}
        if len(counts) != 1:
            raise MetricError(
                f"the arrays of a batch have the shapes {shapes}.\n"
                "To count records, pass at least one array. All first axes must be equal."
            )
        self._count += counts.pop()
        return self._count

    def cross_slot_reduce(self, per_slot_metrics: list[int]) -> int:
        """Return the number over all workers."""
        return sum(per_slot_metrics)

    def reset(self) -> None:
        """Forget the batches."""
        self._count = 0


class MeanAbsoluteError(WeightedMean):
    """The mean of ``|prediction - label|`` (MAE).

    Each batch is ``{"labels": ..., "predictions": ...}`` or ``[labels, predictions]``, with two
    equally shaped arrays ``(records, ...)``. ``(records,)`` and ``(records, 1)`` count as equal.
    Both arrays are converted to float64, and all elements have equal weight. ``"weights"`` may be
    added, as for `Mean`.

    The result is a float, in the unit of the labels. It is NaN if a label or a prediction with a
    weight is NaN, or without records.
    """

    def accumulate(self, metric: Any) -> tuple[SumState, SumState]:
        """Add labels and predictions of one batch; return the exact sums of this worker."""
        labels, predictions, weights = take_parts(
            metric, ["labels", "predictions"], optional=["weights"]
        )
        labels, predictions = match_shapes(labels, predictions)
        # Overflow gives inf, and inf - inf NaN: both are then the correct mean.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            errors = self._compute_errors(
                predictions.astype(np.float64) - labels.astype(np.float64)
            )
        return self._add_batch(errors, weights, name="labels")

    def _compute_errors(self, differences: Floats) -> Floats:
        return np.abs(differences)


class MeanSquaredError(MeanAbsoluteError):
    """The mean of ``(prediction - label)**2`` (MSE); otherwise as `MeanAbsoluteError`.

    The result is in the square of the unit of the labels.
    """

    def _compute_errors(self, differences: Floats) -> Floats:
        return np.square(differences)


class RootMeanSquaredError(MeanSquaredError):
    """The square root of the mean of ``(prediction - label)**2`` over all records (RMSE).

    It differs from the mean of the batches' roots, which depends on the batch size. Otherwise as
    `MeanAbsoluteError`.
    """

    def cross_slot_reduce(self, per_slot_metrics: list[tuple[SumState, SumState]]) -> float:
        """Return the root; NaN without records."""
        return math.sqrt(super().cross_slot_reduce(per_slot_metrics))
