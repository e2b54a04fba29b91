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


# Upper bound, roughly, on the time until all workers see a request to stop.
_EXCHANGE_EVERY_S = 0.25
_FASTEST_GROWTH = 4

T = TypeVar("T")
_Batches = Sequence[Mapping[str, float]] | None


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
    batches: _Batches = None
    n_records: int | None = None


class Agreement:
    """Exchanges between the workers of a trial, so that all of them act alike at each boundary.

    All workers call the same methods, at the same batches. With one worker nothing is exchanged.

    Args:
        distributed: The workers.
        average: Whether training metrics are averaged over the workers; else the chief's are used.
    """

    def __init__(self, distributed: DistributedContext, *, average: bool = True) -> None:
        self._distributed = distributed
        self._average = average
        self._is_alone = distributed.size == 1
        self._is_interrupted = False
        self._reads = 0
        self._reads_wanted = 1
        self._since = time.monotonic()

    def is_interrupted(self, mine: bool) -> bool:
        """Return whether any worker was interrupted, exchanged about every 0.25 s.

        Calls in between return the last answer. The number of calls between two exchanges follows
        from the slowest worker's time between calls, and is the same on all workers.
        """
        if self._is_alone:
            return mine
        self._reads += 1
        if self._reads >= self._reads_wanted:
            now = time.monotonic()
            pace = (now - self._since) / self._reads
            answers = self._distributed.allgather((mine, pace))
            self._is_interrupted = any(flag for flag, _ in answers)
            slowest = max(pace for _, pace in answers)
            wanted = int(_EXCHANGE_EVERY_S / max(slowest, 1e-9))
            self._reads_wanted = max(1, min(wanted, _FASTEST_GROWTH * self._reads_wanted))
            self._reads, self._since = 0, time.monotonic()
        return self._is_interrupted

    def interrupts(self, mine: StopRequests) -> StopRequests:
        """Return the interrupts of any worker."""
        return mine if self._is_alone else self._merged(self._distributed.allgather(mine))

    def unit(self, mine: UnitMetrics, interrupts: StopRequests) -> tuple[UnitMetrics, StopRequests]:
        """Return the training metrics over all workers and their interrupts, in one exchange."""
        if self._is_alone:
            return mine, interrupts
        sent = UnitMetrics(
            clean_metrics(mine.metrics, "training"),
            clean_batch_metrics(mine.batches),
            mine.n_records,
        )
        if not self._average and self._distributed.rank:
            sent = UnitMetrics({}, None, mine.n_records)
        answers = self._distributed.allgather((sent, interrupts))
        units = [unit for unit, _ in answers]
        merged = _mean_of(units) if self._average else units[0]
        merged = dataclasses.replace(merged, n_records=_total(units))
        return merged, self._merged([flags for _, flags in answers])

    def soonest(self, mine: tuple[float, T] | None) -> tuple[float, T] | None:
        """Return the value with the earliest time of any worker, or None if no worker has one.

        Args:
            mine: A time in seconds and any value, or None.
        """
        if self._is_alone:
            return mine
        known = [each for each in self._distributed.allgather(mine) if each is not None]
        return min(known, key=lambda each: each[0]) if known else None

    def from_chief(self, value: Any) -> Any:
        """Return the chief's value."""
        return self._distributed.broadcast(value)

    def slowest(self, seconds: float) -> float:
        """Return the longest time of any worker."""
        return seconds if self._is_alone else max(self._distributed.allgather(seconds))

    def _merged(self, answers: Sequence[StopRequests]) -> StopRequests:
        # The boundary handles the interrupts seen so far; the next stretch starts from scratch.
        self._is_interrupted = False
        self._reads, self._reads_wanted, self._since = 0, 1, time.monotonic()
        return StopRequests(any(a.preempt for a in answers), any(a.stop for a in answers))


def _mean_of(units: Sequence[UnitMetrics]) -> UnitMetrics:
    """Return the mean over workers, weighted by records where all workers know theirs."""
    counts = [unit.n_records for unit in units]
    weights = [1.0 if count is None else float(count) for count in counts]
    if None in counts or not any(weights):
        weights = [1.0] * len(units)
    metrics = weighted_mean([unit.metrics for unit in units], weights)
    batches = [unit.batches for unit in units if unit.batches is not None]
    if len(batches) < len(units) or len({len(each) for each in batches}) > 1:
        return UnitMetrics(metrics)
    even = [1.0] * len(units)
    return UnitMetrics(metrics, [weighted_mean(each, even) for each in zip(*batches, strict=True)])


def _total(units: Sequence[UnitMetrics]) -> int | None:
    counts = [unit.n_records for unit in units]
    return None if None in counts else sum(count for count in counts if count is not None)
