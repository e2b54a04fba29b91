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

from detcore.trial import Step
from detcore_torch._lightning_clock import PreemptedError, added_callbacks
from detcore_torch._lightning_data import TrainingData, training_data
from detcore_torch._lightning_settings import (
    RESULT_ARGUMENTS,
    check_trainer,
    planned_steps,
    steps_per_epoch,
    validation_period,
)
from detcore_torch._lightning_state import FRAMEWORK, StateIO
from detcore_torch._lightning_validation import exact_validation
from detcore_torch._script import (
    Plan,
    ScriptRun,
    check_workers,
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
    from lightning.pytorch import LightningDataModule, LightningModule, Trainer
    from torch.utils.data import DataLoader

__all__ = ["fit", "hyperparameters"]


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
        RunError: If a script by itself would continue a run that started with other arguments.
        InvalidCheckpointError: If the checkpoint does not fit the model.
    """
    if hasattr(train_dataloaders, "train_dataloader"):
        train_dataloaders, datamodule = None, train_dataloaders
    check_trainer(trainer, model)
    with training_data(trainer, train_dataloaders, datamodule) as data:
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
            arguments={name: getattr(trainer, name) for name in RESULT_ARGUMENTS},
            storage=checkpoint_storage,
        )
        with open_run(plan, framework=FRAMEWORK, steps_per_epoch=steps) as run:
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
    data: TrainingData,
    sources: Mapping[str, object],
    run: ScriptRun,
) -> int:
    """Train; return the number of steps completed."""
    files = StateIO(trainer)
    folder = None if run.checkpoint is None else str(run.checkpoint)
    trainer.strategy.checkpoint_io = files
    try:
        with exact_validation(trainer):
            if run.clock.steps_completed == 0 and not _begin(trainer, model, sources, run, folder):
                return run.clock.steps_completed
            if run.checkpoint is not None:
                data.loader.seek(read_document(run.checkpoint, FRAMEWORK)["position"])
                trainer.num_sanity_val_steps = 0  # Lightning's own rule where it resumes
            callbacks = added_callbacks(trainer, data, run, files)
            with callbacks, contextlib.suppress(PreemptedError):
                trainer.fit(model, ckpt_path=folder, **sources)
    finally:
        trainer.strategy.checkpoint_io = files.original
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
