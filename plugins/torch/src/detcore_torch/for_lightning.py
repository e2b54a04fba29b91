"""Train with the `Trainer` of Lightning, with detcore's checkpoints and searches.

```python
from detcore_torch.for_lightning import fit

trainer = Trainer(max_epochs=3)
fit(trainer, model, train_loader, val_loader)  # instead of trainer.fit(...)
```

Lightning validates inside a batch and calls hooks between epochs, so the state is complete at two
places only: when it asks the data for the next batch, and before an epoch starts. There, at a
*boundary*, detcore does the work that is due.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidExperimentError, describe
from detcore.trial import Step
from detcore_torch._group import settle_buckets
from detcore_torch._lightning_settings import (
    check_prepared,
    check_trainer,
    planned_steps,
    steps_per_epoch,
    validation_period,
)
from detcore_torch._lightning_validation import exact_validation, logged_metrics, unwrapped_model
from detcore_torch._model_attributes import ModelAttributes
from detcore_torch._resumable import ResumableLoader, resumable_loader
from detcore_torch._script import (
    Plan,
    ScriptRun,
    ScriptState,
    add_document,
    captured_generators,
    check_workers,
    generators_in,
    hyperparameters,
    open_run,
    read_document,
)
from detcore_torch._seeding import preserved_generators
from detcore_torch._torch import torch
from detcore_torch._versions import supported

# The same library has two distributions.
supported(
    "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning",
    (2, 5),
    (3,),
    "lightning",
)

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    from torch.utils.data import DataLoader

__all__ = ["fit", "hyperparameters"]

_FRAMEWORK = "lightning"
_NEVER = 1 << 62  # batches between validations
# Saved by `ScriptState`, or arguments of constructors: the script makes those objects again.
_NOT_KEPT = (
    "state_dict", "optimizer_states", "lr_schedulers", "hparams_name", "hyper_parameters",
    "hparams_type", "datamodule_hparams_name", "datamodule_hyper_parameters",
)  # fmt: skip


def fit(
    trainer: Trainer,
    model: LightningModule,
    train_dataloaders: DataLoader | LightningDataModule | None = None,
    val_dataloaders: object = None,
    datamodule: LightningDataModule | None = None,
    *,
    hparams: Mapping[str, object] | None = None,
    metric: str = "val_loss",
    smaller_is_better: bool = True,
    save_every: int | None = None,
    checkpoint_storage: str | None = None,
) -> None:
    """Train as ``trainer.fit(...)`` does, under detcore.

    Under ``detcore run``, the experiment file says how far to train and when to report, validate
    and save. It counts steps: batches after which an optimizer made an update. A script by itself
    follows its trainer, and continues if it is started again after an interruption.

    Training data is one ``DataLoader`` with a length. `detcore_torch.resumable` makes its batches,
    in an order that depends on the seed of ``seed_everything`` and differs from PyTorch's own.

    Args:
        trainer: The ``Trainer``.
        model: The ``LightningModule``.
        train_dataloaders: Training data, or a ``LightningDataModule``, as for ``Trainer.fit``.
        val_dataloaders: Validation data, as for ``Trainer.fit``.
        datamodule: As for ``Trainer.fit``.
        hparams: Hyperparameters to record for a script by itself.
        metric: The validation metric that chooses the best checkpoint of a script by itself.
        smaller_is_better: Its direction.
        save_every: Steps between checkpoints of a script by itself, besides those of the best
            validations and the last; 0 for none; None: as often as it validates.
        checkpoint_storage: Path or URL of the checkpoints of a script by itself; default:
            ``DETCORE_HOME``.

    Raises:
        SystemExit: With code 75, if the trial was preempted and has saved a checkpoint.
        InvalidExperimentError: If the trainer is configured in a way that cannot be resumed, or
            ends training before the experiment's length.
        InvalidCheckpointError: If the checkpoint does not fit the model.
    """
    if hasattr(train_dataloaders, "train_dataloader"):
        train_dataloaders, datamodule = None, train_dataloaders
    check_trainer(trainer, model)
    with _training_data(trainer, train_dataloaders, datamodule) as data:
        steps = steps_per_epoch(trainer, len(data))
        validate_every = validation_period(trainer, steps)
        plan = Plan(
            metric=metric,
            smaller_is_better=smaller_is_better,
            length=planned_steps(trainer, steps),
            report_every=trainer.log_every_n_steps or validate_every,
            validate_every=validate_every,
            save_every=validate_every if save_every is None else save_every,
            seed=torch.initial_seed() % (1 << 31),
            hparams=dict(hparams or {}),
            storage=checkpoint_storage,
        )
        with open_run(plan, framework=_FRAMEWORK, steps_per_epoch=steps) as run:
            check_workers("trainer.world_size", trainer.world_size, run)
            # Learning rate schedules that the model derives from the trainer use these.
            length = run.length
            trainer.fit_loop.epoch_loop.max_steps = -1 if length is None else length
            trainer.fit_loop.max_epochs = -1 if length is None else math.ceil(length / steps)
            sources: dict[str, object] = {"datamodule": datamodule}
            if datamodule is None:
                sources = {"train_dataloaders": data, "val_dataloaders": val_dataloaders}
            run.finish(_fit(trainer, model, data, sources, run))


def _fit(
    trainer: Trainer,
    model: LightningModule,
    data: _TrainingData,
    sources: Mapping[str, object],
    run: ScriptRun,
) -> int:
    """Train; return the number of steps completed."""
    files = _StateIO(trainer)
    callback = _make_callback(trainer, data, run, files)
    folder = None if run.checkpoint is None else str(run.checkpoint)
    trainer.strategy.checkpoint_io = files
    try:
        with exact_validation(trainer):
            if not _begin(trainer, model, sources, run, folder):
                _restore_ended(trainer, model, sources, run)
                return run.clock.steps_completed
            if run.checkpoint is not None:
                data.loader.seek(read_document(run.checkpoint, _FRAMEWORK)["position"])
                trainer.num_sanity_val_steps = 0  # Lightning's own rule where it resumes
            trainer.callbacks.insert(0, callback)
            with contextlib.suppress(_Preempted):
                trainer.fit(model, ckpt_path=folder, **sources)
    finally:
        trainer.strategy.checkpoint_io = files.original
        if callback in trainer.callbacks:
            trainer.callbacks.remove(callback)
    return run.clock.steps_completed


def _begin(
    trainer: Trainer,
    model: LightningModule,
    sources: Mapping[str, object],
    run: ScriptRun,
    folder: str | None,
) -> bool:
    """Validate, if that is due before the first step; return whether there is any training."""
    given = {name: value for name, value in sources.items() if name != "train_dataloaders"}
    if "val_dataloaders" in given:
        given["dataloaders"] = given.pop("val_dataloaders")
    with preserved_generators():
        while (decision := run.clock.due(run.clock.steps_completed)).step is Step.VALIDATE:
            results = trainer.validate(model, ckpt_path=folder, verbose=False, **given)
            run.clock.validated({name: v for each in results for name, v in each.items()})
    return decision.step is not Step.STOP


def _restore_ended(
    trainer: Trainer, model: LightningModule, sources: Mapping[str, object], run: ScriptRun
) -> None:
    """Restore the state for the code after a training that had ended when it was killed."""
    if run.checkpoint is None:
        return
    trainer.fit_loop.max_epochs = trainer.num_sanity_val_steps = 0
    trainer.fit(model, **sources)  # trains nothing, but makes optimizers and schedulers
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
    state = ScriptState(
        attributes=ModelAttributes([model]), optimizers=trainer.optimizers, schedulers=schedulers
    )
    state.restore(run.checkpoint)
    generators_in(run.clock, run.checkpoint)()


class _Preempted(Exception):  # no error: it leaves the trainer's loop
    """The trial was preempted and has saved a checkpoint."""


class _TrainingData:
    """The training data; Lightning reaches a boundary when it asks for the next batch.

    Attributes:
        loader: Its batches.
        boundary: Called before each batch; returns whether training ends here.
    """

    def __init__(self, loader: ResumableLoader) -> None:
        self.loader = loader
        self.boundary: Callable[[], bool] = bool

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[object]:
        batches = iter(self.loader)
        end = object()
        while not self.boundary() and (batch := next(batches, end)) is not end:
            yield batch

    def state_dict(self) -> dict[str, object]:
        """Return nothing: detcore saves the position itself, also between two epochs."""
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Do nothing; see `state_dict`."""


