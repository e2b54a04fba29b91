"""The controller of a `PyTorchTrial`, which trains batch by batch up to each clock boundary."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.data import IdKind
from detcore.errors import DataError, InvalidExperimentError, MetricError, describe
from detcore.metrics import weighted_mean
from detcore.trial import ValidationResult
from detcore_torch.callbacks import Callbacks, match_arguments
from detcore_torch.data.data_loader import BatchStream, DataLoader, check_trial_loader
from detcore_torch.libraries import torch
from detcore_torch.metric_reducers import as_number, reduce_over_workers
from detcore_torch.process_group import lost_peers_raised
from detcore_torch.state.model_attributes import ModelAttributes
from detcore_torch.state.random_generators import preserved_generators, seed_from, seed_generators
from detcore_torch.state.shared_state import start_from_other
from detcore_torch.state.state_digests import list_arrays
from detcore_torch.state.training_state import TrainingState
from detcore_torch.state.user_attributes import UserAttributes
from detcore_torch.state.worker_state import WorkerState
from detcore_torch.validation import Evaluation

if TYPE_CHECKING:
    import numpy as np

    from detcore.trial import Clock, PrepareOptions
    from detcore.types import TensorInfo
    from detcore_torch.pytorch_context import PyTorchTrialContext
    from detcore_torch.pytorch_trial import PyTorchTrial


_logger = logging.getLogger("detcore.torch")


class TorchController:
    """A `detcore.trial.LoopingController` for PyTorch.

    Args:
        trial: The user's trial, with wrapped models and optimizers.
        context: Its context.

    Raises:
        DetcoreError: If the trial breaks a rule: no model wrapped, data of the wrong kind.
    """

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        self._trial = trial
        self._context = context
        self._place = context.distributed
        context.finish_wrapping()
        attributes = ModelAttributes(context.models)
        loader = check_trial_loader(
            trial.build_training_data_loader(), "build_training_data_loader"
        )
        held_out = check_trial_loader(
            trial.build_validation_data_loader(), "build_validation_data_loader"
        )
        seed = context.get_trial_seed()
        order = loader.order(seed=seed, rank=self._place.rank, world_size=self._place.size)
        self._epoch_length = -(-order.batches_per_epoch // self._place.size)
        self._ledger_epoch_length = order.batches_per_epoch
        self._feed = BatchStream(
            loader, order, seed=seed, rank=self._place.rank, world_size=self._place.size
        )
        saved_objects = [context, *context.list_saved_objects()]
        callbacks = trial.build_callbacks()
        self._callbacks = Callbacks(callbacks, [trial, *saved_objects])
        if self._callbacks.overrides("on_before_optimizer_step"):
            context.before_update = functools.partial(
                self._callbacks.call_hook, "on_before_optimizer_step"
            )
        saved_objects += [*callbacks.values(), loader, held_out]
        models = {f"model {index}": model for index, model in enumerate(context.models)}
        self._attributes = UserAttributes(
            {"trial": trial},
            functions={"trial": trial, **callbacks, **models},
            ignored_objects=[*saved_objects, *_list_containers(trial, saved_objects)],
        )
        self._state = TrainingState(
            attributes=attributes,
            optimizers=context.optimizers,
            schedulers=[scheduler.scheduler for scheduler in context.lr_schedulers],
            scalers=context.scalers,
            rank=self._place.rank,
            callbacks=self._callbacks,
            has_updated=False,
            trial_attributes=self._attributes.capture,
            read_others=self._read_others,
        )
        self._train = match_arguments(trial.train_batch, "batch", "epoch_idx", "batch_idx")
        self._evaluation = Evaluation(trial, context, held_out, self._callbacks)
        self._has_started = False
        self._is_resumed = False
        # Hooks that receive the files of a checkpoint may change attributes after their capture.
        self._saved_live: Mapping[str, Any] | None = None
        self._digests = context.digests
        if self._digests is not None:
            self._digests.describe(threads=torch.get_num_threads(), gpu=_gpu_name())
        self._check_same_data(order.batches_per_epoch)
        self._describe_records(loader)
        self._seed_this_worker()

    def batches_per_epoch(self) -> int | None:
        """Return the steps of one pass over the training data."""
        return self._epoch_length

    def run(self, clock: Clock) -> None:
        """Train until the clock ends training."""
        self._announce_start()
        if not self._state.batches:  # a resumed trial restores the modes of its modules
            for model in self._context.models:
                model.train()
        with self._preserved_if_resumed():
            self._callbacks.start_training()
        self._attributes.restore_again()
        with lost_peers_raised(self._place):
            while self._train_unit(clock):
                pass

    def validate(self) -> ValidationResult:
        """Evaluate the models over all workers; the result is the same on each worker."""
        self._announce_start()
        with preserved_generators(), lost_peers_raised(self._place):
            return self._evaluation.run()

    def save(self, directory: Path) -> None:
        """Write the training state; workers other than the chief write only their own part."""
        self._announce_start()
        self._callbacks.start_save()
        self._state.save(directory)
        if self._callbacks.reads_checkpoints:
            self._saved_live = self._state.live_state()
        self._callbacks.finish_files(str(directory))

    def snapshot(self, directory: Path) -> Callable[[], None]:
        """Copy the state that `save` would write; return a function that writes the copy."""
        if self._callbacks.reads_checkpoints:
            self.save(directory)
            return lambda: None  # the files have already been written
        self._announce_start()
        self._callbacks.start_save()
        return self._state.snapshot(directory)

    def on_commit(self, uuid: str) -> None:
        """Call the callbacks' ``on_checkpoint_upload_end``."""
        self._callbacks.call_hook("on_checkpoint_upload_end", uuid)

    def tensors(self) -> Sequence[TensorInfo]:
        """Return the tensors in the last checkpoint."""
        return self._state.tensors()

    def state_tensors(self) -> Mapping[str, np.ndarray]:
        """Return generators, gradients, models, and optimizers as arrays by name."""
        return self._state.state_tensors()

    def live_state(self) -> Mapping[str, Any]:
        """Return flags, attributes, scalers, callbacks and the data position by name."""
        values, self._saved_live = self._saved_live, None
        return self._state.live_state() if values is None else values

    def _read_others(self) -> dict[str, Any]:
        return {
            "data.position": self._feed.position,
            "data.batches": self._state.batches,
            **self._attributes.read_live(),
        }

    def restore(self, directory: Path) -> None:
        """Restore the state that `save` wrote.

        Raises:
            InvalidCheckpointError: If the checkpoint does not fit.
        """
        worker_dir = self._context.worker_directory(directory)
        worker = WorkerState(worker_dir or directory)
        folders = [] if worker_dir is not None else sorted((directory / "workers").glob("*"))
        worker.start_restoring(self._callbacks)
        self._state.restore(directory)
        self._state.batches = worker.batches
        self._feed.seek(self._state.batches)
        worker.restore_gradients(self._context.models, list(map(WorkerState, folders)))
        worker.restore_callbacks(self._callbacks)
        self._attributes.restore(worker.attributes)
        self._is_resumed = True
        if worker_dir is not None:
            worker.restore_metrics(self._context.models)
            worker.restore_generators()
            return
        self._seed_this_worker()
        _logger.info(
            "the checkpoint was saved by another number of workers: training resumes at batch "
            "%d, with the data divided among %d worker(s)",
            self._state.batches,
            self._place.size,
        )

    def start_from(self, directory: Path) -> None:
        """Restore only weights and optimizer states; everything else starts as in a new trial.

        Raises:
            InvalidCheckpointError: If the checkpoint does not fit.
        """
        start_from_other(self._state, directory)

    def close(self) -> None:
        """Stop the loader processes, and leave the process group."""
        try:
            if self._has_started:
                self._callbacks.call_hook("on_trial_shutdown")
        finally:
            self._feed.close()
            self._context.group.close()

    def _train_unit(self, clock: Clock) -> bool:
        """Train up to the next boundary, or to an interrupt; return whether to continue."""
        unit = TrainedUnit()
        while self._state.batches < clock.next_boundary:
            self._train_batch(unit)
            if clock.interrupt_requested:
                break
        batches = unit.batch_metrics()
        reducers = [reducer for reducer in self._context.reducers if reducer.for_training]
        metrics = {**unit.average_metrics(batches), **reduce_over_workers(reducers, self._place)}
        self._callbacks.call_hook("on_training_workload_end", metrics, batches)
        return clock.boundary(self._state.batches, metrics, batches, n_records=unit.num_records)

    def _train_batch(self, unit: TrainedUnit) -> None:
        number = self._state.batches
        epoch, within = divmod(number, self._epoch_length)
        if within == 0:
            self._callbacks.call_hook("on_training_epoch_start", epoch)
        batch = self._feed.take_batch()
        if self._context.ledger is not None:
            stream = self._place.rank + number * self._place.size
            of_records = stream // self._ledger_epoch_length
            self._context.ledger.log(number + 1, of_records, batch.records)
        if self._digests is not None:
            self._digests.log(number + 1, batch.records, lambda: list_arrays(batch.data))
        self._context.share_buffers()
        with self._context.training_batch(number, self._epoch_length):
            returned = self._train(self._context.move_batch(batch.data), epoch, number)
        unit.add_batch(returned, len(batch.records))
        self._state.batches += 1
        if within + 1 == self._epoch_length:
            self._callbacks.call_hook("on_training_epoch_end", epoch)

    def _announce_start(self) -> None:
        """Call the callbacks' ``on_trial_startup``, once."""
        if self._has_started:
            return
        self._has_started = True
        info = self._context.info
        uuid = info.latest_checkpoint if info and self._is_resumed else None
        with self._preserved_if_resumed():
            self._callbacks.call_hook("on_trial_startup", self._state.batches, uuid)

    def _preserved_if_resumed(self) -> contextlib.AbstractContextManager[None]:
        """Preserve the generators during a call that an uninterrupted run makes only once."""
        return preserved_generators() if self._is_resumed else contextlib.nullcontext()

    def _seed_this_worker(self) -> None:
        """Seed the generators differently on each worker, after models got equal weights."""
        rank = self._place.rank
        if rank or self._state.batches:  # a resumed chief must not repeat its first numbers
            seed_generators(seed_from(self._context.get_trial_seed(), rank, self._state.batches))

    def _check_same_data(self, num_batches: int) -> None:
        """Check that all workers have the same data, before it is divided."""
        counts = self._place.allgather((num_batches, self._evaluation.num_batches))
        if len(set(counts)) > 1:
            listing = "; ".join(
                f"rank {rank}: {training} and {validation}"
                for rank, (training, validation) in enumerate(counts)
            )
            raise DataError(
                "the workers have different data. Batches per epoch and per validation: "
                f"{listing}.\n"
                "detcore divides the batches among the workers. Return all of the data on each "
                "worker, not divided by rank."
            )

    def _describe_records(self, loader: DataLoader) -> None:
        ledger = self._context.ledger
        if ledger is None:
            return
        if loader.sampler is not None or loader.batch_sampler is not None:
            raise InvalidExperimentError(
                "data_ledger is true, and the training data has a sampler.\n"
                "The ledger proves that each epoch uses every record once, but a sampler may omit "
                "or repeat records.\nSet data_ledger: false, or use shuffle=True without a sampler."
            )
        num_records = len(loader.dataset)
        left_over = num_records % (loader.batch_size or 1) if loader.drop_last else 0
        ledger.describe(IdKind.RECORD_INDEX, num_records=num_records, left_over=left_over)


