"""Find and name every variable that a training step can change."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from detcore.trial import list_function_variables
from detcore_keras.backends.backend import SUMS_OF_GRADIENTS
from detcore_keras.frameworks import backend, keras
from detcore_keras.nested import flatten

_COUNTERS = ("_train_counter", "_test_counter", "_predict_counter")
_NUMBERING = re.compile(r"_\d+(?=[_/:]|$)")


@dataclasses.dataclass(frozen=True, slots=True)
class NamedVariable:
    """A variable with its name and group.

    Attributes:
        group: "weights", "seeds", "metrics", "counters", "optimizer", "hyperparameters",
            "accumulated", "extra" or "functions".
        name: The variable's name in Keras, or its attribute path.
        variable: The variable that holds the value.
        is_generator: Whether the variable is the state of a random generator.
    """

    group: str
    name: str
    variable: Any
    is_generator: bool = False


def training_variables(model: Any, optimizers: Sequence[Any]) -> list[NamedVariable]:
    """Return every variable of a training run once, in an order that depends only on the code.

    Args:
        model: The model. Its weights and its optimizers' variables must exist.
        optimizers: Optimizers whose state belongs to the run.
    """
    variables: dict[int, NamedVariable] = {}
    walked = _add_model(variables, model)
    for optimizer in optimizers:
        sums = getattr(type(optimizer), SUMS_OF_GRADIENTS, None)
        _add_variables(variables, "accumulated", () if sums is None else sums.variables)
        reachable = list(_walk_attributes(optimizer, "optimizer"))
        _add_variables(variables, "hyperparameters", reachable)
        optimizer_variables = optimizer.variables
        _add_variables(
            variables,
            "optimizer",
            optimizer_variables() if callable(optimizer_variables) else optimizer_variables,
        )
        _add_variables(variables, "optimizer", reachable)
    for group in ("hyperparameters", "optimizer"):  # unregistered optimizers
        _add_variables(variables, group, walked)
    _add_variables(variables, "functions", _walk_functions(model))
    return list(variables.values())


def model_variables(model: Any) -> list[NamedVariable]:
    """Return the variables that a model needs to predict: its weights and other attributes."""
    variables: dict[int, NamedVariable] = {}
    _add_model(variables, model)
    return [item for item in variables.values() if item.group in {"weights", "extra"}]


def same_name(first_name: str, second_name: str) -> bool:
    """Whether two variable names can mean the same variable.

    Keras numbers layers in their order of creation, so ``dense_3/kernel:0`` may be
    ``dense/kernel`` in another process. Versions also differ in how much of the path precedes the
    name.
    """
    return _strip_name(first_name) == _strip_name(second_name)


def _strip_name(name: str) -> tuple[str, ...]:
    plain = _NUMBERING.sub("", name.partition(":")[0])
    return tuple(plain.split("/")[-2:])


def _add_variables(variables: dict[int, NamedVariable], group: str, items: Iterable[Any]) -> None:
    """Add new variables of a group. Skip `NamedVariable` objects of other groups."""
    for item in items:
        if not isinstance(item, NamedVariable):
            name = getattr(item, "path", None) or item.name
            item = NamedVariable(group, name, backend.get_raw(item))
        if item.group == group:
            variables.setdefault(backend.get_key(item.variable), item)


def _add_model(variables: dict[int, NamedVariable], model: Any) -> list[NamedVariable]:
    """Add a model's variables except its optimizers'. Return all variables in its attributes."""
    walked = list(_walk_attributes(model, "extra"))
    # Metrics, generators and counters come first, because Keras 2 lists some of them as weights.
    for metric in model.metrics:
        _add_variables(variables, "metrics", metric.variables)
    _add_variables(variables, "seeds", backend.list_seeds(model))
    _add_variables(variables, "metrics", walked)
    for name in _COUNTERS:
        if backend.is_variable(counter := getattr(model, name, None)):
            _add_variables(
                variables, "counters", [NamedVariable("counters", name, backend.get_raw(counter))]
            )
    _add_variables(variables, "counters", walked)
    weights: Sequence[Any] = ()
    with contextlib.suppress(ValueError):  # Keras 2, before the first step creates the weights
        weights = model.weights
    # Keras 2 also lists the vocabularies of preprocessing layers. These are not variables.
    # ``build_model`` creates them, and training does not change them.
    _add_variables(variables, "weights", filter(backend.is_variable, weights))
    _add_variables(variables, "extra", walked)
    return walked


def _walk_attributes(root: Any, group: str) -> Iterator[NamedVariable]:
    """Yield the variables in attributes, named by their path, breadth first and sorted.

    Args:
        root: The object to start from.
        group: Group of variables that are not counters and do not belong to a metric or optimizer.
    """
    kept_alive = [root]  # kept alive, so that ids in `seen` are not reused
    visited_ids = {id(root)}
    pending: list[tuple[str, Any, str]] = [("", root, group)]
    while pending:
        path, current, group = pending.pop(0)
        for name, value in _list_children(current):
            if id(value) in visited_ids:
                continue
            visited_ids.add(id(value))
            kept_alive.append(value)
            child = f"{path}/{name}" if path else name
            if backend.is_variable(value):
                yield NamedVariable(
                    _find_group(current, name, group),
                    child,
                    backend.get_raw(value),
                    isinstance(current, backend.generator_types),
                )
            elif isinstance(value, backend.optimizer_types):
                pending.append((child, value, "optimizer"))
            elif isinstance(value, keras.metrics.Metric):
                pending.append((child, value, "metrics"))
            elif isinstance(value, (list, tuple, dict, *backend.container_types)):
                pending.append((child, value, _find_group(current, name, group)))


def step_functions(model: Any) -> dict[str, Any]:
    """Return the objects whose functions a training step runs: the losses and the model."""
    losses = flatten(getattr(model, "loss", None))
    return {**{f"loss {index}": loss for index, loss in enumerate(losses)}, "model": model}


def _walk_functions(model: Any) -> Iterator[NamedVariable]:
    """Yield the global and enclosing variables that the user's loss and step refer to."""
    for path, value in list_function_variables(step_functions(model)):
        if backend.is_variable(value):
            yield NamedVariable("functions", path, backend.get_raw(value))
        elif isinstance(value, (list, tuple, dict, *backend.container_types)):
            for item in _walk_attributes(value, "functions"):
                yield dataclasses.replace(item, group="functions", name=f"{path}/{item.name}")


