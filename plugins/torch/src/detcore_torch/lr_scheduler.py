"""Learning rate schedulers, and the moments at which they are stepped."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, ClassVar

from detcore.errors import InvalidExperimentError
from detcore_torch.libraries import torch


class StepMode(enum.Enum):
    """The moments at which a scheduler is stepped.

    Attributes:
        STEP_EVERY_EPOCH: After the last batch of each epoch.
        STEP_EVERY_BATCH: Once for each batch. If gradients of several batches are aggregated,
            as many times as there were batches, after the optimizer's step.
        STEP_EVERY_OPTIMIZER_STEP: Once after each batch that steps optimizers.
        MANUAL_STEP: The trial steps the scheduler.
    """

    STEP_EVERY_EPOCH = 1
    STEP_EVERY_BATCH = 2
    MANUAL_STEP = 3
    STEP_EVERY_OPTIMIZER_STEP = 4


_Mode = StepMode  # the class below has an attribute named StepMode


@dataclasses.dataclass(frozen=True, slots=True)
class LRScheduler:
    """A PyTorch scheduler and its step mode, such as ``LRScheduler.StepMode.STEP_EVERY_EPOCH``.

    Attributes:
        scheduler: The scheduler.
        step_mode: The moments at which it is stepped.
        frequency: Step it only at every `frequency`-th of these moments; >= 1.
    """

    StepMode: ClassVar = StepMode

    scheduler: Any
    step_mode: _Mode
    frequency: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.step_mode, StepMode):
            raise InvalidExperimentError(
                f"step_mode is {self.step_mode!r}; expected "
                f"{', '.join(f'LRScheduler.StepMode.{mode.name}' for mode in StepMode)}"
            )
        if not isinstance(self.frequency, int) or self.frequency < 1:
            raise InvalidExperimentError(f"frequency is {self.frequency!r}; it must be at least 1")
        needs_metric = isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if needs_metric and self.step_mode is not StepMode.MANUAL_STEP:
            raise InvalidExperimentError(
                f"ReduceLROnPlateau was wrapped with {self.step_mode.name}, but its step() needs a "
                "metric.\nWrap it with LRScheduler.StepMode.MANUAL_STEP, and call "
                'scheduler.step(metrics["validation_loss"]) in on_validation_end of a '
                "PyTorchCallback."
            )

    def step(self, *arguments: Any) -> None:
        """Step the scheduler, in the mode ``MANUAL_STEP``."""
        self.scheduler.step(*arguments)

    def get_last_lr(self) -> list[float]:
        """Return the current learning rate of each parameter group."""
        rates: list[float] = self.scheduler.get_last_lr()
        return rates

    def after_batch(self, batch_index: int, *, aggregation: int, epoch_length: int) -> None:
        """Step the scheduler as many times as is due after a batch.

        Args:
            batch_index: The batch, from 0.
            aggregation: Batches whose gradients are combined into one optimizer step.
            epoch_length: Batches in an epoch.
        """
        num_batches = batch_index + 1
        due = 0
        if self.step_mode is StepMode.STEP_EVERY_EPOCH:
            due = (
                num_batches % epoch_length == 0
                and (num_batches // epoch_length) % self.frequency == 0
            )
        elif num_batches % aggregation == 0:
            if self.step_mode is StepMode.STEP_EVERY_BATCH:
                due = num_batches // self.frequency - (num_batches - aggregation) // self.frequency
            elif self.step_mode is StepMode.STEP_EVERY_OPTIMIZER_STEP:
                due = (num_batches // aggregation) % self.frequency == 0
        for _ in range(due):
            self.scheduler.step()
