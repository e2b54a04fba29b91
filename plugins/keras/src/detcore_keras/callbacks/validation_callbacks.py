"""Define Keras callbacks that count validations instead of epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcore_keras.callbacks.callback_base import Callback
from detcore_keras.frameworks import keras

_keras: Any = keras.callbacks


class _AtValidations(Callback):
    """Makes a Keras callback for epoch ends work at validations.

    Subclasses list this class before the Keras class.
    """

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Reset the count. A resumed run restores it afterwards."""
        super().on_train_begin(logs)
        self.test_end_count = 0

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing, because an epoch end has no new validation metrics."""

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Process the validation metrics, as Keras would at the end of an epoch."""
        count = self.test_end_count
        self.test_end_count += 1
        super().on_epoch_end(count, dict(logs or {}))


class EarlyStopping(_AtValidations, _keras.EarlyStopping):  # type: ignore[misc]  # untyped
    """Stop training when a validation metric no longer improves.

    Like ``keras.callbacks.EarlyStopping``, but `patience` is a number of validations without
    improvement, not of epochs. The best value and the best weights are saved in checkpoints. With
    ``restore_best_weights=True``, the best weights are restored when training stops early, before
    the last checkpoint, on every version of Keras.
    """

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Compare the validation metric with the best one."""
        stopping = self.stopped_epoch
        super().on_test_end(logs)
        stops_now = self.stopped_epoch > 0 and not stopping
        if stops_now and self.restore_best_weights and self.best_weights is not None:
            self.model.set_weights(self.best_weights)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Print a message if training was stopped early."""
        # Keras 3 restores the best weights here, after the last checkpoint.
        if self.stopped_epoch > 0 and self.verbose > 0:
            print(f"validation {self.stopped_epoch + 1}: early stopping")


class ReduceLROnPlateau(_AtValidations, _keras.ReduceLROnPlateau):  # type: ignore[misc]
    """Lower the learning rate when a validation metric no longer improves.

    Like ``keras.callbacks.ReduceLROnPlateau``, but `patience` and `cooldown` are numbers of
    validations, not of epochs. The counters, the best value and the learning rate are saved in
    checkpoints.
    """
