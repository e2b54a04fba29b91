"""Provide stateless counterparts of TensorFlow's random operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from detcore_estimator._tf import tf

__all__ = ["REPLACEMENTS", "Draw"]

_PHILOX = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Inputs that determine the numbers of one operation.

    Attributes:
        position: Where Philox begins, ``(2,), uint64``: block 0 of the step.
        step: Steps done, ``(), int64``.
        key: Distinguishes operations; 64 bits.
    """

    position: Any
    step: Any
    key: int

    def philox(self) -> dict[str, Any]:
        """Return the arguments of operations that take a key and a counter.

        A step has 2**64 blocks, so no two steps of an operation overlap.
        """
        key = tf.constant(np.array([self.key], np.uint64))
        return {"key": key, "counter": self.position, "alg": _PHILOX}

    def seed(self) -> Any:
        """Return the ``(2,), int64`` seed of operations that take one."""
        key = tf.constant(np.array([self.key], np.uint64).view(np.int64)[0])
        return tf.stack([key, self.step])


def _uniform(op: Any, draw: Draw) -> Any:
    return tf.raw_ops.StatelessRandomUniformV2(
        shape=op.inputs[0], dtype=op.outputs[0].dtype, **draw.philox()
    )


def _normal(op: Any, draw: Draw) -> Any:
    return tf.raw_ops.StatelessRandomNormalV2(
        shape=op.inputs[0], dtype=op.outputs[0].dtype, **draw.philox()
    )


def _truncated_normal(op: Any, draw: Draw) -> Any:
    return tf.raw_ops.StatelessTruncatedNormalV2(
        shape=op.inputs[0], dtype=op.outputs[0].dtype, **draw.philox()
    )


def _uniform_int(op: Any, draw: Draw) -> Any:
    shape, minval, maxval = op.inputs
    return tf.raw_ops.StatelessRandomUniformIntV2(
        shape=shape, minval=minval, maxval=maxval, **draw.philox()
    )


def _multinomial(op: Any, draw: Draw) -> Any:
    logits, num_samples = op.inputs
    return tf.raw_ops.StatelessMultinomial(
        logits=logits,
        num_samples=num_samples,
        seed=draw.seed(),
        output_dtype=op.get_attr("output_dtype"),
    )


def _gamma(op: Any, draw: Draw) -> Any:
    shape, alpha = op.inputs
    return tf.raw_ops.StatelessRandomGammaV2(
        shape=_with_parameters(shape, alpha), seed=draw.seed(), alpha=alpha
    )


def _poisson(op: Any, draw: Draw) -> Any:
    shape, rate = op.inputs
    return tf.raw_ops.StatelessRandomPoisson(
        shape=_with_parameters(shape, rate),
        seed=draw.seed(),
        lam=rate,
        dtype=op.outputs[0].dtype,
    )


def _shuffle(op: Any, draw: Draw) -> Any:
    (value,) = op.inputs
    return tf.random.experimental.stateless_shuffle(value, seed=draw.seed())


def _with_parameters(shape: Any, parameters: Any) -> Any:
    """Return the shape of samples: the stateful operations draw `shape` for each parameter."""
    return tf.concat([shape, tf.shape(parameters, out_type=shape.dtype)], axis=0)


REPLACEMENTS: dict[str, Callable[[Any, Draw], Any]] = {
    "Multinomial": _multinomial,
    "RandomGamma": _gamma,
    "RandomPoissonV2": _poisson,
    "RandomShuffle": _shuffle,
    "RandomStandardNormal": _normal,
    "RandomUniform": _uniform,
    "RandomUniformInt": _uniform_int,
    "TruncatedNormal": _truncated_normal,
}
