"""The training data of a Lightning trainer, which reaches a boundary when it asks for a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from detcore.errors import InvalidExperimentError, describe
from detcore_torch._resumable import ResumableLoader, resumable_loader
from detcore_torch._seeding import preserved_generators

if TYPE_CHECKING:
    from lightning.pytorch import LightningDataModule, Trainer
    from torch.utils.data import DataLoader


class TrainingData:
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


@contextlib.contextmanager
def training_data(
    trainer: Trainer, loader: DataLoader | None, datamodule: LightningDataModule | None
) -> Iterator[TrainingData]:
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


def _wrapped(trainer: Trainer, loader: DataLoader | None) -> TrainingData:
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
    return TrainingData(found)
