"""The callback that makes a Lightning trainer report, validate and save when due."""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from detcore.errors import InvalidExperimentError, describe
from detcore.trial import Step
from detcore_torch.process_group import settle_buckets
from detcore_torch.scripts.lightning_data import logged_metrics, unwrapped_model
from detcore_torch.scripts.lightning_state import (
    FRAMEWORK,
    CallbackStates,
    StateIO,
    find_averaging_schedulers,
    list_files,
    needs_statistics_epoch,
    overwrite_later_files,
    read_first_files,
    resume_averaging,
)
from detcore_torch.scripts.script_run import (
    ScriptRun,
    generators_in,
    name_position,
    restore_callbacks,
)
from detcore_torch.scripts.step_log import StepLog
from detcore_torch.state.model_attributes import ModelAttributes
from detcore_torch.state.random_generators import captured_generators
from detcore_torch.state.state_files import read_state
from detcore_torch.state.training_state import TrainingState

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from detcore_torch.scripts.lightning_data import TrainingData


_NEVER = 1 << 62  # batches between validations


class PreemptedError(Exception):
    """Raised to leave the trainer's loop after a preempted trial has saved a checkpoint."""


@contextlib.contextmanager
def added_callbacks(
    trainer: Trainer, data: TrainingData, run: ScriptRun, files: StateIO
) -> Iterator[None]:
    """Add detcore's callbacks to the trainer until the block ends.

    Their base class is the `Callback` of the trainer's package.
    """
    package = next(
        (name for name in ("lightning.pytorch", "pytorch_lightning")
         if any(kind.__module__.startswith(f"{name}.") for kind in type(trainer).__mro__)), None
    )  # fmt: skip
    if package is None:
        raise InvalidExperimentError(
            f"the trainer is {describe(trainer)}.\nfit accepts a Lightning Trainer."
        )
    base = importlib.import_module(package).Callback
    first = type("ClockCallback", (_ClockCallback, base), {})(trainer, data, run, files)
    last = type("LimitCallback", (_LimitCallback, base), {})()
    trainer.callbacks.insert(0, first)
    if run.checkpoint is not None:
        trainer.callbacks.append(last)
    max_epochs = trainer.fit_loop.max_epochs
    epoch_loop = trainer.fit_loop.epoch_loop
    # Callbacks such as ModelCheckpoint read check_val_every_n_epoch, so it stays unchanged.
    epoch_loop._should_check_val_epoch = lambda: True
    try:
        yield
    finally:
        del epoch_loop._should_check_val_epoch
        trainer.callbacks[:] = [
            callback for callback in trainer.callbacks if callback not in (first, last)
        ]
        trainer.fit_loop.max_epochs = max_epochs


class _LimitCallback:
    """Lets a trainer that resumes after its last epoch enter its loop and call its last hooks."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise the limit, after other callbacks have read it."""
        if trainer.fit_loop.max_epochs != -1:
            trainer.fit_loop.max_epochs += 1


