"""Methods of ``context`` that trials written for Determined call, and ``context.experimental``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from detcore.trial import TrialContext
from detcore_torch.libraries import torch
from detcore_torch.lr_scheduler import LRScheduler
from detcore_torch.metric_reducers import MetricReducer
from detcore_torch.tensorboard_writer import EventWriter

_logger = logging.getLogger("detcore.torch")


def reset_parameters(network: Any) -> None:
    """Initialize the parameters of all modules that have a method ``reset_parameters``.

    Args:
        network: A ``torch.nn.Module``.
    """
    for module in network.modules():
        if callable(getattr(module, "reset_parameters", None)):
            module.reset_parameters()


class ExperimentalContext:
    """``context.experimental``: options of Determined's trials.

    Attributes:
        moves_batches: Whether batches are moved to the device before ``train_batch``.
        scaler: The gradient scaler of `use_amp`, or None.
    """

    def __init__(self, context: DeterminedContext) -> None:
        self._context = context
        self.moves_batches = True
        self.scaler: Any = None

    def use_amp(self) -> None:
        """Train in mixed precision with a gradient scaler, without further changes of the trial.

        Forward passes run under ``torch.autocast``. ``context.backward`` scales the loss, and
        ``context.step_optimizer`` uses the scaler. Without a GPU it has no effect.
        """
        device = self._context.device.type
        is_enabled = device != "cpu"
        if not is_enabled:
            _logger.info("use_amp has no effect: the trial runs on a CPU, in full precision")
        kind = getattr(torch.amp, "GradScaler", None)  # since PyTorch 2.3
        scaler = torch.cuda.amp.GradScaler(enabled=is_enabled) if kind is None else kind(
            device, enabled=is_enabled
        )  # fmt: skip
        self.scaler = self._context.wrap_scaler(scaler)

    def disable_auto_to_device(self) -> None:
        """Leave batches where the data loader creates them; the trial calls ``to_device``."""
        self.moves_batches = False

    def disable_dataset_reproducibility_checks(self) -> None:
        """Accepted for compatibility: any ``torch.utils.data.DataLoader`` may be returned."""
        _logger.info(
            "disable_dataset_reproducibility_checks has no effect: detcore restores the position "
            "of every DataLoader whose dataset has a length"
        )

    def wrap_reducer(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> Any:
        """Call ``context.wrap_reducer``."""
        return self._context.wrap_reducer(reducer, name, for_training, for_validation)


class DeterminedContext(TrialContext):
    """The part of `PyTorchTrialContext` that only trials written for Determined need.

    Attributes:
        experimental: Further options.
    """

    device: Any
    models: list[Any]
    optimizers: list[Any]
    lr_schedulers: list[LRScheduler]
    wrap_scaler: Callable[[Any], Any]
    wrap_reducer: Callable[..., Any]
    experimental: ExperimentalContext

    def get_model(self) -> Any:
        """Return the first wrapped model."""
        return self.models[0]

    def get_optimizer(self) -> Any:
        """Return the first wrapped optimizer."""
        return self.optimizers[0]

    def get_lr_scheduler(self) -> LRScheduler | None:
        """Return the first wrapped scheduler, or None."""
        return self.lr_schedulers[0] if self.lr_schedulers else None

    def get_tensorboard_writer(self) -> Any:
        """Return a ``torch.utils.tensorboard.SummaryWriter`` for the trial's event files.

        The file is created when the first value is added.
        """
        return EventWriter(self.get_tensorboard_path)

    def autocast_forward_pass(self, to_wrap: Any) -> Any:
        """Make a model's forward pass run under ``torch.autocast``; without a GPU, change nothing.

        Args:
            to_wrap: The model.

        Returns:
            The same model.
        """
        if self.device.type == "cpu":
            _logger.info("autocast_forward_pass has no effect: the trial runs on a CPU")
        else:
            to_wrap.forward = torch.autocast(self.device.type)(to_wrap.forward)
        return to_wrap

    def configure_apex_amp(
        self, models: Any, optimizers: Any, enabled: bool = True, **options: Any
    ) -> Any:
        """Return the models and optimizers unchanged: detcore does not use Apex.

        Args:
            models: A model, or models.
            optimizers: An optimizer, or optimizers.
            enabled: Ignored.
            options: Ignored.
        """
        if enabled:
            _logger.warning(
                "configure_apex_amp has no effect: detcore does not use Apex, so the trial trains "
                "in full precision. Call context.experimental.use_amp() for mixed precision"
            )
        return models, optimizers

    def set_profiler(self, *arguments: Any, **options: Any) -> None:
        """Accepted for compatibility, without effect."""
        _logger.info("set_profiler has no effect: use torch.profiler in the trial")

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        """Accepted for compatibility: reported metrics are always written to event files."""
        if not enable_tensorboard_logging:
            _logger.info(
                "disabling TensorBoard logging has no effect: each reported metric is written to "
                "an event file"
            )

    def get_enable_tensorboard_logging(self) -> bool:
        """Return whether reported metrics are written to event files: True."""
        return True
