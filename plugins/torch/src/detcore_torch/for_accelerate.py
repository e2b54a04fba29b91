"""Train with a loop of one's own and Accelerate, with detcore's checkpoints and searches.

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
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidExperimentError, describe
from detcore.trial import Step
from detcore_torch.data.resumable_loader import ResumableLoader, resumable_loader
from detcore_torch.libraries import supported, torch
from detcore_torch.process_group import settle_buckets
from detcore_torch.scripts.script_run import (
    Plan,
    ScriptRun,
    count_steps_per_epoch,
    generators_in,
    hyperparameters,
    open_run,
)
from detcore_torch.state.model_attributes import ModelAttributes
from detcore_torch.state.random_generators import preserved_generators
from detcore_torch.state.shared_state import attributes_in
from detcore_torch.state.state_files import read_state
from detcore_torch.state.training_state import TrainingState

supported("accelerate", (1, 12), (2,), "accelerate")

from accelerate.data_loader import DataLoaderShard  # noqa: E402  # after the check
from accelerate.utils import DistributedType  # noqa: E402

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["Training", "hyperparameters", "training"]

_FRAMEWORK = "accelerate"
# Arguments on which the result of training depends.
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
) -> contextlib.AbstractContextManager[Training]:
    """Restore the state of the prepared objects, and provide the batches to train on.

    Under ``detcore run``, the experiment file says how far to train and when to report, validate
    and save. It counts steps: batches after which the accelerator lets optimizers make an update.
    A script by itself follows the arguments, and continues if it is started again after an
    interruption.

    Args:
        accelerator: The ``Accelerator``, after ``prepare``.
        train_loader: The training data, prepared.
        validate: Returns the validation metrics by name; it may switch models to evaluation.
        epochs: Passes over the data that a script by itself trains.
        max_steps: Steps that a script by itself trains; one of the two is needed.
        report_every: Steps between reports; default: as often as it validates.
        validate_every: Steps between validations; default: an epoch.
        save_every: Steps between checkpoints, besides those of the best validations and the last;
            0 for none; default: as often as it validates.
        hparams: Hyperparameters to record for a script by itself.
        metric: The validation metric that chooses the best checkpoint of a script by itself.
        smaller_is_better: Its direction.
        checkpoint_storage: Path or URL for a script by itself; default: ``DETCORE_HOME``.

    Raises:
        SystemExit: With code 75, if the trial was preempted and has saved a checkpoint.
        RunError: If a script by itself would continue a run that started with other arguments.
        InvalidExperimentError: If training could not be resumed with the accelerator or the data.
        InvalidCheckpointError: If the checkpoint does not fit the models.
    """
    _check(accelerator, train_loader)
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
    """The batches to train on, and their metrics; made by `training`.

    The state is that of all models, optimizers and schedulers given to ``accelerator.prepare``, of
    the objects given to ``accelerator.register_for_checkpointing``, and of the gradient scaler.
    `detcore_torch.resumable` makes the batches, in an order that depends on the seed of
    ``set_seed`` and differs from PyTorch's own.

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
        self._step = run.clock.steps_completed
        self._metrics: dict[str, list[Any]] = {}
        self._is_updated = False  # whether an optimizer has made an update since the last batch
        self._hooks = [
            each.optimizer.register_step_post_hook(self._note_update)
            for each in accelerator._optimizers
        ]
        self._resume: list[Callable[[], None]] = []
        self.original = train_loader.base_dataloader
        chiefs_seed = run.context.distributed.broadcast(torch.initial_seed())
        is_resumed = run.checkpoint is not None
        # A resumed run takes the seed of its checkpoint.
        self._data = _TrackedLoader(
            resumable_loader(self.original, seed=None if is_resumed else chiefs_seed)
        )
        train_loader.base_dataloader = self._data
        for wrapper in _wrappers(accelerator):
            settle_buckets(wrapper)
        self._attributes = ModelAttributes([
            accelerator.unwrap_model(model) for model in accelerator._models
        ])  # fmt: skip
        if run.checkpoint is not None:
            document = read_state(run.checkpoint, _FRAMEWORK)
            self._state({}).restore(run.checkpoint)
            self._load_registered(document["registered"])
            self._data.seek(document["position"])
            # The script may change modes or draw numbers before it takes the first batch.
            self._resume = [
                attributes_in(self._attributes.models, run.checkpoint),
                generators_in(self._clock, run.checkpoint, self._attributes.models),
            ]
        run.release()
        self._created = self._state({}).list_objects()

    @property
    def step(self) -> int:
        """Steps completed, over all starts of the script."""
        return self._step

    @property
    def epoch(self) -> int:
        """Pass over the data that the last batch belongs to, from 0."""
        return int(self._data.position["epoch"])

    def __iter__(self) -> Iterator[Any]:
        """Yield batches until training ends; between them, do the work that is due."""
        if self._finish_step():  # such as a validation for which there was no time
            self._restore_rest()
            return
        while True:
            self._loader.set_epoch(self._data.loader.epoch)
            for batch in self._loader:
                self._data.take()
                self._restore_rest()
                self._is_updated = False
                yield batch
                if self._accelerator.sync_gradients:
                    self._step += 1
                    if self._finish_step():
                        return

    def report(self, **metrics: float | torch.Tensor) -> None:
        """Add training metrics of the present batch; a report contains their means."""
        for name, value in metrics.items():
            kept = value.detach() if isinstance(value, torch.Tensor) else value
            self._metrics.setdefault(name, []).append(kept)

    def finish(self) -> None:
        """Save the state if the script ended training before its length."""
        if self._clock.stopped is None:
            self._step += self._is_updated  # the batch after which the script left the loop
            self._clock.request_stop()
            self._finish_step()

    def close(self) -> None:
        """Give the loader and the optimizers back."""
        self._loader.base_dataloader = self.original
        for hook in self._hooks:
            hook.remove()

    def _note_update(self, *_: object) -> None:
        self._is_updated = True

    def _restore_rest(self) -> None:
        """Restore the attributes of models and the generators of the checkpoint, once."""
        while self._resume:
            self._resume.pop(0)()

    def _finish_step(self) -> bool:
        """Do the work that is due; return whether training ends here."""
        while (decision := self._clock.due(self._step)).step is not Step.TRAIN:
            if decision.step is Step.REPORT:
                self._clock.reported(self._means())
            elif decision.step is Step.VALIDATE:
                self._clock.validated(self._validated())
            elif decision.step is Step.CHECKPOINT:
                registered = [each.state_dict() for each in self._accelerator._custom_objects]
                rest = {"registered": registered, "position": self._data.position}
                state = self._state(rest)
                state.check_objects(self._created)
                self._clock.save(state)
            else:
                if self._clock.stopped == "preempted":
                    self._run.finish()  # exits
                return True
        return False

    def _means(self) -> dict[str, float]:
        found, self._metrics = self._metrics, {}
        return {
            name: float(torch.stack([torch.as_tensor(each).float() for each in values]).mean())
            for name, values in found.items()
        }

    def _validated(self) -> dict[str, float]:
        """Validate; the training that follows is as if there had been no validation."""
        modules = [each for model in self._accelerator._models for each in model.modules()]
        modes = [each.training for each in modules]
        with preserved_generators():
            metrics = self._validate()
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        return {name: float(value) for name, value in metrics.items()}

    def _state(self, rest: Mapping[str, object]) -> TrainingState:
        accelerator = self._accelerator
        return TrainingState(
            attributes=self._attributes,
            optimizers=[each.optimizer for each in accelerator._optimizers],
            schedulers=[each.scheduler for each in accelerator._schedulers],
            scalers=[] if accelerator.scaler is None else [accelerator.scaler],
            rank=self._run.context.distributed.rank,
            extra=lambda files: files.add_state(_FRAMEWORK, rest),
            has_updated=self._is_updated,
        )

    def _load_registered(self, states: list[object]) -> None:
        objects = self._accelerator._custom_objects
        if len(objects) != len(states):
            raise InvalidExperimentError(
                f"the script has registered {len(objects)} objects with "
                f"register_for_checkpointing, and the checkpoint has {len(states)}.\n"
                "Use the code that the checkpoint was made with, or start a new run."
            )
        for each, state in zip(objects, states, strict=True):
            each.load_state_dict(state)


