"""Preserve Python's, NumPy's and TensorFlow's random generators."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from detcore_keras._keras import keras, tf
from detcore_keras._variables import raw_variable

# Odd and large, so that consecutive ranks and steps give unrelated seeds.
_STRIDE = 0x9E3779B1


class RandomState:
    """The state of every random generator, held in memory.

    Args:
        variables: Variables with generators of the model (dropout and similar layers).
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
        """Restore all generators."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)


@contextlib.contextmanager
def preserved_rng(variables: Sequence[Any] = ()) -> Iterator[None]:
    """Restore the generators after the block to their state before it.

    Args:
        variables: See `RandomState`.
    """
    state = RandomState(variables)
    try:
        yield
    finally:
        state.restore()


def vary_by_rank(variables: Sequence[Any], *, seed: int, rank: int, step: int) -> None:
    """Make a worker draw other random numbers than the chief, whose numbers stay the same.

    Args:
        variables: See `RandomState`.
        seed: The trial's seed.
        rank: Rank of this worker; nothing changes for rank 0.
        step: Batches completed.
    """
    if rank == 0:
        return
    offset = (rank * _STRIDE + step) % (1 << 31)
    keras.utils.set_random_seed((seed + offset) % (1 << 31))
    generator = _global_generator()
    states = [*map(raw_variable, variables), *([] if generator is None else [generator.state])]
    for state in states:
        words = np.array(state.numpy())
        # The last word is the seed in TensorFlow, and a count of draws in Keras 3.
        words[-1] += np.array(offset, words.dtype)
        state.assign(words)


def _global_generator() -> Any:
    """Return TensorFlow's global generator if it exists; the public function would make one."""
    from tensorflow.python.ops import stateful_random_ops

    return stateful_random_ops.global_generator
