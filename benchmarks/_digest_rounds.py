"""Training with and without step digests in turns; for the benchmarks of step digests."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from _report import with_quartiles
from _trial_setup import BenchmarkClock

from detcore.data import StepDigests

__all__ = ["HEADS", "UNIT_STEPS", "VARIANTS", "DigestClock", "measure_rounds"]

UNIT_STEPS = 100
HEADS = ["variant", "CPU us/step", "added, us", "CPU ratio [q1, q3]"]
# The period of the digests of each variant; 0: none.
VARIANTS = {
    "without": 0, "null control: without again": 0, "every tenth step (default)": 10,
    "every step": 1,
}  # fmt: skip


class DigestClock(BenchmarkClock):
    """Ends a turn after some steps, and digests at each unit as detcore's clock does."""

    def __init__(self, digests: StepDigests | None) -> None:
        super().__init__(UNIT_STEPS)
        self.digests = digests
        self.stop = 0
        self._others_steps = 0

    def begin(self, start: int, steps: int) -> None:
        """Begin a turn of some steps, after steps of all variants."""
        self._others_steps += start - self.stop
        self.stop = start + steps
        self.next_boundary = start + UNIT_STEPS

    def boundary(
        self,
        steps_completed: int,
        training_metrics: Any,
        batch_metrics: Sequence[Mapping[str, float]] | None = None,
        *,
        n_records: int | None = None,
    ) -> bool:
        if self.digests is not None:
            self.digests.log_metrics(steps_completed, batch_metrics or ())
            # As often as if this variant had trained alone.
            self.digests.log_state(steps_completed - self._others_steps)
            self.digests.flush_if_due()
        return super().boundary(steps_completed, training_metrics, batch_metrics)

    def at_boundary(self, steps: int) -> bool:
        return steps < self.stop


def measure_rounds(
    label: str, turns: Mapping[str, Callable[[int], float]], *, rounds: int, steps: int
) -> list[list[str]]:
    """Let variants take turns in a random order; return a row for each.

    Args:
        label: The model, for the rows.
        turns: For each variant, a function that trains some steps and returns the CPU seconds.
        rounds: Turns of each.
        steps: Steps of a turn.
    """
    names = list(turns)
    for turn in turns.values():
        turn(UNIT_STEPS)
    times: dict[str, list[float]] = {each: [] for each in names}
    for _ in range(rounds):
        for each in random.sample(names, len(names)):
            times[each].append(turns[each](steps) / steps * 1e6)
    rows = []
    for each in names:
        pairs = list(zip(times[each], times[names[0]], strict=True))
        added = statistics.median(mine - theirs for mine, theirs in pairs)
        ratios = [mine / theirs for mine, theirs in pairs]
        median = statistics.median(times[each])
        rows.append(
            [f"{label}, {each}", f"{median:.1f}", f"{added:.1f}", with_quartiles(ratios, 3)]
        )
    return rows
