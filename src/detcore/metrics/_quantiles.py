"""Compute quantiles of all values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from detcore.errors import MetricError, describe
from detcore.metrics._exact import Floats
from detcore.metrics._parts import take_parts
from detcore.metrics._reducer import MetricReducer

__all__ = ["Quantiles"]


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
