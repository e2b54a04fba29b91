"""What users subclass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from detcore import Trial
from sklearn.base import is_classifier
from sklearn.metrics import hinge_loss, log_loss, mean_absolute_error, mean_squared_error

Data = tuple[Any, Any]


class SklearnTrial(Trial):
    """Trains an estimator by ``partial_fit``, a batch at a time.

    The records of each epoch come in an order of their own, which the trial's seed decides.
    """

    def build_model(self) -> Any:
        """Return the estimator, made with this trial's hyperparameters and not fitted yet.

        One of `ESTIMATORS`. Parameters that scikit-learn rejects end the trial as `InvalidHP`.
        """
        raise TypeError(f"{type(self).__name__} has to define build_model")

    def build_training_data(self) -> Data:
        """Return features ``(records, features)``, an array or a CSR matrix, and targets."""
        raise TypeError(f"{type(self).__name__} has to define build_training_data")

    def build_validation_data(self) -> Data:
        """Return features and targets that are not trained on."""
        raise TypeError(f"{type(self).__name__} has to define build_validation_data")

    def evaluate(self, model: Any, x: Any, y: Any) -> Mapping[str, float]:
        """Return metrics of the model on some records; it must not change the model.

        They are reported as training metrics for each batch after its step, and with ``val_``
        before their names for the validation data. Default: ``loss`` and ``accuracy`` of
        classifiers (the logarithmic loss, or the hinge loss where there are no probabilities);
        ``loss`` (squared error) and ``mae`` of regressors.
        """
        predicted = model.predict(x)
        if not is_classifier(model):
            return {
                "loss": float(mean_squared_error(y, predicted)),
                "mae": float(mean_absolute_error(y, predicted)),
            }
        if hasattr(model, "predict_proba"):
            loss = log_loss(y, model.predict_proba(x), labels=model.classes_)
        else:
            loss = hinge_loss(y, model.decision_function(x), labels=model.classes_)
        return {"loss": float(loss), "accuracy": float(np.mean(predicted == y))}

    def on_batch_end(self, steps_completed: int, metrics: Mapping[str, float]) -> None:
        """Called after each batch; ``self.context.set_stop_requested(True)`` ends the trial.

        Args:
            steps_completed: Batches since the trial began.
            metrics: Of this batch.
        """

    def on_validation_end(self, metrics: Mapping[str, float]) -> None:
        """Called after each validation, with its metrics."""
