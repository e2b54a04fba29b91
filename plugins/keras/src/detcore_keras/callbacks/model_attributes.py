"""Track the attributes that the user's models, layers, losses and metrics assign."""

from __future__ import annotations

import contextlib
import dis
import inspect
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.trial import AttributeTracker, FunctionTracker
from detcore_keras.callbacks.callback_state import KerasCodec
from detcore_keras.frameworks import backend
from detcore_keras.state.variables import step_functions

_LIBRARIES = frozenset({"keras", "tensorflow", "tf_keras", "torch"})


def track_model(model: Any) -> dict[str, AttributeTracker]:
    """Return trackers of the attributes that the user's classes assign, by object.

    A step that Python runs for each batch can count in an attribute, for example.

    Args:
        model: The compiled model, whose steps are not compiled.
    """
    objects = {f"${name}": item for name, item in step_functions(model).items()}
    for kind, items in (
        ("layer", model._flatten_layers(include_self=False)),
        ("metric", backend.list_metrics(model)),
    ):
        objects |= {f"${kind} {index}": item for index, item in enumerate(items)}
    return {
        name: AttributeTracker(item, prefix=f"{name[1:]}.", names=assigned, codec=KerasCodec())
        for name, item in objects.items()
        if (assigned := _list_assigned(type(item)))
    }


def track_compiled(model: Any, ignored_objects: Iterable[object]) -> dict[str, AttributeTracker]:
    """Return trackers of the values that a compiled step reads once, by the prefix of names."""
    functions, codec = step_functions(model), _CompiledCodec()
    losses = {name: item for name, item in functions.items() if item is not model}
    ignored = [*_list_saved(model), *ignored_objects]
    return {
        "": FunctionTracker(functions, ignored_objects=ignored, codec=codec),
        **{
            f"{name}.": AttributeTracker(loss, names=assigned, ignored_objects=ignored, codec=codec)
            for name, loss in losses.items()
            if (assigned := _list_assigned(type(loss)))
        },
    }


class _CompiledCodec(KerasCodec):
    """Leaves out the variables whose present values a compiled step reads."""

    def read_tensor(self, value: Any) -> npt.NDArray[Any] | None:
        if backend.is_variable(value) and not backend.compiles_variables:
            return np.empty(0)
        return super().read_tensor(value)


def leave_out_variables(
    trackers: Iterable[AttributeTracker], model: Any, others: Iterable[Any]
) -> None:
    """Leave out layers, metrics and variables, which are saved with the model, and `others`."""
    for tracker in trackers:
        tracker.note_objects([*_list_saved(model), *others])


def _list_saved(model: Any) -> list[Any]:
    objects = [model, *model._flatten_layers(), *backend.list_metrics(model)]
    with contextlib.suppress(ValueError):  # Keras 2, before the first step creates the weights
        objects += model.variables
    return objects


def _list_assigned(kind: type) -> frozenset[str]:
    """Return the names of the attributes that the methods of a user's class assign."""
    names: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in _LIBRARIES:
            for value in vars(base).values():
                function = inspect.unwrap(getattr(value, "python_function", value))
                if isinstance(code := getattr(function, "__code__", None), CodeType):
                    names.update(_list_stored(code))
    return frozenset(names)


def _list_stored(code: CodeType) -> Iterator[str]:
    yield from (i.argval for i in dis.get_instructions(code) if i.opname == "STORE_ATTR")
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _list_stored(constant)
