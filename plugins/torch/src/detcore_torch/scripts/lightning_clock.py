"""The callback that makes a Lightning trainer do the work that is due."""

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
    restore_callbacks,
)
from detcore_torch.state.model_attributes import ModelAttributes
from detcore_torch.state.random_generators import captured_generators
from detcore_torch.state.state_files import read_state
from detcore_torch.state.training_state import TrainingState

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from detcore_torch.scripts.lightning_data import TrainingData


_NEVER = 1 << 62  # batches between validations


class PreemptedError(Exception):
    """Leaves the trainer's loop: the trial was preempted and has saved a checkpoint."""


@contextlib.contextmanager
def added_callbacks(
    trainer: Trainer, data: TrainingData, run: ScriptRun, files: StateIO
) -> Iterator[None]:
    """Give the trainer the callbacks of detcore until the block ends.

    They are of the `Callback` of the package that the trainer is from.
    """
    package = next(
        (name for name in ("lightning.pytorch", "pytorch_lightning")
         if any(each.__module__.startswith(f"{name}.") for each in type(trainer).__mro__)), None
    )  # fmt: skip
    if package is None:
        raise InvalidExperimentError(
            f"the trainer is {describe(trainer)}.\nfit takes a Trainer of Lightning."
        )
    base = importlib.import_module(package).Callback
    first = type("ClockCallback", (_ClockCallback, base), {})(trainer, data, run, files)
    last = type("LimitCallback", (_LimitCallback, base), {})()
    trainer.callbacks.insert(0, first)
    if run.checkpoint is not None:
        trainer.callbacks.append(last)
    max_epochs = trainer.fit_loop.max_epochs
    epoch_loop = trainer.fit_loop.epoch_loop
    # In place of check_val_every_n_epoch, which callbacks such as ModelCheckpoint read, too.
    epoch_loop._should_check_val_epoch = lambda: True
    try:
        yield
    finally:
        del epoch_loop._should_check_val_epoch
        trainer.callbacks[:] = [each for each in trainer.callbacks if each not in (first, last)]
        trainer.fit_loop.max_epochs = max_epochs


class _LimitCallback:
    """Lets a trainer that is resumed after its last epoch enter its loop, and its last hooks."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise the limit, which other callbacks have read by now."""
        if trainer.fit_loop.max_epochs != -1:
            trainer.fit_loop.max_epochs += 1


