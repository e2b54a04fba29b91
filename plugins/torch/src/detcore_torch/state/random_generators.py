"""Seeds and states of the process-wide random generators of Python, NumPy and PyTorch."""

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
    """Return a seed, ``0 <= seed < 2**63``, derived from integers and their order."""
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
    """Return the generators in attributes of objects, or of the objects that they wrap."""
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    generators_by_id: dict[int, Any] = {}
    pending, visited_ids = list(owners), set()
    while pending:
        owner = pending.pop()
        if id(owner) in visited_ids:
            continue
        visited_ids.add(id(owner))
        if isinstance(owner, list | tuple):
            pending += owner[:64]
            continue
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if isinstance(value, kinds):
                generators_by_id[id(value)] = value
            elif name in _WRAPPED:
                pending.append(value)
    return list(generators_by_id.values())


@contextlib.contextmanager
def preserved_generators() -> Iterator[None]:
    """Restore all generators after the block."""
    restore = captured_generators()
    try:
        yield
    finally:
        restore()


class LoadingGenerators:
    """Preserves the generators of training while a batch is loaded in the same process.

    This does not use the GPU, which is forbidden in loader processes that were forked from a
    process with CUDA. NumPy needs 100 microseconds to read and set the state of a generator, so it
    draws from another bit generator in the block.
    """

    def __init__(self) -> None:
        self._loading = np.random.MT19937(0)
        self._mark: bytes | None = None
        self._cached: Any = None

    def __enter__(self) -> None:
        """Save the generators of training."""
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy: Any = np.random.mtrand.get_bit_generator()
        mark = _read_words(self._numpy)
        # The words do not include the cached second half of a pair of normal numbers.
        if mark is None or mark != self._mark or self._cached is not None:
            state: Any = np.random.get_state(legacy=False)
            self._cached = state if state["has_gauss"] else None
            self._mark = mark
        np.random.mtrand.set_bit_generator(self._loading)

    def __exit__(self, *error: object) -> None:
        """Restore the generators of training."""
        np.random.mtrand.set_bit_generator(self._numpy)
        if self._cached is not None:
            np.random.set_state(self._cached)
        random.setstate(self._python)
        torch.set_rng_state(self._torch)


def _read_words(generator: Any) -> bytes | None:
    """Return the state of NumPy's MT19937: 624 words and the position in them."""
    if type(generator) is not np.random.MT19937:
        return None
    return ctypes.string_at(generator.ctypes.state_address, 4 * 625)


def capture_generators() -> tuple[Any, dict[str, Any]]:
    """Return the state of all generators: JSON values, and tensors by name."""
    return capture_random_state(), read_torch_states()


def restore_generators(state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Restore all generators from a result of `capture_generators`.

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
    """Return a function that restores the current states of the random generators."""
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
