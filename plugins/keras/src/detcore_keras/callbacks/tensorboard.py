"""Write event files for TensorBoard into the trial's directory."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcore_keras.callbacks.callback_base import Callback
from detcore_keras.frameworks import keras

_logger = logging.getLogger("detcore.keras")
_VAL = "val_"


class TensorBoard(Callback, keras.callbacks.TensorBoard):  # type: ignore[misc]  # Keras has no types
    """Write metrics, histograms and graphs for TensorBoard.

    Differences from ``keras.callbacks.TensorBoard``:

    - Files go to the trial's directory, ``context.get_tensorboard_path()``. `log_dir` is ignored.
    - Data that Keras writes at the end of an epoch is written at the end of a workload, and its
      step is the number of workloads.
    - All data is on disk when a hook returns, so a killed run leaves complete files.

    Args:
        *args: As for ``keras.callbacks.TensorBoard``.
        **kwargs: As for ``keras.callbacks.TensorBoard``.
    """

    log_dir: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._own_log_dir = bool(args) or "log_dir" in kwargs
        super().__init__(*args, **kwargs)
        self.workload_end_count = 0

    def use_log_dir(self, path: Path) -> None:
        """Write to this directory. Called before training begins.

        Args:
            path: The trial's directory for event files.
        """
        if self._own_log_dir and str(path) != str(self.log_dir):
            _logger.warning(
                "TensorBoard(log_dir=%r) is ignored: event files go to the trial's directory %s",
                self.log_dir,
                path,
            )
        self.log_dir = str(path)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Open the writers."""
        super().on_train_begin(logs)
        self.workload_end_count = 0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing; see `on_train_workload_begin`."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing; see `on_train_workload_end`."""

    def on_train_workload_begin(
        self,
        total_batches_trained: int,
        batches_requested: int | None,
        logs: Mapping[str, Any],
    ) -> None:
        """Begin a workload, which replaces Keras's epoch."""
        super().on_epoch_begin(self.workload_end_count, dict(logs))

    def on_train_workload_end(self, total_batches_trained: int, logs: Mapping[str, Any]) -> None:
        """Write the workload's metrics, and histograms if they are due."""
        super().on_epoch_end(self.workload_end_count, dict(logs))
        self.workload_end_count += 1
        self._flush_writers()

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Write the validation metrics."""
        plain = {name.removeprefix(_VAL): value for name, value in (logs or {}).items()}
        super().on_test_end(plain)
        self._flush_writers()

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Flush data that other code wrote."""
        self._flush_writers()

    def get_state(self) -> dict[str, Any]:
        """Return the counters."""
        return {
            "workload_end_count": self.workload_end_count,
            "train_batches": int(self._global_train_batch),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the counters."""
        self.workload_end_count = state["workload_end_count"]
        self._global_train_batch = state["train_batches"]

    def _flush_writers(self) -> None:
        for writer in self._writers.values():
            writer.flush()


# The name in Determined.
TFKerasTensorBoard = TensorBoard