class _StateIO:
    """Hands the trainer's checkpoints to detcore, and reads them; others are the user's.

    Attributes:
        original: Saves the checkpoints of the user's own callbacks.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.original = trainer.strategy.checkpoint_io
        self._trainer = trainer
        self._taken: dict[str, Any] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self.original, name)

    def take(self) -> Mapping[str, Any]:
        """Return Lightning's part of the state; empty on workers other than the chief."""
        self._taken = {}
        self._trainer.save_checkpoint(_FRAMEWORK, weights_only=False)
        return self._taken

    def save_checkpoint(
        self, checkpoint: Mapping[str, object], path: str | Path, *args: object, **kw: object
    ) -> None:
        """Keep a checkpoint for detcore, or save a user's."""
        if path == _FRAMEWORK:
            self._taken = {key: v for key, v in checkpoint.items() if key not in _NOT_KEPT}
        else:
            self.original.save_checkpoint(checkpoint, path, *args, **kw)

    def load_checkpoint(self, path: str | Path, *args: object, **kw: object) -> object:
        """Read a checkpoint; the callback restores optimizers and schedulers."""
        folder = Path(path)
        if not (folder / f"{_FRAMEWORK}.json").is_file():
            return self.original.load_checkpoint(path, *args, **kw)
        model = self._trainer.lightning_module
        ScriptState(attributes=ModelAttributes([model])).restore_models(folder)
        parts = {"state_dict": model.state_dict(), "optimizer_states": [], "lr_schedulers": []}
        return {**read_document(folder, _FRAMEWORK)["trainer"], **parts}