def _gpu_name() -> str | None:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _list_containers(trial: PyTorchTrial, saved: Collection[object]) -> Iterator[torch.nn.Module]:
    """Yield the trial's modules that contain a saved model, such as a model with its loss."""
    identities = {id(instance) for instance in saved if isinstance(instance, torch.nn.Module)}
    for value in vars(trial).values():
        modules = value.modules() if isinstance(value, torch.nn.Module) else ()
        if any(id(module) in identities for module in modules):
            yield value


class TrainedUnit:
    """The metrics that ``train_batch`` returned for each batch.

    Tensors are converted when the metrics are read, so that training does not wait for a GPU.
    """

    def __init__(self) -> None:
        self._batches: list[dict[str, Any]] = []
        self._counts: list[int] = []

    def add_batch(self, returned: Any, num_records: int) -> None:
        """Add the value that ``train_batch`` returned for a batch.

        Raises:
            MetricError: If the value is neither a tensor nor a mapping.
        """
        if isinstance(returned, torch.Tensor):
            returned = {"loss": returned}
        if not isinstance(returned, Mapping):
            raise MetricError(
                f"train_batch returned {describe(returned)}.\n"
                "Return the loss, or metrics by name, such as {'loss': loss}."
            )
        self._batches.append({
            str(name): value.detach() if isinstance(value, torch.Tensor) else value
            for name, value in returned.items()
        })  # fmt: skip
        self._counts.append(num_records)

    @property
    def num_records(self) -> int:
        """Records in all batches."""
        return sum(self._counts)

    def batch_metrics(self) -> list[dict[str, float]]:
        """Return the metrics of each batch, oldest first."""
        return [
            {name: as_number(name, value) for name, value in batch.items()}
            for batch in self._batches
        ]

    def average_metrics(self, batches: list[dict[str, float]]) -> dict[str, float]:
        """Return the means over the batches, weighted by their numbers of records.

        A metric that only some batches have is averaged over these batches.
        """
        names = dict.fromkeys(name for batch in batches for name in batch)
        pairs = list(zip(batches, self._counts, strict=True))
        return {
            name: weighted_mean(
                [{name: batch[name]} for batch, _ in pairs if name in batch],
                [float(count) for batch, count in pairs if name in batch],
            )[name]
            for name in names
        }


