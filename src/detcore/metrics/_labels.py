"""Convert labels and predictions of a classifier to class indices."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.errors import MetricError, MetricTypeError, describe
from detcore.metrics._parts import Array, one_per_record

__all__ = ["ClassIndices", "checked_num_classes", "checked_threshold", "class_pairs"]

ClassIndices: TypeAlias = npt.NDArray[np.int64]


def class_pairs(
    labels: Array, predictions: Array, threshold: float | None, num_classes: int | None
) -> tuple[ClassIndices, ClassIndices]:
    """Return the class of each record and the predicted one, each ``(records,)``.

    Args:
        labels: ``(records,)`` or ``(records, 1)``, class indices.
        predictions: The same, or with a threshold scores of class 1; or scores
            ``(records, classes)``, of which the highest wins, the first of equal ones.
        threshold: Scores above it mean class 1; None if there are no such scores.
        num_classes: Classes are 0 to ``num_classes - 1``; None: any whole numbers >= 0.

    Raises:
        MetricError: If shapes do not fit, or values are not class indices.
    """
    labels = _indices("labels", one_per_record("labels", labels), num_classes)
    if threshold is None and predictions.ndim == 2 and predictions.shape[1] > 1:
        _check_no_nan(predictions)
        if num_classes is not None and predictions.shape[1] != num_classes:
            raise MetricError(
                f"'predictions' has the shape {predictions.shape}, but there are {num_classes} "
                "classes.\nIts last axis must have one score per class."
            )
        predicted = np.argmax(predictions, axis=1).astype(np.int64)
    else:
        predictions = one_per_record("predictions", predictions)
        if threshold is not None:
            _check_no_nan(predictions)
            predicted = (predictions > threshold).astype(np.int64)
        else:
            predicted = _indices("predictions", predictions, num_classes)
    if labels.shape != predicted.shape:
        raise MetricError(
            f"there are {labels.size} labels, but predictions for {predicted.size} records.\n"
            "There must be one prediction per label."
        )
    return labels, predicted


def _check_no_nan(predictions: Array) -> None:
    if np.isnan(predictions).any():
        raise MetricError(
            "predictions in a batch are NaN, so they mean no class.\n"
            "The training may have diverged."
        )


def _indices(name: str, array: Array, num_classes: int | None) -> ClassIndices:
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    wrong = array[~(np.isfinite(array) & (array == np.floor(array)))]
    if wrong.size:
        hint = (
            "Pass threshold= if predictions are scores of class 1, or scores (records, classes)."
            if name == "predictions"
            else "Labels are whole numbers."
        )
        raise MetricError(f"{name!r} has {wrong[0]}, which is no class index.\n{hint}")
    limit = 2**31 if num_classes is None else num_classes
    outside = array[(array < 0) | (array >= limit)]
    if outside.size:
        raise MetricError(
            f"{name!r} has the class {outside[0]}; classes must be from 0 to {limit - 1}"
        )
    return array.astype(np.int64)


def checked_threshold(threshold: Any) -> float | None:
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


def checked_num_classes(num_classes: Any) -> int:
    """Return a number of classes.

    Raises:
        MetricError: If it is not a whole number >= 1.
    """
    is_whole = isinstance(num_classes, int | np.integer) and not isinstance(num_classes, bool)
    if not is_whole or num_classes < 1:
        raise MetricError(f"num_classes is {describe(num_classes)}; it must be an int >= 1")
    return int(num_classes)
