"""The settings of a Lightning trainer: those that cannot be resumed, and lengths in steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from detcore.errors import InvalidExperimentError

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

# Arguments on which the result of training depends, besides its length.
RESULT_ARGUMENTS = (
    "accumulate_grad_batches", "gradient_clip_algorithm", "gradient_clip_val",
    "limit_train_batches", "precision",
)  # fmt: skip


def check_trainer(trainer: Trainer, model: LightningModule) -> None:
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


def check_prepared(trainer: Trainer) -> None:
    """Refuse settings that the trainer knows only once the model and the data are attached.

    Raises:
        InvalidExperimentError: The message names it.
    """
    if not trainer.enable_validation:
        raise InvalidExperimentError(
            "the trainer makes no validations, by which detcore chooses the best checkpoint.\n"
            "Give fit validation data, the model a validation_step, and leave limit_val_batches."
        )


def steps_per_epoch(trainer: Trainer, batches: int) -> int:
    """Return the updates of the optimizer in an epoch of some batches."""
    limit = trainer.limit_train_batches
    batches = min(limit, batches) if isinstance(limit, int) else int(limit * batches)
    accumulated: int = trainer.accumulate_grad_batches
    return max(1, math.ceil(batches / accumulated))


def planned_steps(trainer: Trainer, steps: int) -> int:
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


def validation_period(trainer: Trainer, steps: int) -> int:
    """Return the steps between two validations, at least 1, with `steps` in an epoch."""
    interval, epochs = trainer.val_check_interval, trainer.check_val_every_n_epoch
    accumulated: int = trainer.accumulate_grad_batches
    if isinstance(interval, int):
        return max(1, interval // accumulated)
    return max(1, int(steps * (epochs or 1) * interval))
