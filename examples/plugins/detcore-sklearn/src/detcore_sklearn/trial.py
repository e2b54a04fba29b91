"""Trial base class for scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from detcore import Trial
from sklearn.base import is_classifier
from sklearn.metrics import hinge_loss, log_loss, mean_absolute_error, mean_squared_error

Data = tuple[Any, Any]


class SklearnTrial(Trial):
    """Trains an estimator with ``partial_fit``, one batch at a time.

    The trial's seed determines the record order of each epoch.
    """

    def build_model(self) -> Any:
        """Return a new estimator with this trial's hyperparameters.

        It must be one of `ESTIMATORS`. Parameters that scikit-learn rejects end the trial as
        """
        raise TypeError(f"{type(self).__name__} must define build_model")

    def build_training_data(self) -> Data:
        """Return features ``(records, features)`` as an array or CSR matrix, and targets."""
        raise TypeError(f"{type(self).__name__} must define build_training_data")

    def build_validation_data(self) -> Data:
        """Return validation data in the format of `build_training_data`."""
        raise TypeError(f"{type(self).__name__} must define build_validation_data")

    def evaluate(self, model: Any, x: Any, y: Any) -> Mapping[str, float]:
        """Return metrics of the model on some records, without changing the model.

        detcore reports them as training metrics after each batch, and with the prefix ``val_`` as
        validation metrics. The default for classifiers is ``loss`` (log loss, or hinge loss
        without probabilities) and ``accuracy``. The default for regressors is ``loss`` (squared
        error) and ``mae``.
        """
        predictions = model.predict(x)
        if not is_classifier(model):
            return {
                "loss": float(mean_squared_error(y, predictions)),
                "mae": float(mean_absolute_error(y, predictions)),
            }
        if hasattr(model, "predict_proba"):
            loss = log_loss(y, model.predict_proba(x), labels=model.classes_)
        else:
            loss = hinge_loss(y, model.decision_function(x), labels=model.classes_)
        return {"loss": float(loss), "accuracy": float(np.mean(predictions == y))}

    def on_batch_end(self, steps_completed: int, metrics: Mapping[str, float]) -> None:
        """Called after each batch. ``self.context.set_stop_requested(True)`` ends the trial.

        Args:
            steps_completed: Number of trained batches.
            metrics: Metrics of the batch.
        """

    def on_validation_end(self, metrics: Mapping[str, float]) -> None:
        """Called after each validation with the metrics."""
