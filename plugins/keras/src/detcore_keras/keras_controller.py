"""Train a `KerasTrial`. Keras owns the loop, and detcore's clock schedules its work."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidCheckpointError
from detcore.trial import ValidationResult
from detcore.types import Length, Unit
from detcore_keras.callbacks.callback_checks import check_callbacks, wants_train_batches
from detcore_keras.callbacks.callback_list import CallbackMultiplexer, read_callbacks
from detcore_keras.callbacks.model_attributes import leave_out_variables, track_model
from detcore_keras.data.data_settings import DataSettings
from detcore_keras.data.training_data import make_feed
from detcore_keras.distributed.workers import Workers, digest_weights
from detcore_keras.frameworks import backend
from detcore_keras.loop.model_setup import (
    check_model,
    list_optimizers,
    list_trainable,
    set_trainable,
)
from detcore_keras.loop.units import FastUnits, SingleUnits, Units
from detcore_keras.loop.validation import Evaluation
from detcore_keras.state.array_files import read_json, write_json
from detcore_keras.state.determined_checkpoint import check_legacy, load_legacy_weights
from detcore_keras.state.random_generators import (
    RandomState,
    capture_rng,
    preserved_rng,
    restore_rng,
    vary_by_rank,
)
from detcore_keras.state.state_tensors import StateReader, read_unlisted
from detcore_keras.state.training_state import (
    OF_ONE_TRIAL,
    VARIABLES_FILE,
    ArrayFiles,
    capture_own_state,
    capture_training_state,
    clear_step,
    is_of_backend,
    read_variables,
    refuse_nan,
    restore_mean_gradients,
    restore_own_state,
    restore_training_state,
    restore_weights,
    write_array_files,
)
from detcore_keras.state.variables import NamedVariable, training_variables

if TYPE_CHECKING:
    import numpy as np

    from detcore.trial import AttributeTracker, Clock
    from detcore.types import TensorInfo
    from detcore_keras.keras_context import TFKerasTrialContext
    from detcore_keras.keras_trial import KerasTrial


_logger = logging.getLogger("detcore.keras")

_POSITION_FILE = "keras-position.json"
_POSITION_FIELDS = frozenset(
    {"data", "validation", "untouched", "stop_requested", "is_finished", "trainable", "means"}
)


class KerasController:
    """A `detcore.trial.LoopingController` for Keras.

    Args:
        trial: The user's trial.
        context: The trial's context.

    Raises:
        DetcoreError: If the trial violates a rule, such as data of the wrong kind, or a model that
            was not wrapped or compiled.
    """

    def __init__(self, trial: KerasTrial, context: TFKerasTrialContext) -> None:
        self._trial = trial
        self._context = context
        batch_size = context.get_per_slot_batch_size()
        gradients = context.setup.settings.gradients
        self._workers = Workers(context.distributed, gradients, context.collective)
        self._has_started = False
        backend.keep_mode()  # the trial's constructor may also have turned it off
        training_data = trial.build_training_data_loader()
        validation_data = trial.build_validation_data_loader()
        built_model = trial.build_model()
        backend.keep_mode()
        model = check_model(built_model, context.wrapped_models)
        self._model = model
        backend.share_gradients(self._list_optimizers(), gradients, self._workers.collective)
        settings = DataSettings(
            batch_size=batch_size,
            options=context.fit_options,
            wrapped=context.wrapped_datasets,
            seed=context.get_trial_seed(),
            distributed=context.distributed,
        )
        self._feed = make_feed(training_data, settings, with_ledger=context.ledger is not None)
        if context.ledger is not None:
            self._feed.describe_records(context.ledger)
        self._follows_keras = settings.options.follows_keras
        self._evaluation: Evaluation | None = None
        if validation_data is not None or not self._follows_keras:
            self._evaluation = Evaluation(validation_data, settings, test_mode=context.test_mode)
        self._user_callbacks = check_callbacks(trial.keras_callbacks())
        self._steps_per_epoch = self._workers.steps_per_epoch(self._feed)
        self._epoch_batches = _count_epoch_batches(context, self._steps_per_epoch)
        self._steps = backend.make_train_steps(
            model,
            self._feed,
            class_weight=settings.options.class_weight,
            collective=context.collective,
        )
        self._callbacks: CallbackMultiplexer | None = None
        self._model_trackers: dict[str, AttributeTracker] | None = None
        self._is_finished = False
        self._random: RandomState | None = None
        self._trainable: list[bool] | None = None
        self._repeats_validation = False
        # Metrics of an unfinished epoch, until training continues.
        self._metrics: list[tuple[Any, Any]] = []
        self._means: Mapping[str, float] = {}
        self._tensors: Sequence[TensorInfo] = ()
        self._state_reader: StateReader | None = None
        if context.digests is not None:
            context.digests.describe(**backend.describe_machine())

    def batches_per_epoch(self) -> int | None:
        """Return the steps of one pass over the training data; None if unknown.

        With several workers, a pass lasts until each worker has seen its share.
        """
        return self._steps_per_epoch

    def run(self, clock: Clock) -> None:
        """Train inside one ``model.fit`` until the clock stops it."""
        callbacks = self._begin_training()
        self._is_finished = False
        units = self._make_units(callbacks, clock)

        def is_interrupted() -> bool:
            self._heed_stop_training()
            return clock.interrupt_requested

        def train_unit() -> Mapping[str, float] | None:
            if self._random is not None:
                self._random.restore()
                self._random = None
            if self._trainable is not None:
                # When ``fit`` begins, Keras 2 restores the flags from the time of ``compile``.
                set_trainable(self._model, self._trainable)
                self._trainable = None
            _assign_values(self._metrics)  # ``fit`` has reset them
            self._metrics = []
            metrics = units.train_until(self._find_stop(clock), is_interrupted)
            self._means = metrics.means or self._means
            if self._has_ended_unvalidated_epoch():
                callbacks.close_epoch()
            # Set in the last batch before a boundary, it would otherwise end Keras's fit there.
            self._heed_stop_training()
            continues = clock.boundary(
                self._feed.position, metrics.means, metrics.batches, n_records=metrics.n_records
            )
            if continues:
                if not self._follows_keras or self._is_between_epochs():
                    self._model.reset_metrics()
            elif clock.stopped != "preempted":
                self.finish(clock)
            return metrics.means if continues else None

        try:
            backend.fit(self._model, train_unit)
        except Exception as error:
            if (failure := self._workers.find_failure(error)) is not None:
                raise failure from error
            raise
        if not self._is_finished:
            callbacks.train_end(is_final=False)
            self._model.stop_training = False

    def _find_stop(self, clock: Clock) -> int:
        """Return the batch of the next boundary, or of the end of the epoch if that is earlier."""
        if not (self._follows_keras and self._epoch_batches):
            return clock.next_boundary
        epoch = self._feed.position // self._epoch_batches
        return min(clock.next_boundary, (epoch + 1) * self._epoch_batches)

    def _is_between_epochs(self) -> bool:
        return bool(self._epoch_batches) and self._feed.position % self._epoch_batches == 0

    def _has_ended_unvalidated_epoch(self) -> bool:
        """Whether a script's epoch has ended and Keras would not validate after it."""
        if not self._follows_keras or not self._is_between_epochs():
            return False
        epochs = self._feed.position // self._epoch_batches
        frequency = self._context.fit_options.validation_freq
        return self._evaluation is None or epochs % frequency > 0

    def finish(self, clock: Clock) -> None:
        """Save the model if the end of Keras's ``fit`` changes it."""
        self._begin_training()
        self._model.reset_metrics()
        before = digest_weights(self._list_variables())
        self._end_training()
        if any(self._workers.all_gather(before != digest_weights(self._list_variables()))):
            clock.save(self)

    def _end_training(self) -> None:
        """Average the weights and call the callbacks, as ``fit`` does after the last batch."""
        if self._is_finished:
            return
        self._is_finished = True
        callbacks = self._start_callbacks()
        optimizer = self._model.optimizer
        if hasattr(optimizer, "finalize_variable_values"):
            optimizer.finalize_variable_values(self._model.trainable_variables)
        callbacks.train_end()

    def validate(self) -> ValidationResult:
        """Evaluate the model. Metric names begin with ``val_``.

        Each worker evaluates its share of the data, with the chief's weights. Without validation
        data, the metrics are those of training.
        """
        callbacks = self._begin_training()
        if self._evaluation is None:
            return ValidationResult(self._means)
        training_metrics = self._copy_metrics() if self._follows_keras else []
        with preserved_rng(backend.list_generators(self._model)):
            callbacks.test_begin()
            with self._workers.chief_weights(self._model):
                logs, n_records = self._evaluation.evaluate_model(self._model, callbacks.callbacks)
        _assign_values(training_metrics)
        metrics = {f"val_{name}": value for name, value in logs.items()}
        callbacks.test_end(metrics)
        self._heed_stop_training()
        return ValidationResult(metrics, n_records)

    def save(self, directory: Path) -> None:
        """Write model, optimizers, generators, data position and callbacks.

        The chief writes all values, and other workers write values that differ from the chief's.
        Callbacks are called before the commit, so files that they add become part of the
        checkpoint.
        """
        write_array_files(directory, self._capture_state(directory))

    def snapshot(self, directory: Path) -> Callable[[], None]:
        """Copy the state for `save`, and return a function that writes the copy.

        Small files are written immediately. So are all files if a callback reads the directory
        (`detcore_keras.callbacks.Callback.on_checkpoint_end`).

        Returns:
            A function to call once, from another thread.
        """
        return functools.partial(write_array_files, directory, self._capture_state(directory))

    def tensors(self) -> Sequence[TensorInfo]:
        """Return the variables in the last checkpoint, with their files."""
        return self._tensors

    def state_tensors(self) -> Mapping[str, np.ndarray]:
        """Return generators, weights and optimizers' variables as arrays by name."""
        self._build_variables()
        self._start_together()
        if self._state_reader is None or not self._steps.is_built:
            exists = self._steps.is_built or self._has_started or self._feed.position > 0
            self._state_reader = StateReader(self._list_variables() if exists else ())
        return self._state_reader.read_state()

    def live_state(self) -> Mapping[str, Any]:
        """Return flags, callbacks, attributes and the data position by name."""
        values: dict[str, Any] = {"data.position": self._feed.position}
        if self._steps.is_built or self._has_started:
            for layer in self._model._flatten_layers():
                values[f"model.{layer.name}.trainable"] = bool(layer.trainable)
            optimizers, variables = self._list_optimizers(), self._list_variables()
            values |= read_unlisted(self._model, optimizers, variables)
        return {**values, **({} if self._callbacks is None else self._callbacks.read_live())}

    def _capture_state(self, directory: Path) -> ArrayFiles:
        """Write small files, and return copies of the arrays."""
        callbacks = self._begin_training()
        if any(self._workers.all_gather(self._context.get_stop_requested())):
            self._end_training()  # no batch follows this checkpoint
        variables = self._list_variables()
        self._state_reader = StateReader(variables)  # training may have created variables
        if not self._steps.is_built:
            self._track_model()  # the first step may have created layers
        differing_indices = self._workers.own_variables(self._model, variables)
        if self._workers.is_chief:
            batch = self._feed.element_spec
            inputs = batch[0] if isinstance(batch, tuple | list) else batch
            state = capture_training_state(variables, input_spec=inputs)
        else:
            state = capture_own_state(variables, differing_indices)
        if callbacks.terminates_on_nan:
            refuse_nan(state, self._feed.position)
        self._tensors = state.tensors()
        state.write_record(directory)
        files = dict(state.files)
        capture_rng(directory)
        position = {
            "version": 1,
            "untouched": self._feed.position == 0 and not self._steps.is_built,
            "data": self._feed.save(directory),
            "validation": self._evaluation and self._evaluation.state_dict(),
            "stop_requested": self._context.get_stop_requested(),
            "is_finished": self._is_finished,
            "trainable": list_trainable(self._model),
            "means": self._means,
        }
        write_json(directory / _POSITION_FILE, position)
        if callbacks.reads_checkpoints:
            write_array_files(directory, files)
            files = {}
            callbacks.checkpoint_end(directory)
            self._heed_stop_training()
        digests = self._workers.all_gather(
            callbacks.digest_states() if self._workers.size > 1 else {}
        )
        own_digests = {} if self._workers.is_chief else digests[self._workers.rank]
        unchanged_names = {
            name for name, digest in own_digests.items() if digests[0].get(name) == digest
        }
        return {**files, **callbacks.capture_state(directory, leave_out=unchanged_names)}

    def restore(self, directory: Path) -> None:
        """Read the files of `save`.

        Raises:
            InvalidCheckpointError: If the files do not fit this model.
            DataError: If the files do not fit this data.
        """
        own_directory = self._context.worker_directory(directory)
        position = _read_position(own_directory or directory)
        self._build_variables()
        if own_directory is None:
            self._feed.seek(self._context.get_initial_batch())
        else:
            self._feed.restore(own_directory, position["data"])
        if self._evaluation is not None:
            self._evaluation.load_state(position["validation"])
        self._means = position["means"]
        directories = dict.fromkeys((own_directory or directory, directory))
        saved_callbacks = [read_callbacks(source) for source in directories]
        self._has_started = not position["untouched"]
        if self._has_started and not self._steps.is_built:
            self._build_by_training()
        # Callbacks may write weights when they start. The checkpoint's weights then replace them.
        callbacks = self._start_callbacks(is_resumed=True)
        if self._has_started:
            variables = self._list_variables()
            restore_training_state(variables, directory)
            if own_directory is None:
                restore_mean_gradients(variables, sorted((directory / "workers").glob("*")))
            elif own_directory != directory:
                restore_own_state(variables, own_directory)
            self._trainable = position["trainable"]
            set_trainable(self._model, self._trainable)
            if self._follows_keras and not self._is_between_epochs():
                self._metrics = self._copy_metrics()
        callbacks.load_state(*saved_callbacks)
        if position["stop_requested"]:
            self._context.set_stop_requested(True)
        restore_rng(own_directory or directory)
        self._is_finished = position["is_finished"]
        info = self._context.info
        was_validated = info is not None and info.validated_metric is not None
        # This validation is already recorded, but the callbacks have not seen it.
        self._repeats_validation = was_validated and any(
            self._workers.all_gather(bool(self._user_callbacks))
        )
        if own_directory is None:
            self._vary_generators()
            _logger.info(
                "the checkpoint was saved by another number of workers. Training continues at "
                "batch %d, in the order for %d worker(s)",
                self._feed.position,
                self._workers.size,
            )
        # Starting callbacks, and other code before the first step, may draw numbers that an
        # uninterrupted run drew long before.
        self._random = RandomState(backend.list_generators(self._model))

    def start_from(self, directory: Path) -> None:
        """Load weights, optimizer state and counters from another trial's checkpoint.

        A Determined checkpoint provides only weights. Hyperparameters (such as the learning rate),
        callbacks, data and random generators are those of a fresh trial.

        Raises:
            InvalidCheckpointError: If the checkpoint does not fit this model.
        """
        is_own = any((directory / name).exists() for name in (_POSITION_FILE, VARIABLES_FILE))
        if is_own:
            _read_position(directory)
        else:
            check_legacy(directory)
        self._build_variables()
        self._start_together()
        self._start_callbacks()  # callbacks may also write weights
        self._random = RandomState(backend.list_generators(self._model))
        if not self._steps.is_built:
            self._build_by_training()
            clear_step(self._model, self._list_variables())
        if is_own and is_of_backend(read_variables(directory)):
            restore_training_state(self._list_variables(), directory, leave_out=OF_ONE_TRIAL)
        elif is_own:
            restore_weights(self._model, directory)
        else:
            load_legacy_weights(self._model, directory)
            _logger.info("the checkpoint is from Determined, so only its weights are loaded")

    def close(self) -> None:
        """Stop the data's workers."""
        self._feed.close()
        if self._evaluation is not None:
            self._evaluation.close()

    def _start_together(self) -> None:
        """Give all workers the chief's model and different random numbers, once.

        If the first step creates the variables, `_share_start` runs after that step instead.
        """
        if self._steps.is_built and not self._has_started:
            self._has_started = True
            self._share_start()

    def _share_start(self) -> None:
        self._workers.share_variables(self._list_variables())
        self._vary_generators()

    def _vary_generators(self) -> None:
        if self._workers.size == 1:
            return
        generators = [item.variable for item in self._list_variables() if item.is_generator]
        states = [*backend.list_generators(self._model), *generators]
        vary_by_rank(
            list({backend.get_key(v): v for v in map(backend.get_raw, states)}.values()),
            seed=self._context.get_trial_seed(),
            rank=self._workers.rank,
            step=self._feed.position,
        )

    def _build_variables(self) -> None:
        """Create variables, so that they can be saved and restored before the first step."""
        self._steps.trace_step()

    def _build_by_training(self) -> None:
        """Create all variables with one step. The caller undoes its effects on variables."""
        trackers = self._track_model()
        before = {
            name: tracker.capture(include_unchanged=True) for name, tracker in trackers.items()
        }
        self._steps.run_one(self._feed.peek_block(), 0)
        self._track_model()
        for name, values in before.items():
            trackers[name].restore(values)

    def _track_model(self) -> Mapping[str, AttributeTracker]:
        """Return the trackers of the attributes of the model, which know its present objects."""
        if self._model_trackers is None:
            is_eager = not backend.compiles_steps(self._model)
            self._model_trackers = track_model(self._model) if is_eager else {}
        leave_out_variables(
            self._model_trackers.values(), self._model, [*self._list_optimizers(), self._trial]
        )
        return self._model_trackers

    def _begin_training(self) -> CallbackMultiplexer:
        """Create all variables, share them between workers, and return the started callbacks."""
        if self._callbacks is None or not self._has_started:
            self._build_variables()
            self._start_together()
        callbacks = self._start_callbacks()
        if self._repeats_validation:
            self._repeats_validation = False
            self.validate()
        return callbacks

    def _start_callbacks(self, *, is_resumed: bool = False) -> CallbackMultiplexer:
        """Return the callbacks. The first call notifies them that training begins."""
        if self._callbacks is None:
            first_epoch = self._context.fit_options.first_epoch
            self._callbacks = CallbackMultiplexer(
                self._user_callbacks,
                model=self._model,
                params={
                    "epochs": first_epoch + _count_epochs(self._context, self._epoch_batches),
                    "verbose": int(self._context.fit_options.verbose and self._workers.is_chief),
                },
                batches_per_epoch=self._epoch_batches,
                first_epoch=first_epoch,
                is_chief=self._workers.is_chief,
                tensorboard_path=self._context.get_tensorboard_path(),
                saved_elsewhere=[*self._list_optimizers(), *self._model._flatten_layers()],
                trial=self._trial,
                model_trackers=self._track_model(),
            )
            self._callbacks.train_begin(is_resumed=is_resumed)
            self._heed_stop_training()
        return self._callbacks

    def _make_units(self, callbacks: CallbackMultiplexer, clock: Clock) -> Units:
        has_hooks = any(map(wants_train_batches, self._user_callbacks))
        reason = "a callback has batch-level hooks" if has_hooks else None
        digests = self._context.digests
        if reason is None and digests is not None and digests.reads_each_state:
            reason = "the state after each step is digested"
        answers = self._workers.all_gather((reason, bool(self._user_callbacks)))
        # A callback may exist only on the chief, but all workers must take the same path.
        reason = next((reason for reason, _ in answers if reason is not None), None)
        has_callbacks = any(has_any for _, has_any in answers)
        shares_metrics = has_callbacks and self._workers.size > 1
        waits = not (self._steps.is_built or self._has_started)
        parts: dict[str, Any] = {
            "model": self._model,
            "steps": self._steps,
            "feed": self._feed,
            "callbacks": callbacks,
            "ledger": self._context.ledger,
            "digests": digests,
            "epoch_batches": self._epoch_batches if has_callbacks else 0,
            "slowest": clock.slowest if self._workers.size > 1 else float,
            "mean_metrics": self._workers.mean_metrics if shares_metrics else None,
            "after_first_batch": self._share_start if waits else None,
        }
        if reason is None and not self._feed.in_graph:
            reason = "the data is neither arrays nor a tf.data.Dataset"
        reason = reason or self._steps.slow_reason
        if reason is None:
            return FastUnits(**parts)
        _logger.info("training runs batch by batch, not many batches in one call: %s", reason)
        return SingleUnits(**parts)

    def _heed_stop_training(self) -> None:
        """Convert ``model.stop_training``, set by a callback, into a stop request for the clock."""
        if self._model.stop_training:
            self._model.stop_training = False
            self._context.set_stop_requested(True)

    def _copy_metrics(self) -> list[tuple[Any, Any]]:
        """Return the variables of the metrics with copies of their values."""
        variables = [item.variable for item in self._list_variables() if item.group == "metrics"]
        return [(variable, backend.read_variable(variable).copy()) for variable in variables]

    def _list_optimizers(self) -> list[Any]:
        return list_optimizers(self._model, self._context.wrapped_optimizers)

    def _list_variables(self) -> list[NamedVariable]:
        return training_variables(self._model, self._list_optimizers())


