"""Train with the `Trainer` of Lightning, with detcore's checkpoints and searches.

```python
from detcore_torch.for_lightning import fit

trainer = Trainer(max_epochs=3)
fit(trainer, model, train_loader, val_loader)  # instead of trainer.fit(...)
```

Lightning validates inside a batch and calls hooks between epochs, so the state is complete at only
two points: when it requests the next batch, and before an epoch starts. At such a *boundary*,
detcore does the work that is due.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from detcore.errors import InvalidExperimentError
from detcore.trial import Step
from detcore_torch.libraries import import_supported, torch
from detcore_torch.scripts.lightning_clock import PreemptedError, added_callbacks
from detcore_torch.scripts.lightning_data import TrainingData, exact_validation, training_data
from detcore_torch.scripts.lightning_state import FRAMEWORK, StateIO
from detcore_torch.scripts.script_run import (
    Plan,
    Reaction,
    ScriptRun,
    hyperparameters,
    open_run,
)
from detcore_torch.state.random_generators import preserved_generators
from detcore_torch.state.state_files import read_state

# Two distributions contain the same library.
import_supported(
    "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning",
    (2, 5),
    (3,),
    "lightning",
)

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule, LightningModule, Trainer
    from torch.utils.data import DataLoader

__all__ = ["fit", "hyperparameters"]

# Arguments that affect the result of training, besides its length.
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
    inexact_resume: Reaction = "warn",
) -> None:
    """Train as ``trainer.fit(...)`` does, under detcore.

    Under ``detcore run``, the experiment file determines how long to train and when to report,
    validate and save, in steps (batches after which an optimizer updates). A standalone script
    follows its trainer, and resumes if restarted. The training data is one ``DataLoader`` with a
    length. Its order depends on the seed of ``seed_everything``; see `detcore_torch.resumable`.

    Args:
        trainer: The ``Trainer``.
        model: The ``LightningModule``.
        train_dataloaders: Training data, or a ``LightningDataModule``, as for ``Trainer.fit``.
        val_dataloaders: Validation data, as for ``Trainer.fit``.
        datamodule: As for ``Trainer.fit``.
        hparams: Hyperparameters to record for a standalone script.
        metric: Validation metric that selects the best checkpoint of a standalone script.
        smaller_is_better: Whether a smaller metric is better.
        save_every: Steps between checkpoints of a standalone script, besides the best and the last
            checkpoint; 0: none; None: the validation period.
        checkpoint_storage: Path or URL for a standalone script; default: ``DETCORE_HOME``.
        inexact_resume: ``reproducibility.inexact_resume`` of a standalone script.

    Raises:
        SystemExit: With code 75, if the trial was preempted and has saved a checkpoint.
        InvalidExperimentError: If the trainer cannot be resumed or ends before the trial's length.
        RunError: If a standalone script would resume a run that started with other arguments.
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
            inexact_resume=inexact_resume,
        )
        sources: dict[str, object] = {"datamodule": datamodule}
        if datamodule is None:
            sources = {"train_dataloaders": data, "val_dataloaders": val_dataloaders}
        _run_fit(trainer, model, data, sources, plan, steps)


def _make_plan(
    trainer: Trainer,
    steps: int,
    *,
    metric: str,
    smaller_is_better: bool,
    save_every: int | None,
    hparams: Mapping[str, object] | None,
    storage: str | None,
    inexact_resume: Reaction,
) -> Plan:
    """Return the plan of a standalone script, from its trainer, with `steps` per epoch."""
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
        inexact_resume=inexact_resume,
    )


