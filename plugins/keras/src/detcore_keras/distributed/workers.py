"""Coordinate the workers of a Keras trial, apart from their gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from detcore.errors import CheckFailedError, DataError, InvalidModelError
from detcore.metrics import weighted_mean
from detcore.storage import Digester
from detcore_keras.distributed.collective import Collective, open_collective
from detcore_keras.state.array_files import encoded
from detcore_keras.state.npz_files import bytes_of
from detcore_keras.state.variables import (
    Found,
    raw_variable,
    read_variable,
    training_variables,
)

if TYPE_CHECKING:
    from detcore.core import DistributedContext
    from detcore.types import GradientSettings
    from detcore_keras.data.feed import Feed


_T = TypeVar("_T")
# Groups with the chief's values on all workers; generators and metrics belong to each worker.
_SHARED = frozenset({"weights", "extra", "optimizer", "hyperparameters", "counters"})


class Workers:
    """All workers of a trial, as one of them sees them. With one worker nothing is exchanged.

    All workers call the same methods, in the same order.

    Args:
        distributed: The workers.
        settings: How they combine their gradients and metrics.

    Attributes:
        rank: Rank of this worker.
        size: Number of workers.
        is_chief: Whether this is the worker with rank 0.
        collective: Collectives for tensors; None for a single worker.
    """

    def __init__(self, distributed: DistributedContext, settings: GradientSettings) -> None:
        self._distributed = distributed
        self.rank = distributed.rank
        self.size = distributed.size
        self.is_chief = self.rank == 0
        self._averages_metrics = settings.average_training_metrics
        self.collective: Collective | None = None
        if self.size > 1:
            self.collective = open_collective(distributed, compress=settings.gradient_compression)

    def all_gather(self, value: _T) -> list[_T]:
        """Return every worker's value, in the order of their ranks."""
        return [value] if self.size == 1 else self._distributed.allgather(value)

    # -- data -------------------------------------------------------------------------------------

    def steps_per_epoch(self, feed: Feed) -> int | None:
        """Return the steps in which every worker has seen all of its data once; None if unknown.

        A worker with less data than another begins its next pass while that one finishes.

        Raises:
            CheckFailedError: If there are fewer batches than workers.
            DataError: If the workers have different data to take their shares from.
        """
        if self.size == 1:
            return feed.batches_per_epoch
        told = self.all_gather((feed.shared_records, feed.batches_per_epoch))
        shared = [records for records, _ in told]
        if len(set(shared)) > 1:
            listed = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(shared))
            raise DataError(
                f"the workers were given training data of different lengths ({listed}).\n"
                "Each takes its share of the batches of one order, so all of them need all of the "
                "data.\nReturn the whole data on every worker, or a tf.data.Dataset with "
                "context.wrap_dataset(dataset, shard_dataset=False), where each has its own."
            )
        lengths = [batches for _, batches in told]
        if shared[0] is None:
            known = [batches for batches in lengths if batches is not None]
            return max(known) if len(known) == len(lengths) else None
        batches = lengths[0] or 0
        if batches < self.size:
            raise CheckFailedError(
                f"the training data has {batches} batch(es) for {self.size} workers.\n"
                "Each worker needs one at least.\n"
                "Lower hyperparameters.global_batch_size, give more data, or use fewer workers."
            )
        return -(-batches // self.size)

    # -- variables --------------------------------------------------------------------------------

    def share_variables(self, variables: Sequence[Found]) -> None:
        """Set weights, optimizer state and counters to the chief's, where they differ."""
        if self.collective is not None:
            self._broadcast(_shared(variables))

    @contextlib.contextmanager
    def chief_weights(self, model: Any) -> Iterator[None]:
        """Use the chief's model on every worker within the block.

        Trained weights are the same anyway. Values that layers derive from their own batches, such
        as the moving averages of batch normalization, differ: they are restored after the block.
        """
        if self.collective is None:
            yield
            return
        trained = {id(raw_variable(v).handle) for v in model.trainable_weights}
        kept = [
            item
            for item in _shared(training_variables(model, []))
            if item.group in {"weights", "extra"} and id(item.variable.handle) not in trained
        ]
        before = {id(item): item.variable.numpy() for item in kept}
        changed = self._broadcast(kept)
        try:
            yield
        finally:
            for item in [] if self.is_chief else changed:
                item.variable.assign(before[id(item)])

    def own_variables(self, model: Any, variables: Sequence[Found]) -> list[int]:
        """Return the indices of all variables whose value here differs from the chief's.

        Raises:
            InvalidModelError: If a trained weight differs: then the workers train different models.
        """
        if self.size == 1:
            return []
        differing = self._differing(variables)
        _check_same_model(model, variables, set().union(*differing))
        return differing[self.rank]

    def _broadcast(self, found: Sequence[Found]) -> list[Found]:
        """Set variables to the chief's values; return those that differed on any worker."""
        assert self.collective is not None
        indices = sorted(set().union(*self._differing(found)))
        changed = [found[index] for index in indices]
        if changed:
            self.collective.broadcast([item.variable for item in changed])
        return changed

    def _differing(self, found: Sequence[Found]) -> list[list[int]]:
        """Return, for each worker, the indices of variables that differ from the chief's."""
        digests = self.all_gather([_digest(item.variable) for item in found])
        if len({len(each) for each in digests}) > 1:
            counts = ", ".join(f"rank {rank}: {len(each)}" for rank, each in enumerate(digests))
            raise InvalidModelError(
                f"the workers' models have different numbers of variables ({counts}).\n"
                "They train one model, so build_model must make the same on all of them."
            )
        chief = digests[0]
        return [
            [index for index, digest in enumerate(each) if digest != chief[index]]
            for each in digests
        ]

    # -- metrics ----------------------------------------------------------------------------------

    def mean_metrics(
        self, metrics: Mapping[str, float], n_records: int | None
    ) -> Mapping[str, float]:
        """Return training metrics over all workers, weighted by records if their number is known.

        Return the chief's own if ``optimizations.average_training_metrics`` is false.
        """
        told = self.all_gather((dict(metrics), n_records))
        if self.size == 1 or not self._averages_metrics:
            return told[0][0]
        counts = [count for _, count in told]
        weights = [1.0 if count is None else float(count) for count in counts]
        if None in counts or not any(weights):
            weights = [1.0] * len(told)
        return weighted_mean([each for each, _ in told], weights)


def _shared(found: Sequence[Found]) -> list[Found]:
    return [
        item
        for item in found
        if item.group in _SHARED and not item.is_generator and item.variable.dtype != "string"
    ]


def digest_weights(variables: Sequence[Found]) -> list[str]:
    """Return a digest of each floating-point variable of the training."""
    return [_digest(item.variable) for item in variables if item.variable.dtype.is_floating]


def _digest(variable: Any) -> str:
    value = read_variable(variable)
    digest = Digester()
    digest.update(f"{value.dtype} {value.shape} ".encode())
    for part in encoded("", value).values():
        digest.update(bytes_of(np.asarray(part, order="C")))
    return digest.result().value


def _check_same_model(model: Any, found: Sequence[Found], differing: set[int]) -> None:
    trained = {id(raw_variable(v).handle) for v in model.trainable_weights}
    names = [found[i].name for i in sorted(differing) if id(found[i].variable.handle) in trained]
    if not names:
        return
    raise InvalidModelError(
        f"{len(names)} trained weight(s) of {model.name!r} have other values on other workers: "
        f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}.\n"
        "Their gradients were not averaged over the workers, so each trains a different model.\n"
        "Give every optimizer that is not an attribute of the model to context.wrap_optimizer, and "
        "change weights through an optimizer's apply_gradients."
    )
