"""The process-wide random generators of Python, NumPy and PyTorch: seeds and states."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from detcore.errors import InvalidCheckpointError
from detcore.trial import capture_random_state, restore_random_state
from detcore_torch.libraries import torch

_CPU = "torch"
_GPU = "cuda"
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


def seed_owned(seed: int, generators: Iterable[Any]) -> None:
    """Seed generators that are not process-wide.

    Args:
        seed: ``0 <= seed < 2**63``.
        generators: From `find_generators`.
    """
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


@contextlib.contextmanager
def preserved_generators() -> Iterator[None]:
    """Leave all generators after the block as they were before it."""
    restore = captured_generators()
    try:
        yield
    finally:
        restore()


class LoadingGenerators:
    """Keeps the generators of training as they are while a batch is loaded in the same process.

    Does not touch a GPU: a loader's process that was forked from one that uses CUDA must not. NumPy
    needs 100 microseconds to return and set the state of a generator, so it draws from another bit
    generator in the meantime.
    """

    def __init__(self) -> None:
        self._loading = np.random.MT19937(0)
        self._mark: bytes | None = None
        self._cached: Any = None

    def __enter__(self) -> None:
        """Set the generators of training aside."""
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy: Any = np.random.mtrand.get_bit_generator()
        mark = _read_words(self._numpy)
        # The words do not show the cached half of a pair of normal numbers, nor its use.
        if mark is None or mark != self._mark or self._cached is not None:
            state: Any = np.random.get_state(legacy=False)
            self._cached = state if state["has_gauss"] else None
            self._mark = mark
        np.random.mtrand.set_bit_generator(self._loading)

    def __exit__(self, *error: object) -> None:
        """Bring them back."""
        np.random.mtrand.set_bit_generator(self._numpy)
        if self._cached is not None:
            np.random.set_state(self._cached)
        random.setstate(self._python)
        torch.set_rng_state(self._torch)


def _read_words(generator: Any) -> bytes | None:
    """Return the state of an MT19937 of NumPy's: 624 words and the position in them."""
    if type(generator) is not np.random.MT19937:
        return None
    return ctypes.string_at(generator.ctypes.state_address, 4 * 625)


def capture_generators() -> tuple[Any, dict[str, Any]]:
    """Return the state of all generators: JSON values, and tensors by name."""
    return capture_random_state(), read_torch_states()


def restore_generators(state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Set all generators to a state from `capture_generators`.

    Raises:
        InvalidCheckpointError: If the state is damaged or does not fit.
    """
    restore_random_state(state)
    try:
        _set_torch_states(tensors)
    except (LookupError, RuntimeError, TypeError) as error:
        raise InvalidCheckpointError(
            f"the state of PyTorch's random generators cannot be used: {error}"
        ) from error


def captured_generators() -> Callable[[], None]:
    """Return a function that sets the random generators to their present states."""
    return functools.partial(restore_generators, *capture_generators())


def read_torch_states() -> dict[str, Any]:
    """Return the states of PyTorch's generators as tensors, by name."""
    states = {_CPU: torch.get_rng_state()}
    if torch.cuda.is_available():
        states[_GPU] = torch.cuda.get_rng_state()
    return states


def _set_torch_states(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(states[_CPU])
    if _GPU in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[_GPU])
