"""Compute accuracy, precision, recall, F1 score and the confusion matrix."""

from __future__ import annotations

import abc
import math
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.contract.errors import MetricError, MetricTypeError, describe
from detcore.contract.metrics import MetricReducer
from detcore.metrics.batch_parts import Array, find_positive_labels, take_one_per_record, take_parts
from detcore.metrics.exact_sum import SumState
from detcore.metrics.sum_metrics import WeightedMean

Average: TypeAlias = Literal["binary", "micro", "macro"]
Counts: TypeAlias = npt.NDArray[np.int64]
_AVERAGES = ("binary", "micro", "macro")
ClassIndices: TypeAlias = npt.NDArray[np.int64]


class Accuracy(WeightedMean):
    """The fraction of records whose class is predicted correctly.

    Each batch is ``{"labels": ..., "predictions": ...}`` or ``[labels, predictions]``:

    - labels ``(records,)`` or ``(records, 1)``: class indices, whole numbers >= 0 of any type.
    - predictions: class indices of the same shape; or scores ``(records, classes)``, of which the
      first highest score determines the class; or with a threshold, scores of class 1.

    ``"weights"`` ``(records,)`` >= 0 may be added. A record with weight 0 is left out, but its
    label and prediction must be valid.

    The result is a float, 0 to 1; NaN without records.

    Args:
        threshold: Scores above the threshold mean class 1: 0.5 for probabilities, 0 for logits.
            None if predictions are not scores of class 1.
    """

    def __init__(self, *, threshold: float | None = None) -> None:
        super().__init__()
        self._threshold = check_threshold(threshold)

    def accumulate(self, metric: Any) -> tuple[SumState, SumState]:
        """Add labels and predictions of one batch; return the exact sums of this worker.

        Raises:
            MetricError: If shapes do not fit, or values are not class indices.
        """
        labels, predictions, weights = take_parts(
            metric, ["labels", "predictions"], optional=["weights"]
        )
        labels, predicted = take_class_pairs(labels, predictions, self._threshold, None)
        if weights is not None:
            weights = take_one_per_record("weights", weights)
        return self._add_batch(labels == predicted, weights, name="labels")


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
        self._num_classes = check_num_classes(num_classes)
        self._threshold = check_threshold(threshold)
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
        labels, predicted = take_class_pairs(
            labels, predictions, self._threshold, self._num_classes
        )
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


class _ClassScore(MetricReducer):
    """A quotient of counts of each class; the subclasses document the arguments."""

    def __init__(
        self,
        average: Average = "binary",
        *,
        threshold: float | None = None,
        num_classes: int | None = None,
        zero_division: float = 0.0,
    ) -> None:
        if average not in _AVERAGES:
            raise MetricError(f"average is {describe(average)}; it must be one of {_AVERAGES}")
        if average == "binary" and num_classes not in (None, 2):
            raise MetricError(
                f"num_classes is {num_classes!r}, but average is 'binary'.\n"
                "Pass average='micro' or average='macro' for more than two classes."
            )
        is_number = isinstance(zero_division, int | float)
        if not is_number or not (zero_division in (0, 1) or math.isnan(zero_division)):
            raise MetricError(f"zero_division is {describe(zero_division)}; it must be 0, 1 or NaN")
        self._average = average
        self._threshold = check_threshold(threshold)
        self._num_classes = None if num_classes is None else check_num_classes(num_classes)
        self._zero_division = float(zero_division)
        self._counts: dict[int, list[int]] = {}

    def accumulate(self, metric: Any) -> Counts:
        """Count the records of one batch; return the counts of this worker.

        Returns:
            ``(classes, 4)``: class, records predicted right, records with this label, records
            predicted as it. Only classes that occurred.

        Raises:
            MetricError: If shapes do not fit, or values are not class indices.
        """
        labels, predictions = take_parts(metric, ["labels", "predictions"])
        num_classes = self._num_classes
        if self._average == "binary":
            find_positive_labels(labels)
            num_classes = 2
        labels, predicted = take_class_pairs(labels, predictions, self._threshold, num_classes)
        for column, classes in enumerate((labels[labels == predicted], labels, predicted)):
            self._count(column, classes)
        rows = [[index, *counts] for index, counts in sorted(self._counts.items())]
        return np.array(rows, dtype=np.int64).reshape(-1, 4)

    def _count(self, column: int, classes: ClassIndices) -> None:
        distinct, counts = np.unique(classes, return_counts=True)
        for index, count in zip(distinct.tolist(), counts.tolist(), strict=True):
            self._counts.setdefault(index, [0, 0, 0])[column] += count

    def cross_slot_reduce(self, per_slot_metrics: list[Counts]) -> float:
        """Return the score for the records of all workers; NaN without records."""
        total: dict[int, list[int]] = {}
        for state in per_slot_metrics:
            for index, *counts in state.tolist():
                before = total.get(index, [0, 0, 0])
                total[index] = [a + b for a, b in zip(before, counts, strict=True)]
        if not total:
            return math.nan
        if self._average == "binary":
            return self._compute_score(total.get(1, [0, 0, 0]))
        if self._average == "micro":
            return self._compute_score(
                [sum(column) for column in zip(*total.values(), strict=True)]
            )
        classes = sorted(total) if self._num_classes is None else range(self._num_classes)
        scores = [self._compute_score(total.get(index, [0, 0, 0])) for index in classes]
        defined = [score for score in scores if not math.isnan(score)]
        return math.fsum(defined) / len(defined) if defined else math.nan

    def reset(self) -> None:
        """Forget the batches."""
        self._counts = {}

    def _compute_score(self, counts: list[int]) -> float:
        dividend, divisor = self._compute_quotient(*counts)
        return dividend / divisor if divisor else self._zero_division

    @abc.abstractmethod
    def _compute_quotient(self, right: int, num_labels: int, num_predicted: int) -> tuple[int, int]:
        """Return dividend and divisor of the score of a class."""


