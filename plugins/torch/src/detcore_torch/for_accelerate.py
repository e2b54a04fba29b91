"""Train with a custom Accelerate loop, with detcore's checkpoints and searches.

```python
from detcore_torch.for_accelerate import training

model, optimizer, train_loader, scheduler = accelerator.prepare(...)
with training(accelerator, train_loader, validate=evaluate, epochs=3) as run:
    for batch in run:  # instead of the loops over epochs and batches
        with accelerator.accumulate(model):
            ...
            optimizer.step()
        run.report(train_loss=loss)
```
"""

from __future__ import annotations

import collections
import contextlib
import gc
import math
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidExperimentError, describe
from detcore.trial import Step, read_own_state
from detcore_torch.data.resumable_loader import ResumableLoader, resumable_loader
from detcore_torch.libraries import import_supported, torch
from detcore_torch.process_group import settle_buckets
from detcore_torch.scripts.script_run import (
    Plan,
    Reaction,
    ScriptRun,
    count_steps_per_epoch,
    generators_in,
    hyperparameters,
    name_position,
    open_run,
    restore_callbacks,
)
from detcore_torch.scripts.step_log import StepLog
from detcore_torch.state.model_attributes import ModelAttributes
from detcore_torch.state.random_generators import preserved_generators
from detcore_torch.state.shared_state import attributes_in
from detcore_torch.state.state_files import read_state
from detcore_torch.state.training_state import TrainingState
from detcore_torch.state.user_attributes import TorchCodec, UserAttributes, name_callbacks

import_supported("accelerate", (1, 12), (2,), "accelerate")

from accelerate.data_loader import DataLoaderShard  # noqa: E402  # after the check
from accelerate.utils import DistributedType  # noqa: E402

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["Training", "hyperparameters", "training"]

_FRAMEWORK = "accelerate"
# Arguments that affect the result of training.
_RESULT_ARGUMENTS = ("gradient_accumulation_steps", "mixed_precision")
_SUPPORTED = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def training(
    accelerator: Accelerator,
    train_loader: DataLoaderShard,
    *,
    validate: Callable[[], Mapping[str, float]],
    epochs: float | None = None,
    max_steps: int | None = None,
    report_every: int | None = None,
    validate_every: int | None = None,
    save_every: int | None = None,
    hparams: Mapping[str, object] | None = None,
    metric: str = "val_loss",
    smaller_is_better: bool = True,
    checkpoint_storage: str | None = None,
    inexact_resume: Reaction = "warn",
) -> contextlib.AbstractContextManager[Training]:
    """Restore the state of the prepared objects, and provide the batches to train on.

    The unit is a step: a batch after which the accelerator lets optimizers update. Under ``detcore
    run`` the experiment file decides. A standalone script follows the arguments, and resumes.

    Args:
        accelerator: The ``Accelerator``, after ``prepare``.
        train_loader: The training data, prepared.
        validate: Returns the validation metrics by name; it may switch models to evaluation.
        epochs: Passes over the data that a standalone script trains.
        max_steps: Steps that a standalone script trains; required without `epochs`.
        report_every: Steps between reports; default: `validate_every`.
        validate_every: Steps between validations; default: an epoch.
        save_every: Steps between checkpoints, besides the best and the last; 0 for none. Default:
            `validate_every`.
        hparams: Hyperparameters to record for a standalone script.
        metric: Validation metric that selects the best checkpoint of a standalone script.
        smaller_is_better: Whether a smaller metric is better.
        checkpoint_storage: Path or URL for a standalone script; default: ``DETCORE_HOME``.
        inexact_resume: ``reproducibility.inexact_resume`` of a standalone script.

    Raises:
        SystemExit: With code 75, if the trial was preempted and has saved a checkpoint.
        RunError: If a standalone script would resume a run that started with other arguments.
        InvalidExperimentError: If training with the accelerator or the data could not be resumed.
        InvalidCheckpointError: If the checkpoint does not fit the models.
    """
    _check_arguments(accelerator, train_loader)
    steps_per_epoch = count_steps_per_epoch(train_loader, accelerator.gradient_accumulation_steps)
    length, period = _find_lengths(steps_per_epoch, epochs, max_steps, validate_every)
    plan = Plan(
        metric=metric,
        smaller_is_better=smaller_is_better,
        length=length,
        report_every=report_every or period,
        validate_every=period,
        save_every=period if save_every is None else save_every,
        seed=torch.initial_seed() % (1 << 31),
        hparams=hparams,
        arguments={name: getattr(accelerator, name) for name in _RESULT_ARGUMENTS},
        storage=checkpoint_storage,
        inexact_resume=inexact_resume,
    )
    return _open_training(accelerator, train_loader, validate, plan, steps_per_epoch)


