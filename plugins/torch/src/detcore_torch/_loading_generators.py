"""The random generators while batches are loaded, apart from those of training."""

from __future__ import annotations

import _random
import ctypes
import random
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from detcore_torch._seeding import seed_owned
from detcore_torch._torch import torch

Result = TypeVar("Result")

_MT19937_WORDS = 624
# Size of the state of Python's generator in CPython, which has it inside of the object: a position
# and the words, and padding. An object of another size holds something else, too.
_PYTHON_BYTES = _random.Random.__basicsize__ - object.__basicsize__
_IS_PYTHON_KNOWN = (
    sys.implementation.name == "cpython" and 0 <= _PYTHON_BYTES - 4 * (_MT19937_WORDS + 1) < 8
)
# The position in the words, and two of them: another value after each change of the state, except
# for one of 2**64. Python's first word is the same for all seeds.
_PYTHON_MARK = struct.Struct("I4xI2484xI").unpack_from
_NUMPY_MARK = struct.Struct("4xI2484xII").unpack_from


class LoadingGenerators:
    """Keeps the generators of training as they are while a batch is loaded in the same process.

    Used as a context for each batch: does what `preserved_cpu_generators` does, in a tenth of the
    time. CPython needs 13 microseconds to return and set its generator's state, so the state is
    copied as bytes and put back into the same object. NumPy needs 100, and draws from another bit
    generator in the meantime.
    """

    def __init__(self) -> None:
        self.python = _PythonState()
        self.numpy = _NumPyState()

    def __reduce__(self) -> tuple[type[LoadingGenerators], tuple[()]]:
        """Send nothing to another process, which has other generators."""
        return LoadingGenerators, ()

    def __enter__(self) -> None:
        """Set the generators of training aside."""
        self._torch = torch.default_generator.get_state()
        self.python.keep()
        self.numpy.keep()

    def __exit__(self, *error: object) -> None:
        """Bring them back."""
        self.numpy.restore()
        self.python.restore()
        torch.default_generator.set_state(self._torch)


class SeededCalls:
    """Calls functions whose random numbers depend on a seed alone.

    Seeding Python's and NumPy's generators costs more than many a batch, so it is left out for
    functions that draw nothing from them, as the first call shows. If a later call draws all the
    same, the generators are seeded and the function is called again, now and from then on.

    Args:
        owned: Generators of other owners that are seeded, too; see `find_generators`.
    """

    def __init__(self, owned: Iterable[Any]) -> None:
        self._owned = list(owned)
        self._training = LoadingGenerators()
        self._is_first = self._seeds_python = self._seeds_numpy = True

    def call(self, seed: int, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return the function's result, and leave the generators of training as they are.

        Args:
            seed: ``0 <= seed < 2**63``.
            function: May be called twice.
            arguments: Of the function.
        """
        with self._training:
            return self._call(seed, function, arguments)

    def call_in_worker(self, seed: int, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return the function's result, in a process that trains nothing."""
        self._training.numpy.use()
        return self._call(seed, function, arguments)

    def _call(
        self, seed: int, function: Callable[..., Result], arguments: tuple[Any, ...]
    ) -> Result:
        python, numpy = self._training.python, self._training.numpy
        while True:
            self._seed(seed)
            python_before, numpy_before = python.mark(), numpy.mark()
            result = function(*arguments)
            draws_python = python.mark() != python_before
            draws_numpy = numpy.mark() != numpy_before
            if self._is_first:
                self._is_first = False
                self._seeds_python, self._seeds_numpy = draws_python, draws_numpy
            elif draws_python > self._seeds_python or draws_numpy > self._seeds_numpy:
                self._seeds_python = self._seeds_numpy = True
                continue
            return result

    def _seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        if self._seeds_python:
            random.seed(seed)
        if self._seeds_numpy:
            np.random.seed(seed % (1 << 32))
        if self._owned:
            seed_owned(seed, self._owned)


class _PythonState:
    """State of the generator of Python's ``random`` module."""

    def __init__(self) -> None:
        self._owner: Any = getattr(random.getstate, "__self__", None)
        # Elsewhere, or with a generator of another class, these bytes need not be the state.
        self._is_known = _IS_PYTHON_KNOWN and type(self._owner) is random.Random
        self._kept_mark: object = None
        if self._is_known:
            self._address = id(self._owner) + object.__basicsize__
            self._words = (ctypes.c_char * _PYTHON_BYTES).from_address(self._address)

    def mark(self) -> object:
        """Return a value that is another one after each change of the state."""
        if not self._is_known:
            return object()
        return _PYTHON_MARK(self._words), self._owner.gauss_next

    def keep(self) -> None:
        """Copy the state."""
        mark = self.mark()
        if not self._is_known:
            self._state = random.getstate()
        elif mark != self._kept_mark:
            self._bytes = ctypes.string_at(self._address, _PYTHON_BYTES)
            self._next_normal = self._owner.gauss_next
        self._kept_mark = mark

    def restore(self) -> None:
        """Set the generator to the copied state."""
        if not self._is_known:
            random.setstate(self._state)
        elif self.mark() != self._kept_mark:
            ctypes.memmove(self._address, self._bytes, _PYTHON_BYTES)
            self._owner.gauss_next = self._next_normal


class _NumPyState:
    """State of NumPy's process-wide generator, which loads from a bit generator of its own."""

    def __init__(self) -> None:
        self._loads = np.random.MT19937(0)
        self._loading_words = _words_of(self._loads)
        self._trains: Any = None
        self._kept_mark: object = None
        self._state: Any = None

    def use(self) -> None:
        """Draw from the bit generator for loading from now on."""
        if np.random.mtrand.get_bit_generator() is not self._loads:
            np.random.mtrand.set_bit_generator(self._loads)

    def mark(self) -> object:
        """Return a value that is another one after each change of the state for loading."""
        if np.random.mtrand.get_bit_generator() is not self._loads:
            return object()
        return _NUMPY_MARK(self._loading_words)

    def keep(self) -> None:
        """Set the state for training aside, and load from another bit generator."""
        trains: Any = np.random.mtrand.get_bit_generator()
        is_known = type(trains) is np.random.MT19937
        if trains is not self._trains:
            self._trains = trains
            self._training_words: Any = _words_of(trains) if is_known else None
            self._kept_mark = None
        mark = _NUMPY_MARK(self._training_words) if is_known else object()
        # The words do not show the cached half of a pair of normal numbers, nor its use.
        if mark != self._kept_mark or self._state is not None:
            state: Any = np.random.get_state(legacy=False)
            self._state = state if state["has_gauss"] else None
            self._kept_mark = mark
        np.random.mtrand.set_bit_generator(self._loads)

    def restore(self) -> None:
        """Draw from the bit generator for training again."""
        if np.random.mtrand.get_bit_generator() is not self._trains:
            np.random.mtrand.set_bit_generator(self._trains)
        if self._state is not None:
            np.random.set_state(self._state)


def _words_of(generator: Any) -> Any:
    """Return the state of an MT19937 of NumPy's, in place: the words, and the position."""
    size = 4 * (_MT19937_WORDS + 1)
    return (ctypes.c_char * size).from_address(generator.ctypes.state_address)
