"""Define the base class of callbacks with hooks for detcore's workloads and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcore_keras.frameworks import keras


class Callback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """A Keras callback with more hooks, and with state that is saved in checkpoints.

    A *workload* is the training between two decisions of detcore: to validate, to save, to stop.
    ``on_train_begin`` is called each time a process starts or resumes the trial, before the state
    is restored. ``on_train_end`` is called only if training ends without an error. ``on_test_end``
    receives the validation metrics, with names that begin with ``val_``.

    Attributes:
        state_name: Name under which the state is saved. The default is the class name, and
            ``"Name-2"`` for the second callback of a class. Give explicit names to callbacks that
            may be reordered.
    """

    state_name: str | None = None

    def on_train_workload_begin(
        self,
        total_batches_trained: int,
        batches_requested: int | None,
        logs: Mapping[str, Any],
    ) -> None:
        """Called before a workload.

        Args:
            total_batches_trained: Batches trained so far, over all starts of the trial.
            batches_requested: Batches that the workload will have, unless it is interrupted; None
                if unknown.
            logs: Empty.
        """

    def on_train_workload_end(self, total_batches_trained: int, logs: Mapping[str, Any]) -> None:
        """Called after a workload.

        Args:
            total_batches_trained: Batches trained so far, over all starts of the trial.
            logs: The training metrics over the workload.
        """

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Called on the chief when the files of a checkpoint are written, before its commit.

        Files that the callback adds become part of the checkpoint. A callback with this method
        makes training wait until model and optimizer are written. Otherwise they are only copied.

        Args:
            checkpoint_dir: Directory with the checkpoint's files.
        """

    def get_state(self) -> Any:
        """Return the state for a resumed run. By default, changed attributes are saved.

        Returns:
            Numbers, strings, None, NumPy arrays, and lists, tuples and dicts of them. Any other
            value is an error when a checkpoint is saved.
        """
        return None

    def load_state(self, state: Any) -> None:
        """Restore the state that `get_state` returned. Called after ``on_train_begin``.

        Args:
            state: The result of `get_state`, with the same types.
        """
