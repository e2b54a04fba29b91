"""Stepping controller that trains an estimator with ``partial_fit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from detcore import InvalidHP, TrialContext
from detcore.data import IdKind, IndexSampler
from detcore.errors import InvalidCheckpointError
from detcore.trial import (
    ValidationResult,
    capture_random_state,
    preserve_random_state,
    restore_random_state,
)
from detcore.types import TensorInfo
from sklearn.base import is_classifier

from detcore_sklearn.checkpoint import ARRAYS_FILE, read_snapshot, take_snapshot
from detcore_sklearn.estimators import check_estimator, make_untrained_copy
from detcore_sklearn.trial import SklearnTrial


class SklearnController:
    """Trains, validates and saves an estimator.

    A checkpoint contains the estimator's parameters and fitted attributes, the step counter, and
    the state of NumPy's generator, which estimators without a ``random_state`` use.
    """

    def __init__(self, trial: SklearnTrial, context: TrialContext) -> None:
        """Build the model and the data.

        Raises:
            InvalidModelError: If the model cannot be restored exactly.
        """
        self._trial = trial
        self._model = trial.build_model()
        check_estimator(self._model)
        self._x, self._y = trial.build_training_data()
        self._validation = trial.build_validation_data()
        self._step = 0
        self._sampler = IndexSampler(
            self._x.shape[0],
            context.get_global_batch_size(),
            shuffle=True,
            seed=context.get_trial_seed(),
        )
        self._ledger = context.ledger
        if self._ledger is not None:
            self._ledger.describe(IdKind.RECORD_INDEX, num_records=self._sampler.num_records)
        # The first call of partial_fit needs all classes, but a batch may not contain all of them.
        self._options = (
            {"classes": np.unique(np.asarray(self._y))} if is_classifier(self._model) else {}
        )
        self._tensors: Sequence[TensorInfo] = ()

    def batches_per_epoch(self) -> int | None:
        """Return the number of batches in one pass over the data."""
        return self._sampler.batches_per_epoch

    def train(self, num_batches: int) -> Mapping[str, float]:
        """Train `num_batches` batches and return their mean metrics."""
        sums: dict[str, float] = {}
        for _ in range(num_batches):
            metrics = self._train_batch()
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            self._trial.on_batch_end(self._step, metrics)
        return {name: total / num_batches for name, total in sums.items()}

    def _train_batch(self) -> Mapping[str, float]:
        records = self._sampler.batch(self._step)
        x, y = self._x[records], self._y[records]
        if self._ledger is not None:
            self._ledger.log(self._step + 1, self._step // self._sampler.batches_per_epoch, records)
        try:
            self._model.partial_fit(x, y, **self._options)
        except ValueError as error:
            # The class is in a private module of scikit-learn, so check its name.
            if type(error).__name__ == "InvalidParameterError":
                raise InvalidHP(f"scikit-learn rejects the model's parameters: {error}") from error
            raise
        self._step += 1
        with preserve_random_state():
            return self._trial.evaluate(self._model, x, y)

    def validate(self) -> ValidationResult:
        """Evaluate the model on all validation data, also before the first batch."""
        x, y = self._validation
        with preserve_random_state():
            model = self._model
            if not hasattr(model, "n_features_in_"):
                head = slice(self._sampler.batch_size)
                model = make_untrained_copy(model, self._x[head], self._y[head], **self._options)
            raw_metrics = self._trial.evaluate(model, x, y)
        metrics = {f"val_{name}": float(value) for name, value in raw_metrics.items()}
        self._trial.on_validation_end(metrics)
        return ValidationResult(metrics, n_records=int(x.shape[0]))

    def save(self, directory: Path) -> None:
        """Write the complete state."""
        self.snapshot(directory)()

    def snapshot(self, directory: Path) -> Callable[[], None]:
        """Copy the complete state, and return a function that writes the copy."""
        training = {"step": self._step, "random": capture_random_state()}
        snapshot = take_snapshot(self._model, training)
        self._tensors = [
            TensorInfo(name, value.shape, str(value.dtype), ARRAYS_FILE)
            for name, value in snapshot.arrays.items()
        ]
        return lambda: snapshot.write(directory)

    def tensors(self) -> Sequence[TensorInfo]:
        """Return the arrays of the last snapshot."""
        return self._tensors

    def restore(self, directory: Path) -> None:
        """Restore the estimator, step counter and random state."""
        snapshot = read_snapshot(directory)
        snapshot.apply_to(self._model)
        self._check_features()
        try:
            self._step = int(snapshot.training["step"])
            restore_random_state(snapshot.training["random"])
        except (LookupError, TypeError) as error:
            raise InvalidCheckpointError(f"{directory} has no step or random state") from error

    def start_from(self, directory: Path) -> None:
        """Load the model of another trial. The data position and random state stay new."""
        read_snapshot(directory).apply_to(self._model)
        self._check_features()

    def close(self) -> None:
        """No-op: the controller holds no resources."""

    def _check_features(self) -> None:
        model_features = getattr(self._model, "n_features_in_", None)
        data_features = self._x.shape[1]
        if model_features not in (None, data_features):
            raise InvalidCheckpointError(
                f"the checkpoint's model was trained on {model_features} features, but this "
                f"trial's data has {data_features}.\nResume with the model's training data."
            )
