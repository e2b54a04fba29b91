"""Average gradients over the workers of a trial, and sum them over several batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from detcore_estimator.data.record_ids import flat_tensors
from detcore_estimator.graph.random_ops import find_reachable
from detcore_estimator.tensorflow_versions import tf, tf1
from detcore_estimator.worker_setup import import_horovod

if TYPE_CHECKING:
    from detcore.trial import TrialSetup


_STATE = "_detcore_gradients"


class GradientExchange:
    """Reduces gradients over the workers and, with a frequency, over batches.

    With a frequency of k, each worker sums its gradients in local variables. With every k-th batch,
    the sums are averaged over the workers. The result of `reduce_gradients` is meaningful only in
    such a step. `update_if_due` skips the other steps.

    Args:
        num_workers: Number of workers.
        setup: The trial's setup, with the settings for combining gradients.

    Attributes:
        num_workers: Number of workers.
        frequency: Batches whose gradients are summed before each update.
    """

    def __init__(self, num_workers: int, setup: TrialSetup) -> None:
        self.num_workers = num_workers
        self.frequency = setup.settings.gradients.aggregation_frequency
        self._settings = setup.settings.gradients

    @property
    def is_plain(self) -> bool:
        """Whether an optimizer needs no changes: one worker, and one update per batch."""
        return self.num_workers == 1 and self.frequency == 1

    def wait_for(self, batch: Any) -> None:
        """Make all gradients of the default graph wait for their batch.

        A step that finds the end of the data is run again. A gradient that needs no data, such as
        of a weight penalty, would otherwise count twice, or put the workers out of step.

        Args:
            batch: A structure of tensors.
        """
        self._get_state().batch = list(dict.fromkeys(part.op for part in flat_tensors(batch)))

    def reduce_gradients(self, pairs: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return the gradients over all workers and batches. Reduced gradients stay unchanged.

        Args:
            pairs: Pairs of a gradient (tensor, ``IndexedSlices`` or None) and its variable.
        """
        pairs = list(pairs)
        state = self._get_state()
        reduced_ops = state.find_downstream()
        new_indices = [
            index
            for index, (gradient, _) in enumerate(pairs)
            if gradient is not None and reduced_ops.isdisjoint(_list_operations([gradient]))
        ]
        if new_indices:
            gradients, variables = zip(*(pairs[index] for index in new_indices), strict=True)
            values = self._reduce(state, gradients, variables)
            for index, value, variable in zip(new_indices, values, variables, strict=True):
                pairs[index] = value, variable
        return pairs

    def update_if_due(
        self, gradients: Sequence[Any], apply: Callable[[], Any], skip: Callable[[], Any]
    ) -> Any:
        """Return an operation that updates the variables in steps with a due update.

        Args:
            gradients: The reduced gradients to apply.
            apply: Returns the update operation.
            skip: Returns the operation for the other steps.
        """
        if self.frequency == 1:
            return apply()
        with tf1.control_dependencies(_list_operations(gradients)):
            is_due = tf.identity(self._is_due(self._get_state()))
        scope = tf1.get_default_graph().get_name_scope()

        def apply_update() -> Any:
            # Optimizers create variables here, which must keep their usual names.
            with tf1.name_scope(f"{scope}/" if scope else None):
                return tf.group(apply())

        return tf1.cond(is_due, apply_update, lambda: tf.group(skip()))

    def _reduce(
        self, state: _GraphState, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> Sequence[Any]:
        with tf1.name_scope("detcore_gradients"):
            if self.frequency == 1:
                with tf1.control_dependencies(state.batch):
                    values = self._over_workers(state, gradients)
            else:
                values = self._over_batches(state, gradients, variables)
        state.reduce_gradients += _list_operations(values)
        return values

    def _over_workers(self, state: _GraphState, gradients: Sequence[Any]) -> Sequence[Any]:
        if self.num_workers == 1:
            return gradients
        hvd = import_horovod()
        compression = (
            hvd.Compression.fp16 if self._settings.gradient_compression else hvd.Compression.none
        )
        values: dict[int, Any] = {}
        by_type: dict[Any, list[int]] = {}
        for index, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                values[index] = self._sparse_over_workers(state, gradient)
            else:
                by_type.setdefault(gradient.dtype, []).append(index)
        for indices in by_type.values():
            # In a single message, the sum's rounding depends only on the gradients.
            means = hvd.grouped_allreduce(
                [gradients[index] for index in indices],
                op=hvd.Average,
                compression=compression,
                name=state.new_name("dense"),
                ignore_name_scope=True,
            )
            values.update(zip(indices, means, strict=True))
        return [values[index] for index in range(len(gradients))]

    def _sparse_over_workers(self, state: _GraphState, gradient: Any) -> Any:
        """Gather the rows of all workers. The optimizer adds rows that several workers have."""
        values, indices = (
            import_horovod().allgather(part, name=state.new_name("sparse"), ignore_name_scope=True)
            for part in (gradient.values, gradient.indices)
        )
        share = tf.cast(self.num_workers, values.dtype)
        return tf.IndexedSlices(values / share, indices, gradient.dense_shape)

    def _over_batches(
        self, state: _GraphState, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        is_due = self._is_due(state)
        sums = [
            _new_variable("sum", gradient.dtype, variable.shape)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        with tf1.control_dependencies(state.batch):
            added = [_accumulate(total, part) for total, part in zip(sums, gradients, strict=True)]
        with tf1.control_dependencies(added):
            is_due = tf.identity(is_due)

        def over_workers() -> list[Any]:
            values: Any = self._over_workers(state, [total.read_value() for total in sums])
            if self._settings.average_aggregated_gradients:
                values = [value / tf.cast(self.frequency, value.dtype) for value in values]
            with tf1.control_dependencies(values):
                cleared = [total.assign(tf.zeros_like(total), read_value=False) for total in sums]
            with tf1.control_dependencies(cleared):
                return [tf.identity(value) for value in values]

        def not_yet() -> list[Any]:
            return [tf.zeros_like(total) for total in sums]

        values = tf1.cond(is_due, over_workers, not_yet)
        # With one gradient, tf.cond returns it without a list.
        return list(values) if isinstance(values, list | tuple) else [values]

    def _is_due(self, state: _GraphState) -> Any:
        """Return whether this step updates the variables, as one tensor per graph."""
        if state.is_due is None:
            with tf1.control_dependencies(None), tf1.name_scope("detcore_gradients"):
                count = _new_variable("batches", tf.int64, tf.TensorShape([]))
                with tf1.control_dependencies(state.batch):
                    num_batches = count.assign_add(1, read_value=True)
                state.is_due = tf.equal(num_batches % self.frequency, 0)
        return state.is_due

    def _get_state(self) -> _GraphState:
        # The graph owns the state, so both are freed together.
        graph = tf1.get_default_graph()
        if not hasattr(graph, _STATE):
            setattr(graph, _STATE, _GraphState())
        state: _GraphState = getattr(graph, _STATE)
        return state


class _GraphState:
    """Operations of one graph.

    Attributes:
        batch: Operations that read the batch.
        is_due: Whether a step updates the variables; None before its first use.
        reduced: Operations that compute reduced gradients.
    """

    def __init__(self) -> None:
        self.batch: list[Any] = []
        self.is_due: Any = None
        self.reduce_gradients: list[Any] = []
        self._num_names = 0

    def new_name(self, kind: str) -> str:
        """Return a message name that is the same on all workers."""
        self._num_names += 1
        return f"detcore_{kind}_{self._num_names}"

    def find_downstream(self) -> set[Any]:
        """Return the operations that compute or use reduced values."""
        return find_reachable(
            self.reduce_gradients,
            lambda op: (consumer for out in op.outputs for consumer in out.consumers()),
        )


def _new_variable(name: str, dtype: Any, shape: Any) -> Any:
    """Return a new local variable of zeros."""
    # Outside of the user's open contexts, such as tf.control_dependencies.
    with tf1.control_dependencies(None):
        return tf1.Variable(
            tf.zeros(shape, dtype),
            trainable=False,
            collections=[tf1.GraphKeys.LOCAL_VARIABLES],
            use_resource=True,
            name=name,
        )


def _list_operations(values: Iterable[Any]) -> list[Any]:
    present = [value for value in values if value is not None]
    return [part.op for part in tf.nest.flatten(present, expand_composites=True)]


def _accumulate(total: Any, gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return total.scatter_add(gradient)
    return total.assign_add(gradient, read_value=False)
