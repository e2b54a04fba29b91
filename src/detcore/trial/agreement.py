"""Make the workers of a trial agree at batch boundaries."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from detcore.core.metric_values import clean_batch_metrics, clean_metrics
from detcore.metrics import weighted_mean

if TYPE_CHECKING:
    from detcore.distributed import DistributedContext


# Approximate maximum delay until all workers see a request to stop.
_EXCHANGE_INTERVAL_S = 0.25
_MAX_INTERVAL_GROWTH = 4

T = TypeVar("T")
_BatchMetrics = Sequence[Mapping[str, float]] | None


@dataclasses.dataclass(frozen=True, slots=True)
class StopRequests:
    """Interrupts of a trial: preemption, and a stop requested by the user's code."""

    preempt: bool = False
    stop: bool = False

    def __bool__(self) -> bool:
        return self.preempt or self.stop


@dataclasses.dataclass(frozen=True, slots=True)
class UnitMetrics:
    """Training metrics since the last boundary, and the number of records, if known."""

    metrics: Mapping[str, float]
    batches: _BatchMetrics = None
    n_records: int | None = None


class Agreement:
    """Exchanges values between the workers of a trial, so that all act alike at each boundary.

    All workers call the same methods at the same batches. A single worker exchanges nothing.

    Args:
        distributed: This worker's rank and its peers.
        average: Whether to average training metrics over the workers. Otherwise the chief's metrics
            are used.
    """

    def __init__(self, distributed: DistributedContext, *, average: bool = True) -> None:
        self._distributed = distributed
        self._average = average
        self._is_single = distributed.size == 1
        self._is_interrupted = False
        self._num_reads = 0
        self._reads_per_exchange = 1
        self._since = time.monotonic()

    def is_interrupted(self, is_interrupted_here: bool) -> bool:
        """Return whether any worker was interrupted, exchanged about every 0.25 s.

        Calls between two exchanges return the last answer. The number of these calls is the same on
        all workers. It is derived from the slowest worker's time between calls.
        """
        if self._is_single:
            return is_interrupted_here
        self._num_reads += 1
        if self._num_reads >= self._reads_per_exchange:
            now = time.monotonic()
            pace = (now - self._since) / self._num_reads
            answers = self._distributed.allgather((is_interrupted_here, pace))
            self._is_interrupted = any(flag for flag, _ in answers)
            slowest_pace = max(pace for _, pace in answers)
            num_reads = int(_EXCHANGE_INTERVAL_S / max(slowest_pace, 1e-9))
            self._reads_per_exchange = max(
                1, min(num_reads, _MAX_INTERVAL_GROWTH * self._reads_per_exchange)
            )
            self._num_reads, self._since = 0, time.monotonic()
        return self._is_interrupted

    def merge_interrupts(self, interrupts: StopRequests) -> StopRequests:
        """Return the interrupts of all workers combined."""
        return (
            interrupts
            if self._is_single
            else self._combine_interrupts(self._distributed.allgather(interrupts))
        )

    def merge_unit(
        self, own_unit: UnitMetrics, interrupts: StopRequests
    ) -> tuple[UnitMetrics, StopRequests]:
        """Return the training metrics and the interrupts of all workers, using one exchange."""
        if self._is_single:
            return own_unit, interrupts
        unit_to_send = UnitMetrics(
            clean_metrics(own_unit.metrics, "training"),
            clean_batch_metrics(own_unit.batches),
            own_unit.n_records,
        )
        if not self._average and self._distributed.rank:
            unit_to_send = UnitMetrics({}, None, own_unit.n_records)
        answers = self._distributed.allgather((unit_to_send, interrupts))
        units = [unit for unit, _ in answers]
        merged = _average_units(units) if self._average else units[0]
        merged = dataclasses.replace(merged, n_records=_sum_records(units))
        return merged, self._combine_interrupts([flags for _, flags in answers])

    def find_soonest(self, candidate: tuple[float, T] | None) -> tuple[float, T] | None:
        """Return the candidate with the earliest time of all workers, or None without candidates.

        Args:
            candidate: This worker's time in seconds with any value, or None.
        """
        if self._is_single:
            return candidate
        answers = self._distributed.allgather(candidate)
        candidates = [answer for answer in answers if answer is not None]
        return min(candidates, key=lambda answer: answer[0]) if candidates else None

    def broadcast_from_chief(self, value: Any) -> Any:
        """Return the chief's value."""
        return self._distributed.broadcast(value)

    def find_slowest(self, seconds: float) -> float:
        """Return the longest time of any worker."""
        return seconds if self._is_single else max(self._distributed.allgather(seconds))

    def _combine_interrupts(self, answers: Sequence[StopRequests]) -> StopRequests:
        # The boundary handles these interrupts, so the next stretch starts without any.
        self._is_interrupted = False
        self._num_reads, self._reads_per_exchange, self._since = 0, 1, time.monotonic()
        return StopRequests(any(a.preempt for a in answers), any(a.stop for a in answers))


def _average_units(units: Sequence[UnitMetrics]) -> UnitMetrics:
    """Return the mean over workers, weighted by records if all workers know their number."""
    counts = [unit.n_records for unit in units]
    weights = [1.0 if count is None else float(count) for count in counts]
    if None in counts or not any(weights):
        weights = [1.0] * len(units)
    metrics = weighted_mean([unit.metrics for unit in units], weights)
    batches = [unit.batches for unit in units if unit.batches is not None]
    if len(batches) < len(units) or len({len(batch_metrics) for batch_metrics in batches}) > 1:
        return UnitMetrics(metrics)
    equal_weights = [1.0] * len(units)
    return UnitMetrics(
        metrics,
        [
            weighted_mean(batch_metrics, equal_weights)
            for batch_metrics in zip(*batches, strict=True)
        ],
    )


def _sum_records(units: Sequence[UnitMetrics]) -> int | None:
    counts = [unit.n_records for unit in units]
    return None if None in counts else sum(count for count in counts if count is not None)
