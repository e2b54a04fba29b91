"""Find and save the global and enclosing variables of user functions, such as a loss."""

from __future__ import annotations

import functools
import logging
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from detcore.trial.attribute_state import AttributeTracker
from detcore.trial.live_values import CODE_TYPES, AttributeCodec

_logger = logging.getLogger("detcore.trial")


class FunctionTracker(AttributeTracker):
    """Saves the global and enclosing variables of functions, like attributes.

    Functions that a user function refers to are included. Installed packages are not searched, and
    objects of their classes are not saved, except tensors, random generators and `kinds`.
    Attributes of modules, classes and functions are not saved either.

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
            _logger.warning("no function refers to %s any more, so it is not restored", name)
        elif variable in function.__code__.co_freevars:
            index = function.__code__.co_freevars.index(variable)
            (function.__closure__ or ())[index].cell_contents = value
        else:
            function.__globals__[variable] = value

    def _is_searched(self, value: object) -> bool:
        return isinstance(value, self._kinds) or not _is_installed(type(value).__module__)


def list_function_variables(roots: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each global and enclosing variable of user functions.

    Args:
        roots: Functions, and objects with methods, by name.

    Yields:
        A path such as ``"loss/weight"``, and the value. Functions, classes and modules are omitted.
    """
    variable_ids = set()
    for path, function in _find_functions(roots):
        for name, value in _list_references(function):
            is_global = name not in function.__code__.co_freevars
            variable_id = (
                (id(function.__globals__), name) if is_global else id(_get_cell(function, name))
            )
            if variable_id not in variable_ids and not isinstance(value, CODE_TYPES):
                variable_ids.add(variable_id)
                yield f"{path}/{name}", value


def _find_functions(roots: Mapping[str, object]) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield the roots, their methods, and referenced functions, in breadth-first order."""
    pending: list[tuple[str, Any]] = list(roots.items())
    functions: dict[int, object] = {}
    while pending:
        path, value = pending.pop(0)
        function = _unwrap_function(value)
        if id(function) in functions:
            continue
        functions[id(function)] = function
        if isinstance(function, types.FunctionType):
            yield path, function
            children = _list_references(function)
        else:
            children = _list_methods(function)
        pending += [(f"{path}/{name}", child) for name, child in children]


def _unwrap_function(value: Any) -> Any:
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
    """Yield the methods of an object of a user class, and the functions in its attributes."""
    if isinstance(value, CODE_TYPES):
        return
    for kind in type(value).__mro__:
        if not _is_installed(kind.__module__):
            yield from ((n, f) for n, f in vars(kind).items() if _is_function(f))
    yield from ((n, f) for n, f in getattr(value, "__dict__", {}).items() if _is_function(f))


def _is_function(value: Any) -> bool:
    return isinstance(_unwrap_function(value), types.FunctionType)


def _list_references(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the enclosing variables of a function, and the global variables of a user function."""
    is_installed = _is_installed(function.__globals__.get("__name__"))
    for name in function.__code__.co_freevars:
        cell = _get_cell(function, name)
        # Reading an empty cell raises. Variables of installed decorators are not the user's.
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