def _assign_values(values: Sequence[tuple[Any, Any]]) -> None:
    """Restore a result of `KerasController._copy_metrics`."""
    for variable, value in values:
        variable.assign(value)


def _read_position(directory: Path) -> dict[str, Any]:
    """Return the position in the data, and other small values, of a checkpoint."""
    path = directory / _POSITION_FILE
    position = read_json(
        path,
        ". It was not written by a KerasTrial of detcore, so training cannot resume from it.\n"
        "Start a new experiment, or load the weights in build_model.",
    )
    if missing := _POSITION_FIELDS - position.keys():
        raise InvalidCheckpointError(f"{path} is damaged: it lacks {', '.join(sorted(missing))}")
    return position


def _count_epoch_batches(context: TFKerasTrialContext, from_data: int | None) -> int:
    """Return the batches of an epoch, as configured or from the data; 0 if unknown."""
    records = context.setup.settings.records_per_epoch
    return max(1, records // context.get_global_batch_size()) if records else from_data or 0


def _count_epochs(context: TFKerasTrialContext, batches_per_epoch: int) -> int:
    """Return the trial's whole length in epochs, rounded up.

    Args:
        context: The trial's context.
        batches_per_epoch: 0 if unknown. A length in other units then counts as 1 epoch.
    """
    length = context.setup.settings.max_length
    if length is None:
        length = Length(context.planned_batches or 0, Unit.BATCHES)
    count = length.count
    if length.unit is Unit.EPOCHS:
        return count
    if length.unit is Unit.RECORDS:
        count //= context.get_global_batch_size()
    return max(1, math.ceil(count / batches_per_epoch)) if batches_per_epoch else 1
