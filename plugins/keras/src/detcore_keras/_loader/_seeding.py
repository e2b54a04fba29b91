"""Make the randomness of a Sequence depend only on the item, not on the worker or the time."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["end_epoch", "seed_item", "seeded_item"]

_WORD = 0xFFFFFFFF
# Purposes of seeds; they also keep Python's and NumPy's generators (both MT19937) on two streams.
_ITEM, _EPOCH_END = 1, 2
_PYTHON, _NUMPY = 1, 2


def seed_item(seed: int, epoch: int, index: int) -> None:
    """Seed Python's and NumPy's generators for one item; for processes without other users."""
    _seed(_ITEM, seed, epoch, index)


@contextlib.contextmanager
def seeded_item(seed: int, epoch: int, index: int) -> Iterator[None]:
    """Seed the generators for one item, and restore them afterwards."""
    with _preserved():
        seed_item(seed, epoch, index)
        yield


def end_epoch(sequence: Any, seed: int, epoch: int) -> None:
    """Call ``on_epoch_end`` with generators seeded for this epoch, and restore them."""
    hook = getattr(sequence, "on_epoch_end", None)
    if hook is None:
        return
    with _preserved():
        _seed(_EPOCH_END, seed, epoch, 0)
        hook()


@contextlib.contextmanager
def _preserved() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _seed(purpose: int, seed: int, epoch: int, index: int) -> None:
    words = [purpose]
    for value in (seed, epoch, index):
        words += [value & _WORD, value >> 32 & _WORD]
    np.random.seed([_NUMPY, *words])
    key = b"".join(word.to_bytes(4, "little") for word in (_PYTHON, *words))
    random.seed(int.from_bytes(key, "little"))
