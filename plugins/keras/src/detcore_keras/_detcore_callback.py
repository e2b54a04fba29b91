"""Define `DetcoreCallback`: metrics, checkpoints and resume for a user's own ``model.fit``."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from detcore.errors import InvalidCheckpointError, InvalidExperimentError
from detcore_keras import _state
from detcore_keras._host_memory import HostMemory
from detcore_keras._keras import KERAS_MAJOR, keras
from detcore_keras._model import build_optimizer

if TYPE_CHECKING:
    from detcore.core import Context

__all__ = ["DetcoreCallback"]

_logger = logging.getLogger("detcore.keras")

_FILE = "keras-fit.json"
_COME_BACK = 75  # sysexits' EX_TEMPFAIL: run again later
_BEHIND_LAST_EPOCH = 1 << 30  # fit trains no epoch from here


class DetcoreCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Connects a ``model.fit`` to the Core API.

    Training metrics are reported every `report_every` batches and at the end of each epoch, the
    metrics of ``fit``'s own validation at the end of each epoch, and checkpoints are saved at the
    end of epochs. On a preemption, a checkpoint is saved at the next batch, and ``fit`` raises
    ``SystemExit(75)``: the context then records that the script was paused, and the process ends
    with that code. A resumed process continues with the weights, the optimizer and the random
    generators of the latest checkpoint.

    Example::

        with core.init() as context:
            callback = DetcoreCallback(context)
            model.fit(x, y, epochs=5, initial_epoch=callback.initial_epoch, callbacks=[callback])

    Keras 3 restores the checkpoint before training. With Keras 2, the variables of a model exist
    once it has trained: a resumed run trains one batch, and then restores the checkpoint, so that
    batch does not count. ``fit`` feeds the data and restarts the epoch: after a checkpoint in the
    middle of one, its first batches are repeated. If the data position must be exact, write a
    `TFKerasTrial`.

    A run that was complete, or that another callback had stopped, is restored and trains no epoch.
    With Keras 2 this is an error, because ``fit`` has not created all variables then. Put this
    callback behind those that change weights at the end, such as ``EarlyStopping`` with
    ``restore_best_weights``. The ``History`` that ``fit`` returns contains all epochs of the trial.

    Args:
        context: The open Core API context.
        report_every: Batches between reports; >= 1.
        checkpoint_epochs: Epochs between checkpoints; 0 to save only on preemption.
        checkpoint_async: Whether training continues while a checkpoint is written, from a copy in
            memory; the end of ``fit`` waits for it.

    Attributes:
        initial_epoch: Pass it to ``fit``: the epoch to begin with, 0 for a fresh start.
        steps_completed: Batches trained, over all starts of the trial.
    """

    _supports_tf_logs = True

    def __init__(
        self,
        context: Context,
        *,
        report_every: int = 100,
        checkpoint_epochs: int = 1,
        checkpoint_async: bool = True,
    ) -> None:
        super().__init__()
        if report_every < 1 or checkpoint_epochs < 0:
            raise InvalidExperimentError(
                f"DetcoreCallback was given report_every={report_every}, "
                f"checkpoint_epochs={checkpoint_epochs}; the least is 1 and 0."
            )
        self._context = context
        self._report_every = report_every
        self._checkpoint_epochs = checkpoint_epochs
        self._checkpoint_async = checkpoint_async
        self._memory = HostMemory()
        self._epoch = 0
        self._is_preempted = False
        self._saved_at: int | None = None
        self._reported_at = 0
        self._latest = None if context.info is None else context.info.latest_checkpoint
        record: dict[str, Any] = {"epoch": 0, "steps_completed": 0}
        if self._latest is not None:
            record = self._read(self._latest)
        is_complete = context.info is not None and context.info.is_complete
        self._first_epoch: int = record["epoch"]
        self._history: list[dict[str, float]] = record.get("history", [])
        self.initial_epoch: int = self._first_epoch
        if self._latest is not None and (is_complete or record.get("has_ended", False)):
            self.initial_epoch = _BEHIND_LAST_EPOCH
        self.steps_completed: int = record["steps_completed"]

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the checkpoint, unless that needs a batch."""
        has_epochs = self.initial_epoch < self.params["epochs"]
        if self._latest is not None and (KERAS_MAJOR == 3 or not has_epochs):
            build_optimizer(self.model)
            self._restore(self._latest)
        # Keras resets the numbers of the epochs after this, but not their logs.
        for epoch_logs in self._history:
            for name, value in epoch_logs.items():
                self.model.history.history.setdefault(name, []).append(value)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Record the epoch."""
        if epoch < self.initial_epoch:
            raise InvalidExperimentError(
                f"model.fit begins with epoch {epoch}, but the checkpoint that is resumed has "
                f"{self._first_epoch} epochs behind it.\n"
                "Pass initial_epoch=callback.initial_epoch to model.fit."
            )
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count, report, and stop on a preemption."""
        if self._latest is not None:
            self._restore(self._latest)
            return
        self.steps_completed += 1
        self._context.checkpoint.poll()
        if self.steps_completed % self._report_every == 0:
            self._report(logs)
        if self._context.preempt.should_preempt():
            self._save(epoch=self._epoch)
            self._is_preempted = self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Report the metrics of ``fit``, and save."""
        if self.model.stop_training and self._saved_at == self.steps_completed:
            return  # preempted in the middle of this epoch
        numbers = _numbers(logs)
        training = {name: v for name, v in numbers.items() if not name.startswith("val_")}
        validation = {name: v for name, v in numbers.items() if name.startswith("val_")}
        if self._reported_at != self.steps_completed:
            self._report(training)
        if validation:
            self._context.train.report_validation_metrics(self.steps_completed, validation)
        self._epoch = epoch + 1
        self._history.append(numbers)
        if self._checkpoint_epochs and (epoch + 1) % self._checkpoint_epochs == 0:
            self._save(epoch=epoch + 1)

    def on_train_end(self, logs: Any = None) -> None:
        """Wait for the last checkpoint, and raise its error if it failed.

        Raises:
            SystemExit: With code 75, if the run was preempted: code after ``fit`` would assume that
                the model is trained.
        """
        has_trained = self.initial_epoch < self.params["epochs"]
        if has_trained and self.model.stop_training and not self._is_preempted:
            self._saved_at = None  # other callbacks may have changed the weights since
            self._save(epoch=self._epoch, has_ended=True)
        self._context.checkpoint.wait()
        if self._is_preempted:
            raise SystemExit(_COME_BACK)

    def _report(self, logs: Any) -> None:
        self._reported_at = self.steps_completed
        self._context.train.report_training_metrics(self.steps_completed, _numbers(logs))

    def _save(self, *, epoch: int, has_ended: bool = False) -> None:
        if self._saved_at == self.steps_completed:
            return
        metadata = {"steps_completed": self.steps_completed, "framework": "keras"}
        record = {
            "version": 1,
            "epoch": epoch,
            "steps_completed": self.steps_completed,
            "has_ended": has_ended,
            "history": self._history,
        }
        state = _state.training_state(self.model, [self.model.optimizer])

        def snapshot(path: Path) -> Callable[[], None]:
            state.write_record(path)
            _state.capture_rng(path)
            (path / _FILE).write_text(json.dumps(record) + "\n", encoding="utf-8")
            if self._checkpoint_async:
                return _state.copied_to_write(path, state.files, self._memory)
            return functools.partial(_state.write_array_files, path, state.files)

        checkpoint = self._context.checkpoint
        if self._checkpoint_async:
            checkpoint.save_async(snapshot, metadata, tensors=state.tensors())
        else:
            with checkpoint.store_path(metadata, tensors=state.tensors()) as (path, _):
                snapshot(path)()
        self._saved_at = self.steps_completed

    def _restore(self, uuid: str) -> None:
        self._latest = None
        with self._context.checkpoint.restore_path(uuid) as path:
            _state.restore_training_state(self.model, [self.model.optimizer], Path(path))
            _state.restore_rng(Path(path))
        self.model.reset_metrics()
        _logger.info("resumed from step %d, epoch %d", self.steps_completed, self._first_epoch)

    def _read(self, uuid: str) -> dict[str, Any]:
        with self._context.checkpoint.restore_path(uuid) as path:
            file = Path(path) / _FILE
            if not file.exists():
                raise InvalidCheckpointError(
                    f"checkpoint {uuid} has no {_FILE}: a DetcoreCallback did not write "
                    "it.\nA TFKerasTrial resumes its own checkpoints; start a new experiment here."
                )
            record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return record


def _numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    return {n: float(np.asarray(v)) for n, v in (logs or {}).items() if np.ndim(v) == 0}
