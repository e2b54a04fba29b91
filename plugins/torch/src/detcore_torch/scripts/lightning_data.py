"""The data of a Lightning trainer: boundaries between batches and exact validation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidExperimentError, describe
from detcore_torch.data.resumable_loader import ResumableLoader, resumable_loader
from detcore_torch.process_group import share_buffers
from detcore_torch.state.random_generators import preserved_generators

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule, Trainer
    from torch.utils.data import DataLoader


class TrainingData:
    """The training data. Lightning reaches a boundary when it requests the next batch.

    Attributes:
        loader: Yields the batches.
        boundary: Called before each batch; returns whether training ends here.
        log_batch: Called with each batch and the ids of its records.
    """

    def __init__(self, loader: ResumableLoader) -> None:
        self.loader = loader
        self.boundary: Callable[[], bool] = bool
        self.log_batch: Callable[[object, Any], None] | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[object]:
        batches = iter(self.loader)
        end = object()
        while not self.boundary() and (batch := next(batches, end)) is not end:
            if self.log_batch is not None:
                self.log_batch(batch, self.loader.latest_records)
            yield batch

    def state_dict(self) -> dict[str, object]:
        """Return an empty state: detcore saves the position itself, also between two epochs."""
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """No-op; see `state_dict`."""


@contextlib.contextmanager
def training_data(
    trainer: Trainer, loader: DataLoader | None, datamodule: LightningDataModule | None
) -> Iterator[TrainingData]:
    """Provide the training data; a datamodule returns it to the trainer until the block ends."""
    if datamodule is None:
        yield _wrap_loader(trainer, loader)
        return
    if trainer.world_size > 1:
        raise InvalidExperimentError(
            f"fit was called with a datamodule, and the trainer has {trainer.world_size} "
            "processes, of which only one may prepare the data.\n"
            "Prepare the datamodule before, and pass its data loaders to fit."
        )
    with preserved_generators():
        datamodule.prepare_data()
        datamodule.setup("fit")
        data = _wrap_loader(trainer, datamodule.train_dataloader())
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


def _wrap_loader(trainer: Trainer, loader: DataLoader | None) -> TrainingData:
    if loader is None or isinstance(loader, list | tuple | dict):
        raise InvalidExperimentError(
            f"the training data is {describe(loader)}.\n"
            "detcore can restore the position of one torch.utils.data.DataLoader.\n"
            "Pass a loader to fit, or a datamodule that returns a loader. Combine several data "
            "sets in one dataset."
        )
    if trainer.world_size > 1:
        # This adds a DistributedSampler to the loader, as Lightning does for its own loaders.
        loader = trainer._data_connector._prepare_dataloader(loader, shuffle=True, mode=None)
    data = loader if isinstance(loader, ResumableLoader) else resumable_loader(loader)
    try:
        len(data)
    except TypeError as error:
        raise InvalidExperimentError(
            f"the training dataset, {describe(data.dataset)}, has no length, so Lightning reads "
            "a batch ahead and the position is not known.\nDefine __len__ in the dataset."
        ) from error
    return TrainingData(data)


# Values of Lightning's RunningStage.
_VALIDATING = ("validate", "sanity_check")


@contextlib.contextmanager
def exact_validation(trainer: Trainer) -> Iterator[None]:
    """Validate on each record exactly once, and combine the metrics that the workers log.

    Lightning repeats records, so that all workers have equally many. It reports the first worker's
    metrics, unless the model logs them with ``sync_dist=True``.
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
        loop._results.log = _combine_logs(loop._results.log, trainer)
    try:
        yield
    finally:
        del connector._resolve_sampler
        for loop in loops:
            del loop._results.log


def _without_repetitions(resolve: Callable[..., Any], world_size: int) -> Callable[..., Any]:
    """Wrap the method that creates samplers: validations get the sampler of predictions."""

    def resolve_sampler(loader: Any, shuffle: bool, mode: Any = None) -> Any:
        if mode is not None and mode.value in _VALIDATING and len(loader.sampler) >= world_size:
            mode = type(mode).PREDICTING
        return resolve(loader, shuffle=shuffle, mode=mode)

    return resolve_sampler


def _combine_logs(log: Callable[..., None], trainer: Trainer) -> Callable[..., None]:
    """Wrap the method that logs: it reduces metrics over the workers at the end of an epoch.

    The workers have different numbers of batches, so a reduction per batch would not match.
    """

    def reduce_over_workers(value: Any, **options: Any) -> Any:
        # Lightning 2.6 also reduces record counts, and would round their mean.
        return trainer.strategy.reduce(value.double(), **options)

    def log_combined(*args: Any, **options: Any) -> None:
        log(
            *args,
            **{**options, "sync_dist": not options["on_step"], "sync_dist_fn": reduce_over_workers},
        )

    return log_combined


@contextlib.contextmanager
def unwrapped_model(trainer: Trainer) -> Iterator[None]:
    """Make Lightning call the model without ``DistributedDataParallel``.

    The wrapper broadcasts buffers in each batch, but the workers have different numbers of batches.
    """
    wrapped = trainer.strategy.model
    if trainer.world_size > 1:
        share_buffers([trainer.lightning_module])
        trainer.strategy.model = trainer.lightning_module
    try:
        yield
    finally:
        trainer.strategy.model = wrapped


def logged_metrics(trainer: Trainer) -> dict[str, float]:
    """Return the metrics that the current loop has logged."""
    logged = trainer._logger_connector.metrics["callback"]
    return {name: float(value) for name, value in logged.items()}
