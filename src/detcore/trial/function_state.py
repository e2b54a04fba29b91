"""Find and save the global and enclosing variables of the user's functions, such as a loss."""

from __future__ import annotations

import functools
import logging
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from detcore.trial.attribute_state import CODE_TYPES, AttributeCodec, AttributeTracker

_logger = logging.getLogger("detcore.trial")


class FunctionTracker(AttributeTracker):
    """Saves the global and enclosing variables of functions, as `AttributeTracker` does attributes.

    Functions that a function of the user refers to are included. Installed packages are not
    searched, and objects of their classes are not saved, except for tensors, random generators and
    `kinds`. Neither are attributes of modules, classes and functions.

    Args:
        roots: Functions, and objects with methods, by name.
        kinds: Classes of installed packages whose objects are saved, such as models.
        prefix: See `AttributeTracker`.
        ignored_objects: See `AttributeTracker`.
        codec: See `AttributeTracker`.
    """

    def __init__(
        self,
        roots: Mapping[str, object],
        *,
        kinds: tuple[type, ...] = (),
        prefix: str | None = None,
        ignored_objects: Iterable[object] = (),
        codec: AttributeCodec | None = None,
    ) -> None:
        self._roots = dict(roots)
        self._kinds = kinds
        super().__init__(
            None,
            prefix=prefix,
            ignored_objects=[*self._roots.values(), *ignored_objects],
            codec=codec,
        )

    def _get_attributes(self) -> Mapping[str, Any]:
        return dict(list_function_variables(self._roots))

    def _set_attribute(self, name: str, value: Any) -> None:
        path, _, variable = name.rpartition("/")
        function = dict(_find_functions(self._roots)).get(path)
        if function is None:
            _logger.warning("no function refers to %s any more; it is not restored", name)
        elif variable in function.__code__.co_freevars:
            index = function.__code__.co_freevars.index(variable)
            (function.__closure__ or ())[index].cell_contents = value
        else:
            function.__globals__[variable] = value

    def _is_searched(self, value: object) -> bool:
        return isinstance(value, self._kinds) or not _is_installed(type(value).__module__)


def list_function_variables(roots: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    """Yield the global and enclosing variables of the user's functions, each once, by their path.

    Args:
        roots: Functions, and objects with methods, by name.

    Yields:
        A path such as ``"loss/weight"``, and the value, which is no function, class or module.
    """
    places = set()
    for path, function in _find_functions(roots):
        for name, value in _list_references(function):
            is_global = name not in function.__code__.co_freevars
            place = (id(function.__globals__), name) if is_global else id(_get_cell(function, name))
            if place not in places and not isinstance(value, CODE_TYPES):
                places.add(place)
                yield f"{path}/{name}", value


def _find_functions(roots: Mapping[str, object]) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield the functions that roots are, have as methods, or refer to; breadth first."""
    pending: list[tuple[str, Any]] = list(roots.items())
    seen: dict[int, object] = {}
    while pending:
        path, value = pending.pop(0)
        function = _unwrap(value)
        if id(function) in seen:
            continue
        seen[id(function)] = function
        if isinstance(function, types.FunctionType):
            yield path, function
            children = _list_references(function)
        else:
            children = _list_methods(function)
        pending += [(f"{path}/{name}", child) for name, child in children]


def _unwrap(value: Any) -> Any:
    """Return the function in a method, a partial function or a ``tf.function``."""
    while True:
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, types.MethodType | staticmethod | classmethod):
            value = value.__func__
        elif hasattr(type(value), "python_function"):
            value = value.python_function
        else:
            return value


def _list_methods(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the functions of an object of a user's class, and those in its attributes."""
    if isinstance(value, CODE_TYPES):
        return
    for kind in type(value).__mro__:
        if not _is_installed(kind.__module__):
            yield from ((n, f) for n, f in vars(kind).items() if _is_function(f))
    yield from ((n, f) for n, f in getattr(value, "__dict__", {}).items() if _is_function(f))


def _is_function(value: Any) -> bool:
    return isinstance(_unwrap(value), types.FunctionType)


def _list_references(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the enclosing names of a function and, if it is the user's, the global ones."""
    is_installed = _is_installed(function.__globals__.get("__name__"))
    for name in function.__code__.co_freevars:
        cell = _get_cell(function, name)
        # An empty cell raises. The variables of an installed decorator are not the user's.
        if cell != types.CellType() and not (is_installed and not _is_function(cell.cell_contents)):
            yield name, cell.cell_contents
    if not is_installed:
        for name in _list_global_names(function.__code__):
            if name in function.__globals__:
                yield name, function.__globals__[name]


def _get_cell(function: types.FunctionType, name: str) -> types.CellType:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return cells[name]


def _list_global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _list_global_names(constant)


def _is_installed(module: str | None) -> bool:
    """Whether a module belongs to Python, to detcore or to an installed package."""
    package = (module or "").partition(".")[0]
    if package in sys.stdlib_module_names or package.partition("_")[0] == "detcore":
        return True
    path = getattr(sys.modules.get(package), "__file__", None) or ""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts)