def _make_callback(
    trainer: Trainer, data: _TrainingData, run: ScriptRun, files: _StateIO
) -> Callback:
    """Return the callback, as a `Callback` of the package that the trainer is from."""
    package = next(
        (name for name in ("lightning.pytorch", "pytorch_lightning")
         if any(each.__module__.startswith(f"{name}.") for each in type(trainer).__mro__)), None
    )  # fmt: skip
    if package is None:
        raise InvalidExperimentError(
            f"the trainer is {describe(trainer)}.\nfit takes a Trainer of Lightning."
        )
    base = importlib.import_module(package).Callback
    return type("ClockCallback", (_ClockCallback, base), {})(trainer, data, run, files)


class _ClockCallback:
    """Makes the trainer do the work that is due.

    Args:
        trainer: The trainer, which calls this before its other callbacks.
        data: Its training data.
        run: The run.
        files: Takes Lightning's part of the state.
    """

    def __init__(
        self, trainer: Trainer, data: _TrainingData, run: ScriptRun, files: _StateIO
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
        self._resumed_generators: Callable[[], None] | None = None
        self._unwrapped = contextlib.ExitStack()
        self._attributes = ModelAttributes([])
        data.boundary = self._boundary

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the limit, which Lightning would obey before the boundary."""
        self._attributes = ModelAttributes([pl_module])
        trainer.fit_loop.epoch_loop.max_steps = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the state, and take over the trainer's periods and SIGTERM."""
        check_prepared(trainer)
        settle_buckets(trainer.strategy.model)
        if self._run.checkpoint is not None:
            self._state({}).restore(self._run.checkpoint)
            self._resumed_generators = generators_in(self._clock, self._run.checkpoint)
        self._run.release()
        self._updates = trainer.global_step
        trainer.fit_loop.min_epochs = 0
        trainer.fit_loop.epoch_loop.min_steps = None
        trainer.val_check_batch = _NEVER
        if trainer.check_val_every_n_epoch is not None:
            trainer.check_val_every_n_epoch = 1
        if threading.current_thread() is threading.main_thread():
            # Lightning would leave training before the next boundary.
            signal.signal(signal.SIGTERM, self._sigterm)
        trainer._signal_connector.received_sigterm = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do the work that is due between two epochs."""
        self._data.loader.set_epoch(trainer.current_epoch)
        if self._boundary(is_between_epochs=True):
            raise StopIteration  # which ends the trainer's loop

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        """Report, if that is due, and have Lightning validate, if that is."""
        trainer.val_check_batch = _NEVER
        if trainer.global_step == self._updates:
            return
        self._updates = trainer.global_step
        self._steps += 1
        decision = self._clock.due(self._steps)
        if decision.step is Step.REPORT:
            self._clock.reported(logged_metrics(trainer))
            decision = self._clock.due(self._steps)
        self._is_due = decision.step is not Step.TRAIN
        # At the end the clock wants the checkpoint first, and Lightning's callbacks the validation.
        is_at_end = self._is_due and self._steps >= self._clock.operation_length
        if decision.step is Step.VALIDATE or (is_at_end and not self._clock.interrupt_requested):
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

    def _boundary(self, *, is_between_epochs: bool = False) -> bool:
        """Do the work that is due between two batches; return whether training ends here."""
        if self._resumed_generators is not None:
            self._resumed_generators()
            self._resumed_generators = None
        if not self._is_due:
            return False
        self._is_due = False
        while (decision := self._clock.due(self._steps)).step is not Step.TRAIN:
            if decision.step is Step.REPORT:
                self._clock.reported({})
            elif decision.step is Step.VALIDATE:
                self._validated()
            elif decision.step is Step.CHECKPOINT:
                self._save(is_between_epochs)
            elif self._clock.stopped == "preempted":
                raise _Preempted
            else:
                self._trainer.should_stop = True
                return True
        return False

    def _validated(self) -> None:
        if self._validation is None:
            raise InvalidExperimentError(
                f"a validation is due at step {self._steps}, and the trainer did not make one.\n"
                "A callback may have changed limit_val_batches or val_check_batch.\n"
                "Leave both as they are."
            )
        self._clock.validated(self._validation)
        self._validation = None
        if self._trainer.should_stop:  # as EarlyStopping does
            self._clock.request_stop()

    def _save(self, is_between_epochs: bool) -> None:
        taken = self._files.take()
        if is_between_epochs and taken:
            # Lightning has announced the next epoch already, and does so again when it resumes.
            for counts in taken["loops"]["fit_loop"]["epoch_progress"].values():
                counts["ready"] = counts["started"]
        self._clock.save(self._state({"trainer": taken, "position": self._data.loader.position()}))

    def _state(self, rest: Mapping[str, object]) -> ScriptState:
        trainer = self._trainer
        return ScriptState(
            attributes=self._attributes,
            optimizers=trainer.optimizers,
            schedulers=[config.scheduler for config in trainer.lr_scheduler_configs],
            rank=self._run.context.distributed.rank,
            extra=lambda files: add_document(files, _FRAMEWORK, rest),
        )


@contextlib.contextmanager
def _training_data(
    trainer: Trainer, loader: DataLoader | None, datamodule: LightningDataModule | None
) -> Iterator[_TrainingData]:
    """Provide the training data; a datamodule gives it to the trainer until the block ends."""
    if datamodule is None:
        yield _wrapped(trainer, loader)
        return
    if trainer.world_size > 1:
        raise InvalidExperimentError(
            f"fit was given a datamodule, and the trainer has {trainer.world_size} processes, of "
            "which only one may prepare its data.\n"
            "Prepare the datamodule before, and give fit its data loaders."
        )
    with preserved_generators():
        datamodule.prepare_data()
        datamodule.setup("fit")
        data = _wrapped(trainer, datamodule.train_dataloader())
    setup = datamodule.setup
    # The trainer would prepare the datamodule again, and a random split might differ.
    replaced = {
        "train_dataloader": lambda: data,
        "prepare_data": lambda: None,
        "setup": lambda stage: None if stage == "fit" else setup(stage),
    }
    vars(datamodule).update(replaced)
    try:
        yield data
    finally:
        for name in replaced:
            del vars(datamodule)[name]


def _wrapped(trainer: Trainer, loader: DataLoader | None) -> _TrainingData:
    if loader is None or isinstance(loader, list | tuple | dict):
        raise InvalidExperimentError(
            f"the training data is {describe(loader)}.\n"
            "detcore continues one torch.utils.data.DataLoader from its position.\n"
            "Pass one to fit, or a datamodule that returns one; combine several in a dataset."
        )
    if trainer.world_size > 1:
        # Gives the loader a DistributedSampler, as Lightning does with one that it knows.
        loader = trainer._data_connector._prepare_dataloader(loader, shuffle=True, mode=None)
    found = loader if isinstance(loader, ResumableLoader) else resumable_loader(loader)
    try:
        len(found)
    except TypeError as error:
        raise InvalidExperimentError(
            f"the training dataset, {describe(found.dataset)}, has no length, so Lightning reads "
            "a batch ahead and the position is not known.\nGive the dataset a __len__."
        ) from error
    return _TrainingData(found)
