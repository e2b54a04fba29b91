"""Check arguments that several parts of the Estimator API share."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from detcore.errors import InvalidExperimentError, InvalidModelError, describe
from detcore_estimator.tensorflow_versions import tf1


def wrong_type(place: str, value: Any, expected: str) -> InvalidModelError:
    """Return the error for a value of the wrong type, a ``TypeError`` and a ``ValueError``."""
    return InvalidModelError(f"{place} must be {expected}, but it is {describe(value)}")


def checked_count(name: str, value: Any) -> int | None:
    """Return a number of steps, > 0, or None.

    Args:
        name: Name of the argument, for the error.
        value: The user's value.

    Raises:
        InvalidModelError: If the value is not an integer.
        InvalidExperimentError: If the value is 0 or less.
    """
    if value is None:
        return None
    try:
        count = operator.index(value)
    except TypeError as error:
        raise wrong_type(name, value, "an integer or None") from error
    if isinstance(value, bool):
        raise wrong_type(name, value, "an integer or None")
    if count <= 0:
        raise InvalidExperimentError(f"{name} must be greater than 0, but it is {count}")
    return count


def checked_input_fn(input_fn: Any) -> Callable[..., Any]:
    """Return an input function."""
    if not callable(input_fn):
        raise wrong_type("input_fn", input_fn, "a function that returns the data")
    function: Callable[..., Any] = input_fn
    return function


def checked_hooks(hooks: Any, name: str = "hooks") -> tuple[Any, ...]:
    """Return ``SessionRunHook`` objects as a tuple.

    Args:
        hooks: An iterable of ``SessionRunHook`` objects, or None.
        name: Name of the argument, for the error.
    """
    return _check_each(hooks, name, tf1.train.SessionRunHook)


def checked_listeners(listeners: Any) -> tuple[Any, ...]:
    """Return ``CheckpointSaverListener`` objects as a tuple."""
    return _check_each(listeners, "saving_listeners", tf1.train.CheckpointSaverListener)


def checked_exporters(exporters: Any) -> tuple[Any, ...]:
    """Return one exporter, or an iterable of exporters, as a tuple."""
    exporter_list = (exporters,) if _is_exporter(exporters) else _as_tuple(exporters, "exporters")
    names = []
    for exporter in exporter_list:
        if not _is_exporter(exporter):
            raise wrong_type("each of exporters", exporter, "an Exporter")
        names.append(exporter.name)
    if None in names or len(set(names)) != len(names):
        raise InvalidExperimentError(
            f"exporters have the names {names}.\n"
            "Each exporter writes to a directory with its name, so names must be unique and not "
            "None."
        )
    return exporter_list


def _is_exporter(value: Any) -> bool:
    return hasattr(value, "name") and callable(getattr(value, "export", None))


def _check_each(values: Any, name: str, kind: type) -> tuple[Any, ...]:
    checked = _as_tuple(values, name)
    for value in checked:
        if not isinstance(value, kind):
            raise wrong_type(f"each of {name}", value, f"a {kind.__name__}")
    return checked


def _as_tuple(values: Iterable[Any] | None, name: str) -> tuple[Any, ...]:
    try:
        return tuple(() if values is None else values)
    except TypeError as error:
        raise wrong_type(name, values, "a list or None") from error
