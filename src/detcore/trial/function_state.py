"""Find and save the variables of user functions, such as a loss or a training loop."""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from detcore.trial.attribute_state import AttributeTracker
from detcore.trial.live_values import CODE_TYPES, AttributeCodec, is_plain_object

_logger = logging.getLogger("detcore.trial")

_FRAME = "loop"  # root that stands for the function that trains


class FunctionTracker(AttributeTracker):
    """Saves the global and enclosing variables of functions, like attributes.

    Functions that a user function refers to are included. Installed packages are not searched, and
    objects of their classes are not saved, except tensors, random generators and `kinds`.
    Attributes of modules, classes and functions are not saved either.

    Args:
        roots: Functions, and objects with methods, by name.
        frame: A frame of a running function that trains, or of a call that it makes. Its variables
            that exist now are saved, too.
        kinds: Classes of installed packages whose objects are saved, such as models.
        prefix: See `AttributeTracker`.
        ignored_objects: See `AttributeTracker`.
        codec: See `AttributeTracker`.
    """

    def __init__(
        self,
        roots: Mapping[str, object],
        *,
        frame: types.FrameType | None = None,
        kinds: tuple[type, ...] = (),
        prefix: str | None = None,
        ignored_objects: Iterable[object] = (),
        codec: AttributeCodec | None = None,
    ) -> None:
        self._roots = dict(roots)
        self._kinds = kinds
        self._frame = _find_user_frame(frame)
        self._names: set[str] | None = None
        if self._frame is not None:
            self._roots |= _list_frame_functions(self._frame)
            self._names = {*self._frame.f_locals, *self._frame.f_globals}
        super().__init__(
            None,
            prefix=prefix,
            ignored_objects=[*self._roots.values(), *ignored_objects],
            codec=codec,
        )

    def _get_attributes(self) -> Mapping[str, Any]:
        attributes: dict[str, Any] = {}
        for name, value in self._get_variables().items():
            if self._is_owner(value):
                attributes |= {f"{name}.{key}": item for key, item in list(vars(value).items())}
            else:
                attributes[name] = value
        return attributes

    def _get_variables(self) -> dict[str, Any]:
        variables = dict(list_function_variables(self._roots))
        for name, value in _get_locals(self._frame).items():
            if not isinstance(value, CODE_TYPES):
                variables[f"{_FRAME}/{name}"] = value
        if self._names is None:
            return variables
        return {
            path: value
            for path, value in variables.items()
            if path.partition("/")[0] != _FRAME or path.rpartition("/")[2] in self._names
        }

    def _is_owner(self, value: object) -> bool:
        """Whether each attribute of a variable is saved separately, as some may not be saved."""
        return (
            id(value) not in self._ignored_objects
            and is_plain_object(value)
            and self._is_searched(value)
            and self._codec.get_state(value) is None
        )

    def _set_attribute(self, name: str, value: Any) -> None:
        variable, is_attribute, attribute = name.partition(".")
        if is_attribute and (owner := self._get_variables().get(variable)) is not None:
            setattr(owner, attribute, value)
            return
        path, _, variable = name.rpartition("/")
        if path == _FRAME and variable in _get_locals(self._frame):
            _set_local(self._frame, variable, value)
            return
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


def _find_user_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """Return the innermost frame of user code among a frame and its callers."""
    while frame is not None and _is_installed(frame.f_globals.get("__name__")):
        frame = frame.f_back
    return frame


def _list_frame_functions(frame: types.FrameType) -> dict[str, object]:
    """Return a function with the code of a frame, and the functions that are local to it."""
    cells = tuple(types.CellType() for _ in frame.f_code.co_freevars)  # empty: they are local, too
    function = types.FunctionType(frame.f_code, frame.f_globals, closure=cells)
    functions = {n: value for n, value in _get_locals(frame).items() if _is_function(value)}
    return {_FRAME: function, **functions}


def _get_locals(frame: types.FrameType | None) -> Mapping[str, Any]:
    """Return the local variables of a function that runs; none for the code of a module."""
    return {} if frame is None or frame.f_locals is frame.f_globals else frame.f_locals


def _set_local(frame: types.FrameType | None, name: str, value: object) -> None:
    assert frame is not None  # it has the variable
    frame.f_locals[name] = value
    if sys.version_info < (3, 13):  # where f_locals is a copy
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


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
