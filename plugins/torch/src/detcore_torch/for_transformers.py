"""Train with the `Trainer` of Hugging Face transformers, with detcore's checkpoints and searches.

```python
from detcore_torch.for_transformers import train

trainer = Trainer(model=model, args=args, train_dataset=..., eval_dataset=...)
train(trainer)  # instead of trainer.train()
```
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sized
from typing import TYPE_CHECKING

from detcore.errors import InvalidExperimentError
from detcore.trial import Decision, Step
from detcore_torch._fetch import unchanged
from detcore_torch._files import StateFiles
from detcore_torch._group import settle_buckets
from detcore_torch._loader import described, options_of
from detcore_torch._resumable import EpochRequests
from detcore_torch._script import (
    Plan,
    ScriptRun,
    ScriptState,
    captured_generators,
    check_workers,
    generators_in,
    hyperparameters,
    open_run,
)
from detcore_torch._seeding import preserved_generators
from detcore_torch._torch import torch
from detcore_torch._versions import supported

supported("transformers", (5, 20), (6,), "transformers")

from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard  # noqa: E402  # after it
from transformers import Trainer, TrainerCallback, TrainerState  # noqa: E402  # after the check
from transformers.trainer_callback import ExportableState  # noqa: E402
from transformers.trainer_utils import IntervalStrategy, TrainOutput  # noqa: E402

from detcore_torch._trainer_validation import exact_prediction_step, share_buffers  # noqa: E402

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainingArguments

    from detcore_torch._order import BatchOrder

__all__ = ["hyperparameters", "train"]

_FRAMEWORK = "transformers"
_STATE = "trainer_state.json"
# Measured times, which are no metrics of the model.
_TIMES = ("_runtime", "_per_second", "_preparation_time")


def train(
    trainer: Trainer,
    *,
    hparams: Mapping[str, object] | None = None,
    metric: str = "eval_loss",
    smaller_is_better: bool = True,
    checkpoint_storage: str | None = None,
) -> TrainOutput:
    """Train as ``trainer.train()`` does, under detcore.

    Under ``detcore run``, the experiment file says how far to train and when to report, validate
    and save, in steps (updates of the optimizer), and hyperparameters with the names of fields of
    ``TrainingArguments`` replace their values. A script by itself follows its
    ``TrainingArguments``, and continues if it is started again after an interruption.

    Args:
        trainer: The ``Trainer``.
        hparams: Hyperparameters to record for a script by itself.
        metric: The validation metric that chooses the best checkpoint of a script by itself.
        smaller_is_better: Its direction.
        checkpoint_storage: Path or URL of the checkpoints of a script by itself; default:
            ``DETCORE_HOME``.

    Returns:
        The ``TrainOutput`` of the trainer. Its metrics are those since the last start.

    Raises:
        SystemExit: With code 75, if the trial was preempted and has saved a checkpoint.
        InvalidExperimentError: If the trainer is configured in a way that cannot be resumed, has
            no data to validate on, or ends training before the experiment's length.
        InvalidDataTypeError: If ``get_train_dataloader`` returns no loader of PyTorch's.
        DataError: If a loader's batches come in the order in which its processes finish.
        InvalidCheckpointError: If the checkpoint does not fit the model.
    """
    _apply(trainer, hyperparameters())
    _check(trainer)
    with preserved_generators():
        loader = trainer.get_train_dataloader()
    _check_loader(trainer, loader)
    steps_per_epoch = _steps_per_epoch(trainer, loader)
    plan = _plan(
        trainer.args,
        steps_per_epoch,
        metric=metric,
        smaller_is_better=smaller_is_better,
        hparams=dict(hparams or {}),
        storage=checkpoint_storage,
    )
    with open_run(plan, framework=_FRAMEWORK, steps_per_epoch=steps_per_epoch) as run:
        check_workers("args.world_size of the trainer", trainer.args.world_size, run)
        if run.length is not None:
            trainer.args.max_steps = run.length
        output = _train(trainer, run)
        run.finish(trainer.state.global_step)
        return output


def _train(trainer: Trainer, run: ScriptRun) -> TrainOutput:
    data = _EpochData(trainer, run)
    callback = _ClockCallback(trainer, run, data)
    trainer.add_callback(callback)
    trainer.get_train_dataloader = data.make_loader
    # Called where the trainer would write its own files, several of which are pickles.
    trainer._save_checkpoint = callback.save_when_asked
    trainer.prediction_step = exact_prediction_step(trainer)
    folder = None if run.checkpoint is None else str(run.checkpoint)
    try:
        output = trainer.train(resume_from_checkpoint=folder)
    except _NothingToTrain:
        output = TrainOutput(trainer.state.global_step, math.nan, {})
    finally:
        del trainer._save_checkpoint, trainer.get_train_dataloader, trainer.prediction_step
        trainer.remove_callback(callback)
    callback.finish()
    return output


class _EpochData:
    """The trainer's batches, with random numbers that depend on the number of the batch alone.

    The trainer reads batches ahead, and skips those of before a checkpoint. With its own loader,
    random augmentations would not be those of a run without an interruption.
    """

    def __init__(self, trainer: Trainer, run: ScriptRun) -> None:
        self._trainer = trainer
        self._make_original = trainer.get_train_dataloader
        args = trainer.args
        self._seed = int(args.seed if args.data_seed is None else args.data_seed)
        self._order: BatchOrder | None = None
        self._set_epoch: Callable[[int], None] | None = None
        self._requests = EpochRequests(run.context.distributed.rank)

    def make_loader(self) -> DataLoaderShard:
        """Return the loader of the trainer; for a dataset with a length, one that is seeded."""
        loader = self._make_original()
        if _is_iterable(loader):
            return loader
        description = described(_without_accelerate(loader))
        if hasattr(loader, "base_dataloader") and hasattr(loader.dataset, "set_epoch"):
            self._set_epoch = loader.dataset.set_epoch  # Accelerate's loader would call it
            # Processes that stay would keep the epoch in which they were started.
            description.options["persistent_workers"] = False
        self._order = description.order(seed=self._seed)
        self.set_epoch(0)
        size = getattr(loader, "total_batch_size", None)  # Accelerate's, for all processes
        if size is not None:  # batches of one size
            self._requests.batch_size = size
        made = description.fetching_loader(self._requests)
        return DataLoaderShard(
            made.dataset,
            device=getattr(loader, "device", None),
            batch_size=None,
            sampler=self._requests,
            collate_fn=unchanged,
            generator=made.generator,
            **options_of(made),
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the loader iterates over next."""
        if self._order is not None:
            self._requests.ask(self._order, self._seed, epoch, 0, is_noted=False)
        if self._set_epoch is not None:
            self._set_epoch(epoch)


