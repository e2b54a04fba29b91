"""Compute accuracy and confusion matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from detcore.errors import MetricError
from detcore.metrics._exact import SumState
from detcore.metrics._f_score import (
    ClassIndices,
    checked_num_classes,
    checked_threshold,
    class_pairs,
)
from detcore.metrics._parts import one_per_record, take_parts
from detcore.metrics._reducer import MetricReducer
from detcore.metrics._sums import WeightedMean

__all__ = ["Accuracy", "ConfusionMatrix"]


class Accuracy(WeightedMean):
    """The share of records whose class is predicted.

    Each batch is ``{"labels": ..., "predictions": ...}`` or ``[labels, predictions]``:

    - labels ``(records,)`` or ``(records, 1)``: class indices, whole numbers >= 0 of any type.
    - predictions: class indices of the same shape; or scores ``(records, classes)``, of which the
      highest wins, the first of equal ones; or with a threshold, scores of class 1.

    ``"weights"`` ``(records,)`` may be added, >= 0; 0 leaves a record out. Its label and prediction
    must still be valid.

    The result is a float, 0 to 1; NaN without records.

    Args:
        threshold: Predictions ``(records,)`` are scores, and those above it mean class 1: 0.5 for
            probabilities, 0 for logits. None: they are class indices.
    """

    def __init__(self, *, threshold: float | None = None) -> None:
        super().__init__()
        self._threshold = checked_threshold(threshold)

    def accumulate(self, metric: Any) -> tuple[SumState, SumState]:
        """Add labels and predictions of one batch; return the exact sums of this worker.

        Raises:
            MetricError: If shapes do not fit, or values are not class indices.
        """
        labels, predictions, weights = take_parts(
            metric, ["labels", "predictions"], optional=["weights"]
        )
        labels, predicted = class_pairs(labels, predictions, self._threshold, None)
        if weights is not None:
            weights = one_per_record("weights", weights)
        return self._add(labels == predicted, weights, name="labels")


class ConfusionMatrix(MetricReducer):
    """The number of records for each pair of label and prediction.

    Batches are as for `Accuracy`, without weights.

    The result is an array ``(num_classes, num_classes)``, int64: row = label, column = prediction.
    Without records it is all 0.

    Args:
        num_classes: Labels and predictions are 0 to ``num_classes - 1``.
        threshold: As for `Accuracy`; only with two classes.
    """

    def __init__(self, num_classes: int, *, threshold: float | None = None) -> None:
        self._num_classes = checked_num_classes(num_classes)
        self._threshold = checked_threshold(threshold)
        if self._threshold is not None and self._num_classes != 2:
            raise MetricError(
                f"threshold is {threshold!r}, but there are {num_classes} classes.\n"
                "A threshold tells class 1 from class 0; pass num_classes=2 or no threshold."
            )
        self._matrix = self._zeros()

    def accumulate(self, metric: Any) -> ClassIndices:
        """Count the records of one batch; return the matrix of this worker.

        Raises:
            MetricError: If shapes do not fit, or values are not class indices.
        """
        labels, predictions = take_parts(metric, ["labels", "predictions"])
        labels, predicted = class_pairs(labels, predictions, self._threshold, self._num_classes)
        np.add.at(self._matrix, (labels, predicted), 1)
        return self._matrix

    def cross_slot_reduce(self, per_slot_metrics: list[ClassIndices]) -> ClassIndices:
        """Return the matrix of all workers."""
        total = self._zeros()
        for matrix in per_slot_metrics:
            total += matrix
        return total

    def reset(self) -> None:
        """Forget the batches."""
        self._matrix = self._zeros()

    def _zeros(self) -> ClassIndices:
        return np.zeros((self._num_classes, self._num_classes), dtype=np.int64)
