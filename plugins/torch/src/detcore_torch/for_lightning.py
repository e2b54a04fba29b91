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
import importlib.util
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from detcore.errors import InvalidExperimentError
from detcore.trial import Step
from detcore_torch.libraries import supported, torch
from detcore_torch.scripts.lightning_clock import PreemptedError, added_callbacks
from detcore_torch.scripts.lightning_data import TrainingData, exact_validation, training_data
from detcore_torch.scripts.lightning_state import FRAMEWORK, StateIO
from detcore_torch.scripts.script_run import (
    Plan,
    ScriptRun,
    hyperparameters,
    open_run,
)
from detcore_torch.state.random_generators import preserved_generators
from detcore_torch.state.state_files import read_state

# The same library has two distributions.
supported(
    "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning",
    (2, 5),
    (3,),
    "lightning",
)

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule, LightningModule, Trainer
    from torch.utils.data import DataLoader

__all__ = ["fit", "hyperparameters"]

# Arguments on which the result of training depends, besides its length.
_RESULT_ARGUMENTS = (
    "accumulate_grad_batches", "gradient_clip_algorithm", "gradient_clip_val",
    "limit_train_batches", "precision",
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
        checkpoint_storage: Path or URL for a script by itself; default: ``DETCORE_HOME``.

    Raises:
        SystemExit: With code 75, if the trial was preempted and has saved a checkpoint.
        InvalidExperimentError: If the trainer is configured in a way that cannot be resumed, or
            ends training before the experiment's length.
        RunError: If a script by itself would continue a run that started with other arguments.
        InvalidCheckpointError: If the checkpoint does not fit the model.
    """
    if hasattr(train_dataloaders, "train_dataloader"):
        train_dataloaders, datamodule = None, train_dataloaders
    _check_trainer(trainer, model)
    with training_data(trainer, train_dataloaders, datamodule) as data:
        steps = _count_steps(trainer, len(data))
        plan = _make_plan(
            trainer,
            steps,
            metric=metric,
            smaller_is_better=smaller_is_better,
            save_every=save_every,
            hparams=hparams,
            storage=checkpoint_storage,
        )
        sources: dict[str, object] = {"datamodule": datamodule}
        if datamodule is None:
            sources = {"train_dataloaders": data, "val_dataloaders": val_dataloaders}
        _fit(trainer, model, data, sources, plan, steps)


def _make_plan(
    trainer: Trainer,
    steps: int,
    *,
    metric: str,
    smaller_is_better: bool,
    save_every: int | None,
    hparams: Mapping[str, object] | None,
    storage: str | None,
) -> Plan:
    """Return the plan of a script by itself, from its trainer, with `steps` in an epoch."""
    validate_every = _find_validation_period(trainer, steps)
    return Plan(
        metric=metric,
        smaller_is_better=smaller_is_better,
        length=_plan_steps(trainer, steps),
        report_every=trainer.log_every_n_steps or validate_every,
        validate_every=validate_every,
        save_every=validate_every if save_every is None else save_every,
        seed=torch.initial_seed() % (1 << 31),
        hparams=hparams,
        arguments={name: getattr(trainer, name) for name in _RESULT_ARGUMENTS},
        storage=storage,
    )


def _fit(
    trainer: Trainer,
    model: LightningModule,
    data: TrainingData,
    sources: Mapping[str, object],
    plan: Plan,
    steps: int,
) -> None:
    files = StateIO(trainer)
    with open_run(
        plan,
        framework=FRAMEWORK,
        steps_per_epoch=steps,
        world_size=("trainer.world_size", trainer.world_size),
    ) as run:
        # Learning rate schedules that the model derives from the trainer use these.
        length = run.length
        trainer.fit_loop.epoch_loop.max_steps = -1 if length is None else length
        trainer.fit_loop.max_epochs = -1 if length is None else math.ceil(length / steps)
        folder = None if run.checkpoint is None else str(run.checkpoint)
        trainer.strategy.checkpoint_io = files
        try:
            with exact_validation(trainer):
                is_new = run.clock.steps_completed == 0
                if is_new and not _begin(trainer, model, sources, run, folder):
                    return
                if run.checkpoint is not None:
                    data.loader.seek(read_state(run.checkpoint, FRAMEWORK)["position"])
                    trainer.num_sanity_val_steps = 0  # Lightning's own rule where it resumes
                callbacks = added_callbacks(trainer, data, run, files)
                with callbacks, contextlib.suppress(PreemptedError):
                    trainer.fit(model, ckpt_path=folder, **sources)
        finally:
            trainer.strategy.checkpoint_io = files.original


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


def _check_trainer(trainer: Trainer, model: LightningModule) -> None:
    """Refuse settings with which training could not be resumed.

    Raises:
        InvalidExperimentError: The message names the setting.
    """

    def refuse(name: str, reason: str) -> None:
        raise InvalidExperimentError(f"the trainer has {name}, {reason}")

    strategy = type(trainer.strategy).__name__
    if strategy not in ("SingleDeviceStrategy", "DDPStrategy"):
        refuse(
            f"the strategy {strategy}",
            "which this adapter cannot save.\nTrain on one device or with DDPStrategy.",
        )
    if trainer.fast_dev_run or trainer.overfit_batches:
        refuse("fast_dev_run or overfit_batches", "which are for trainer.fit.\nRemove them.")
    if trainer.reload_dataloaders_every_n_epochs:
        refuse("reload_dataloaders_every_n_epochs", "so the position is lost.\nRemove it.")
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        refuse(
            "a val_check_interval in time", "which differs from run to run.\nGive it in batches."
        )
    for callback in trainer.callbacks:
        if type(callback).__name__ in ("BatchSizeFinder", "LearningRateFinder"):
            refuse(
                type(callback).__name__,
                "which trains before training.\nUse Tuner(trainer) in a script of its own.",
            )
    if not model.automatic_optimization and trainer.max_steps > 0:
        refuse(
            "max_steps, and the model optimizes manually",
            "so each update of an optimizer counts.\nSet max_epochs instead.",
        )


def _count_steps(trainer: Trainer, batches: int) -> int:
    """Return the updates of the optimizer in an epoch of some batches."""
    limit = trainer.limit_train_batches
    batches = min(limit, batches) if isinstance(limit, int) else int(limit * batches)
    accumulated: int = trainer.accumulate_grad_batches
    return max(1, math.ceil(batches / accumulated))


def _plan_steps(trainer: Trainer, steps: int) -> int:
    """Return the steps that the trainer itself would train, with `steps` in an epoch.

    Raises:
        InvalidExperimentError: If it has no limit.
    """
    limits = [trainer.max_steps] if trainer.max_steps > 0 else []
    epochs = 1000 if trainer.max_epochs is None and not limits else trainer.max_epochs
    if epochs is not None and epochs > 0:
        limits.append(epochs * steps)
    if not limits:
        raise InvalidExperimentError(
            "the trainer has neither max_steps nor max_epochs, so its training has no end.\n"
            "Set one of them."
        )
    return int(min(limits))


def _find_validation_period(trainer: Trainer, steps: int) -> int:
    """Return the steps between two validations, at least 1, with `steps` in an epoch."""
    interval, epochs = trainer.val_check_interval, trainer.check_val_every_n_epoch
    accumulated: int = trainer.accumulate_grad_batches
    if isinstance(interval, int):
        return max(1, interval // accumulated)
    return max(1, int(steps * (epochs or 1) * interval))
