"""Compute quantiles, and how well scores order records of two classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.contract.errors import MetricError, describe
from detcore.contract.metrics import MetricReducer
from detcore.metrics.batch_parts import binary_labels, one_per_record, take_parts
from detcore.metrics.exact_sum import Floats

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


class Quantiles(MetricReducer):
    """Exact quantiles of all values; ``Quantiles(0.5)`` is the median.

    Between two values it interpolates linearly, as ``numpy.quantile`` does. All values are kept, in
    8 bytes each, and sent to the chief.

    Each batch is an array of any shape, including a scalar, or ``{"values": ...}``; values are
    converted to float64.

    The result is a float for one quantile, else an array ``(quantiles,)``, float64, in the order of
    `q`. It is NaN if a value is NaN, without values, or between -inf and inf.

    Args:
        q: One or several of ``0 <= q <= 1``.

    Raises:
        MetricError: If `q` is anything else.
    """

    def __init__(self, q: float | Sequence[float]) -> None:
        wanted = _numbers(q)
        if (
            wanted is None
            or wanted.ndim > 1
            or not wanted.size
            or not ((wanted >= 0) & (wanted <= 1)).all()
        ):
            raise MetricError(
                f"the quantiles are {describe(q)}; each must be a number from 0 to 1, such as 0.5"
            )
        self._wanted = wanted
        self._values: list[Floats] = []

    def accumulate(self, metric: Any) -> list[Floats]:
        """Keep the values of one batch; return all of this worker."""
        (values,) = take_parts(metric, ["values"])
        self._values.append(values.astype(np.float64).reshape(-1))  # a copy
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: list[list[Floats]]) -> float | Floats:
        """Return the quantiles of the values of all workers."""
        batches = [batch for state in per_slot_metrics for batch in state]
        values = np.sort(np.concatenate([*batches, np.empty(0)]))  # NaN comes last
        if values.size == 0 or np.isnan(values[-1]):
            found = np.full(self._wanted.shape, np.nan)
        else:
            found = _interpolated(values, self._wanted)
        return float(found) if found.ndim == 0 else found

    def reset(self) -> None:
        """Forget the batches."""
        self._values = []


def _numbers(q: Any) -> Floats | None:
    try:
        return np.array(q, dtype=np.float64)
    except (TypeError, ValueError):
        return None


def _interpolated(ordered: Floats, q: Floats) -> Floats:
    """Return the quantiles of sorted values, including infinite ones, unlike NumPy."""
    place = q * (ordered.size - 1)
    below = ordered[np.floor(place).astype(np.int64)]
    above = ordered[np.ceil(place).astype(np.int64)]
    part = place - np.floor(place)
    with np.errstate(invalid="ignore"):
        mixed = below * (1 - part) + above * part
    # Rounding must not move it out of the interval; equal ends may be infinite (0 * inf is NaN).
    found: Floats = np.where(below == above, below, np.clip(mixed, below, above))
    return found
