"""Trials of the toy framework for its suite."""

from __future__ import annotations

import numpy as np
from detcore_toy import ToyTrial

from detcore import InvalidHP, TrialContext


class LineTrial(ToyTrial):
    """Learns three weights from 96 records."""

    def __init__(self, context: TrialContext) -> None:
        super().__init__(context)
        if context.get_hparam("learning_rate") <= 0:
            raise InvalidHP("learning_rate has to be above 0")

    def build_data(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(3)
        x = rng.normal(size=(96, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])


class SteadyTrial(LineTrial):
    """Adds next to no noise to the targets, of which each worker has its own."""

    noise = 1e-9


class BrokenTrial(LineTrial):
    """Fails at batch 7."""

    def on_batch(self, step: int) -> None:
        if step == 7:
            raise ZeroDivisionError("broken on purpose")


class StoppingTrial(LineTrial):
    """Asks for a stop at batch 9."""

    def on_batch(self, step: int) -> None:
        if step == 9:
            self.context.set_stop_requested(True)
