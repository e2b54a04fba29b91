"""Lightning's validation on several workers: each record once, and metrics over all workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from detcore_torch._group import broadcast_from_chief

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


# Values of Lightning's RunningStage.
_VALIDATING = ("validate", "sanity_check")


@contextlib.contextmanager
def exact_validation(trainer: Trainer) -> Iterator[None]:
    """Have the workers validate on each record once, and combine what they log.

    Lightning repeats records, so that all workers have as many, and reports the metrics of the
    first worker, unless the model logs them with ``sync_dist=True``.
    """
    if trainer.world_size == 1:
        yield
        return
    connector = trainer._data_connector
    loops = (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop)
    connector._resolve_sampler = _without_repetitions(
        connector._resolve_sampler, trainer.world_size
    )
    for loop in loops:
        loop._results.log = _combining(loop._results.log, trainer)
    try:
        yield
    finally:
        del connector._resolve_sampler
        for loop in loops:
            del loop._results.log


def _without_repetitions(resolve: Callable[..., Any], world_size: int) -> Callable[..., Any]:
    """Return the method that makes samplers, with that of predictions for validations."""

    def resolve_sampler(loader: Any, shuffle: bool, mode: Any = None) -> Any:
        if mode is not None and mode.value in _VALIDATING and len(loader.sampler) >= world_size:
            mode = type(mode).PREDICTING
        return resolve(loader, shuffle=shuffle, mode=mode)

    return resolve_sampler


def _combining(log: Callable[..., None], trainer: Trainer) -> Callable[..., None]:
    """Return the method that logs, with a reduction over the workers at the end of an epoch.

    They have different numbers of batches, so not all of them would reduce each batch.
    """

    def reduce(value: Any, **more: Any) -> Any:
        # Lightning 2.6 also reduces counts of records, and would round their mean.
        return trainer.strategy.reduce(value.double(), **more)

    def log_combined(*args: Any, **more: Any) -> None:
        log(*args, **{**more, "sync_dist": not more["on_step"], "sync_dist_fn": reduce})

    return log_combined


@contextlib.contextmanager
def unwrapped_model(trainer: Trainer) -> Iterator[None]:
    """Have Lightning call the model without ``DistributedDataParallel``.

    Its wrapper broadcasts buffers in each batch, of which the workers have different numbers.
    """
    wrapped = trainer.strategy.model
    if trainer.world_size > 1:
        broadcast_from_chief(trainer.lightning_module.buffers())
        trainer.strategy.model = trainer.lightning_module
    try:
        yield
    finally:
        trainer.strategy.model = wrapped


def logged_metrics(trainer: Trainer) -> dict[str, float]:
    """Return the numbers that the loop that is running has logged, without older ones."""
    logged = trainer._logger_connector.metrics["callback"]
    return {name: float(value) for name, value in logged.items()}
