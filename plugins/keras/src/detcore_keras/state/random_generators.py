"""Save, restore and preserve the random generators of Python, NumPy, Keras and its back end."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detcore.errors import InvalidCheckpointError
from detcore.trial import capture_random_state, restore_random_state
from detcore_keras.frameworks import backend, keras
from detcore_keras.state.array_files import read_json, write_json

RNG_FILE = "rng.json"
_VERSION = 1
# Odd and large, so that consecutive ranks and steps get unrelated seeds.
_STRIDE = 0x9E3779B1


def capture_rng(directory: Path) -> None:
    """Write the state of the process-wide random generators to ``rng.json``.

    These are ``random``, ``numpy.random``, those of the back end, and the seed generator that Keras
    3 uses for layers and operations without a seed. Generators that are attributes of the model are
    saved with the model.

    Args:
        directory: Directory to write into.
    """
    state = {"version": _VERSION, **capture_random_state(), **backend.capture_generators()}
    write_json(directory / RNG_FILE, state)


def find_process_generators() -> dict[str, Any]:
    """Return the states of the back end's and Keras's process-wide generators, by name."""
    keras_seed = backend.find_keras_generator()
    generators = backend.find_generators()
    return generators if keras_seed is None else {**generators, "keras": keras_seed}


def restore_rng(directory: Path) -> None:
    """Restore the random generators from a file of `capture_rng`.

    Args:
        directory: The directory of the file.

    Raises:
        InvalidCheckpointError: If the file is missing or damaged.
    """
    path = directory / RNG_FILE
    state = read_json(path, ", so the random generators cannot be restored")
    try:
        if state["version"] != _VERSION:
            raise ValueError(f"version {state['version']!r}, but this is version {_VERSION}")
        backend.restore_generators(state)
        # Last, because creating a generator for Keras draws from Python's generator.
        restore_random_state(state)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(f"{path} cannot be used: {error}") from error


class RandomState:
    """The state of every random generator, held in memory.

    Args:
        variables: Variables with the model's generators (of dropout and similar layers).
    """

    def __init__(self, variables: Sequence[Any] = ()) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state()
        self._variables = _list_states(variables)
        self._values = [backend.read_variable(variable).copy() for variable in self._variables]

    def restore(self) -> None:
        """Restore all generators."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)


@contextlib.contextmanager
def preserved_rng(variables: Sequence[Any] = ()) -> Iterator[None]:
    """Restore the generators after the block to their state before the block.

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
    # The seed above also determines PyTorch's generators, which are not variables.
    for state in filter(backend.is_variable, _list_states(variables)):
        words = backend.read_variable(state).copy()
        # The last word is the seed in TensorFlow, and a count of draws in Keras 3.
        words[-1] += np.array(offset, words.dtype)
        state.assign(words)


def _list_states(variables: Sequence[Any]) -> list[Any]:
    return [*map(backend.get_raw, variables), *backend.find_generators().values()]
