"""Make the randomness of a Sequence depend only on the item, not on the worker or the time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_WORD = 0xFFFFFFFF
# Purposes of seeds. Python's and NumPy's generators (both MT19937) get different streams.
_ITEM, _EPOCH_END = 1, 2
_PYTHON, _NUMPY = 1, 2
_MAX_DEPTH = 4
_MAX_OBJECTS = 1000  # a larger Sequence holds data in its attributes, not settings
_ATOMS = (str, bytes, int, float, np.ndarray, type, types.ModuleType, types.FunctionType)


class HeldGenerator:
    """A random generator that a Sequence holds, such as ``self.rng = np.random.default_rng(5)``.

    Args:
        value: A `random.Random`, a NumPy ``Generator`` or a NumPy ``RandomState``.
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def get_state(self) -> Any:
        """Return the state as JSON values."""
        if isinstance(self._value, random.Random):
            return list(self._value.getstate())
        if isinstance(self._value, np.random.RandomState):
            return _as_json(self._value.get_state(legacy=False))
        return _as_json(self._value.bit_generator.state)

    def set_state(self, state: Any) -> None:
        """Restore a result of `get_state`.

        Raises:
            ValueError, TypeError, KeyError: If the state is for another kind of generator.
        """
        if isinstance(self._value, random.Random):
            version, words, gauss = state
            self._value.setstate((version, tuple(words), gauss))
        elif isinstance(self._value, np.random.RandomState):
            self._value.set_state(state)
        else:
            self._value.bit_generator.state = state

    def seed(self, words: Sequence[int]) -> None:
        """Seed the generator from words and its current state."""
        digest = hashlib.blake2b(json.dumps(self.get_state()).encode(), digest_size=16).digest()
        words = [*words, *np.frombuffer(digest, np.uint32).tolist()]
        if isinstance(self._value, random.Random):
            self._value.seed(_python_seed(words))
        elif isinstance(self._value, np.random.RandomState):
            self._value.seed(words)
        else:
            kind = type(self._value.bit_generator)
            self._value.bit_generator.state = kind(np.random.SeedSequence(words)).state


def find_generators(sequence: Any) -> list[HeldGenerator]:
    """Return the random generators in a Sequence's attributes, in an order fixed by the code.

    Attributes are followed through lists, tuples, dictionaries and objects, four levels deep.
    """
    generators: list[HeldGenerator] = []
    visited: dict[int, Any] = {}
    pending: list[tuple[Any, int]] = [(sequence, 0)]
    while pending and len(visited) < _MAX_OBJECTS:
        value, depth = pending.pop(0)
        if isinstance(value, _ATOMS) or id(value) in visited:
            continue
        visited[id(value)] = value
        if type(value) is random.Random or isinstance(
            value, np.random.Generator | np.random.RandomState
        ):
            generators.append(HeldGenerator(value))
        elif depth < _MAX_DEPTH:
            pending += [(child, depth + 1) for child in _list_children(value)]
    return generators


def draws_numbers(sequence: Any) -> bool:
    """Whether a method that prepares items uses ``random`` or ``numpy.random``."""
    methods = {
        name: value for kind in type(sequence).__mro__[::-1] for name, value in vars(kind).items()
    }
    for name, method in methods.items():
        if isinstance(method, types.FunctionType) and name not in ("__init__", "on_epoch_end"):
            names = method.__code__.co_names
            used_ids = {id(method.__globals__.get(name)) for name in names}
            if id(random) in used_ids or (id(np) in used_ids and "random" in names):
                return True
    return False


@contextlib.contextmanager
def seeded_item(sequence: Any, seed: int, epoch: int, index: int) -> Iterator[None]:
    """Seed the generators for one item, and restore them afterwards."""
    with _seed_generators(sequence, (_ITEM, seed, epoch, index)):
        yield


def end_epoch(sequence: Any, seed: int, epoch: int) -> None:
    """Call ``on_epoch_end`` with generators seeded for this epoch, and restore them."""
    hook: Callable[[], None] | None = getattr(sequence, "on_epoch_end", None)
    if hook is not None:
        with _seed_generators(sequence, (_EPOCH_END, seed, epoch, 0)):
            hook()


@contextlib.contextmanager
def _seed_generators(sequence: Any, numbers: Sequence[int]) -> Iterator[None]:
    purpose, *values = numbers
    words = [purpose, *(part for v in values for part in (v & _WORD, v >> 32 & _WORD))]
    generators = find_generators(sequence)
    python, numpy = random.getstate(), np.random.get_state()
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.seed(words)
        np.random.seed([_NUMPY, *words])
        random.seed(_python_seed([_PYTHON, *words]))
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        random.setstate(python)
        np.random.set_state(numpy)


def _list_children(value: Any) -> list[Any]:
    # Only built-in containers. An open HDF5 file, for example, is also a mapping.
    if isinstance(value, dict | list | tuple):
        items = value.values() if isinstance(value, dict) else value
        return list(items) if len(value) <= _MAX_OBJECTS else []
    return list(getattr(value, "__dict__", {}).values())


def _as_json(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {key: _as_json(part) for key, part in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def _python_seed(words: Sequence[int]) -> int:
    return int.from_bytes(b"".join(word.to_bytes(4, "little") for word in words), "little")
