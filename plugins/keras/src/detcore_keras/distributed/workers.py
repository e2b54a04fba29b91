"""Coordinate the workers of a Keras trial, apart from their gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from detcore.errors import CheckFailedError, DataError, InvalidModelError, PeerLostError
from detcore.metrics import weighted_mean
from detcore.storage import Digester
from detcore_keras.frameworks import backend
from detcore_keras.state.array_files import encode_array
from detcore_keras.state.npz_files import bytes_of
from detcore_keras.state.training_state import is_float
from detcore_keras.state.variables import NamedVariable, training_variables

if TYPE_CHECKING:
    from detcore.core import DistributedContext
    from detcore.errors import DistributedError
    from detcore.types import GradientSettings
    from detcore_keras.backends.backend import Collective
    from detcore_keras.data.feed import Feed


_T = TypeVar("_T")
# Error messages of Gloo, on JAX and PyTorch, for a closed connection.
_LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
# Groups with the chief's values on all workers. Each worker has its own generators and metrics.
_SHARED = frozenset({"weights", "extra", "optimizer", "hyperparameters", "counters"})


class Workers:
    """All workers of a trial, from the perspective of one worker. One worker exchanges nothing.

    All workers call the same methods, in the same order.

    Args:
        distributed: The workers.
        settings: Rules for combining metrics.
        collective: Sums of gradients; None for a single worker.

    Attributes:
        rank: Rank of this worker.
        size: Number of workers.
        is_chief: Whether this is the worker with rank 0.
        collective: The argument.
    """

    def __init__(
        self,
        distributed: DistributedContext,
        settings: GradientSettings,
        collective: Collective | None,
    ) -> None:
        self._distributed = distributed
        self.rank = distributed.rank
        self.size = distributed.size
        self.is_chief = self.rank == 0
        self._averages_metrics = settings.average_training_metrics
        self.collective = collective

    def all_gather(self, value: _T) -> list[_T]:
        """Return every worker's value, in rank order."""
        return [value] if self.size == 1 else self._distributed.allgather(value)

    # -- data -------------------------------------------------------------------------------------

    def steps_per_epoch(self, feed: Feed) -> int | None:
        """Return the steps after which every worker has seen all its data once; None if unknown.

        A worker with less data begins its next pass while other workers finish theirs.

        Raises:
            CheckFailedError: If the data has fewer batches than workers.
            DataError: If the workers have different data to take their shares from.
        """
        if self.size == 1:
            return feed.batches_per_epoch
        counts_by_rank = self.all_gather((feed.shared_records, feed.batches_per_epoch))
        shared_records = [records for records, _ in counts_by_rank]
        if len(set(shared_records)) > 1:
            listed = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(shared_records))
            raise DataError(
                f"the workers received training data of different lengths ({listed}).\n"
                "Each worker takes its share of the batches of one order, so all workers need all "
                "the data.\nReturn the whole data on every worker. Or return different data on "
                "each worker: a tf.data.Dataset with "
                "context.wrap_dataset(dataset, shard_dataset=False)."
            )
        lengths = [batches for _, batches in counts_by_rank]
        if shared_records[0] is None:
            known_lengths = [batches for batches in lengths if batches is not None]
            return max(known_lengths) if len(known_lengths) == len(lengths) else None
        batches = lengths[0] or 0
        if batches < self.size:
            raise CheckFailedError(
                f"the training data has {batches} batch(es) for {self.size} workers.\n"
                "Each worker needs at least one batch.\n"
                "Lower hyperparameters.global_batch_size, provide more data, or use fewer workers."
            )
        return -(-batches // self.size)

    # -- variables --------------------------------------------------------------------------------

    def share_variables(self, variables: Sequence[NamedVariable]) -> None:
        """Set weights, optimizer state and counters to the chief's values, where they differ."""
        if self.collective is not None:
            self._broadcast_variables(_select_shared(variables))

    @contextlib.contextmanager
    def chief_weights(self, model: Any) -> Iterator[None]:
        """Use the chief's model on every worker within the block.

        Trained weights are the same on all workers. Values that layers derive from their own
        batches, such as the moving averages of batch normalization, differ. They are restored after
        the block.
        """
        if self.collective is None:
            yield
            return
        trained = {backend.get_key(backend.get_raw(v)) for v in model.trainable_weights}
        candidates = [
            item
            for item in _select_shared(training_variables(model, []))
            if item.group in {"weights", "extra"} and backend.get_key(item.variable) not in trained
        ]
        before = {id(item): backend.read_variable(item.variable).copy() for item in candidates}
        replaced_variables = self._broadcast_variables(candidates)
        try:
            yield
        finally:
            for item in [] if self.is_chief else replaced_variables:
                item.variable.assign(before[id(item)])

    def own_variables(self, model: Any, variables: Sequence[NamedVariable]) -> list[int]:
        """Return the indices of all variables whose value on this worker differs from the chief's.

        Raises:
            InvalidModelError: If a trained weight differs, so the workers train different models.
        """
        if self.size == 1:
            return []
        differing = self._find_differing(variables)
        _check_same_model(model, variables, set().union(*differing))
        return differing[self.rank]

    def _broadcast_variables(self, variables: Sequence[NamedVariable]) -> list[NamedVariable]:
        """Set variables to the chief's values. Return variables that differed on any worker."""
        indices = sorted(set().union(*self._find_differing(variables)))
        differing_variables = [variables[index] for index in indices]
        if differing_variables:
            values = [backend.read_variable(item.variable) for item in differing_variables]
            values = self._distributed.broadcast(values)
            for item, value in zip(differing_variables, values, strict=True):
                item.variable.assign(value)
        return differing_variables

    def _find_differing(self, variables: Sequence[NamedVariable]) -> list[list[int]]:
        """Return, for each worker, the indices of variables that differ from the chief's."""
        digests = self.all_gather([_digest_variable(item.variable) for item in variables])
        if len({len(worker_digests) for worker_digests in digests}) > 1:
            counts = ", ".join(
                f"rank {rank}: {len(worker_digests)}" for rank, worker_digests in enumerate(digests)
            )
            raise InvalidModelError(
                f"the workers' models have different numbers of variables ({counts}).\n"
                "They train one model, so build_model must build the same model on all workers."
            )
        chief = digests[0]
        return [
            [index for index, digest in enumerate(worker_digests) if digest != chief[index]]
            for worker_digests in digests
        ]

    def find_failure(self, error: Exception) -> DistributedError | None:
        """Return the error of the connection to other workers that caused an error of a step."""
        failure = None if self.collective is None else self.collective.failure
        is_lost = self.size > 1 and any(sign in str(error) for sign in _LOST_CONNECTION)
        if failure is not None or not is_lost:
            return failure
        return PeerLostError(
            f"rank {self.rank} lost another worker: the connection ended while gradients were "
            "averaged.\nThe output of the other workers shows the reason."
        )

    # -- metrics ----------------------------------------------------------------------------------

    def mean_metrics(
        self, metrics: Mapping[str, float], n_records: int | None
    ) -> Mapping[str, float]:
        """Return training metrics over all workers, weighted by records if their number is known.

        Return the chief's metrics if ``optimizations.average_training_metrics`` is false.
        """
        metrics_by_rank = self.all_gather((dict(metrics), n_records))
        if self.size == 1 or not self._averages_metrics:
            return metrics_by_rank[0][0]
        counts = [count for _, count in metrics_by_rank]
        weights = [1.0 if count is None else float(count) for count in counts]
        if None in counts or not any(weights):
            weights = [1.0] * len(metrics_by_rank)
        return weighted_mean([worker_metrics for worker_metrics, _ in metrics_by_rank], weights)


def _select_shared(variables: Sequence[NamedVariable]) -> list[NamedVariable]:
    return [
        item
        for item in variables
        if item.group in _SHARED
        and not item.is_generator
        and backend.get_dtype(item.variable) != "string"
    ]


def digest_weights(variables: Sequence[NamedVariable]) -> list[str]:
    """Return a digest of each floating-point variable of the training."""
    return [
        _digest_variable(item.variable)
        for item in variables
        if is_float(backend.get_dtype(item.variable))
    ]


def _digest_variable(variable: Any) -> str:
    value = backend.read_variable(variable)
    digest = Digester()
    digest.update(f"{value.dtype} {value.shape} ".encode())
    for part in encode_array("", value).values():
        digest.update(bytes_of(np.asarray(part, order="C")))
    return digest.result().value


def _check_same_model(model: Any, variables: Sequence[NamedVariable], differing: set[int]) -> None:
    trained = {backend.get_key(backend.get_raw(v)) for v in model.trainable_weights}
    names = [
        variables[i].name
        for i in sorted(differing)
        if backend.get_key(variables[i].variable) in trained
    ]
    if not names:
        return
    raise InvalidModelError(
        f"{len(names)} trained weight(s) of {model.name!r} differ between the workers: "
        f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}.\n"
        "Their gradients were not averaged over the workers, so each trains a different model.\n"
        "Pass every optimizer that is not an attribute of the model to context.wrap_optimizer, and "
        "change weights only through an optimizer's apply_gradients."
    )
