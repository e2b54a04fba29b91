"""The callback that makes a `Trainer` report, validate and save when due."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import TrainerCallback

from detcore.errors import InvalidExperimentError
from detcore.trial import Decision, Step
from detcore_torch.process_group import settle_buckets, share_buffers
from detcore_torch.scripts.script_run import (
    ScriptRun,
    generators_in,
    restore_callbacks,
)
from detcore_torch.scripts.step_log import StepLog
from detcore_torch.state.model_attributes import ModelAttributes
from detcore_torch.state.random_generators import captured_generators, preserved_generators
from detcore_torch.state.state_files import read_state
from detcore_torch.state.training_state import TrainingState

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

    from detcore_torch.scripts.trainer_data import EpochData
    from detcore_torch.scripts.trainer_state import BestModel, CallbackStates
    from detcore_torch.state.state_files import StateFiles


FRAMEWORK = "transformers"
_STATE = "trainer_state.json"
# Suffixes of measured times, which are not metrics of the model.
_TIME_SUFFIXES = ("_runtime", "_per_second", "_preparation_time")


class TrainingEndedError(Exception):
    """Raised to leave the trainer's loop if the checkpoint is at the end of training."""


class ClockCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Makes the trainer report, validate and save when due.

    A flag of the trainer's control makes it log, evaluate or save. The next event passes the result
    to the clock, which returns the next task. This is the last of the trainer's callbacks.
    """

    def __init__(
        self,
        trainer: Trainer,
        run: ScriptRun,
        data: EpochData,
        *,
        callbacks: CallbackStates,
        best: BestModel,
    ) -> None:
        self._trainer = trainer
        self._data = data
        self._run = run
        self._clock = run.clock
        self._callbacks = callbacks
        self._best = best
        self._determine_best = trainer._determine_best_metric
        self._train_step = trainer.training_step
        self._log = StepLog(run.clock)
        self._attributes = ModelAttributes([])
        self._created: list[str] = []
        self._requested: Step | None = None
        self._metrics: dict[str, float] = {}
        # Metrics of a validation at this step that were not yet reported to the clock.
        self._validation: dict[str, float] | None = None
        self._generators: Callable[[], None] | None = None
        self._resumed_generators: Callable[[], None] | None = None
        self._is_skipping = False

    @property
    def _is_stopping(self) -> bool:
        """Whether the script (early stopping) ends training before its length."""
        trainer = self._trainer
        return (
            self._clock.stopped is None
            and trainer.control.should_training_stop
            and trainer.state.global_step < trainer.state.max_steps
        )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Restore the state; report, validate and save before the first step, when due."""
        settle_buckets(self._trainer.model_wrapped)
        self._attributes = ModelAttributes([
            self._trainer.accelerator.unwrap_model(self._trainer.model)
        ])  # fmt: skip
        self._callbacks.note_objects()
        self._created = self._make_state().list_objects()
        if self._run.checkpoint is not None:
            if state.epoch != int(state.epoch):
                self._begin_epoch_again()
            self._restore_checkpoint(self._run.checkpoint)
        with preserved_generators():
            if self._resumed_generators is not None:
                self._resumed_generators()
            self._clock.watch(self._make_state)
        self._run.release()
        with preserved_generators():
            decision = self._validate_first()
        if self._is_stopping:
            self.end_early()
            decision = self._clock.due(state.global_step)
        if decision.step is Step.STOP:
            self._resume_generators()
            raise TrainingEndedError
        self._request_work(decision, control)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Select the epoch's batches; restore generators that were saved between two epochs."""
        self._data.set_epoch(int(state.epoch))
        if self._resumed_generators is None:
            return
        if self._is_skipping:
            raise InvalidExperimentError(
                f"the training data ended before step {state.global_step}, from which the run "
                "resumes.\n"
                "For data without a length, the trainer counts all steps as one pass, and cannot "
                "resume in a later pass.\n"
                "Define __len__ in the dataset, or yield enough records for all steps."
            )
        self._is_skipping = True
        if state.epoch == int(state.epoch):
            self._resume_generators()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Restore the generators once the trainer has skipped to its position in the data."""
        if self._resumed_generators is not None:
            self._resume_generators()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Report, validate and save at this step, when due."""
        self._request_work(self._clock.due(state.global_step, early=control.should_log), control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Clear the flags: the last step already did the work at the end of an epoch."""
        control.should_log = control.should_evaluate = control.should_save = False
        if self._is_stopping:
            self.end_early()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, object],
        **_: object,
    ) -> None:
        """Report the training metrics."""
        if self._requested is Step.REPORT:
            self._clock.reported(_select_numbers(logs))
            self._request_work(self._clock.due(state.global_step), control)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, object],
        **_: object,
    ) -> None:
        """Collect the validation metrics of one of several datasets."""
        if self._requested is Step.VALIDATE:
            self._metrics.update(_select_numbers(metrics))

    def train_step(self, model: object, inputs: object, *args: object, **options: object) -> object:
        """Train on a batch like the trainer, and digest the batch and its loss."""
        step = self._trainer.state.global_step + 1
        self._log.log_batch(step, inputs)
        loss = self._train_step(model, inputs, *args, **options)
        self._log.log_losses(step, [loss])
        return loss

    def finish_validation(self, metrics: Mapping[str, object] | None, trial: object) -> bool:
        """Report a validation, in place of the trainer's selection of the best model.

        The schedule, early stopping and the best model have already used its metrics.

        Returns:
            Whether to save now.
        """
        control = self._trainer.control
        self._note_best(metrics)
        if self._requested is Step.VALIDATE:
            self._validation = {**self._metrics, **_select_numbers(metrics or {})}
            self._metrics, self._requested = {}, None
            if self._generators is not None:
                self._generators()
                self._generators = None
            self._request_work(self._next_decision(), control, is_evaluating=True)
        return bool(control.should_save)

    def save_if_requested(self, *_: object, **__: object) -> None:
        """Save in place of the trainer, which has completed this step."""
        if self._requested is Step.CHECKPOINT:
            self._save_checkpoint()
            self._request_work(self._next_decision(), self._trainer.control)

    def load_best(self) -> None:
        """Load the best model in place of the trainer, at the end of training."""
        self.end_early()
        if self._clock.stopped == "preempted":
            self._trainer.state.best_model_checkpoint = None
        else:
            self._best.load_model()

    def end_early(self) -> None:
        """Save the state if training ends before its length."""
        state = self._trainer.state
        if self._clock.stopped is not None or state.global_step >= state.max_steps:
            return
        self._clock.request_stop()
        while (decision := self._next_decision()).step is not Step.STOP:
            if decision.step is Step.CHECKPOINT:
                self._save_checkpoint()
            else:
                self._clock.reported({})

    def _validate_first(self) -> Decision:
        """Validate before the first step, if that is due; return the next decision."""
        trainer = self._trainer
        while (decision := self._next_decision()).step is Step.VALIDATE:
            self._requested = decision.step
            if trainer.state.global_step == 0:
                trainer.evaluate()
            else:  # a validation of the interrupted run
                self._note_best(trainer._evaluate(None, None))
            self._validation, self._metrics = self._metrics, {}
        self._validation = None
        return decision

    def _next_decision(self) -> Decision:
        """Return the next decision; report a validation that ran before it was due."""
        step = self._trainer.state.global_step
        decision = self._clock.due(step)
        while decision.step is Step.VALIDATE and self._validation is not None:
            self._clock.validated(self._validation)
            self._validation = None
            decision = self._clock.due(step)
        return decision

    def _note_best(self, metrics: Mapping[str, object] | None) -> None:
        if self._determine_best(metrics, None):
            self._best.note_model()

    def _request_work(
        self, decision: Decision, control: TrainerControl, *, is_evaluating: bool = False
    ) -> None:
        """Set the trainer's flags for a decision."""
        if decision.step is not Step.TRAIN:
            share_buffers([self._trainer.model])
        while decision.step is Step.CHECKPOINT and not is_evaluating:
            if self._is_validation_missing():
                decision = dataclasses.replace(decision, step=Step.VALIDATE)
                break
            self._save_checkpoint()
            decision = self._next_decision()
        self._requested = decision.step
        control.should_log = decision.step is Step.REPORT
        control.should_evaluate = decision.step is Step.VALIDATE
        control.should_save = decision.step is Step.CHECKPOINT
        if decision.step is Step.VALIDATE:
            # A validation must not change the training that follows.
            self._generators = captured_generators()
        if decision.step is Step.STOP:
            control.should_training_stop = True

    def _begin_epoch_again(self) -> None:
        """Call the callbacks' `on_epoch_begin` for an interrupted epoch, before the restore.

        The trainer calls it again in each process that resumes in an epoch. Its changes, such as a
        learning rate or a random draw, must not be added to the restored state.
        """
        trainer, handler = self._trainer, self._trainer.callback_handler
        handler.callbacks.remove(self)
        handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)
        handler.callbacks.append(self)

        def begin_epoch(
            args: TrainingArguments, state: TrainerState, control: TrainerControl
        ) -> TrainerControl:
            del handler.on_epoch_begin  # the next epoch is called as usual
            self.on_epoch_begin(args, state, control)
            return control

        handler.on_epoch_begin = begin_epoch

    def _is_validation_missing(self) -> bool:
        """Whether the clock requests a checkpoint before the validation at the same step.

        A validation changes the state of schedules and callbacks, which the checkpoint must
        contain.
        """
        is_at_end = self._trainer.state.global_step >= self._clock.operation_length
        return is_at_end and self._validation is None and not self._clock.interrupt_requested

    def _restore_checkpoint(self, checkpoint: Path) -> None:
        self._make_state().restore(checkpoint)
        restore_callbacks(self._clock, checkpoint, self._callbacks)
        document = read_state(checkpoint, FRAMEWORK)
        self._best.restore(checkpoint, document["best_step"])
        self._validation = document["validation"]
        self._trainer.control.should_training_stop = document["is_stopping"]
        self._resumed_generators = generators_in(self._clock, checkpoint, self._attributes.models)

    def _save_checkpoint(self) -> None:
        self._trainer.store_flos()
        state = self._make_state()
        state.check_objects(self._created)
        self._clock.save(state)

    def _make_state(self) -> TrainingState:
        trainer = self._trainer
        scaler = getattr(trainer.accelerator, "scaler", None)
        return TrainingState(
            attributes=self._attributes,
            optimizers=[getattr(trainer.optimizer, "optimizer", trainer.optimizer)],
            schedulers=[trainer.lr_scheduler],
            scalers=[] if scaler is None else [scaler],
            rank=self._run.context.distributed.rank,
            callbacks=self._callbacks,
            extra=self._add_trainer_state,
            read_others=lambda: {
                "trainer.is_stopping": self._is_stopping,
                **self._best.read_live(),
            },
        )

    def _add_trainer_state(self, files: StateFiles) -> None:
        document = {
            "best_step": self._best.add_to(files),
            "validation": self._validation,
            "is_stopping": self._is_stopping,
        }
        files.add_state(FRAMEWORK, document)
        # The trainer reads this file. It would require the directory, and reject the callbacks.
        state = dataclasses.replace(
            self._trainer.state, best_model_checkpoint=None, stateful_callbacks={}
        )
        files.documents[_STATE] = dataclasses.asdict(state)

    def _resume_generators(self) -> None:
        if self._resumed_generators is not None:
            self._resumed_generators()
        self._resumed_generators = None


def _select_numbers(metrics: Mapping[str, object]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and name != "epoch" and not name.endswith(_TIME_SUFFIXES)
    }
