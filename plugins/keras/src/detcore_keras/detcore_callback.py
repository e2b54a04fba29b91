"""Define `DetcoreCallback`, which adds metrics, checkpoints and resume to ``model.fit``."""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from detcore.errors import InvalidCheckpointError, InvalidExperimentError
from detcore_keras.callbacks.callback_checks import overrides_hook
from detcore_keras.callbacks.callback_list import CallbackMultiplexer, is_replaced, read_callbacks
from detcore_keras.callbacks.callback_state import keep_rows
from detcore_keras.data.item_seeds import find_generators
from detcore_keras.frameworks import KERAS_MAJOR, keras, tf
from detcore_keras.loop.model_setup import (
    build_optimizer,
    has_built_optimizer,
    list_trainable,
    set_trainable,
)
from detcore_keras.state.array_files import read_json, write_json
from detcore_keras.state.input_spec import build_from_record
from detcore_keras.state.random_generators import (
    capture_rng,
    find_graphs,
    restore_rng,
    warn_of_unsaved_generators,
)
from detcore_keras.state.training_state import (
    capture_training_state,
    find_nan,
    read_variables,
    restore_training_state,
    write_array_files,
)
from detcore_keras.state.variables import NamedVariable, training_variables

if TYPE_CHECKING:
    from detcore.core import Context


_logger = logging.getLogger("detcore.keras")

_FILE = "keras-fit.json"
_EXIT_TEMPFAIL = 75  # sysexits' EX_TEMPFAIL: run again later
_STEPS_PER_EXECUTION = "steps_per_execution" if KERAS_MAJOR == 3 else "_steps_per_execution"
_BEHIND_LAST_EPOCH = 1 << 30  # fit trains no epoch from here
# Callbacks that ``fit`` adds. `DetcoreCallback` restores the history.
_OF_FIT = (keras.callbacks.History, keras.callbacks.ProgbarLogger)


class DetcoreCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Connects a ``model.fit`` to the Core API.

    Training metrics are reported every `report_every` batches and at the end of each epoch.
    Validation metrics of ``fit`` are reported, and checkpoints are saved, at the end of epochs. On
    a preemption, a checkpoint is saved at the next batch, and ``fit`` raises ``SystemExit(75)``.
    The context then records that the script was paused, and the process ends with that code. A
    resumed process continues with the weights, the optimizer and the random generators of the
    latest checkpoint.

    Example::

        with core.init() as context:
            callback = DetcoreCallback(context)
            model.fit(x, y, epochs=5, initial_epoch=callback.initial_epoch, callbacks=[callback])

    The checkpoint is restored before training. Some variables exist only after a first batch, such
    as the variables of an optimizer in a custom ``train_step``. A resumed run then trains its first
    batch, restores the checkpoint, and trains this batch again. Callbacks receive the beginning of
    the epoch twice.

    ``fit`` feeds the data and restarts the epoch. After a checkpoint in the middle of an epoch, the
    first batches of the epoch are repeated. If the data position must be exact, write a
    `TFKerasTrial`.

    The state of the other callbacks of the same ``fit`` is part of each checkpoint, as in a
    `TFKerasTrial`. Keras calls this callback after the others, regardless of its place in the list.
    ``BackupAndRestore`` is left out.

    A run that was complete, or that another callback had stopped, is restored and trains no epoch.
    The ``History`` that ``fit`` returns contains all epochs of the trial.

    Args:
        context: The open Core API context.
        report_every: Batches between reports; >= 1.
        checkpoint_epochs: Epochs between checkpoints; 0 to save only on preemption.
        checkpoint_async: Whether training continues while a checkpoint is written from a copy in
            memory. The end of ``fit`` waits for the checkpoint.

    Attributes:
        initial_epoch: The first epoch to train, 0 for a fresh start. Pass it to ``fit``.
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
                f"DetcoreCallback received report_every={report_every}, "
                f"checkpoint_epochs={checkpoint_epochs}.\n"
                "report_every must be >= 1, and checkpoint_epochs >= 0."
            )
        self._context = context
        self._report_every = report_every
        self._checkpoint_epochs = checkpoint_epochs
        self._checkpoint_async = checkpoint_async
        self._epoch = 0
        self._others: list[Any] | None = None
        self._callbacks: CallbackMultiplexer | None = None
        self._has_checked_graphs = False
        self._has_trained = False
        self._saved_at: int | None = None
        self._reported_at = 0
        self._latest = None if context.info is None else context.info.latest_checkpoint
        record: dict[str, Any] = {"epoch": 0, "steps_completed": 0}
        if self._latest is not None:
            record = self._read_record(self._latest)
        is_complete = context.info is not None and context.info.is_complete
        self._first_epoch: int = record["epoch"]
        # Whether each layer is trainable, in the very first batch, which Keras traces, and now.
        self._traced_trainable: list[bool] | None = record.get("traced_trainable")
        self._trainable: list[bool] | None = record.get("trainable")
        self._history: list[dict[str, float]] = record.get("history", [])
        self.initial_epoch: int = self._first_epoch
        if self._latest is not None and (is_complete or record.get("has_ended", False)):
            self.initial_epoch = _BEHIND_LAST_EPOCH
        self.steps_completed: int = record["steps_completed"]
        self._builds_optimizer: bool = record.get("has_built_optimizer", True)

    def set_params(self, params: Any) -> None:
        """Find the other callbacks of ``fit``, and move this callback behind them."""
        super().set_params(params)
        callback_list = _find_callback_list(self)
        if callback_list is None:
            return
        other_callbacks = [
            c for c in callback_list.callbacks if c is not self and not is_replaced(c)
        ]
        callback_list.callbacks = [*other_callbacks, self]  # the old list is being iterated
        self._others = [c for c in other_callbacks if not isinstance(c, _OF_FIT)]
        if (data := _describe_lost_order(_find_fit_arguments())) is not None:
            _logger.warning(
                "fit reads %s, whose order is not saved in checkpoints. A resumed run trains on "
                "the records in another order than an uninterrupted run. %s, or write a "
                "TFKerasTrial, which saves the order",
                data,
                "Use shuffle=False" if KERAS_MAJOR == 2 else "Use arrays",
            )
        if self._latest is not None:
            keep_rows(other_callbacks)

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the checkpoint, unless a first batch must create variables."""
        if self._others is None:
            _logger.warning(
                "the other callbacks of this fit were not found, so their state is not saved. Pass "
                "DetcoreCallback itself in the list of callbacks"
            )
        self._callbacks = CallbackMultiplexer(
            self._others or (),
            model=self.model,
            params={},
            batches_per_epoch=1,
            is_chief=True,
            saved_elsewhere=[self.model.optimizer, *self.model._flatten_layers()],
        )
        self._callbacks.track_attributes()
        if self._latest is not None:
            try:
                self._restore_checkpoint(self._latest, is_built=False)
            except InvalidCheckpointError:
                # Nothing has been restored, and the first batch may create the missing variables.
                if not self._has_epochs():
                    raise
                train = functools.partial(self._train_first_batch, self.model.train_function)
                self.model.train_function = train
        # Keras resets the numbers of the epochs after this, but not their logs.
        for epoch_logs in self._history:
            for name, value in epoch_logs.items():
                self.model.history.history.setdefault(name, []).append(value)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Record the epoch."""
        if epoch < self.initial_epoch:
            raise InvalidExperimentError(
                f"model.fit begins with epoch {epoch}, but the resumed checkpoint has completed "
                f"{self._first_epoch} epochs.\n"
                "Pass initial_epoch=callback.initial_epoch to model.fit."
            )
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Let Keras trace the first batch of a resumed run like that of the first run."""
        traced, is_restored = self._traced_trainable, self._latest is None
        if traced and is_restored and not (self._has_trained or self.model.run_eagerly):
            self._trainable = list_trainable(self.model)
            set_trainable(self.model, traced)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count, report, and stop on a preemption.

        Raises:
            SystemExit: With code 75, if the run is preempted. Other callbacks and the code after
                ``fit`` must not treat the model as trained.
        """
        if self._trainable is not None:
            set_trainable(self.model, self._trainable)
            self._trainable = None
        if self._traced_trainable is None:
            self._traced_trainable = list_trainable(self.model)
        self._has_trained = True
        self.steps_completed += 1
        self._context.checkpoint.poll()
        if self.steps_completed % self._report_every == 0:
            self._report_training(logs)
        if self._context.preempt.should_preempt():
            self._save_checkpoint(epoch=self._epoch)
            self._context.checkpoint.wait()
            raise SystemExit(_EXIT_TEMPFAIL)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Report the metrics of ``fit``, and save."""
        numbers = _list_numbers(logs)
        training = {name: v for name, v in numbers.items() if not name.startswith("val_")}
        validation = {name: v for name, v in numbers.items() if name.startswith("val_")}
        if self._reported_at != self.steps_completed:
            self._report_training(training)
        if validation:
            self._context.train.report_validation_metrics(self.steps_completed, validation)
        self._epoch = epoch + 1
        self._history.append(numbers)
        is_due = self._checkpoint_epochs and (epoch + 1) % self._checkpoint_epochs == 0
        if is_due and not self.model.stop_training:  # otherwise on_train_end saves
            self._save_checkpoint(epoch=epoch + 1)

    def on_train_end(self, logs: Any = None) -> None:
        """Save final changes by other callbacks, and wait for the last checkpoint.

        Raises:
            DetcoreError: If a checkpoint could not be saved.
        """
        if self._has_epochs() and (self.model.stop_training or self._ends_with_changes()):
            self._saved_at = None
            self._save_checkpoint(epoch=self._epoch, has_ended=bool(self.model.stop_training))
        self._context.checkpoint.wait()

    def _has_epochs(self) -> bool:
        return bool(self.initial_epoch < self.params["epochs"])

    def _ends_with_changes(self) -> bool:
        """Whether the end of ``fit`` may change weights after the last epoch."""
        if getattr(self.model.optimizer, "use_ema", False):
            return True
        return any(
            callback.restore_best_weights
            if isinstance(callback, keras.callbacks.EarlyStopping)
            else overrides_hook(callback, "on_train_end")
            and not type(callback).__module__.startswith("keras.")
            for callback in self._others or ()
        )

    def _report_training(self, logs: Any) -> None:
        self._reported_at = self.steps_completed
        self._context.train.report_training_metrics(self.steps_completed, _list_numbers(logs))

    def _save_checkpoint(self, *, epoch: int, has_ended: bool = False) -> None:
        if self._saved_at == self.steps_completed:
            return
        metadata = {"steps_completed": self.steps_completed, "framework": "keras"}
        record = {
            "version": 1,
            "epoch": epoch,
            "steps_completed": self.steps_completed,
            "has_ended": has_ended,
            "history": self._history,
            "has_built_optimizer": has_built_optimizer(self.model),
            "trainable": list_trainable(self.model),
            "traced_trainable": self._traced_trainable,
        }
        if not self._has_checked_graphs:
            self._has_checked_graphs = True
            warn_of_unsaved_generators(find_graphs(self.model.train_function))
        state = capture_training_state(self._list_variables(), input_spec=_input_spec(self.model))
        callbacks = self._callbacks
        assert callbacks is not None  # set when training began
        if callbacks.terminates_on_nan and find_nan(state) is not None:
            _logger.warning(
                "the weights are not finite at batch %d, and TerminateOnNaN ends training. The "
                "weights are not saved; the latest checkpoint is from an earlier batch",
                self.steps_completed,
            )
            return

        def write_snapshot(path: Path) -> Callable[[], None]:
            state.write_record(path)
            capture_rng(path)
            write_json(path / _FILE, record)
            files = {**state.files, **callbacks.capture_state(path)}
            return functools.partial(write_array_files, path, files)

        checkpoint = self._context.checkpoint
        if self._checkpoint_async:
            checkpoint.save_async(write_snapshot, metadata, tensors=state.tensors())
        else:
            with checkpoint.store_path(metadata, tensors=state.tensors()) as (path, _):
                write_snapshot(path)()
        self._saved_at = self.steps_completed

    def _train_first_batch(self, function: Callable[[Any], Any], iterator: Any) -> Any:
        """Create variables with a first batch, restore the checkpoint, and train the batch again.

        Args:
            function: Keras's train function, which this method replaces for one call.
            iterator: Argument of the train function.
        """
        assert self._latest is not None  # still to be restored
        self.model.train_function = function
        steps = getattr(self.model, _STEPS_PER_EXECUTION)
        batches = list(itertools.islice(iterator, int(steps)))

        def repeat_batches() -> Any:
            # With the same specification as `iterator`, so that Keras traces no other function.
            spec = iterator.element_spec
            return iter(tf.data.Dataset.from_generator(lambda: batches, output_signature=spec))

        if self._traced_trainable is not None:
            set_trainable(self.model, self._traced_trainable)
        function(repeat_batches())
        self._restore_checkpoint(self._latest, is_built=True)
        # The restored callbacks have not received these events.
        for callback in (*(self._others or ()), self):
            callback.on_epoch_begin(self._epoch)
            callback.on_train_batch_begin(0)
        return function(repeat_batches())

    def _restore_checkpoint(self, uuid: str, *, is_built: bool) -> None:
        assert self._callbacks is not None  # set when training began
        with self._context.checkpoint.restore_path(uuid) as path:
            directory = Path(path)
            if not is_built:
                build_from_record(self.model, read_variables(directory))
                if self._builds_optimizer:
                    build_optimizer(self.model)
            # ``fit`` resets metrics, and its first batch creates some.
            restore_training_state(self._list_variables(), directory, leave_out={"metrics"})
            self._latest = None
            if self._trainable is not None:
                set_trainable(self.model, self._trainable)
                self._trainable = None
            self._callbacks.load_state(read_callbacks(directory))
            restore_rng(directory)
        self.model.reset_metrics()
        _logger.info("resumed from step %d, epoch %d", self.steps_completed, self._first_epoch)

    def _read_record(self, uuid: str) -> dict[str, Any]:
        with self._context.checkpoint.restore_path(uuid) as path:
            return read_json(
                Path(path) / _FILE,
                ": a DetcoreCallback did not write it.\n"
                "A TFKerasTrial resumes its own checkpoints; start a new experiment here.",
            )

    def _list_variables(self) -> list[NamedVariable]:
        return training_variables(self.model, [self.model.optimizer])


def _list_numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    return {n: float(np.asarray(v)) for n, v in (logs or {}).items() if np.ndim(v) == 0}


def _input_spec(model: Any) -> Any:
    """Return the ``tf.TypeSpec`` of the inputs of a model that has been called; None if unknown."""
    if KERAS_MAJOR == 2:
        spec = model.save_spec()
        return None if spec is None else spec[0][0]
    shapes = (model.get_build_config() or {}).get("input_shape")
    return None if shapes is None else _float_spec(shapes)


def _float_spec(shapes: Any) -> Any:
    if isinstance(shapes, dict):
        return {name: _float_spec(shape) for name, shape in shapes.items()}
    if all(size is None or isinstance(size, int) for size in shapes):
        return tf.TensorSpec(shapes, keras.config.floatx())
    return type(shapes)(_float_spec(shape) for shape in shapes)


def _find_fit_arguments() -> Mapping[str, Any]:
    """Return the arguments of the ``fit`` that made this call; empty outside of ``fit``."""
    for frame in _walk_frames():
        if frame.f_code.co_name == "fit" and isinstance(frame.f_locals.get("self"), keras.Model):
            return frame.f_locals
    return {}


def _describe_lost_order(arguments: Mapping[str, Any]) -> str | None:
    """Return the data of a ``fit`` that a resumed run reads in another order, or None."""
    data, kind = arguments.get("x"), keras.utils.Sequence
    if isinstance(data, kind):
        hooks = ("on_epoch_begin", "on_epoch_end")
        changes = any(getattr(type(data), h, None) is not getattr(kind, h, None) for h in hooks)
        return "a Sequence that changes" if changes or find_generators(data) else None
    if isinstance(data, tf.data.Dataset):
        return "a shuffled tf.data.Dataset" if _is_reshuffled(data) else None
    if isinstance(data, Iterator):
        return "a generator"
    # Keras 2 shuffles arrays with a TensorFlow operation whose state cannot be read.
    return "arrays with shuffle=True" if KERAS_MAJOR == 2 and arguments.get("shuffle") else None


def _is_reshuffled(dataset: Any) -> bool:
    """Whether each pass over a dataset has another order, which depends on earlier passes."""
    is_shuffle = getattr(dataset, "_reshuffle_each_iteration", False)
    return bool(is_shuffle) or any(_is_reshuffled(source) for source in dataset._inputs())


def _find_callback_list(callback: Any) -> Any:
    """Return the list of callbacks of the ``fit`` that calls a method of `callback`, or None.

    Keras gives a callback its model and its parameters, but no access to the other callbacks.
    """
    for frame in _walk_frames():
        owner = frame.f_locals.get("self")
        if isinstance(owner, keras.callbacks.CallbackList) and any(
            member is callback for member in owner.callbacks
        ):
            return owner
    return None


def _walk_frames() -> Iterator[FrameType]:
    """Yield the frames of the callers, innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
