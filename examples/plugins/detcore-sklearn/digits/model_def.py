"""Classification of handwritten digits with a small scikit-learn network."""

from __future__ import annotations

from typing import Any

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from detcore_sklearn import Data, SklearnTrial


class DigitsTrial(SklearnTrial):
    """Trains on 1347 scans and validates on 450 scans."""

    def build_model(self) -> Any:
        return MLPClassifier(
            hidden_layer_sizes=(self.context.get_hparam("units"),),
            learning_rate_init=self.context.get_hparam("learning_rate"),
            random_state=self.context.get_trial_seed(),
        )

    def build_training_data(self) -> Data:
        x, _, y, _ = self._split()
        return x, y

    def build_validation_data(self) -> Data:
        _, x, _, y = self._split()
        return x, y

    def _split(self) -> Any:
        x, y = load_digits(return_X_y=True)
        return train_test_split(x / 16, y, test_size=450, random_state=0, stratify=y)
