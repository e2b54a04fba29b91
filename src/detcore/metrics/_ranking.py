"""Compute metrics of how well scores order records of two classes."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.errors import MetricError
from detcore.metrics._exact import Floats
from detcore.metrics._parts import binary_labels, one_per_record, take_parts
from detcore.metrics._reducer import MetricReducer

__all__ = ["AUROC", "AveragePrecision"]

Counts: TypeAlias = npt.NDArray[np.int64]
# (scores, which labels are 1), of one batch
_Batch: TypeAlias = tuple[Floats, npt.NDArray[np.bool_]]


class _Ranking(MetricReducer):
    """Keeps the scores of both classes."""

    def __init__(self) -> None:
        self._batches: list[_Batch] = []

    def accumulate(self, metric: Any) -> list[_Batch]:
        """Keep labels and scores of one batch; return all of this worker.

        Raises:
            MetricError: If the shapes differ, a label is neither 0 nor 1, or a score is NaN.
        """
        labels, predictions = take_parts(metric, ["labels", "predictions"])
        labels = one_per_record("labels", labels)
        predictions = one_per_record("predictions", predictions)
        if labels.shape != predictions.shape:
            raise MetricError(
                f"there are {labels.size} labels, but {predictions.size} predictions.\n"
                "There must be one prediction per label."
            )
        scores = predictions.astype(np.float64)  # a copy
        if np.isnan(scores).any():
            raise MetricError(
                f"{np.isnan(scores).sum()} of {scores.size} predictions in a batch are NaN, which "
                "have no rank.\nThe training may have diverged."
            )
        self._batches.append((scores, binary_labels(labels)))
        return self._batches

    def reset(self) -> None:
        """Forget the batches."""
        self._batches = []


def _counts_by_score(per_slot: list[list[_Batch]]) -> tuple[Counts, Counts]:
    """Return the number of records of class 1 and 0 with each distinct score, highest first."""
    batches = [batch for state in per_slot for batch in state]
    scores = np.concatenate([*(batch[0] for batch in batches), np.empty(0)])
    labels = np.concatenate([*(batch[1] for batch in batches), np.empty(0, dtype=np.bool_)])
    distinct, place = np.unique(scores, return_inverse=True)
    place = place.reshape(-1)
    positives = np.bincount(place[labels], minlength=distinct.size)[::-1]
    negatives = np.bincount(place[~labels], minlength=distinct.size)[::-1]
    return positives.astype(np.int64), negatives.astype(np.int64)


class AUROC(_Ranking):
    """The area under the ROC curve of a binary classifier (AUC, ROC AUC), exact.

    It is the probability that a record of class 1 has a higher score than one of class 0; equal
    scores count one half. All scores are kept, in 9 bytes a record, and sent to the chief.

    Each batch is ``{"labels": ..., "predictions": ...}`` or ``[labels, predictions]``, arrays
    ``(records,)`` or ``(records, 1)``. Labels are 0 or 1; predictions are any scores that grow
    with the probability of class 1, such as logits, possibly infinite, but not NaN. They are
    compared as float64.

    The result is a float, 0 to 1. Unless both classes occur it is undefined: NaN.
    """

    def cross_slot_reduce(self, per_slot_metrics: list[list[_Batch]]) -> float:
        """Return the area for the records of all workers."""
        positives, negatives = _counts_by_score(per_slot_metrics)
        num_positives, num_negatives = int(positives.sum()), int(negatives.sum())
        if num_positives == 0 or num_negatives == 0:
            return math.nan
        lower = num_negatives - np.cumsum(negatives)
        # Twice the number of pairs in the right order, a whole number.
        pairs = int((positives * (2 * lower + negatives)).sum())
        return pairs / (2 * num_positives * num_negatives)


class AveragePrecision(_Ranking):
    """The average precision of a binary classifier (AP).

    The sum of ``(R[k] - R[k-1]) * P[k]`` over the distinct scores, from the highest, with the
    precision P and recall R of calling all records with at least this score class 1. There is no
    interpolation. Batches are as for `AUROC`.

    The result is a float, 0 to 1. Without a record of class 1 it is undefined: NaN.

    Source: ``average_precision_score`` of scikit-learn 1.9, which has 0.0 for the undefined case.
    """

    def cross_slot_reduce(self, per_slot_metrics: list[list[_Batch]]) -> float:
        """Return the average precision for the records of all workers."""
        positives, negatives = _counts_by_score(per_slot_metrics)
        num_positives = int(positives.sum())
        if num_positives == 0:
            return math.nan
        found = np.cumsum(positives)
        precision = found / (found + np.cumsum(negatives))
        return math.fsum((positives * precision).tolist()) / num_positives
