"""What detcore drives: a stepping controller around ``partial_fit``."""

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
from detcore_sklearn.estimators import check_estimator, untrained
from detcore_sklearn.trial import SklearnTrial


class SklearnController:
    """Trains as many batches as it is told.

    A checkpoint holds the estimator's parameters and fitted attributes, the number of batches, and
    the state of NumPy's generator, which estimators without a ``random_state`` draw from.
    """

    def __init__(self, trial: SklearnTrial, context: TrialContext) -> None:
        """Build model and data; nothing is trained yet.

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
        # A batch need not have all classes, and the first step has to know them.
        self._options = (
            {"classes": np.unique(np.asarray(self._y))} if is_classifier(self._model) else {}
        )
        self._saved: Sequence[TensorInfo] = ()

    def batches_per_epoch(self) -> int | None:
        """Return how many batches all records make."""
        return self._sampler.batches_per_epoch

    def train(self, num_batches: int) -> Mapping[str, float]:
        """Train so many batches; return the means of their metrics."""
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
            # By its name, for the class is in a private module of scikit-learn.
            if type(error).__name__ == "InvalidParameterError":
                raise InvalidHP(f"scikit-learn rejects the model's parameters: {error}") from error
            raise
        self._step += 1
        with preserve_random_state():
            return self._trial.evaluate(self._model, x, y)

    def validate(self) -> ValidationResult:
        """Evaluate the model on all validation data; before its first batch, as it begins."""
        x, y = self._validation
        with preserve_random_state():
            model = self._model
            if not hasattr(model, "n_features_in_"):
                some = slice(self._sampler.batch_size)
                model = untrained(model, self._x[some], self._y[some], **self._options)
            found = self._trial.evaluate(model, x, y)
        metrics = {f"val_{name}": float(value) for name, value in found.items()}
        self._trial.on_validation_end(metrics)
        return ValidationResult(metrics, n_records=int(x.shape[0]))

    def save(self, directory: Path) -> None:
        """Write the whole state."""
        self.snapshot(directory)()

    def snapshot(self, directory: Path) -> Callable[[], None]:
        """Copy the whole state, and return what writes the copy."""
        training = {"step": self._step, "random": capture_random_state()}
        taken = take_snapshot(self._model, training)
        self._saved = [
            TensorInfo(name, value.shape, str(value.dtype), ARRAYS_FILE)
            for name, value in taken.arrays.items()
        ]
        return lambda: taken.write(directory)

    def tensors(self) -> Sequence[TensorInfo]:
        """Return the arrays of the last snapshot."""
        return self._saved

    def restore(self, directory: Path) -> None:
        """Go on exactly where the checkpoint was taken."""
        snapshot = read_snapshot(directory)
        snapshot.put_into(self._model)
        self._check_features()
        try:
            self._step = int(snapshot.training["step"])
            restore_random_state(snapshot.training["random"])
        except (LookupError, TypeError) as error:
            raise InvalidCheckpointError(f"{directory} does not say how far it is") from error

    def start_from(self, directory: Path) -> None:
        """Take over what another trial learned; data and generators stay those of a new trial."""
        read_snapshot(directory).put_into(self._model)
        self._check_features()

    def close(self) -> None:
        """Nothing was opened."""

    def _check_features(self) -> None:
        found, wanted = getattr(self._model, "n_features_in_", None), self._x.shape[1]
        if found is not None and found != wanted:
            raise InvalidCheckpointError(
                f"the checkpoint's model was trained on {found} features, and this trial's data "
                f"has {wanted}.\nResume with the data that it was trained on."
            )