@contextlib.contextmanager
def _open_training(
    accelerator: Accelerator,
    train_loader: DataLoaderShard,
    validate: Callable[[], Mapping[str, float]],
    plan: Plan,
    steps_per_epoch: int | None,
) -> Iterator[Training]:
    with open_run(
        plan,
        framework=_FRAMEWORK,
        steps_per_epoch=steps_per_epoch,
        world_size=("accelerator.num_processes", accelerator.num_processes),
    ) as run:
        opened = Training(accelerator, train_loader, validate, run)
        try:
            yield opened
            opened.finish()
        finally:
            opened.close()


class Training:
    """The batches to train on, and their metrics; created by `training`.

    Checkpoints contain the state of all models, optimizers and schedulers passed to
    ``accelerator.prepare``, of the objects passed to ``accelerator.register_for_checkpointing``,
    and of the gradient scaler. They also contain the variables that the loop changes and that exist
    before it, such as a counter, an average of the model or an unprepared scheduler.

    `detcore_torch.resumable` loads the batches, in an order that depends on the seed of
    ``set_seed`` and differs from PyTorch's order.

    Attributes:
        original: The loader that the accelerator prepared.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        train_loader: DataLoaderShard,
        validate: Callable[[], Mapping[str, float]],
        run: ScriptRun,
    ) -> None:
        self._accelerator = accelerator
        self._loader = train_loader
        self._validate = validate
        self._run = run
        self._clock = run.clock
        self._log = StepLog(run.clock)
        self._is_watched = False
        self._step = run.clock.steps_completed
        self._metrics: dict[str, list[Any]] = {}
        self._is_updated = False  # whether an optimizer has made an update since the last batch
        self._hooks = [
            optimizer.optimizer.register_step_post_hook(self._note_update)
            for optimizer in accelerator._optimizers
        ]
        self._resume: list[Callable[[], None]] = []
        self._variables = _LoopVariables()
        self.original = train_loader.base_dataloader
        chiefs_seed = run.context.distributed.broadcast(torch.initial_seed())
        is_resumed = run.checkpoint is not None
        # A resumed run uses the seed of its checkpoint.
        self._data = _TrackedLoader(
            resumable_loader(self.original, seed=None if is_resumed else chiefs_seed)
        )
        train_loader.base_dataloader = self._data
        for wrapper in _find_wrappers(accelerator):
            settle_buckets(wrapper)
        self._attributes = ModelAttributes([
            accelerator.unwrap_model(model) for model in accelerator._models
        ])  # fmt: skip
        if run.checkpoint is not None:
            document = read_state(run.checkpoint, _FRAMEWORK)
            self._make_state({}).restore(run.checkpoint)
            restore_callbacks(run.clock, run.checkpoint, self._variables)
            self._load_registered(document["registered"])
            self._data.seek(document["position"])
            # The script may change modes or draw numbers before it reads the first batch.
            self._resume = [
                attributes_in(self._attributes.models, run.checkpoint),
                generators_in(self._clock, run.checkpoint, self._attributes.models),
            ]
        run.release()
        self._created = self._make_state({}).list_objects()

    @property
    def step(self) -> int:
        """Steps completed, over all starts of the script."""
        return self._step

    @property
    def epoch(self) -> int:
        """Pass over the data that the last batch belongs to, from 0."""
        return int(self._data.position["epoch"])

    def __iter__(self) -> Iterator[Any]:
        """Yield batches until training ends; do the work that is due between batches."""
        self._watch_state(sys._getframe())
        if self._finish_step():  # such as a validation that an interruption prevented
            self._restore_rest()
            return
        while True:
            self._loader.set_epoch(self._data.loader.epoch)
            for batch in self._loader:
                self._data.advance_position()
                self._restore_rest()
                self._is_updated = False
                self._log.log_batch(self._step + 1, *self._data.latest)
                yield batch
                if self._accelerator.sync_gradients:
                    self._step += 1
                    if self._finish_step():
                        return

    def report(self, **metrics: float | torch.Tensor) -> None:
        """Add training metrics of the current batch; a report contains their means."""
        for name, value in metrics.items():
            number = value.detach() if isinstance(value, torch.Tensor) else value
            self._metrics.setdefault(name, []).append(number)
        self._log.log_losses(self._step + 1, metrics.values())

    def finish(self) -> None:
        """Save the state if the script ended training before its length."""
        if self._clock.stopped is None:
            self._step += self._is_updated  # the batch after which the script left the loop
            self._clock.request_stop()
            self._finish_step()

    def close(self) -> None:
        """Restore the loader and remove the optimizer hooks."""
        self._loader.base_dataloader = self.original
        for hook in self._hooks:
            hook.remove()
        self._variables = _LoopVariables()

    def _note_update(self, *_: object) -> None:
        self._is_updated = True

    def _watch_state(self, frame: types.FrameType) -> None:
        """Check the restored state, once, before a validation may change it."""
        if not self._is_watched:
            self._is_watched = True
            self._variables.start(frame, self._list_saved())
            for restore in self._resume:
                restore()
            self._clock.watch(lambda: self._make_state({}))

    def _restore_rest(self) -> None:
        """Restore the checkpoint's model attributes and generators, once."""
        while self._resume:
            self._resume.pop(0)()

    def _finish_step(self) -> bool:
        """Do the work that is due; return whether training ends here."""
        while (decision := self._clock.due(self._step)).step is not Step.TRAIN:
            if decision.step is Step.REPORT:
                self._clock.reported(self._average_metrics())
            elif decision.step is Step.VALIDATE:
                self._clock.validated(self._run_validation())
            elif decision.step is Step.CHECKPOINT:
                registered = [
                    instance.state_dict() for instance in self._accelerator._custom_objects
                ]
                document = {"registered": registered, "position": self._data.position}
                state = self._make_state(document)
                state.check_objects(self._created)
                self._clock.save(state)
            else:
                if self._clock.stopped == "preempted":
                    self._run.check_completed()  # exits
                return True
        return False

    def _average_metrics(self) -> dict[str, float]:
        values_by_name, self._metrics = self._metrics, {}
        return {
            name: float(torch.stack([torch.as_tensor(value).float() for value in values]).mean())
            for name, values in values_by_name.items()
        }

    def _run_validation(self) -> dict[str, float]:
        """Validate without affecting the training that follows."""
        modules = [module for model in self._accelerator._models for module in model.modules()]
        modes = [module.training for module in modules]
        with preserved_generators():
            metrics = self._validate()
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        return {name: float(value) for name, value in metrics.items()}

    def _make_state(self, rest: Mapping[str, object]) -> TrainingState:
        accelerator = self._accelerator
        return TrainingState(
            attributes=self._attributes,
            optimizers=[wrapper.optimizer for wrapper in accelerator._optimizers],
            schedulers=[wrapper.scheduler for wrapper in accelerator._schedulers],
            scalers=[] if accelerator.scaler is None else [accelerator.scaler],
            rank=self._run.context.distributed.rank,
            callbacks=self._variables,
            extra=lambda files: files.add_state(_FRAMEWORK, rest),
            has_updated=self._is_updated,
            read_others=self._read_others,
        )

    def _list_saved(self) -> list[object]:
        """Return the objects that checkpoints contain anyway."""
        accelerator = self._accelerator
        optimizers, schedulers = accelerator._optimizers, accelerator._schedulers
        return [
            *(module for model in accelerator._models for module in model.modules()),
            *_find_wrappers(accelerator),
            *(item for wrapper in optimizers for item in (wrapper, wrapper.optimizer)),
            *(item for wrapper in schedulers for item in (wrapper, wrapper.scheduler)),
            *accelerator._custom_objects,
        ]

    def _read_others(self) -> dict[str, Any]:
        values = name_position(self._data.position)
        for name, instance in name_callbacks(self._accelerator._custom_objects):
            values |= read_own_state(instance.state_dict, f"registered {name}", codec=TorchCodec())
        return values

    def _load_registered(self, states: list[object]) -> None:
        objects = self._accelerator._custom_objects
        if len(objects) != len(states):
            raise InvalidExperimentError(
                f"the script has registered {len(objects)} objects with "
                f"register_for_checkpointing, and the checkpoint has {len(states)}.\n"
                "Use the code of the checkpoint, or start a new run."
            )
        for instance, state in zip(objects, states, strict=True):
            instance.load_state_dict(state)


