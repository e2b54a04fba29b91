"""Sum gradients over batches and workers before an optimizer uses them.

All training calls ``apply_gradients`` of an optimizer (Keras 3: ``apply``), from Keras's own
``train_step``, from ``minimize``, or from the user's training step. A subclass that passes on the
mean therefore replaces the optimizer's class. Later processing in the optimizer, such as clipping,
works on the mean, as on one worker with the whole batch.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf

from detcore_keras.backends.backend import SUMS_OF_GRADIENTS, make_subclass

if TYPE_CHECKING:
    from detcore.types import GradientSettings
    from detcore_keras.backends.backend import Collective


_T = TypeVar("_T")


def share_gradients(
    optimizers: Sequence[Any],
    settings: GradientSettings,
    collective: Collective | None,
    make_subclass: Callable[[type, Exchange], type],
) -> None:
    """Make optimizers sum gradients before they use them.

    Does nothing for one worker without gradient aggregation. An inner optimizer, such as inside a
    ``LossScaleOptimizer``, receives summed gradients and sums nothing.

    Args:
        optimizers: Unused optimizers, in the same order on all workers.
        settings: Rules for combining gradients.
        collective: Sums over the workers; None for a single worker.
        make_subclass: `with_apply` or `with_apply_gradients`.
    """
    frequency = settings.aggregation_frequency
    if frequency == 1 and collective is None:
        return
    turns = _Turns()
    for index, optimizer in enumerate(optimizers):
        exchange = Exchange(f"optimizer_{index}", settings, collective, turns)
        # Bypasses Keras's own `__setattr__`, which looks for hyperparameters.
        object.__setattr__(optimizer, "__class__", make_subclass(type(optimizer), exchange))


class _Turns:
    """Orders the exchanges of a trial's optimizers with other workers, as in the code.

    Also marks calls of inner optimizers, which sum nothing.
    """

    def __init__(self) -> None:
        self.is_inside = False
        self._graph: weakref.ref[Any] | None = None
        self._latest: Any = None

    def run_in_order(self, exchange: Callable[[], _T], marker: Callable[[_T], Any]) -> _T:
        """Run an exchange after the previous exchange. `marker` returns a tensor of its result.

        A graph does not otherwise order two exchanges, such as updates by two optimizers.
        """
        if tf.executing_eagerly():
            return exchange()
        graph = tf.compat.v1.get_default_graph()
        follows = self._graph is not None and self._graph() is graph
        with tf.control_dependencies([self._latest] if follows else []):
            result = exchange()
        self._graph, self._latest = weakref.ref(graph), marker(result)
        return result

    def call_update(self, update: Callable[[Any], Any], gradients: Any) -> Any:
        self.is_inside = True
        try:
            return update(gradients)
        finally:
            self.is_inside = False


class Exchange:
    """Sums the gradients of one optimizer."""

    def __init__(
        self,
        name: str,
        settings: GradientSettings,
        collective: Collective | None,
        turns: _Turns,
    ) -> None:
        self._name = name
        self.frequency = settings.aggregation_frequency
        self._averages = settings.average_aggregated_gradients
        self._collective = collective
        self.turns = turns
        self._sums: dict[tuple[int, ...], _Sums] = {}

    @property
    def variables(self) -> list[Any]:
        return [variable for sums in self._sums.values() for variable in (sums.count, *sums.totals)]

    def apply(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        *,
        update: Callable[[Sequence[Any]], Any],
        build: Callable[[], None],
        over_workers: bool = True,
    ) -> None:
        """Call `update` with the mean gradients: now, or at every k-th batch.

        Args:
            gradients: Tensors, possibly sparse, or None for variables without a gradient.
            variables: The variables of the gradients.
            update: Uses the gradients.
            build: Creates the optimizer's variables.
            over_workers: Whether to also sum over the workers.
        """
        # Sparse gradients of embeddings also become dense. An optimizer then does the same for any
        # number of workers and batches, and one message holds a whole step. Gathering the rows of
        # all workers would be smaller if few rows of a large table are used.
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
        if not dense:
            self.turns.call_update(update, gradients)
            return
        if self.frequency == 1:
            mean = self.turns.run_in_order(
                lambda: self._compute_mean(dense, over_workers), lambda means: means[0]
            )
            self.turns.call_update(update, _with_missing(mean, gradients))
            return
        build()
        present = [v for g, v in zip(gradients, variables, strict=True) if g is not None]
        # A step may update several groups of variables with separate calls.
        key = tuple(id(variable) for variable in present)
        if key not in self._sums:
            self._sums[key] = _Sums(self._name, present, dense)
        sums = self._sums[key]
        sums.add_gradients(dense)

        def use_means() -> Any:
            mean = self._compute_mean(sums.read_totals(), over_workers)
            self.turns.call_update(update, _with_missing(mean, gradients))
            sums.reset_totals()
            return tf.constant(True)

        def use_if_due() -> Any:
            is_due = sums.count >= self.frequency
            return tf.cond(is_due, use_means, lambda: tf.constant(False))

        self.turns.run_in_order(use_if_due, lambda done: done)

    def _compute_mean(self, gradients: list[Any], over_workers: bool) -> list[Any]:
        divisor = self.frequency if self._averages else 1
        if self._collective is not None and over_workers:
            with tf.name_scope(self._name):
                gradients = self._collective.sum_gradients(gradients)
            divisor *= self._collective.size
        if divisor == 1:
            return gradients
        return [gradient / tf.cast(divisor, gradient.dtype) for gradient in gradients]


class _Sums:
    """The gradients of some variables, summed over batches."""

    def __init__(self, name: str, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        self._variables = list(variables)  # kept alive, so that their ids are not reused
        with tf.init_scope():
            self.count = tf.Variable(
                0, dtype=tf.int64, trainable=False, name=f"{name}/batches_added_up"
            )
            self.totals = [
                tf.Variable(
                    tf.zeros(variable.shape, gradient.dtype),
                    trainable=False,
                    name=f"{name}/gradient_{index}",
                )
                for index, (variable, gradient) in enumerate(zip(variables, gradients, strict=True))
            ]

    def add_gradients(self, gradients: Iterable[Any]) -> None:
        for total, gradient in zip(self.totals, gradients, strict=True):
            total.assign_add(gradient)
        self.count.assign_add(1)

    def read_totals(self) -> list[Any]:
        return [total.read_value() for total in self.totals]

    def reset_totals(self) -> None:
        for total in self.totals:
            total.assign(tf.zeros(total.shape, total.dtype))
        self.count.assign(0)


def with_apply_gradients(kind: type, exchange: Exchange) -> type:
    """Return a subclass of an optimizer class of Keras 2: new, legacy, or with loss scaling."""
    signature = inspect.signature(kind.apply_gradients)  # type: ignore[attr-defined]

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        def update(gradients: Sequence[Any]) -> Any:
            pairs = list(zip(gradients, variables, strict=True))
            return kind.apply_gradients(self, pairs, *args, **kwargs)  # type: ignore[attr-defined]

        def build() -> None:
            with tf.init_scope():
                make = getattr(self, "_create_all_weights", None)
                (self.build if make is None else make)(variables)

        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        gradients = [gradient for gradient, _ in pairs]
        if exchange.turns.is_inside:
            return update(gradients)
        arguments = {**kwargs, **signature.bind(self, pairs, *args, **kwargs).arguments}
        over_workers = arguments.get(
            "experimental_aggregate_gradients", True
        ) and not arguments.get("skip_gradients_aggregation", False)
        exchange.apply(gradients, variables, update=update, build=build, over_workers=over_workers)
        return self.iterations

    names = {"apply_gradients": apply_gradients, SUMS_OF_GRADIENTS: exchange}
    return make_subclass(kind, **names)


def with_apply(kind: type, exchange: Exchange) -> type:
    """Return a subclass of an optimizer class of Keras 3."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        def update(gradients: Sequence[Any]) -> Any:
            return kind.apply(self, gradients, trainable_variables)  # type: ignore[attr-defined]

        def build() -> None:
            if not self.built:
                self.build(variables)

        gradients = list(grads)
        if exchange.turns.is_inside:
            update(gradients)
            return
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        variables = list(variables)
        exchange.apply(gradients, variables, update=update, build=build)

    return make_subclass(kind, **{"apply": apply, SUMS_OF_GRADIENTS: exchange})


def _with_missing(present: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """Put None back for variables without a gradient."""
    following = iter(present)
    return [None if gradient is None else next(following) for gradient in gradients]
