"""Trials of the tests: scikit-learn's digits, as scanned by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from detcore import InvalidHP
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier

from detcore_sklearn import Data, SklearnTrial


class Digits(SklearnTrial):
    """A linear classifier; notes what it is told, where the experiment file asks for it."""

    def build_model(self) -> Any:
        alpha = self.context.get_hparam("alpha")
        if alpha == -2:
            raise InvalidHP("alpha is -2")
        return SGDClassifier(
            loss="log_loss", alpha=alpha, average=10, random_state=self.context.get_trial_seed()
        )

    def build_training_data(self) -> Data:
        x, y = load_digits(return_X_y=True)
        return x[:480] / 16, y[:480]

    def build_validation_data(self) -> Data:
        x, y = load_digits(return_X_y=True)
        return x[480:640] / 16, y[480:640]

    def on_batch_end(self, steps_completed: int, metrics: Mapping[str, float]) -> None:
        self._note("batch_end")

    def on_validation_end(self, metrics: Mapping[str, float]) -> None:
        self._note("validation_end")

    def _note(self, event: str) -> None:
        journal = self.context.get_data_config().get("journal")
        if journal:
            with open(journal, "a", encoding="utf-8") as file:
                file.write(f"{event}\n")


class NeuralDigits(Digits):
    """A network, whose optimizer has a state of its own and which draws from NumPy's generator."""

    def build_model(self) -> Any:
        return MLPClassifier((16,), alpha=self.context.get_hparam("alpha"))


class DigitsAsNumbers(Digits):
    """A regressor."""

    def build_model(self) -> Any:
        return SGDRegressor(alpha=self.context.get_hparam("alpha"))

    def build_training_data(self) -> Data:
        x, y = super().build_training_data()
        return x, y.astype(np.float64)


class StoppingDigits(Digits):
    """Has learned enough after six batches."""

    def on_batch_end(self, steps_completed: int, metrics: Mapping[str, float]) -> None:
        if steps_completed == 6:
            self.context.set_stop_requested(True)


class BrokenDigits(Digits):
    """Fails in the middle of its training."""

    def on_batch_end(self, steps_completed: int, metrics: Mapping[str, float]) -> None:
        if steps_completed == 5:
            raise ValueError("broken on purpose")