class _LoopVariables:
    """The variables of the function with the loop; a `StatefulCallbacks`."""

    def __init__(self) -> None:
        self._attributes: UserAttributes | None = None
        self._saved: Mapping[str, Any] = {}

    def start(self, frame: types.FrameType, saved_objects: Sequence[object]) -> None:
        """Note the values before training, and restore those of the checkpoint."""
        self._attributes = UserAttributes(
            {}, functions={}, frame=frame, ignored_objects=saved_objects
        )
        self._attributes.restore(self._saved)

    def state_dict(self) -> dict[str, Any]:
        """Return the variables that have changed."""
        return {} if self._attributes is None else self._attributes.capture()

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore variables once `start` is called."""
        self._saved = states

    def read_live(self) -> dict[str, Any]:
        """Return the variables that have changed, for the comparison after a resume."""
        return {} if self._attributes is None else self._attributes.read_live()


class _TrackedLoader:
    """A loader that tracks its position although the accelerator reads one batch ahead.

    Attributes:
        loader: The loader.
        position: Its position after the last batch that training used.
        latest: That batch, before it was moved to a device, and the ids of its records.
    """

    def __init__(self, loader: ResumableLoader) -> None:
        self.loader = loader
        self.position = loader.position()
        self.latest: tuple[object, Any] = (None, None)
        self._read: collections.deque[tuple[dict[str, Any], object, Any]] = collections.deque()

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[object]:
        self._read.clear()
        for batch in self.loader:
            self._read.append((self.loader.position(), batch, self.loader.latest_records))
            yield batch

    def advance_position(self) -> None:
        """Advance the position by one batch, which training uses now."""
        self.position, *latest = self._read.popleft()
        self.latest = (latest[0], latest[1])

    def seek(self, position: Mapping[str, object]) -> None:
        """Continue from a position."""
        self.loader.seek(position)
        self.position = dict(position)


def _check_arguments(accelerator: Accelerator, loader: DataLoaderShard) -> None:
    if accelerator.distributed_type not in _SUPPORTED:
        raise InvalidExperimentError(
            f"the accelerator's distributed_type is {accelerator.distributed_type}, which this "
            "adapter cannot save.\nTrain on one device or with DistributedDataParallel."
        )
    if type(loader) is not DataLoaderShard:
        raise InvalidExperimentError(
            f"the training data is {describe(loader)}.\n"
            "training accepts a DataLoader that accelerator.prepare returned, without "
            "dispatch_batches.\nPrepare the loader. For an IterableDataset, set "
            "DataLoaderConfiguration(dispatch_batches=False)."
        )
    if loader.use_stateful_dataloader:
        raise InvalidExperimentError(
            "the accelerator has use_stateful_dataloader=True, but detcore restores the position "
            "in the data itself.\nRemove the option."
        )
    is_stream = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    if accelerator.num_processes > 1 and is_stream:
        raise InvalidExperimentError(
            "the training data is an IterableDataset, which has only one position for "
            f"{accelerator.num_processes} processes.\n"
            "Use a dataset with __getitem__ and __len__, or one process."
        )


def _find_wrappers(accelerator: Accelerator) -> list[torch.nn.Module]:
    """Return the ``DistributedDataParallel`` wrapper of each model.

    Only the script has the wrappers: the accelerator records a model before wrapping it.
    """
    if accelerator.num_processes == 1:
        return []
    kind = torch.nn.parallel.DistributedDataParallel
    # isinstance is slow for a class of ABCMeta, and trusts an object's __class__.
    wrappers = [instance for instance in gc.get_objects() if kind in type(instance).__mro__]
    return [
        wrapper
        for model in accelerator._models  # in the same order on all workers
        for wrapper in wrappers
        if wrapper is model or getattr(wrapper, "module", None) is model
    ]


def _find_lengths(
    steps_per_epoch: int | None,
    epochs: float | None,
    max_steps: int | None,
    validate_every: int | None,
) -> tuple[int, int]:
    """Return a standalone script's training length and validation period, in steps.

    Raises:
        InvalidExperimentError: If the arguments do not determine both.
    """
    period = validate_every or steps_per_epoch
    length = max_steps or (math.ceil(epochs * steps_per_epoch) if epochs and steps_per_epoch else 0)
    if not length or not period:
        raise InvalidExperimentError(
            f"epochs={epochs}, max_steps={max_steps} and validate_every={validate_every} do not "
            "determine the training length and the validation period.\n"
            "Set epochs. For data without a length, set max_steps and validate_every."
        )
    return length, period
