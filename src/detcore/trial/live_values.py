"""Read the values in live objects, by their path, without the code that saves them."""

from __future__ import annotations

import collections
import logging
import queue
import random
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.contract.distributed import DistributedContext
from detcore.contract.trial import TrialContext

PLAIN_TYPES = (bool, int, float, str, type(None))
MAX_DEPTH = 6
# Larger containers, and larger arrays outside containers, are data and not state.
MAX_ITEMS = 100_000
MAX_BYTES = 1 << 30
# Objects that belong to the program rather than to training. Loggers cache levels, and threads may
# change their own objects and the contexts at any time.
CODE_TYPES = (
    types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, type,
    logging.Logger, threading.Thread, threading.Condition, threading.Event, threading.Semaphore,
    threading.Barrier, queue.Queue, TrialContext, DistributedContext,
)  # fmt: skip


class AttributeCodec:
    """Reads and restores a framework's tensors and stateful objects in attributes.

    The base class supports no tensors, and objects with ``state_dict`` and ``load_state_dict``.
    """

    def read_tensor(self, value: Any) -> npt.NDArray[Any] | None:
        """Return the content of a tensor, for detecting changes; None for any other value."""
        return None

    def assign_tensor(self, current: Any, saved: Any) -> Any:
        """Return the tensor to keep in the attribute.

        Args:
            current: The present value, which may be of any type.
            saved: The tensor from the checkpoint.

        Returns:
            ``current``, if ``saved`` could be copied into it; otherwise ``saved``.
        """
        return saved

    def get_state(self, value: Any) -> Any:
        """Return the state of an object that has one, or None."""
        kind = type(value)  # an instance may compute any attribute
        if callable(getattr(kind, "load_state_dict", None)) and hasattr(kind, "state_dict"):
            return value.state_dict()
        return None

    def set_state(self, value: Any, state: Any) -> None:
        """Restore a state that `get_state` returned."""
        value.load_state_dict(state)

    def read_parts(self, value: Any) -> Any:
        """Return the live parts of an object that has a state, or None.

        The parts are compared after a resume. A framework reads them from its objects, without the
        functions that save them. Default: the result of `get_state`.
        """
        return self.get_state(value)


def read_values(
    value: object,
    name: str,
    *,
    codec: AttributeCodec | None = None,
    ignored_objects: Iterable[object] = (),
) -> dict[str, Any]:
    """Return the numbers, strings, arrays, tensors and generators in a value.

    Example:
        >>> read_values({"best": 0.5, "lags": [1, 2]}, "state")
        {"state['best']": 0.5, "state['lags']": '[1, 2]'}

    Args:
        value: Any value. Containers, and objects of Python classes, are searched; functions and
            modules are omitted.
        name: Name of the value.
        codec: Reads a framework's tensors and objects.
        ignored_objects: Objects to omit.

    Returns:
        Numbers, strings and arrays by path. None and containers of plain values become strings.
    """
    reader = _Reader(codec or AttributeCodec(), ignored_objects)
    reader.read(name, value, 0)
    return reader.values


def read_own_state(
    get_state: Callable[[], object], name: str, *, codec: AttributeCodec | None = None
) -> dict[str, Any]:
    """Return the values in the state that an object returns.

    The function is called twice. Values that differ, such as the time, are omitted.

    Args:
        get_state: Returns the state.
        name: Name of the state.
        codec: See `read_values`.
    """
    first, second = (read_values(get_state(), name, codec=codec) for _ in range(2))
    return {path: part for path, part in first.items() if repr(part) == repr(second.get(path))}


class _Reader:
    def __init__(self, codec: AttributeCodec, ignored_objects: Iterable[object]) -> None:
        self.values: dict[str, Any] = {}
        self._codec = codec
        self._visited = {id(item): item for item in ignored_objects}

    def read(self, name: str, value: Any, depth: int) -> None:
        """Add the values in a value."""
        if type(value) in PLAIN_TYPES:
            self.values[name] = "None" if value is None else value
            return
        if depth > MAX_DEPTH or id(value) in self._visited:
            return
        self._visited[id(value)] = value
        if isinstance(value, np.ndarray | np.generic):
            array = value if value.dtype.kind in "biufc" else None
        else:
            array = self._codec.read_tensor(value)
        if array is not None:
            self.values[name] = array
        elif isinstance(value, dict | list | tuple | collections.deque | set | frozenset):
            self._read_container(name, value, depth)
        elif isinstance(value, bytes | bytearray):
            self.values[name] = np.frombuffer(value, np.uint8)
        else:
            self._read_object(name, value, depth)

    def _read_container(self, name: str, value: Any, depth: int) -> None:
        if len(value) > MAX_ITEMS:
            return
        if isinstance(value, set | frozenset):
            value = sorted(map(repr, value))  # the order of a set differs between processes
        if isinstance(value, dict):
            for index, (key, item) in enumerate(list(value.items())):
                key = key if type(key) in (*PLAIN_TYPES, tuple) else f"#{index}"
                self.read(f"{name}[{key!r}]", item, depth + 1)
        elif all(type(item) in PLAIN_TYPES for item in value):
            self.values[name] = repr(value)
        else:
            for index, item in enumerate(list(value)):
                self.read(f"{name}[{index}]", item, depth + 1)

    def _read_object(self, name: str, value: Any, depth: int) -> None:
        if isinstance(value, CODE_TYPES):
            return
        parts = read_generator(value)
        if parts is None:
            parts = self._codec.read_parts(value)
        if parts is not None:
            self.read(name, parts, depth + 1)
        elif is_plain_object(value):
            for attribute, item in list(vars(value).items()):
                self.read(f"{name}.{attribute}", item, depth + 1)


def is_plain_object(value: Any) -> bool:
    """Whether the attributes of an object are its complete state, as for Python classes."""
    return hasattr(value, "__dict__") and all(
        base is object
        or (base.__flags__ & _HEAP_TYPE and not any(map(vars(base).get, _OWN_STORES)))
        for base in type(value).__mro__
    )


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: set for classes that a program defines
_OWN_STORES = frozenset({"__slots__", "__setattr__"})


def read_generator(value: Any) -> Any:
    """Return the state of a random generator of Python or NumPy; None for any other value."""
    if type(value) is random.Random:
        version, words, gauss = value.getstate()
        return [version, np.array(words, np.uint64), gauss]
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.BitGenerator):
        return value.state
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    return None
