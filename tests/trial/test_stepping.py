"""How a stepping controller is driven."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from detcore.trial.trial_loop import drive_stepping


class Clock:
    """Boundaries every `unit` batches, up to `length`."""

    def __init__(self, unit: int, length: int, interrupt_after: int | None = None) -> None:
        self.unit, self.length, self.interrupt_after = unit, length, interrupt_after
        self.steps_completed = 0
        self.next_boundary = unit
        self.controller: Any = None
        self.reports: list[tuple[int, dict[str, float]]] = []

    @property
    def interrupt_requested(self) -> bool:
        return self.interrupt_after is not None and self.controller.done >= self.interrupt_after

    def slowest(self, seconds: float) -> float:
        return seconds

    def boundary(
        self, steps: int, metrics: Mapping[str, float], batches: Sequence[Any] | None = None
    ) -> bool:
        self.reports.append((steps, dict(metrics)))
        self.steps_completed = steps
        self.next_boundary = min(self.length, steps + self.unit)
        return steps < self.length and not self.interrupt_requested


class Controller:
    """Batch n has metric n."""

    def __init__(self, batch_s: float = 0.0) -> None:
        self.done = 0
        self.calls: list[int] = []
        self._batch_s = batch_s

    def train(self, num_batches: int) -> Mapping[str, float]:
        time.sleep(num_batches * self._batch_s)
        numbers = range(self.done, self.done + num_batches)
        self.done += num_batches
        self.calls.append(num_batches)
        return {"number": sum(numbers) / num_batches}


def drive(clock: Clock, controller: Controller) -> None:
    clock.controller = controller
    drive_stepping(controller, clock)  # type: ignore[arg-type]


def test_metrics_are_averaged_per_stretch() -> None:
    clock, controller = Clock(unit=10, length=25), Controller()
    drive(clock, controller)
    assert [steps for steps, _ in clock.reports] == [10, 20, 25]
    assert [metrics["number"] for _, metrics in clock.reports] == pytest.approx([4.5, 14.5, 22.0])
    assert sum(controller.calls) == 25


def test_slow_batches_are_trained_in_small_calls() -> None:
    clock, controller = Clock(unit=8, length=8), Controller(batch_s=0.3)
    drive(clock, controller)
    assert max(controller.calls) <= 2


def test_interrupt_ends_stretch_at_next_call() -> None:
    clock, controller = Clock(unit=1000, length=1000, interrupt_after=3), Controller(batch_s=0.3)
    drive(clock, controller)
    assert controller.done < 6
    assert [steps for steps, _ in clock.reports] == [controller.done]