def _find_group(owner: Any, name: str, group: str) -> str:
    """Return the group of an attribute of an object in `group`."""
    if name in _COUNTERS:
        return "counters"
    if isinstance(
        owner, (*backend.optimizer_types, keras.optimizers.schedules.LearningRateSchedule)
    ):
        # A `LossScaleOptimizer` of Keras 2 lists the variables of its inner optimizer as its own.
        kinds = (type(owner), type(getattr(owner, "inner_optimizer", owner)))
        if any(_is_hyperparameter(kind, name) for kind in kinds):
            return "hyperparameters"
    return group


def _is_hyperparameter(kind: type, name: str) -> bool:
    """Whether an attribute of an optimizer or a schedule holds an argument of its constructor.

    Keras 2's legacy optimizers hold them in a dictionary ``_hyper``. Its other optimizers have
    ``_current_learning_rate`` for the current value of a schedule.
    """
    if name == "_hyper":
        return True
    arguments = {
        argument
        for base in kind.__mro__
        if "__init__" in vars(base)
        for argument in inspect.signature(vars(base)["__init__"]).parameters
    }
    return name.removeprefix("_").removeprefix("current_") in arguments


def _list_children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((str(key), child) for key, child in value.items())
        return
    if isinstance(value, list | tuple):
        yield from ((str(index), child) for index, child in enumerate(value))
        return
    attributes = getattr(value, "__dict__", {})
    yield from ((name, attributes[name]) for name in sorted(attributes.keys() - backend.not_state))
    yield from backend.list_tracked(value)
