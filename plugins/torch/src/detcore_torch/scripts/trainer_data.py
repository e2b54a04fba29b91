"""The data of a `Trainer`: random numbers per batch, and losses without repeated records."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
from accelerate.utils import find_batch_size, recursively_apply

from detcore.errors import InvalidExperimentError
from detcore_torch.data.batch_fetcher import return_unchanged
from detcore_torch.data.batch_order import BatchRequests
from detcore_torch.data.data_loader import check_loader, describe_loader, list_options
from detcore_torch.data.iterable_stream import EpochStream
from detcore_torch.libraries import torch

if TYPE_CHECKING:
    from transformers import Trainer

    from detcore_torch.data.batch_order import BatchOrder
    from detcore_torch.scripts.script_run import ScriptRun


class EpochData:
    """The trainer's batches, with random numbers that depend only on the batch number.

    The trainer reads batches ahead, and skips the batches before a checkpoint. With its own loader,
    random augmentations would differ from those of an uninterrupted run.
    """

    def __init__(self, trainer: Trainer, run: ScriptRun) -> None:
        self._trainer = trainer
        self._make_original = trainer.get_train_dataloader
        args = trainer.args
        self._seed = int(args.seed if args.data_seed is None else args.data_seed)
        self._order: BatchOrder | None = None
        self._set_epoch: Callable[[int], None] | None = None
        self._rank = run.context.distributed.rank
        self._requests = BatchRequests()

    def make_loader(self) -> DataLoaderShard | DataLoaderDispatcher:
        """Return the trainer's loader, with a seed for each batch."""
        loader = self._make_original()
        if _is_iterable(loader):
            return self._stream_loader(loader)
        description = describe_loader(_without_accelerate(loader))
        if hasattr(loader, "base_dataloader") and hasattr(loader.dataset, "set_epoch"):
            self._set_epoch = loader.dataset.set_epoch  # Accelerate's loader would call it
            # Persistent processes would keep the epoch in which they were started.
            description.options["persistent_workers"] = False
        self._order = description.order(seed=self._seed)
        self.set_epoch(0)
        size = getattr(loader, "total_batch_size", None)  # Accelerate's, for all processes
        if size is not None:  # all batches have one size
            self._requests.batch_size = size
        fetching_loader = description.fetching_loader(self._requests)
        return DataLoaderShard(
            fetching_loader.dataset,
            device=getattr(loader, "device", None),
            batch_size=None,
            sampler=self._requests,
            collate_fn=return_unchanged,
            generator=fetching_loader.generator,
            **list_options(fetching_loader),
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the loader iterates over next."""
        if self._order is not None:
            self._requests.request_epoch(self._order, self._seed, rank=self._rank, epoch=epoch)
        if self._set_epoch is not None:
            self._set_epoch(epoch)

    def _stream_loader(self, loader: Any) -> DataLoaderShard | DataLoaderDispatcher:
        """Return a loader of an `IterableDataset` whose epochs can be read again."""
        stream = EpochStream(_without_accelerate(loader), seed=self._seed)
        self._set_epoch = stream.set_epoch
        options = {
            **list_options(loader),
            "batch_size": None,
            "collate_fn": return_unchanged,
            "worker_init_fn": stream.init_worker,
            "generator": torch.Generator().manual_seed(self._seed),
            # Persistent processes would keep the epoch in which they were started.
            "persistent_workers": False,
        }
        if isinstance(loader, DataLoaderDispatcher):
            return DataLoaderDispatcher(
                stream, split_batches=loader.split_batches, _drop_last=loader._drop_last, **options
            )
        return DataLoaderShard(stream, device=getattr(loader, "device", None), **options)


def check_training_loader(trainer: Trainer, loader: object) -> None:
    """Check that training with the loader can be resumed.

    Raises:
        InvalidDataTypeError: If the loader iterates in an unknown way.
        DataError: If its batches come in the order in which its processes finish.
        InvalidExperimentError: If the first process loads the batches of all.
    """
    if _is_iterable(loader):
        check_loader(_without_accelerate(loader))
        return
    describe_loader(_without_accelerate(loader))
    if isinstance(loader, DataLoaderDispatcher) and trainer.args.world_size > 1:
        raise InvalidExperimentError(
            "TrainingArguments has accelerator_config with dispatch_batches=True, so the first "
            "process would load the batches of all processes. With detcore, each process loads its "
            "own batches.\nRemove the option."
        )


def _is_iterable(loader: object) -> bool:
    return isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset)


def _without_accelerate(loader: object) -> Any:
    """Return the PyTorch loader inside an Accelerate loader, or the loader itself."""
    return getattr(loader, "base_dataloader", loader)


def exact_prediction_step(trainer: Trainer) -> Callable[..., Any]:
    """Wrap a trainer's ``prediction_step``, so that losses do not repeat records.

    Accelerate fills the last batches of a validation with records from the start of the data, so
    that all workers have batches of one size. The trainer removes the repeated records from the
    predictions, but not from the loss. A loss is the mean over a worker's batch. The trainer
    weights batches by their number of records.
    """
    original, settings = trainer.prediction_step, trainer.args

    def prediction_step(model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        size = find_batch_size(inputs)
        num_records = _count_unrepeated(trainer, size)
        # The trainer may remove values from its inputs.
        unrepeated = (
            _take_first_records(inputs, num_records, size) if 0 < num_records < size else None
        )
        averages = settings.average_tokens_across_devices
        # With averaging, the loss of a batch would depend on the batches of other workers.
        settings.average_tokens_across_devices = False
        try:
            loss, logits, labels = original(model, inputs, *args, **options)
            if unrepeated is not None and loss is not None:
                loss, _, _ = original(model, unrepeated, prediction_loss_only=True)
        finally:
            settings.average_tokens_across_devices = averages
        return loss, logits, labels

    return prediction_step


def _count_unrepeated(trainer: Trainer, size: int) -> int:
    """Return how many records of this worker's batch are not repetitions."""
    state = trainer.accelerator.gradient_state
    if not state.end_of_dataloader or state.remainder <= 0:
        return size
    before = size * int(trainer.args.process_index)
    return min(max(int(state.remainder) - before, 0), size)


def _take_first_records(inputs: Any, count: int, size: int) -> Any:
    def cut_value(value: Any) -> Any:
        return value[:count] if value.ndim and len(value) == size else value

    return recursively_apply(cut_value, dict(inputs))