class Precision(_ClassScore):
    """The fraction of the records predicted as a class that belong to it.

    Batches are as for `Accuracy`, without weights. The result is a float, 0 to 1; NaN without
    records.

    Args:
        average: ``"binary"``: the score of class 1; labels are 0 or 1. ``"micro"``: the score over
            all classes together, which is the accuracy. ``"macro"``: the mean over the classes.
        threshold: As for `Accuracy`.
        num_classes: Number of classes for ``"macro"``, and bound of labels and predictions. None:
            the classes that occur among the labels or predictions of any worker.
        zero_division: The score of a class if it is 0/0: 0, 1 or NaN. ``"macro"`` leaves NaN out of
            the mean.
    """

    def _compute_quotient(self, right: int, num_labels: int, num_predicted: int) -> tuple[int, int]:
        return right, num_predicted


class Recall(_ClassScore):
    """The fraction of the records of a class that are predicted correctly (sensitivity).

    Arguments, batches and result are as for `Precision`.
    """

    def _compute_quotient(self, right: int, num_labels: int, num_predicted: int) -> tuple[int, int]:
        return right, num_labels


class F1Score(_ClassScore):
    """The harmonic mean of precision and recall (F1), ``2 TP / (2 TP + FP + FN)``.

    With ``"macro"`` it is the mean of the classes' F1, not the F1 of mean precision and mean
    recall. Arguments, batches and result are as for `Precision`.
    """

    def _compute_quotient(self, right: int, num_labels: int, num_predicted: int) -> tuple[int, int]:
        return 2 * right, num_labels + num_predicted


def take_class_pairs(
    labels: Array, predictions: Array, threshold: float | None, num_classes: int | None
) -> tuple[ClassIndices, ClassIndices]:
    """Return the class and the predicted class of each record, each ``(records,)``.

    Args:
        labels: ``(records,)`` or ``(records, 1)``, class indices.
        predictions: The same, or with a threshold scores of class 1; or scores
            ``(records, classes)``, of which the first highest score determines the class.
        threshold: Scores above it mean class 1; None without such scores.
        num_classes: Classes are 0 to ``num_classes - 1``; None: any integers >= 0.

    Raises:
        MetricError: If shapes do not fit, or values are not class indices.
    """
    labels = _to_class_indices("labels", take_one_per_record("labels", labels), num_classes)
    if threshold is None and predictions.ndim == 2 and predictions.shape[1] > 1:
        _check_no_nan(predictions)
        if num_classes is not None and predictions.shape[1] != num_classes:
            raise MetricError(
                f"'predictions' has the shape {predictions.shape}, but num_classes is "
                f"{num_classes}.\nThe last axis must have one score per class."
            )
        predicted = np.argmax(predictions, axis=1).astype(np.int64)
    else:
        predictions = take_one_per_record("predictions", predictions)
        if threshold is not None:
            _check_no_nan(predictions)
            predicted = (predictions > threshold).astype(np.int64)
        else:
            predicted = _to_class_indices("predictions", predictions, num_classes)
    if labels.shape != predicted.shape:
        raise MetricError(
            f"the batch has {labels.size} labels, but predictions for {predicted.size} records.\n"
            "Pass one prediction per label."
        )
    return labels, predicted


def _check_no_nan(predictions: Array) -> None:
    if np.isnan(predictions).any():
        raise MetricError(
            "predictions in a batch are NaN, so their class is undefined.\n"
            "The training may have diverged."
        )


def _to_class_indices(name: str, array: Array, num_classes: int | None) -> ClassIndices:
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    wrong = array[~(np.isfinite(array) & (array == np.floor(array)))]
    if wrong.size:
        hint = (
            "Pass threshold= if predictions are scores of class 1, or scores (records, classes)."
            if name == "predictions"
            else "Labels are whole numbers."
        )
        raise MetricError(f"{name!r} has {wrong[0]}, which is not a class index.\n{hint}")
    limit = 2**31 if num_classes is None else num_classes
    outside = array[(array < 0) | (array >= limit)]
    if outside.size:
        raise MetricError(
            f"{name!r} has the class {outside[0]}; classes must be from 0 to {limit - 1}"
        )
    return array.astype(np.int64)


def check_threshold(threshold: Any) -> float | None:
    """Return a threshold as a float.

    Raises:
        MetricTypeError: If it is not a number.
    """
    if threshold is None:
        return None
    try:
        number = float(threshold)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise MetricTypeError(f"threshold is {describe(threshold)}; it must be a number or None")
    return number


def check_num_classes(num_classes: Any) -> int:
    """Return a number of classes.

    Raises:
        MetricError: If it is not a whole number >= 1.
    """
    is_whole = isinstance(num_classes, int | np.integer) and not isinstance(num_classes, bool)
    if not is_whole or num_classes < 1:
        raise MetricError(f"num_classes is {describe(num_classes)}; it must be an int >= 1")
    return int(num_classes)
