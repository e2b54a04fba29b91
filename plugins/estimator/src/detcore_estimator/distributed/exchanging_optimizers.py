"""Make optimizers exchange their gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidExperimentError, describe
from detcore_estimator.tensorflow_versions import tf, tf1

if TYPE_CHECKING:
    from detcore_estimator.distributed.gradient_exchange import GradientExchange


def exchanging(optimizer: Any, exchange: GradientExchange) -> Any:
    """Make an optimizer work with gradients over all workers and batches.

    The optimizer stays the same object, with its variables under their names; only its class
    becomes a subclass. Gradients are exchanged when the optimizer computes them, so that clipping
    between ``compute_gradients`` and ``apply_gradients`` works as on one worker; gradients of other
    origin are exchanged when they are applied.

    Args:
        optimizer: An optimizer of ``tf.compat.v1.train`` or of Keras, or a function that makes one.
        exchange: Reduces gradients.

    Raises:
        InvalidExperimentError: If it is something else.
    """
    if isinstance(optimizer, _Exchanging):
        return optimizer
    if not isinstance(optimizer, type) and isinstance(optimizer, tf1.train.Optimizer):
        return _with_class(optimizer, _ExchangingV1, exchange)
    if not isinstance(optimizer, type) and _is_keras_2(optimizer):
        return _with_class(optimizer, _ExchangingKeras, exchange)
    if callable(optimizer) and not hasattr(optimizer, "apply_gradients"):
        return _made_later(optimizer, exchange)
    raise InvalidExperimentError(
        f"context.wrap_optimizer was given {describe(optimizer)}, whose gradients cannot be "
        "exchanged between workers or added up over batches.\n"
        "Pass an optimizer object of tf.compat.v1.train or of Keras 2, such as "
        "tf.compat.v1.train.AdamOptimizer(1e-3), or a function that makes one."
    )


def _is_keras_2(optimizer: Any) -> bool:
    # Those of Keras 3 do not work in TensorFlow 1 graphs.
    is_keras = all(callable(getattr(optimizer, n, None)) for n in ("apply_gradients", "get_config"))
    return is_keras and not hasattr(optimizer, "stateless_apply")


def _with_class(optimizer: Any, mixin: type, exchange: GradientExchange) -> Any:
    own = type(optimizer)
    optimizer.__class__ = type(
        own.__name__,
        (mixin, own),
        {"__module__": own.__module__, "__doc__": own.__doc__, "_detcore_exchange": exchange},
    )
    return optimizer


def _made_later(make: Callable[[], Any], exchange: GradientExchange) -> Callable[[], Any]:
    @functools.wraps(make)
    def made() -> Any:
        return exchanging(make(), exchange)

    return made


class _Exchanging:
    """Behaviour that both kinds of optimizers share; mixed into their classes."""

    _detcore_exchange: GradientExchange

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        parent: Any = super()
        return self._detcore_exchange.reduced(parent.compute_gradients(*args, **kwargs))


class _ExchangingV1(_Exchanging):
    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        exchange = self._detcore_exchange
        pairs = exchange.reduced(grads_and_vars)
        parent: Any = super()
        if exchange.frequency == 1:
            return parent.apply_gradients(pairs, global_step=global_step, name=name)
        gradients = [gradient for gradient, _ in pairs]
        train = exchange.update(gradients, lambda: parent.apply_gradients(pairs), tf.no_op)
        if global_step is None:
            return train
        # It counts batches, as without adding up.
        with tf1.control_dependencies([train]):
            return tf1.assign_add(global_step, 1, name=name).op


class _ExchangingKeras(_Exchanging):
    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        parent: Any = super()
        gradients = parent.get_gradients(loss, params)
        pairs = zip(gradients, tf.nest.flatten(params), strict=True)
        return [gradient for gradient, _ in self._detcore_exchange.reduced(pairs)]

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        exchange = self._detcore_exchange
        pairs = [pair for pair in exchange.reduced(grads_and_vars) if pair[0] is not None]
        parent: Any = super()
        if is_self_ordering(self):
            apply = functools.partial(parent.apply_gradients, pairs, *args, **kwargs)
        else:
            with tf.init_scope():
                self.build([variable for _, variable in pairs])  # type: ignore[attr-defined]
            apply = functools.partial(_in_a_function, parent.apply_gradients, pairs, args, kwargs)
        if exchange.frequency == 1:
            return apply()
        with tf.init_scope():
            iterations = self.iterations  # type: ignore[attr-defined]  # a mixin
        return exchange.update(
            [gradient for gradient, _ in pairs],
            apply,
            # It counts batches, as without adding up.
            lambda: iterations.assign_add(1, read_value=False),
        )


def is_self_ordering(optimizer: Any) -> bool:
    """Whether the updates returned by an optimizer in a graph run in their order.

    The optimizers of Keras 2.11 and later rely on ``tf.function`` for that; in a plain graph they
    return the number of steps, and nothing is trained.
    """
    return not _is_keras_2(optimizer) or hasattr(optimizer, "_create_slots")


def _in_a_function(apply: Callable[..., Any], pairs: Any, args: Any, kwargs: Any) -> Any:
    gradients, variables = zip(*pairs, strict=True)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator,unused-ignore]  # TensorFlow has no types
    def update(gradients: Any) -> Any:
        apply(list(zip(gradients, variables, strict=True)), *args, **kwargs)
        return tf.constant(True)

    return update(gradients).op
