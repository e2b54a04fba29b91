"""Trials for the tests, with scikit-learn's handwritten digits."""

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
    """Linear classifier that logs its callbacks if the experiment file names a journal."""

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
        self._log_event("batch_end")

    def on_validation_end(self, metrics: Mapping[str, float]) -> None:
        self._log_event("validation_end")

    def _log_event(self, event: str) -> None:
        journal = self.context.get_data_config().get("journal")
        if journal:
            with open(journal, "a", encoding="utf-8") as file:
                file.write(f"{event}\n")


class NeuralDigits(Digits):
    """Network with optimizer state, which uses NumPy's generator."""

    def build_model(self) -> Any:
        return MLPClassifier((16,), alpha=self.context.get_hparam("alpha"))


class DigitsAsNumbers(Digits):
    """Regressor."""

    def build_model(self) -> Any:
        return SGDRegressor(alpha=self.context.get_hparam("alpha"))

    def build_training_data(self) -> Data:
        x, y = super().build_training_data()
        return x, y.astype(np.float64)


class StoppingDigits(Digits):
    """Requests a stop after six batches."""

    def on_batch_end(self, steps_completed: int, metrics: Mapping[str, float]) -> None:
        if steps_completed == 6:
            self.context.set_stop_requested(True)


class BrokenDigits(Digits):
    """Raises an exception in the middle of training."""

    def on_batch_end(self, steps_completed: int, metrics: Mapping[str, float]) -> None:
        if steps_completed == 5:
            raise ValueError("broken on purpose")