class _ClockCallback:
    """Makes the trainer do the work that is due.

    Args:
        trainer: The trainer, which calls this before its other callbacks.
        data: Its training data.
        run: The run.
        files: Captures Lightning's part of the state.
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
        self._updates = 0  # Lightning's count, in which each of several optimizers counts
        self._is_due = True  # such as the checkpoint after an initial validation
        self._validation: dict[str, float] | None = None
        self._generators: Callable[[], None] | None = None
        self._has_started = False
        self._created: list[str] = []
        self._unwrapped = contextlib.ExitStack()
        data.boundary = self._boundary

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Note the attributes of the callbacks as the script made them."""
        self._callbacks = CallbackStates(trainer, pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the attributes of the model; take over the limit, which Lightning would obey."""
        self._attributes = ModelAttributes([pl_module])
        trainer.fit_loop.epoch_loop.max_steps = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the trainer's periods and SIGTERM."""
        if not trainer.enable_validation:
            raise InvalidExperimentError(
                "the trainer makes no validations, by which detcore chooses the best checkpoint.\n"
                "Give fit validation data, the model a validation_step, and leave "
                "limit_val_batches."
            )
        settle_buckets(trainer.strategy.model)
        if self._run.checkpoint is not None:
            resume_averaging(trainer)
            loop = trainer.fit_loop
            if loop.epoch_progress.current.processed < loop.max_epochs - 1:
                loop.max_epochs -= 1  # raised by `_LimitCallback`
        self._created = self._state({}).list_objects()
        self._updates = trainer.global_step
        trainer.val_check_batch = _NEVER
        if threading.current_thread() is threading.main_thread():
            # Lightning would leave training before the next boundary.
            signal.signal(signal.SIGTERM, self._sigterm)
        trainer._signal_connector.received_sigterm = False

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End one of several ranks before other callbacks handle its exception.

        A callback that saves a checkpoint, as `OnExceptionCheckpoint` does, waits for all ranks,
        and the others wait for the gradients of this rank.
        """
        if self._run.context.distributed.size > 1 and not isinstance(exception, PreemptedError):
            raise exception

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do the work that is due between two epochs."""
        self._data.loader.set_epoch(trainer.current_epoch)
        if self._boundary(is_between_epochs=True):
            raise StopIteration  # which ends the trainer's loop

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        """Report, if that is due, and have Lightning validate, if that is."""
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
        """Take the model out of the wrapper of a process group."""
        self._unwrapped.enter_context(unwrapped_model(trainer))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the validation metrics for the boundary."""
        self._unwrapped.close()
        if self._generators is not None and not trainer.sanity_checking:
            self._validation = logged_metrics(trainer)
            self._generators()
            self._generators = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do the work that is due at the end; end the trial if a callback ended training."""
        if self._clock.stopped is None and not self._boundary():
            self._clock.request_stop()
            self._is_due = True
            self._boundary()

    def _must_validate(self) -> bool:
        """Whether Lightning's schedulers and callbacks need a validation of the present step.

        The clock wants the checkpoint first where training ends or is interrupted.
        """
        if not self._is_due:
            return False
        period, is_at_end = self._run.validation_period, self._is_at_end()
        if not is_at_end and not (period and self._steps % period == 0):
            return False
        if not self._clock.interrupt_requested:
            return is_at_end
        # Plateau schedulers use the metrics before the boundary at which this validates.
        trainer = self._trainer
        return trainer.fit_loop.epoch_loop._num_ready_batches_reached() or any(
            config.reduce_on_plateau for config in trainer.lr_scheduler_configs
        )

    def _is_at_end(self) -> bool:
        return self._steps >= self._clock.operation_length

    def _boundary(self, *, is_between_epochs: bool = False) -> bool:
        """Do the work that is due between two batches; return whether training ends here."""
        if not self._has_started:
            self._start()
        if not self._is_due:
            return False
        self._is_due = False
        while (decision := self._clock.due(self._steps)).step is not Step.TRAIN:
            if decision.step is Step.REPORT:
                self._clock.reported({})
            elif decision.step is Step.VALIDATE:
                self._report_validation()
            elif decision.step is Step.CHECKPOINT:
                self._save(is_between_epochs)
            elif self._clock.stopped == "preempted":
                raise PreemptedError
            else:
                return self._end(is_between_epochs)
        return False

    def _end(self, is_between_epochs: bool) -> bool:
        """End training; return whether it ends here, and not after one more epoch."""
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
                f"a validation is due at step {self._steps}, and the trainer did not make one.\n"
                "A callback may have changed limit_val_batches or val_check_batch.\n"
                "Leave both as they are."
            )
        self._clock.validated(self._validation)
        self._validation = None
        if self._trainer.should_stop and self._trainer.fit_loop._can_stop_early:
            self._clock.request_stop()  # as EarlyStopping does

    def _validate_now(self) -> None:
        """Make a validation for which there was no time when the run was interrupted."""
        trainer = self._trainer
        connector = trainer._logger_connector
        self._generators = captured_generators()
        is_first, trainer.validating = connector._first_loop_iter, True
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training, connector._first_loop_iter = True, is_first

    def _save(self, is_between_epochs: bool) -> None:
        captured = self._files.capture()
        if is_between_epochs and captured:
            # Lightning has announced the next epoch already, and does so again when it resumes.
            for counts in captured["loops"]["fit_loop"]["epoch_progress"].values():
                counts["ready"] = counts["started"]
        state = self._state({
            "trainer": captured,
            "position": self._data.loader.position(),
            "validation": self._validation,
            "is_stopping": self._trainer.should_stop,
            "files": list_files(self._trainer),
        })  # fmt: skip
        if not find_averaging_schedulers(self._trainer):
            state.check_objects(self._created)
        self._clock.save(state)

    def _start(self) -> None:
        """Restore the state, after all hooks that might change it."""
        self._has_started = True
        self._callbacks.note_objects()
        trainer, checkpoint = self._trainer, self._run.checkpoint
        if checkpoint is None:
            overwrite_later_files(trainer, read_first_files(trainer, self._run.context))
            return
        document = read_state(checkpoint, FRAMEWORK)
        self._state({}).restore(checkpoint)
        restore_callbacks(self._clock, checkpoint, self._callbacks)
        trainer.should_stop = trainer.should_stop or document["is_stopping"]
        self._validation = document["validation"]
        # Else it would skip ReduceLROnPlateau in this epoch, for which other checkpoints of
        # Lightning have no metrics.
        trainer.fit_loop._restarting = False
        overwrite_later_files(trainer, document["files"])
        generators_in(self._clock, checkpoint, self._attributes.models)()
        self._run.release()

    def _state(self, rest: Mapping[str, object]) -> TrainingState:
        trainer = self._trainer
        return TrainingState(
            attributes=self._attributes,
            optimizers=trainer.optimizers,
            schedulers=[config.scheduler for config in trainer.lr_scheduler_configs],
            rank=self._run.context.distributed.rank,
            callbacks=self._callbacks,
            extra=lambda files: files.add_state(FRAMEWORK, rest),
        )