class _NothingToTrain(Exception):  # no error: it leaves the trainer's loop
    """The checkpoint is at the end of the training."""


class _ClockCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Makes the trainer do the work that is due.

    A flag of the trainer's control makes it log, evaluate or save. The event that follows passes
    the result to the clock, which returns the next work.
    """

    def __init__(self, trainer: Trainer, run: ScriptRun, data: _EpochData) -> None:
        self._trainer = trainer
        self._data = data
        self._run = run
        self._clock = run.clock
        self._asked: Step | None = None
        self._validated: list[dict[str, float]] = []
        self._generators: Callable[[], None] | None = None
        self._resumed_generators: Callable[[], None] | None = None
        self._is_skipping = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Restore the state, and do the work that is due before the first step."""
        settle_buckets(self._trainer.model_wrapped)
        checkpoint = self._run.checkpoint
        if checkpoint is not None:
            self._state().restore(checkpoint)
            self._resumed_generators = generators_in(self._clock, checkpoint)
        self._run.release()
        with preserved_generators():
            while (decision := self._clock.due(state.global_step)).step is Step.VALIDATE:
                self._asked = decision.step
                self._trainer.evaluate()
        if decision.step is Step.STOP:
            self._resume_generators()
            raise _NothingToTrain
        self._obey(decision, control)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Choose the batches; restore the generators, if they were saved between two epochs."""
        self._data.set_epoch(int(state.epoch))
        if self._resumed_generators is None:
            return
        if self._is_skipping:
            raise InvalidExperimentError(
                f"the training data ended before the place of step {state.global_step}, from which "
                "the run resumes.\n"
                "Without a length of the data, the trainer counts all steps as one pass, and "
                "cannot return into a later one.\n"
                "Give the dataset a __len__, or let it yield enough records for all steps."
            )
        self._is_skipping = True
        if state.epoch == int(state.epoch):
            self._resume_generators()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Restore the generators once the trainer has skipped to the place in the data."""
        if self._resumed_generators is not None:
            self._resume_generators()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Do the work that is due at this step."""
        self._obey(self._clock.due(state.global_step, early=control.should_log), control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Clear the flags: the work at the end of an epoch was done at its last step."""
        control.should_log = control.should_evaluate = control.should_save = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, object],
        **_: object,
    ) -> None:
        """Report the training metrics."""
        if self._asked is Step.REPORT:
            self._clock.reported(_numbers(logs))
            self._obey(self._clock.due(state.global_step), control)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, object],
        **_: object,
    ) -> None:
        """Report the validation metrics, once all of several datasets were evaluated."""
        if self._asked is not Step.VALIDATE:
            return
        self._validated.append(_numbers(metrics))
        data = self._trainer.eval_dataset
        if isinstance(data, dict) and len(self._validated) < len(data):
            return
        found = {name: value for part in self._validated for name, value in part.items()}
        self._validated.clear()
        self._clock.validated(found)
        self._asked = None
        if self._generators is not None:  # within training
            self._generators()
            self._generators = None
            # Saved by the trainer's hook: its scheduler may still use the metrics.
            self._obey(self._clock.due(state.global_step), control, is_evaluating=True)

    def save_when_asked(self, *_: object, **__: object) -> None:
        """Save in place of the trainer, which has finished its work at this step."""
        if self._asked is Step.CHECKPOINT:
            self._save()
            self._obey(self._clock.due(self._trainer.state.global_step), self._trainer.control)

    def finish(self) -> None:
        """Save the state if a rule of the trainer's (early stopping) ended training."""
        step = self._trainer.state.global_step
        if self._clock.stopped is not None or step >= self._trainer.state.max_steps:
            return
        self._clock.request_stop()
        while (decision := self._clock.due(step)).step is not Step.STOP:
            if decision.step is Step.CHECKPOINT:
                self._save()
            else:
                self._clock.reported({})

    def _obey(
        self, decision: Decision, control: TrainerControl, *, is_evaluating: bool = False
    ) -> None:
        """Set the trainer's flags for the work that is due."""
        if decision.step is not Step.TRAIN:
            share_buffers(self._trainer)
        while decision.step is Step.CHECKPOINT and not is_evaluating:
            self._save()
            decision = self._clock.due(self._trainer.state.global_step)
        self._asked = decision.step
        control.should_log = decision.step is Step.REPORT
        control.should_evaluate = decision.step is Step.VALIDATE
        control.should_save = decision.step is Step.CHECKPOINT
        if decision.step is Step.VALIDATE:
            # A validation must not change the training that follows.
            self._generators = captured_generators()
        if decision.step is Step.STOP:
            control.should_training_stop = True

    def _save(self) -> None:
        self._trainer.store_flos()
        self._clock.save(self._state())

    def _state(self) -> ScriptState:
        trainer = self._trainer
        scaler = getattr(trainer.accelerator, "scaler", None)
        return ScriptState(
            models=[trainer.accelerator.unwrap_model(trainer.model)],
            optimizers=[getattr(trainer.optimizer, "optimizer", trainer.optimizer)],
            schedulers=[trainer.lr_scheduler],
            scalers=[] if scaler is None else [scaler],
            rank=self._run.context.distributed.rank,
            extra=self._add_trainer_state,
        )

    def _add_trainer_state(self, files: StateFiles) -> None:
        trainer = self._trainer
        stateful = [*trainer.callback_handler.callbacks, trainer.control]
        stateful = [each for each in stateful if isinstance(each, ExportableState)]
        states = TrainerState(stateful_callbacks=stateful).stateful_callbacks
        state = dataclasses.replace(trainer.state, stateful_callbacks=states)
        files.documents[_STATE] = dataclasses.asdict(state)

    def _resume_generators(self) -> None:
        if self._resumed_generators is not None:
            self._resumed_generators()
        self._resumed_generators = None


