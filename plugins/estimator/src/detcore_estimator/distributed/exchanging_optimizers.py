"""Make optimizers exchange their gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidExperimentError, describe
from detcore_estimator.tensorflow_versions import tf, tf1

if TYPE_CHECKING:
    from detcore_estimator.distributed.gradient_exchange import GradientExchange


def exchange_gradients(optimizer: Any, exchange: GradientExchange) -> Any:
    """Make an optimizer work with gradients over all workers and batches.

    The optimizer stays the same object, and its variables keep their names. Only its class becomes
    a subclass. Gradients are exchanged when the optimizer computes them, so that clipping between
    ``compute_gradients`` and ``apply_gradients`` works as on one worker. Other gradients are
    exchanged when they are applied.

    Args:
        optimizer: An optimizer of ``tf.compat.v1.train`` or of Keras, or a function that returns
            such an optimizer.
        exchange: Reduces gradients.

    Raises:
        InvalidExperimentError: If `optimizer` is another object.
    """
    if isinstance(optimizer, _Exchanging):
        return optimizer
    if not isinstance(optimizer, type) and isinstance(optimizer, tf1.train.Optimizer):
        return _with_class(optimizer, _ExchangingV1, exchange)
    if not isinstance(optimizer, type) and _is_keras_2(optimizer):
        return _with_class(optimizer, _ExchangingKeras, exchange)
    if callable(optimizer) and not hasattr(optimizer, "apply_gradients"):
        return _wrap_factory(optimizer, exchange)
    raise InvalidExperimentError(
        f"context.wrap_optimizer received {describe(optimizer)}, whose gradients cannot be "
        "exchanged between workers or summed over batches.\n"
        "Pass an optimizer object of tf.compat.v1.train or of Keras 2, such as "
        "tf.compat.v1.train.AdamOptimizer(1e-3), or a function that returns an optimizer."
    )


def _is_keras_2(optimizer: Any) -> bool:
    # Keras 3 optimizers do not work in TensorFlow 1 graphs.
    is_keras = all(callable(getattr(optimizer, n, None)) for n in ("apply_gradients", "get_config"))
    return is_keras and not hasattr(optimizer, "stateless_apply")


def _with_class(optimizer: Any, mixin: type, exchange: GradientExchange) -> Any:
    base_class = type(optimizer)
    optimizer.__class__ = type(
        base_class.__name__,
        (mixin, base_class),
        {
            "__module__": base_class.__module__,
            "__doc__": base_class.__doc__,
            "_detcore_exchange": exchange,
        },
    )
    return optimizer


def _wrap_factory(make: Callable[[], Any], exchange: GradientExchange) -> Callable[[], Any]:
    @functools.wraps(make)
    def make_exchanging() -> Any:
        return exchange_gradients(make(), exchange)

    return make_exchanging


class _Exchanging:
    """Mixin with the behaviour that both kinds of optimizers share."""

    _detcore_exchange: GradientExchange

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        parent: Any = super()
        return self._detcore_exchange.reduce_gradients(parent.compute_gradients(*args, **kwargs))


class _ExchangingV1(_Exchanging):
    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        exchange = self._detcore_exchange
        pairs = exchange.reduce_gradients(grads_and_vars)
        parent: Any = super()
        if exchange.frequency == 1:
            return parent.apply_gradients(pairs, global_step=global_step, name=name)
        gradients = [gradient for gradient, _ in pairs]
        train = exchange.update_if_due(gradients, lambda: parent.apply_gradients(pairs), tf.no_op)
        if global_step is None:
            return train
        # The global step counts batches, as without aggregation.
        with tf1.control_dependencies([train]):
            return tf1.assign_add(global_step, 1, name=name).op


class _ExchangingKeras(_Exchanging):
    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        parent: Any = super()
        gradients = parent.get_gradients(loss, params)
        pairs = zip(gradients, tf.nest.flatten(params), strict=True)
        return [gradient for gradient, _ in self._detcore_exchange.reduce_gradients(pairs)]

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        exchange = self._detcore_exchange
        pairs = [pair for pair in exchange.reduce_gradients(grads_and_vars) if pair[0] is not None]
        parent: Any = super()
        if is_self_ordering(self):
            apply = functools.partial(parent.apply_gradients, pairs, *args, **kwargs)
        else:
            with tf.init_scope():
                self.build([variable for _, variable in pairs])  # type: ignore[attr-defined]
            apply = functools.partial(
                _apply_in_function, parent.apply_gradients, pairs, args, kwargs
            )
        if exchange.frequency == 1:
            return apply()
        with tf.init_scope():
            iterations = self.iterations  # type: ignore[attr-defined]  # a mixin
        return exchange.update_if_due(
            [gradient for gradient, _ in pairs],
            apply,
            # The counter counts batches, as without aggregation.
            lambda: iterations.assign_add(1, read_value=False),
        )


def is_self_ordering(optimizer: Any) -> bool:
    """Whether the updates that an optimizer returns in a graph run in order.

    Optimizers of Keras 2.11 and later rely on ``tf.function`` for the order. In a plain graph, they
    return the number of steps and train nothing.
    """
    return not _is_keras_2(optimizer) or hasattr(optimizer, "_create_slots")


def _apply_in_function(apply: Callable[..., Any], pairs: Any, args: Any, kwargs: Any) -> Any:
    gradients, variables = zip(*pairs, strict=True)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator,unused-ignore]  # TensorFlow has no types
    def update_variables(gradients: Any) -> Any:
        apply(list(zip(gradients, variables, strict=True)), *args, **kwargs)
        return tf.constant(True)

    return update_variables(gradients).op
