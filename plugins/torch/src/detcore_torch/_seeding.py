"""The process-wide random generators of Python, NumPy and PyTorch: seeds and states."""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from detcore.errors import InvalidCheckpointError
from detcore.trial import capture_random_state, preserved_random_state, restore_random_state
from detcore_torch._torch import torch

__all__ = [
    "capture_generators",
    "preserved_cpu_generators",
    "preserved_generators",
    "restore_generators",
    "seed_from",
    "seed_generators",
]

_CPU = "torch"
_GPU = "cuda"


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


@contextlib.contextmanager
def preserved_generators() -> Iterator[None]:
    """Leave all generators after the block as they were before it."""
    states = _torch_states()
    try:
        with preserved_random_state():
            yield
    finally:
        _set_torch_states(states)


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
    return capture_random_state(), _torch_states()


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


def _torch_states() -> dict[str, Any]:
    states = {_CPU: torch.get_rng_state()}
    if torch.cuda.is_available():
        states[_GPU] = torch.cuda.get_rng_state()
    return states


def _set_torch_states(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(states[_CPU])
    if _GPU in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[_GPU])