class _ClockCallback:
    """Makes the trainer report, validate and save when due.

    Args:
        trainer: The trainer, which calls this before its other callbacks.
        data: Its training data.
        run: The run.
        files: Reads Lightning's part of the state.
    """

    def __init__(
        self, trainer: Trainer, data: TrainingData, run: ScriptRun, files: StateIO
    ) -> None:
        self._trainer = trainer
        self._data = data
        self._run = run
        self._clock = run.clock
        self._files = files
        self._sigterm = signal.getsignal(signal.SIGTERM)
        self._steps = run.clock.steps_completed
        self._updates = 0  # Lightning's count, which adds the updates of all optimizers
        self._is_due = True  # such as a checkpoint after an initial validation
        self._validation: dict[str, float] | None = None
        self._generators: Callable[[], None] | None = None
        self._has_started = False
        self._created: list[str] = []
        self._unwrapped = contextlib.ExitStack()
        data.boundary = self._do_due_work
        log = self._log = StepLog(run.clock)
        data.log_batch = lambda batch, ids: log.log_batch(self._steps + 1, batch, ids)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Record the initial attributes of the callbacks."""
        self._callbacks = CallbackStates(trainer, pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the attributes of the model; replace Lightning's limit by the clock's."""
        self._attributes = ModelAttributes([pl_module])
        trainer.fit_loop.epoch_loop.max_steps = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the trainer's periods and SIGTERM."""
        if not trainer.enable_validation:
            raise InvalidExperimentError(
                "the trainer does not validate, so detcore cannot choose the best checkpoint.\n"
                "Pass validation data to fit, define validation_step in the model, and do not set "
                "limit_val_batches."
            )
        settle_buckets(trainer.strategy.model)
        if self._run.checkpoint is not None:
            resume_averaging(trainer)
            loop = trainer.fit_loop
            if loop.epoch_progress.current.processed < loop.max_epochs - 1:
                loop.max_epochs -= 1  # raised by `_LimitCallback`
        self._created = self._make_state({}).list_objects()
        self._updates = trainer.global_step
        trainer.val_check_batch = _NEVER
        if threading.current_thread() is threading.main_thread():
            # Lightning would leave training before the next boundary.
            signal.signal(signal.SIGTERM, self._sigterm)
        trainer._signal_connector.received_sigterm = False

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End a failed rank of several before other callbacks handle its exception.

        A callback that saves a checkpoint, such as `OnExceptionCheckpoint`, waits for all ranks,
        while the other ranks wait for this rank's gradients.
        """
        if self._run.context.distributed.size > 1 and not isinstance(exception, PreemptedError):
            raise exception

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report, validate and save between two epochs, when due."""
        self._data.loader.set_epoch(trainer.current_epoch)
        if self._do_due_work(is_between_epochs=True):
            raise StopIteration  # ends the trainer's loop

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, *_: object
    ) -> None:
        """Report when due, and let Lightning validate when due."""
        losses = outputs.values() if isinstance(outputs, Mapping) else (outputs,)
        self._log.log_losses(self._steps + 1, losses)
        self._callbacks.merge_results()
        trainer.val_check_batch = _NEVER
        if trainer.global_step == self._updates or self._clock.stopped is not None:
            return
        self._updates = trainer.global_step
        self._steps += 1
        decision = self._clock.due(self._steps)
        if decision.step is Step.REPORT:
            self._clock.reported(logged_metrics(trainer))
            decision = self._clock.due(self._steps)
        self._is_due = decision.step is not Step.TRAIN
        if decision.step is Step.VALIDATE or self._must_validate():
            # A validation must not change the training that follows.
            self._generators = captured_generators()
            trainer.val_check_batch = 1

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Call the model without its process group wrapper."""
        self._unwrapped.enter_context(unwrapped_model(trainer))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Store the validation metrics for the boundary."""
        self._unwrapped.close()
        if self._generators is not None and not trainer.sanity_checking:
            self._validation = logged_metrics(trainer)
            self._generators()
            self._generators = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report and save at the end, when due; end the trial if a callback ended training."""
        if self._clock.stopped is None and not self._do_due_work():
            self._clock.request_stop()
            self._is_due = True
            self._do_due_work()

    def _must_validate(self) -> bool:
        """Whether Lightning's schedulers and callbacks need a validation at the current step.

        The clock requests the checkpoint first when training ends or is interrupted.
        """
        if not self._is_due:
            return False
        period, is_at_end = self._run.validation_period, self._is_at_end()
        if not is_at_end and not (period and self._steps % period == 0):
            return False
        if not self._clock.interrupt_requested:
            return is_at_end
        # Plateau schedulers use the metrics before the next boundary.
        trainer = self._trainer
        return trainer.fit_loop.epoch_loop._num_ready_batches_reached() or any(
            config.reduce_on_plateau for config in trainer.lr_scheduler_configs
        )

    def _is_at_end(self) -> bool:
        return self._steps >= self._clock.operation_length

    def _do_due_work(self, *, is_between_epochs: bool = False) -> bool:
        """Report, validate and save when due; return whether training ends here."""
        if not self._has_started:
            self._restore_state()
        if not self._is_due:
            return False
        self._is_due = False
        while (decision := self._clock.due(self._steps)).step is not Step.TRAIN:
            if decision.step is Step.REPORT:
                self._clock.reported({})
            elif decision.step is Step.VALIDATE:
                self._report_validation()
            elif decision.step is Step.CHECKPOINT:
                self._save_checkpoint(is_between_epochs)
            elif self._clock.stopped == "preempted":
                raise PreemptedError
            else:
                return self._end_training(is_between_epochs)
        return False

    def _end_training(self, is_between_epochs: bool) -> bool:
        """End training; return whether it ends here, or after one more epoch."""
        loop = self._trainer.fit_loop
        if is_between_epochs and needs_statistics_epoch(self._trainer):
            return False
        loop.min_epochs, loop.epoch_loop.min_steps = 0, None
        self._trainer.should_stop = True
        return True

    def _report_validation(self) -> None:
        if self._validation is None:
            self._validate_now()
        if self._validation is None:
            raise InvalidExperimentError(
                f"a validation is due at step {self._steps}, but the trainer did not validate.\n"
                "A callback may have changed limit_val_batches or val_check_batch.\n"
                "Do not change them."
            )
        self._clock.validated(self._validation)
        self._validation = None
        if self._trainer.should_stop and self._trainer.fit_loop._can_stop_early:
            self._clock.request_stop()  # as EarlyStopping does

    def _validate_now(self) -> None:
        """Run a validation that an interruption of the run prevented."""
        trainer = self._trainer
        connector = trainer._logger_connector
        self._generators = captured_generators()
        is_first, trainer.validating = connector._first_loop_iter, True
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training, connector._first_loop_iter = True, is_first

    def _save_checkpoint(self, is_between_epochs: bool) -> None:
        captured = self._files.capture_trainer()
        if is_between_epochs and captured:
            # Lightning has already counted the next epoch, and counts it again when it resumes.
            for counts in captured["loops"]["fit_loop"]["epoch_progress"].values():
                counts["ready"] = counts["started"]
        state = self._make_state({
            "trainer": captured,
            "position": self._data.loader.position(),
            "validation": self._validation,
            "is_stopping": self._trainer.should_stop,
            "accumulate_grad_batches": self._trainer.accumulate_grad_batches,
            "files": list_files(self._trainer),
        })  # fmt: skip
        if not find_averaging_schedulers(self._trainer):
            state.check_objects(self._created)
        self._clock.save(state)

    def _restore_state(self) -> None:
        """Restore the state, after all hooks that could change it."""
        self._has_started = True
        self._callbacks.note_objects()
        trainer, checkpoint = self._trainer, self._run.checkpoint
        if checkpoint is None:
            overwrite_later_files(trainer, read_first_files(trainer, self._run.context))
            self._clock.watch(lambda: self._make_state({}))
            return
        document = read_state(checkpoint, FRAMEWORK)
        self._make_state({}).restore(checkpoint)
        restore_callbacks(self._clock, checkpoint, self._callbacks)
        trainer.should_stop = trainer.should_stop or document["is_stopping"]
        self._validation = document["validation"]
        # Callbacks change it at the start of an epoch, which a resume within the epoch omits.
        trainer.accumulate_grad_batches = document["accumulate_grad_batches"]
        # A restarting loop skips ReduceLROnPlateau in this epoch, because Lightning's own
        # checkpoints have no metrics for it.
        trainer.fit_loop._restarting = False
        overwrite_later_files(trainer, document["files"])
        generators_in(self._clock, checkpoint, self._attributes.models)()
        self._clock.watch(lambda: self._make_state({}))
        self._run.release()

    def _make_state(self, rest: Mapping[str, object]) -> TrainingState:
        trainer = self._trainer
        return TrainingState(
            attributes=self._attributes,
            optimizers=trainer.optimizers,
            schedulers=[config.scheduler for config in trainer.lr_scheduler_configs],
            scalers=[] if trainer.scaler is None else [trainer.scaler],
            rank=self._run.context.distributed.rank,
            callbacks=self._callbacks,
            extra=lambda files: files.add_state(FRAMEWORK, rest),
            read_others=lambda: name_position(self._data.loader.position()),
        )
