"""Drive a controller that trains a given number of batches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.trial._clock import Clock
    from detcore.trial._controller import SteppingController

__all__ = ["drive_stepping"]

# An interrupt is seen between two calls of `train`, so no call should last longer than this.
_LONGEST_CALL_S = 0.5


def drive_stepping(controller: SteppingController, clock: Clock) -> None:
    """Train until the clock says stop.

    A stretch up to the clock's next boundary is trained in calls of about half a second; their
    metrics are averaged, weighted by their batches.

    Args:
        controller: The trial's controller.
        clock: Says how far to train, and does the work that is due there.
    """
    pace = 1
    going = True
    while going:
        done, sums = 0, dict[str, float]()
        wanted = clock.next_boundary - clock.steps_completed
        while done < wanted and not (done and clock.interrupt_requested):
            count = min(pace, wanted - done)
            began = time.monotonic()
            metrics = controller.train(count)
            pace = _next_pace(count, clock.slowest(time.monotonic() - began))
            _add(sums, metrics, count)
            done += count
        means = {name: total / done for name, total in sums.items()}
        going = clock.boundary(clock.steps_completed + done, means)


def _next_pace(count: int, seconds: float) -> int:
    """Return how many batches to train in the next call; at most twice as many as in this one."""
    return max(1, min(2 * count, int(count * _LONGEST_CALL_S / max(seconds, 1e-6))))


def _add(sums: dict[str, float], metrics: Mapping[str, float], count: int) -> None:
    for name, value in metrics.items():
        sums[name] = sums.get(name, 0.0) + float(value) * count
