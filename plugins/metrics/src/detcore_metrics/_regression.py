"""Compute errors of predicted numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from detcore_metrics._exact import Floats, SumState
from detcore_metrics._parts import labels_and_predictions, take_parts
from detcore_metrics._sums import WeightedMean

__all__ = ["MeanAbsoluteError", "MeanSquaredError", "RootMeanSquaredError"]


class MeanAbsoluteError(WeightedMean):
    """The mean of ``|prediction - label|`` (MAE).

    Each batch is ``{"labels": ..., "predictions": ...}`` or ``[labels, predictions]``: two arrays
    ``(records, ...)`` of the same shape; ``(records,)`` and ``(records, 1)`` are the same. Both are
    taken as float64, and all elements count the same. ``"weights"`` may be added, as for `Mean`.

    The result is a float, in the unit of the labels. It is NaN if a label or a prediction with a
    weight is NaN, or without records.
    """

    def accumulate(self, metric: Any) -> tuple[SumState, SumState]:
        """Add labels and predictions of one batch; return the exact sums of this worker."""
        labels, predictions, weights = take_parts(
            metric, ["labels", "predictions"], optional=["weights"]
        )
        labels, predictions = labels_and_predictions(labels, predictions)
        # Overflow gives inf, and inf - inf NaN: both are then the correct mean.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            errors = self._errors(predictions.astype(np.float64) - labels.astype(np.float64))
        return self._add(errors, weights, name="labels")

    def _errors(self, differences: Floats) -> Floats:
        return np.abs(differences)


class MeanSquaredError(MeanAbsoluteError):
    """The mean of ``(prediction - label)**2`` (MSE); otherwise as `MeanAbsoluteError`.

    The result is in the square of the unit of the labels.
    """

    def _errors(self, differences: Floats) -> Floats:
        return np.square(differences)


class RootMeanSquaredError(MeanSquaredError):
    """The square root of the mean of ``(prediction - label)**2`` (RMSE), over all records at once.

    It is not the mean of the batches' roots, which depends on the batch size. Otherwise as
    `MeanAbsoluteError`.
    """

    def cross_slot_reduce(self, per_slot_metrics: list[tuple[SumState, SumState]]) -> float:
        """Return the root; NaN without records."""
        return math.sqrt(super().cross_slot_reduce(per_slot_metrics))
