"""Keeping Python's, NumPy's and TensorFlow's random generators as they are."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from detcore_keras._keras import tf
from detcore_keras._variables import raw_variable

__all__ = ["RandomState", "preserved_rng"]


class RandomState:
    """The state of every random generator, held in memory.

    Args:
        variables: Variables that hold generators of the model's own (dropout and its like).
    """

    def __init__(self, variables: Sequence[Any] = ()) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state()
        generator = _global_generator()
        self._variables = [
            *map(raw_variable, variables),
            *([] if generator is None else [generator.state]),
        ]
        self._values = [tf.identity(variable) for variable in self._variables]

    def restore(self) -> None:
        """Set all generators back."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)


@contextlib.contextmanager
def preserved_rng(variables: Sequence[Any] = ()) -> Iterator[None]:
    """Leave the generators after the block as they were before it.

    Args:
        variables: See `RandomState`.
    """
    state = RandomState(variables)
    try:
        yield
    finally:
        state.restore()


def _global_generator() -> Any:
    """Return TensorFlow's global generator if there is one; asking for it would make one."""
    from tensorflow.python.ops import stateful_random_ops

    return stateful_random_ops.global_generator
