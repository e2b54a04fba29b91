"""The process-wide random generators of Python, NumPy and PyTorch: seeds and states."""

from __future__ import annotations

import _random
import contextlib
import ctypes
import hashlib
import random
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from detcore.errors import InvalidCheckpointError
from detcore.trial import capture_random_state, preserved_random_state, restore_random_state
from detcore_torch._torch import torch

__all__ = [
    "LoadingGenerators",
    "capture_generators",
    "find_generators",
    "preserved_cpu_generators",
    "preserved_generators",
    "restore_generators",
    "seed_all",
    "seed_from",
    "seed_generators",
    "torch_states",
]

_CPU = "torch"
_GPU = "cuda"
# Size of the state of an MT19937: 624 words and a position.
_MT19937_BYTES = 625 * 4
# Size of Python's in CPython, which has it inside of the object: the same, and padding. An object
# of another size holds something else, too.
_PYTHON_BYTES = _random.Random.__basicsize__ - object.__basicsize__
_IS_PYTHON_KNOWN = sys.implementation.name == "cpython" and 0 <= _PYTHON_BYTES - 625 * 4 < 8
# Attributes in which datasets and transforms hold the objects that they wrap.
_WRAPPED = ("dataset", "datasets", "transform", "transforms", "target_transform", "collate_fn")


def seed_from(*numbers: int) -> int:
    """Return a seed, ``0 <= seed < 2**63``, that depends on all integers and their order."""
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


def seed_generators(seed: int) -> None:
    """Seed Python, NumPy and PyTorch's generator of the CPU.

    Args:
        seed: ``0 <= seed < 2**63``.
    """
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.default_generator.manual_seed(seed)


def seed_all(seed: int, generators: Iterable[Any]) -> None:
    """Seed the process-wide generators of `seed_generators`, and generators of other owners.

    Args:
        seed: ``0 <= seed < 2**63``.
        generators: From `find_generators`.
    """
    seed_generators(seed)
    for generator in generators:
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        elif isinstance(generator, np.random.Generator):
            kind = type(generator.bit_generator)
            generator.bit_generator.state = kind(seed).state
        elif isinstance(generator, np.random.RandomState):
            generator.seed(seed % (1 << 32))
        else:
            generator.seed(seed)


def find_generators(*owners: Any) -> list[Any]:
    """Return the generators that are attributes of some objects, or of objects that they wrap."""
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    found: dict[int, Any] = {}
    pending, seen = list(owners), set()
    while pending:
        owner = pending.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        if isinstance(owner, list | tuple):
            pending += owner[:64]
            continue
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if isinstance(value, kinds):
                found[id(value)] = value
            elif name in _WRAPPED:
                pending.append(value)
    return list(found.values())


class LoadingGenerators:
    """Keeps the generators of training as they are while a batch is loaded in the same process.

    Used as a context for each batch: does what `preserved_cpu_generators` does, in a tenth of the
    time. CPython needs 13 microseconds to return and set its generator's state, so the state is
    copied as bytes and put back into the same object. NumPy needs 100, and draws from another bit
    generator in the meantime.
    """

    def __init__(self) -> None:
        self._numpy_bytes = b""
        self._numpy: Any = None
        self._loads: Any = None

    def __reduce__(self) -> tuple[type[LoadingGenerators], tuple[()]]:
        """Send nothing to another process, which has other generators."""
        return LoadingGenerators, ()

    def __enter__(self) -> None:
        """Set the generators of training aside."""
        self._torch = torch.default_generator.get_state()
        self._python = _PythonState()
        self._trains: Any = np.random.mtrand.get_bit_generator()
        if type(self._trains) is not np.random.MT19937:
            self._numpy = np.random.get_state(legacy=False)
            return
        seen = ctypes.string_at(self._trains.ctypes.state_address, _MT19937_BYTES)
        # The cached half of a pair of normal numbers is not among these bytes.
        if seen != self._numpy_bytes or self._numpy is not None:
            state: Any = np.random.get_state(legacy=False)
            self._numpy_bytes, self._numpy = seen, state if state["has_gauss"] else None
        if self._loads is None:
            self._loads = np.random.MT19937(0)
        np.random.mtrand.set_bit_generator(self._loads)

    def __exit__(self, *error: object) -> None:
        """Bring them back."""
        if np.random.mtrand.get_bit_generator() is not self._trains:
            np.random.mtrand.set_bit_generator(self._trains)
        if self._numpy is not None:
            np.random.set_state(self._numpy)
        self._python.restore()
        torch.default_generator.set_state(self._torch)


class _PythonState:
    """The present state of the generator of Python's ``random`` module."""

    def __init__(self) -> None:
        owner: Any = getattr(random.getstate, "__self__", None)
        self._owner = owner
        # Elsewhere, or with a generator of another class, these bytes need not be the state.
        self._is_known = _IS_PYTHON_KNOWN and type(owner) is random.Random
        if self._is_known:
            address = id(owner) + object.__basicsize__
            self._bytes = ctypes.string_at(address, _PYTHON_BYTES)
            self._next_normal = owner.gauss_next
        else:
            self._state = random.getstate()

    def restore(self) -> None:
        """Set the generator to this state."""
        if self._is_known:
            ctypes.memmove(id(self._owner) + object.__basicsize__, self._bytes, _PYTHON_BYTES)
            self._owner.gauss_next = self._next_normal
        else:
            random.setstate(self._state)


@contextlib.contextmanager
def preserved_generators() -> Iterator[None]:
    """Leave all generators after the block as they were before it."""
    states = torch_states()
    try:
        with preserved_random_state():
            yield
    finally:
        _settorch_states(states)


@contextlib.contextmanager
def preserved_cpu_generators() -> Iterator[None]:
    """Leave the generators that `seed_generators` seeds as they were before the block.

    Does not touch a GPU: a loader's process that was forked from one that uses CUDA must not.
    """
    state = torch.get_rng_state()
    try:
        with preserved_random_state():
            yield
    finally:
        torch.set_rng_state(state)


def capture_generators() -> tuple[Any, dict[str, Any]]:
    """Return the state of all generators: JSON values, and tensors by name."""
    return capture_random_state(), torch_states()


def restore_generators(state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Set all generators to a state from `capture_generators`.

    Raises:
        InvalidCheckpointError: If the state is damaged or does not fit.
    """
    restore_random_state(state)
    try:
        _settorch_states(tensors)
    except (LookupError, RuntimeError, TypeError) as error:
        raise InvalidCheckpointError(
            f"the state of PyTorch's random generators cannot be used: {error}"
        ) from error


def torch_states() -> dict[str, Any]:
    """Return the states of PyTorch's generators as tensors, by name."""
    states = {_CPU: torch.get_rng_state()}
    if torch.cuda.is_available():
        states[_GPU] = torch.cuda.get_rng_state()
    return states


def _settorch_states(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(states[_CPU])
    if _GPU in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[_GPU])