def _numbers(metrics: Mapping[str, object]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and name != "epoch" and not name.endswith(_TIMES)
    }


def _apply(trainer: Trainer, hparams: Mapping[str, object]) -> None:
    """Set the training arguments that hyperparameters of the trial name."""
    args = trainer.args
    for name, value in hparams.items():
        if name in {field.name for field in dataclasses.fields(args)}:
            setattr(args, name, value)
    trainer._train_batch_size = args.train_batch_size  # a copy that the trainer made


def _check(trainer: Trainer) -> None:
    args = trainer.args
    if args.load_best_model_at_end:
        raise InvalidExperimentError(
            "TrainingArguments has load_best_model_at_end=True, which needs the trainer's own "
            "checkpoints.\nRemove it: detcore keeps the best checkpoint, and "
            "'detcore checkpoint list --best' shows it."
        )
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise InvalidExperimentError(
            "the trainer shards the model with DeepSpeed or FSDP, which this adapter cannot save.\n"
            "Train on one device or with DistributedDataParallel."
        )
    if args.ignore_data_skip:
        raise InvalidExperimentError(
            "TrainingArguments has ignore_data_skip=True: a resumed run would read the first "
            "batches of the epoch again.\nRemove it."
        )
    if args.auto_find_batch_size:
        raise InvalidExperimentError(
            "TrainingArguments has auto_find_batch_size=True, so the steps of an epoch are not "
            "known before training.\nSet per_device_train_batch_size instead."
        )

    makes_own = any(
        getattr(type(trainer), name) is not getattr(Trainer, name)
        for name in ("get_eval_dataloader", "evaluate")
    )
    if trainer.eval_dataset is None and not makes_own:
        raise InvalidExperimentError(
            "the trainer has no eval_dataset, and training ends with a validation, whose metric "
            "chooses the best checkpoint.\nGive Trainer an eval_dataset."
        )


