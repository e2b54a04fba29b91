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
        function: Takes the list of the batches' values, in the order of the data (see
            `interleave`), and returns the value of the metric.
    """

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function
        self._batches: list[Any] = []

    def accumulate(self, metric: Any) -> list[Any]:
        """Keep the value of one batch; return all of this worker."""
        self._batches.append(metric)
        return self._batches

    def cross_slot_reduce(self, per_slot_metrics: list[list[Any]]) -> Any:
        """Call the function with the batches of all workers."""
        return self._function(interleave(per_slot_metrics))

    def reset(self) -> None:
        """Forget the batches."""
        self._batches = []


def interleave(per_rank: Sequence[Sequence[T]]) -> list[T]:
    """Return the items of all ranks in turn: the first of each rank, then the second of each.

    Workers read the data in turns (record i belongs to rank ``i % size``), so this is the order of
    the data. Ranks may have different numbers of items, including none.

    Args:
        per_rank: The items of each rank, by rank.
    """
    longest = max((len(items) for items in per_rank), default=0)
    return [items[index] for index in range(longest) for items in per_rank if index < len(items)]


def weighted_mean(
    per_rank: Sequence[Mapping[str, float]], weights: Sequence[float]
) -> dict[str, float]:
    """Return the mean of each metric over the ranks, each rank with its weight.

    With the number of records as weight, the result does not depend on how the records were split.
    A rank of weight 0 is left out: it had no records, so its metrics are meaningless and may be NaN
    or missing.

    Args:
        per_rank: The metrics of each rank, by name.
        weights: The weight of each rank, such as its number of records; finite, >= 0, not all 0.

    Returns:
        The means; names in the order of the first rank that has a weight.

    Raises:
        MetricError: If there are not as many weights as ranks, a weight is negative or not
            finite, all are 0, or two ranks with a weight do not report the same metrics.
    """
    if len(per_rank) != len(weights):
        raise MetricError(
            f"{len(per_rank)} ranks reported metrics, but there are {len(weights)} weights.\n"
            "Each rank has one weight, such as its number of records."
        )
    for rank, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight >= 0):
            raise MetricError(
                f"the weight of rank {rank} is {weight!r}; it must be finite and >= 0"
            )
    heard = [rank for rank, weight in enumerate(weights) if weight > 0]
    if not heard:
        raise MetricError(
            f"the weights of all {len(weights)} ranks are 0, so there is nothing to take the mean "
            "of.\nNo rank had a record."
        )
    names = list(per_rank[heard[0]])
    for rank in heard[1:]:
        if set(per_rank[rank]) != set(names):
            raise MetricError(
                f"rank {heard[0]} reported {sorted(names)}, but rank {rank} reported "
                f"{sorted(per_rank[rank])}.\nAll ranks must report the same metrics."
            )
    total = math.fsum(weights[rank] for rank in heard)
    return {name: _mean([(per_rank[r][name], weights[r]) for r in heard], total) for name in names}


def _mean(pairs: Sequence[tuple[float, float]], total: float) -> float:
    if len({value for value, _ in pairs}) == 1:
        return float(pairs[0][0])  # exactly: a mean of equal values is that value
    if not all(math.isfinite(value) for value, _ in pairs):
        # math.fsum refuses inf with -inf, where the answer is NaN.
        return sum(value * weight for value, weight in pairs) / total
    return math.fsum(value * (weight / total) for value, weight in pairs)
