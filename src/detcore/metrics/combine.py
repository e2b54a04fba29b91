"""Combine the metrics of several batches and workers. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from detcore.contract.errors import MetricError
from detcore.contract.metrics import MetricReducer

T = TypeVar("T")


class FunctionReducer(MetricReducer):
    """A reducer that keeps the metric of every batch and calls a function with all of them.

    Args:
        function: Receives the list of the batches' values in the order of the data (see
            `interleave`), and returns the value of the metric.
    """

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function
        self._batches: list[Any] = []

    def accumulate(self, metric: Any) -> list[Any]:
        """Store the value of a batch, and return all values of this worker."""
        self._batches.append(metric)
        return self._batches

    def cross_slot_reduce(self, per_slot_metrics: list[list[Any]]) -> Any:
        """Call the function with the batches of all workers."""
        return self._function(interleave(per_slot_metrics))

    def reset(self) -> None:
        """Forget the batches."""
        self._batches = []


def interleave(per_rank: Sequence[Sequence[T]]) -> list[T]:
    """Return the items of all ranks in turn: the first item of each rank, then the second items.

    Workers read the data in turn (record i belongs to rank ``i % size``), so this is the order of
    the data. Ranks may have different numbers of items, including zero.

    Args:
        per_rank: The items of each rank, by rank.
    """
    longest = max((len(items) for items in per_rank), default=0)
    return [items[index] for index in range(longest) for items in per_rank if index < len(items)]


def weighted_mean(
    per_rank: Sequence[Mapping[str, float]], weights: Sequence[float]
) -> dict[str, float]:
    """Return the weighted mean of each metric over the ranks.

    If the weights are numbers of records, the result does not depend on how the records were split.
    Ranks with weight 0 are left out: they had no records, so their metrics are meaningless and may
    be NaN or missing.

    Args:
        per_rank: The metrics of each rank, by name.
        weights: The weight of each rank, such as its number of records; finite, >= 0, not all 0.

    Returns:
        The means, with the names in the order of the first rank with a positive weight.

    Raises:
        MetricError: If the number of weights differs from the number of ranks, if a weight is
            negative or not finite, if all weights are 0, or if two ranks with positive weights do
            not report the same metrics.
    """
    if len(per_rank) != len(weights):
        raise MetricError(
            f"{len(per_rank)} ranks reported metrics, but there are {len(weights)} weights.\n"
            "Pass one weight per rank, such as its number of records."
        )
    for rank, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight >= 0):
            raise MetricError(
                f"the weight of rank {rank} is {weight!r}; it must be finite and >= 0"
            )
    ranks = [rank for rank, weight in enumerate(weights) if weight > 0]
    if not ranks:
        raise MetricError(
            f"the weights of all {len(weights)} ranks are 0, so the mean is undefined.\n"
            "No rank had a record."
        )
    names = list(per_rank[ranks[0]])
    for rank in ranks[1:]:
        if set(per_rank[rank]) != set(names):
            raise MetricError(
                f"rank {ranks[0]} reported {sorted(names)}, but rank {rank} reported "
                f"{sorted(per_rank[rank])}.\nAll ranks must report the same metrics."
            )
    total = math.fsum(weights[rank] for rank in ranks)
    return {
        name: _compute_mean([(per_rank[r][name], weights[r]) for r in ranks], total)
        for name in names
    }


def _compute_mean(pairs: Sequence[tuple[float, float]], total: float) -> float:
    if len({value for value, _ in pairs}) == 1:
        return float(pairs[0][0])  # the mean of equal values, without rounding
    if not all(math.isfinite(value) for value, _ in pairs):
        # math.fsum raises for inf with -inf, where the result is NaN.
        return sum(value * weight for value, weight in pairs) / total
    return math.fsum(value * (weight / total) for value, weight in pairs)
