"""Compute quantiles, and how well scores order records of two classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.contract.errors import MetricError, describe
from detcore.contract.metrics import MetricReducer
from detcore.metrics.batch_parts import find_positive_labels, take_one_per_record, take_parts
from detcore.metrics.exact_sum import Floats

Counts: TypeAlias = npt.NDArray[np.int64]
# (scores, which labels are 1), of one batch
_Batch: TypeAlias = tuple[Floats, npt.NDArray[np.bool_]]


class _Ranking(MetricReducer):
    """Keeps the scores of both classes."""

    def __init__(self) -> None:
        self._batches: list[_Batch] = []

    def accumulate(self, metric: Any) -> list[_Batch]:
        """Store the labels and scores of a batch, and return all batches of this worker.

        Raises:
            MetricError: If the shapes differ, a label is neither 0 nor 1, or a score is NaN.
        """
        labels, predictions = take_parts(metric, ["labels", "predictions"])
        labels = take_one_per_record("labels", labels)
        predictions = take_one_per_record("predictions", predictions)
        if labels.shape != predictions.shape:
            raise MetricError(
                f"the batch has {labels.size} labels, but {predictions.size} predictions.\n"
                "Pass one prediction per label."
            )
        scores = predictions.astype(np.float64)  # a copy
        if np.isnan(scores).any():
            raise MetricError(
                f"{np.isnan(scores).sum()} of {scores.size} predictions in a batch are NaN, which "
                "have no rank.\nThe training may have diverged."
            )
        self._batches.append((scores, find_positive_labels(labels)))
        return self._batches

    def reset(self) -> None:
        """Forget the batches."""
        self._batches = []


def _count_by_score(per_slot: list[list[_Batch]]) -> tuple[Counts, Counts]:
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

    It is the probability that a record of class 1 has a higher score than a record of class 0, with
    equal scores counted as one half. All scores are stored, in 9 bytes per record, and sent to the
    chief.

    Each batch is ``{"labels": ..., "predictions": ...}`` or ``[labels, predictions]``, arrays
    ``(records,)`` or ``(records, 1)``. Labels are 0 or 1; predictions are any scores that grow
    with the probability of class 1, such as logits, possibly infinite, but not NaN. They are
    compared as float64.

    The result is a float, 0 to 1. It is NaN unless both classes occur.
    """

    def cross_slot_reduce(self, per_slot_metrics: list[list[_Batch]]) -> float:
        """Return the area for the records of all workers."""
        positives, negatives = _count_by_score(per_slot_metrics)
        num_positives, num_negatives = int(positives.sum()), int(negatives.sum())
        if num_positives == 0 or num_negatives == 0:
            return math.nan
        lower = num_negatives - np.cumsum(negatives)
        # Twice the number of pairs in the right order, which is an integer.
        pairs = int((positives * (2 * lower + negatives)).sum())
        return pairs / (2 * num_positives * num_negatives)


class AveragePrecision(_Ranking):
    """The average precision of a binary classifier (AP).

    It is the sum of ``(R[k] - R[k-1]) * P[k]`` over the distinct scores, from the highest. P and R
    are precision and recall if all records with at least this score are predicted as class 1. The
    precision is not interpolated. Batches are as for `AUROC`.

    The result is a float, 0 to 1. It is NaN without a record of class 1.

    Source: ``average_precision_score`` of scikit-learn 1.9, which returns 0.0 in place of NaN.
    """

    def cross_slot_reduce(self, per_slot_metrics: list[list[_Batch]]) -> float:
        """Return the average precision for the records of all workers."""
        positives, negatives = _count_by_score(per_slot_metrics)
        num_positives = int(positives.sum())
        if num_positives == 0:
            return math.nan
        true_positives = np.cumsum(positives)
        precision = true_positives / (true_positives + np.cumsum(negatives))
        return math.fsum((positives * precision).tolist()) / num_positives


class Quantiles(MetricReducer):
    """Exact quantiles of all values; ``Quantiles(0.5)`` is the median.

    Between two values it interpolates linearly, as ``numpy.quantile`` does. All values are stored,
    in 8 bytes each, and sent to the chief.

    Each batch is an array of any shape, including a scalar, or ``{"values": ...}``; values are
    converted to float64.

    The result is a float for a single quantile, and an array ``(quantiles,)``, float64, in the
    order of `q` for several. It is NaN if a value is NaN, without values, or between -inf and inf.

    Args:
        q: One or several of ``0 <= q <= 1``.

    Raises:
        MetricError: If `q` is anything else.
    """

    def __init__(self, q: float | Sequence[float]) -> None:
        quantiles = _to_array(q)
        if (
            quantiles is None
            or quantiles.ndim > 1
            or not quantiles.size
            or not ((quantiles >= 0) & (quantiles <= 1)).all()
        ):
            raise MetricError(
                f"the quantiles are {describe(q)}; each must be a number from 0 to 1, such as 0.5"
            )
        self._quantiles = quantiles
        self._values: list[Floats] = []

    def accumulate(self, metric: Any) -> list[Floats]:
        """Store the values of a batch, and return all values of this worker."""
        (values,) = take_parts(metric, ["values"])
        self._values.append(values.astype(np.float64).reshape(-1))  # a copy
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: list[list[Floats]]) -> float | Floats:
        """Return the quantiles of the values of all workers."""
        batches = [batch for state in per_slot_metrics for batch in state]
        values = np.sort(np.concatenate([*batches, np.empty(0)]))  # NaN comes last
        if values.size == 0 or np.isnan(values[-1]):
            quantiles = np.full(self._quantiles.shape, np.nan)
        else:
            quantiles = _interpolate(values, self._quantiles)
        return float(quantiles) if quantiles.ndim == 0 else quantiles

    def reset(self) -> None:
        """Forget the batches."""
        self._values = []


def _to_array(q: Any) -> Floats | None:
    try:
        return np.array(q, dtype=np.float64)
    except (TypeError, ValueError):
        return None


def _interpolate(ordered: Floats, q: Floats) -> Floats:
    """Return the quantiles of sorted values, including infinite ones, unlike NumPy."""
    position = q * (ordered.size - 1)
    below = ordered[np.floor(position).astype(np.int64)]
    above = ordered[np.ceil(position).astype(np.int64)]
    part = position - np.floor(position)
    with np.errstate(invalid="ignore"):
        mixed = below * (1 - part) + above * part
    # Rounding must not move the result out of the interval. Equal ends may be infinite, and
    # 0 * inf is NaN.
    quantiles: Floats = np.where(below == above, below, np.clip(mixed, below, above))
    return quantiles