def prepare_worker(options: PrepareOptions) -> None:
    """Seed PyTorch, choose the GPU, and fix the order of operations.

    | ``reproducibility.deterministic_ops`` | on a CPU | on a GPU |
    | --- | --- | --- |
    | not set | one thread per operation; other operations cause a warning | as PyTorch |
    | true | one thread per operation; other operations are errors | other operations are errors |
    | false | as PyTorch | as PyTorch |

    "Other operations" have no deterministic implementation. The number of threads of an operation
    determines the order of its additions, so a run that is resumed on other cores would differ in
    the last bits. A trial that calls ``torch.set_num_threads(n)`` in its ``__init__`` gets n
    threads on
    every machine.

    Args:
        options: The trial's seed, the worker's rank, and the configured determinism.
    """
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(options.local_rank % torch.cuda.device_count())
    if options.deterministic_ops is not False and not has_gpu:
        torch.set_num_threads(1)
    if options.deterministic_ops:
        torch.use_deterministic_algorithms(True)
    elif options.deterministic_ops is None and not has_gpu:
        torch.use_deterministic_algorithms(True, warn_only=True)
    elif has_gpu:
        logging.getLogger("detcore.torch").info(
            "operations are not deterministic on a GPU, so a resumed run may differ in the last "
            "bits; reproducibility.deterministic_ops: true fixes their order"
        )
    torch.manual_seed(options.seed)