def _check_loader(trainer: Trainer, loader: object) -> None:
    """Refuse a loader with which training could not be resumed."""
    if _is_iterable(loader):
        return
    described(_without_accelerate(loader))
    if isinstance(loader, DataLoaderDispatcher) and trainer.args.world_size > 1:
        raise InvalidExperimentError(
            "TrainingArguments has accelerator_config with dispatch_batches=True, with which the "
            "first process loads the batches of all; detcore's loader has each process load its "
            "own.\nRemove it."
        )


def _is_iterable(loader: object) -> bool:
    return isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset)


def _without_accelerate(loader: object) -> object:
    """Return the loader of PyTorch's that Accelerate's wraps, if it is one of Accelerate's."""
    return getattr(loader, "base_dataloader", loader)


def _steps_per_epoch(trainer: Trainer, loader: Sized) -> int | None:
    try:
        batches = len(loader)
    except TypeError:  # an iterable data set without a length
        return None
    accumulated: int = trainer.args.gradient_accumulation_steps
    return max(1, math.ceil(batches / accumulated))


def _plan(
    args: TrainingArguments,
    steps_per_epoch: int | None,
    *,
    metric: str,
    smaller_is_better: bool,
    hparams: Mapping[str, object],
    storage: str | None,
) -> Plan:
    """Return the plan of a script by itself, from its training arguments."""
    length = args.max_steps
    if length <= 0:
        if steps_per_epoch is None:
            raise InvalidExperimentError(
                "the training data has no length, and TrainingArguments no max_steps.\n"
                "Set max_steps."
            )
        length = math.ceil(args.num_train_epochs * steps_per_epoch)

    def period(strategy: IntervalStrategy, steps: float | None) -> int:
        if strategy == IntervalStrategy.EPOCH:
            return steps_per_epoch or 0
        if strategy != IntervalStrategy.STEPS or not steps:
            return 0
        return math.ceil(steps * length) if steps < 1 else int(steps)

    return Plan(
        metric=metric,
        smaller_is_better=smaller_is_better,
        length=length,
        report_every=period(args.logging_strategy, args.logging_steps) or length,
        validate_every=period(args.eval_strategy, args.eval_steps),
        save_every=period(args.save_strategy, args.save_steps),
        seed=args.seed,
        hparams=hparams,
        storage=storage,
    )