class _TrackedLoader:
    """A loader that knows its position although the accelerator reads a batch ahead.

    Attributes:
        loader: The loader.
        position: Its position after the last batch that training took.
    """

    def __init__(self, loader: ResumableLoader) -> None:
        self.loader = loader
        self.position = loader.position()
        self._read: collections.deque[dict[str, Any]] = collections.deque()

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[object]:
        self._read.clear()
        for batch in self.loader:
            self._read.append(self.loader.position())
            yield batch

    def take(self) -> None:
        """Advance the position by one batch, which training takes now."""
        self.position = self._read.popleft()

    def seek(self, position: Mapping[str, object]) -> None:
        """Continue from a position."""
        self.loader.seek(position)
        self.position = dict(position)


def _check(accelerator: Accelerator, loader: DataLoaderShard) -> None:
    if accelerator.distributed_type not in _SUPPORTED:
        raise InvalidExperimentError(
            f"the accelerator's distributed_type is {accelerator.distributed_type}, which this "
            "adapter cannot save.\nTrain on one device or with DistributedDataParallel."
        )
    if type(loader) is not DataLoaderShard:
        raise InvalidExperimentError(
            f"the training data is {describe(loader)}.\n"
            "training takes a DataLoader that accelerator.prepare returned, without "
            "dispatch_batches.\nPrepare the loader; for an IterableDataset, set "
            "DataLoaderConfiguration(dispatch_batches=False)."
        )
    if loader.use_stateful_dataloader:
        raise InvalidExperimentError(
            "the accelerator has use_stateful_dataloader=True, and detcore continues the data "
            "itself.\nRemove it."
        )
    is_stream = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    if accelerator.num_processes > 1 and is_stream:
        raise InvalidExperimentError(
            "the training data is an IterableDataset, of which each of "
            f"{accelerator.num_processes} processes would need its own position.\n"
            "Use a dataset with __getitem__ and __len__, or one process."
        )


def _wrappers(accelerator: Accelerator) -> list[torch.nn.Module]:
    """Return the ``DistributedDataParallel`` of each model, which only the script has.

    The accelerator notes a model before it wraps it, and a model does not know its wrapper.
    """
    if accelerator.num_processes == 1:
        return []
    kind = torch.nn.parallel.DistributedDataParallel
    # isinstance is slow for a class of ABCMeta, and trusts an object's __class__.
    wrappers = [each for each in gc.get_objects() if kind in type(each).__mro__]
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
    """Return the steps that a script by itself trains, and those between two validations.

    Raises:
        InvalidExperimentError: If the arguments do not give both.
    """
    period = validate_every or steps_per_epoch
    length = max_steps or (math.ceil(epochs * steps_per_epoch) if epochs and steps_per_epoch else 0)
    if not length or not period:
        raise InvalidExperimentError(
            f"epochs={epochs}, max_steps={max_steps} and validate_every={validate_every} give "
            "training no length or no validations.\n"
            "Set epochs; for data without a length, set max_steps and validate_every."
        )
    return length, period
