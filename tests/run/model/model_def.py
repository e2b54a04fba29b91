"""Trials that the run tests train."""

from __future__ import annotations

import numpy as np
from detcore_toy import ToyTrial

from detcore import InvalidHP, TrialContext


class Line(ToyTrial):
    """Learns three weights from 96 records."""

    def build_data(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(3)
        x = rng.normal(size=(96, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])


class Raises(Line):
    """Fails in the user's own code at batch 7."""

    def on_batch(self, step: int) -> None:
        if step == 7:
            helper_that_fails(step)


def helper_that_fails(step: int) -> None:
    raise ZeroDivisionError(f"the user's own mistake at batch {step}")


class Rejects(Line):
    """Says that its hyperparameters cannot work."""

    def __init__(self, context: TrialContext) -> None:
        raise InvalidHP("learning_rate is too high for this trial")


class NotANumber(Line):
    """Diverges: the validation metric becomes NaN."""

    def build_data(self) -> tuple[np.ndarray, np.ndarray]:
        x, y = super().build_data()
        return x * np.nan, y


class NotANumberLater(Line):
    """Diverges at batch 13."""

    def build_data(self) -> tuple[np.ndarray, np.ndarray]:
        self.x, y = super().build_data()
        return self.x, y

    def on_batch(self, step: int) -> None:
        if step == 13:
            self.x[:] = np.nan


class StopsEarly(Line):
    """Asks to be stopped after 13 batches."""

    def __init__(self, context: TrialContext) -> None:
        super().__init__(context)
        self.own_context = context

    def on_batch(self, step: int) -> None:
        if step == 13:
            self.own_context.set_stop_requested(True)


class Misspells(Line):
    """Asks for a hyperparameter by another name than the file has."""

    def __init__(self, context: TrialContext) -> None:
        context.get_hparam("learnin_rate")


class StartsDataOver(Line):
    """Forgets its data position when it is restored: the mistake that the ledger finds."""

    restarts_data = True