def _run_fit(
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
        # Learning rate schedules that the model derives from the trainer use these limits.
        length = run.length
        trainer.fit_loop.epoch_loop.max_steps = -1 if length is None else length
        trainer.fit_loop.max_epochs = -1 if length is None else math.ceil(length / steps)
        folder = None if run.checkpoint is None else str(run.checkpoint)
        trainer.strategy.checkpoint_io = files
        try:
            with exact_validation(trainer):
                is_new = run.clock.steps_completed == 0
                if is_new and not _validate_first(trainer, model, sources, run, folder):
                    return
                if run.checkpoint is not None:
                    data.loader.seek(read_state(run.checkpoint, FRAMEWORK)["position"])
                    trainer.num_sanity_val_steps = 0  # as Lightning does when it resumes
                callbacks = added_callbacks(trainer, data, run, files)
                with callbacks, contextlib.suppress(PreemptedError):
                    trainer.fit(model, ckpt_path=folder, **sources)
        finally:
            trainer.strategy.checkpoint_io = files.original


def _validate_first(
    trainer: Trainer,
    model: LightningModule,
    sources: Mapping[str, object],
    run: ScriptRun,
    folder: str | None,
) -> bool:
    """Validate if that is due before the first step; return whether any training remains."""
    arguments = {name: value for name, value in sources.items() if name != "train_dataloaders"}
    if "val_dataloaders" in arguments:
        arguments["dataloaders"] = arguments.pop("val_dataloaders")
    with preserved_generators():
        while (decision := run.clock.due(run.clock.steps_completed)).step is Step.VALIDATE:
            results = trainer.validate(model, ckpt_path=folder, verbose=False, **arguments)
            run.clock.validated(
                {name: value for metrics in results for name, value in metrics.items()}
            )
    return decision.step is not Step.STOP


def _check_trainer(trainer: Trainer, model: LightningModule) -> None:
    """Check that training with these settings can be resumed.

    Raises:
        InvalidExperimentError: The message names the setting.
    """

    def reject_setting(name: str, reason: str) -> None:
        raise InvalidExperimentError(f"the trainer has {name}, {reason}")

    strategy = type(trainer.strategy).__name__
    if strategy not in ("SingleDeviceStrategy", "DDPStrategy"):
        reject_setting(
            f"the strategy {strategy}",
            "which this adapter cannot save.\nTrain on one device or with DDPStrategy.",
        )
    if trainer.fast_dev_run or trainer.overfit_batches:
        reject_setting(
            "fast_dev_run or overfit_batches", "which only trainer.fit supports.\nRemove them."
        )
    if trainer.reload_dataloaders_every_n_epochs:
        reject_setting("reload_dataloaders_every_n_epochs", "so the position is lost.\nRemove it.")
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        reject_setting(
            "a val_check_interval in time", "which differs from run to run.\nSet it in batches."
        )
    for callback in trainer.callbacks:
        if type(callback).__name__ in ("BatchSizeFinder", "LearningRateFinder"):
            reject_setting(
                type(callback).__name__,
                "which trains before training.\nUse Tuner(trainer) in a separate script.",
            )
    if not model.automatic_optimization and trainer.max_steps > 0:
        reject_setting(
            "max_steps, and the model optimizes manually",
            "so each update of an optimizer counts.\nSet max_epochs instead.",
        )


def _count_steps(trainer: Trainer, batches: int) -> int:
    """Return the number of optimizer updates in an epoch of `batches`."""
    limit = trainer.limit_train_batches
    batches = min(limit, batches) if isinstance(limit, int) else int(limit * batches)
    accumulated: int = trainer.accumulate_grad_batches
    return max(1, math.ceil(batches / accumulated))


def _plan_steps(trainer: Trainer, steps: int) -> int:
    """Return the steps that the trainer itself would train, with `steps` per epoch.

    Raises:
        InvalidExperimentError: If the trainer has no limit.
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
    """Return the steps between validations, at least 1, with `steps` per epoch."""
    interval, epochs = trainer.val_check_interval, trainer.check_val_every_n_epoch
    accumulated: int = trainer.accumulate_grad_batches
    if isinstance(interval, int):
        return max(1, interval // accumulated)
    return max(1, int(steps * (epochs or 1) * interval))
