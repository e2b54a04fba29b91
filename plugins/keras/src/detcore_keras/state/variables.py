"""Find and name every variable that a training step can change."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detcore.trial import list_function_variables
from detcore_keras.frameworks import KERAS_MAJOR, keras, tf

OPTIMIZERS: tuple[type, ...] = (
    (keras.optimizers.Optimizer,)
    if KERAS_MAJOR == 3
    else (
        keras.optimizers.Optimizer,
        keras.optimizers.legacy.Optimizer,
        keras.mixed_precision.LossScaleOptimizer,
    )
)
# Containers that may hold variables. Plain objects are not searched.
_CONTAINERS: tuple[type, ...] = (
    *OPTIMIZERS,
    *((keras.random.SeedGenerator,) if KERAS_MAJOR == 3 else ()),
    keras.layers.Layer,
    keras.metrics.Metric,
    keras.losses.Loss,
    keras.optimizers.schedules.LearningRateSchedule,
    tf.Module,
    tf.random.Generator,
    tf.__internal__.tracking.Trackable,
)
_GENERATORS: tuple[type, ...] = (
    tf.random.Generator,
    *((keras.random.SeedGenerator,) if KERAS_MAJOR == 3 else ()),
)
# Owners of hyperparameters that may be variables.
_CONFIGURED: tuple[type, ...] = (*OPTIMIZERS, keras.optimizers.schedules.LearningRateSchedule)
# Settings that Keras 2 keeps in variables; training never changes them.
_NOT_STATE = frozenset({"_steps_per_execution"})
_COUNTERS = ("_train_counter", "_test_counter", "_predict_counter")
_NUMBERING = re.compile(r"_\d+(?=[_/:]|$)")
# Attribute of an optimizer's class that has the sums of gradients between two updates.
SUMS_OF_GRADIENTS = "_detcore_sums_of_gradients"


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """One variable.

    Attributes:
        group: "weights", "seeds", "metrics", "counters", "optimizer", "hyperparameters",
            "accumulated", "extra" or "functions".
        name: Its name in Keras, or the attributes that lead to it.
        variable: The TensorFlow variable.
        is_generator: Whether it is the state of a random generator.
    """

    group: str
    name: str
    variable: Any
    is_generator: bool = False


def training_variables(model: Any, optimizers: Sequence[Any]) -> list[Found]:
    """Return every variable of a training run, each once, in an order that depends only on code.

    Args:
        model: The model; its weights and its optimizers' variables exist already.
        optimizers: Optimizers whose state belongs to the run.
    """
    found: dict[int, Found] = {}
    walked = _add_model(found, model)
    for optimizer in optimizers:
        sums = getattr(type(optimizer), SUMS_OF_GRADIENTS, None)
        _add(found, "accumulated", () if sums is None else sums.variables)
        reachable = list(_walk(optimizer, "optimizer"))
        _add(found, "hyperparameters", reachable)
        own = optimizer.variables
        _add(found, "optimizer", own() if callable(own) else own)
        _add(found, "optimizer", reachable)
    for group in ("hyperparameters", "optimizer"):  # of optimizers that were not registered
        _add(found, group, walked)
    _add(found, "functions", _walk_functions(model))
    return list(found.values())


def model_variables(model: Any) -> list[Found]:
    """Return the variables that a model needs to predict: its weights, and its attributes."""
    found: dict[int, Found] = {}
    _add_model(found, model)
    return [item for item in found.values() if item.group in {"weights", "extra"}]


def raw_variable(variable: Any) -> Any:
    """Return the TensorFlow variable behind a Keras 3 one; others unchanged."""
    if KERAS_MAJOR == 3 and isinstance(variable, keras.Variable):
        return variable.value
    return variable


def read_variable(variable: Any) -> npt.NDArray[Any]:
    """Return a copy of the value of a TensorFlow variable; strings as an array of bytes objects."""
    return np.asarray(variable.numpy())


def same_name(one: str, other: str) -> bool:
    """Whether two variable names can mean the same variable.

    Keras numbers layers in the order of their creation in a process, so ``dense_3/kernel:0`` may be
    ``dense/kernel`` elsewhere. Versions also differ in how much of the path precedes the name.
    """
    return _tail(one) == _tail(other)


def _tail(name: str) -> tuple[str, ...]:
    plain = _NUMBERING.sub("", name.partition(":")[0])
    return tuple(plain.split("/")[-2:])


def _add(found: dict[int, Found], group: str, items: Iterable[Any]) -> None:
    """Add the variables of a group that are new; `Found` ones only if they are of that group."""
    for item in items:
        if not isinstance(item, Found):
            name = getattr(item, "path", None) or item.name
            item = Found(group, name, raw_variable(item))
        if item.group == group:
            # Wrappers of one variable (mixed precision) share its handle.
            found.setdefault(id(item.variable.handle), item)


def _add_model(found: dict[int, Found], model: Any) -> list[Found]:
    """Add all of a model except its optimizers; return all that its attributes lead to."""
    walked = list(_walk(model, "extra"))
    # Metrics, generators and counters first: Keras 2 has some of them among the weights.
    for metric in model.metrics:
        _add(found, "metrics", metric.variables)
    _add(found, "seeds", _seed_variables(model))
    _add(found, "metrics", walked)
    for name in _COUNTERS:
        if is_variable(counter := getattr(model, name, None)):
            _add(found, "counters", [Found("counters", name, raw_variable(counter))])
    _add(found, "counters", walked)
    weights: Sequence[Any] = ()
    with contextlib.suppress(ValueError):  # of Keras 2, if the first step is still to make them
        weights = model.weights
    # Keras 2 lists the vocabularies of preprocessing layers, too, which are no variables:
    # ``build_model`` makes them, and training does not change them.
    _add(found, "weights", filter(is_variable, weights))
    _add(found, "extra", walked)
    return walked


def _seed_variables(model: Any) -> Iterator[Any]:
    if KERAS_MAJOR == 3:
        weights = {id(variable) for variable in model.weights}
        return (v for v in model.variables if id(v) not in weights)
    return layer_generators(model)


def layer_generators(model: Any) -> Iterator[Any]:
    """Yield the variables that hold the random generators of the layers of a Keras 2 model."""
    for layer in model._flatten_layers():
        generator = getattr(getattr(layer, "_random_generator", None), "_generator", None)
        if generator is not None:
            yield generator.state


def _walk(root: Any, group: str) -> Iterator[Found]:
    """Yield the variables that attributes lead to, by their path; breadth first, sorted.

    Args:
        root: The object to start from.
        group: The group of variables that belong to no metric or optimizer and are not counters.
    """
    kept = [root]  # kept alive, so that ids in `seen` are not reused
    seen = {id(root)}
    pending: list[tuple[str, Any, str]] = [("", root, group)]
    while pending:
        path, current, group = pending.pop(0)
        for name, value in _children(current):
            if id(value) in seen:
                continue
            seen.add(id(value))
            kept.append(value)
            child = f"{path}/{name}" if path else name
            if is_variable(value):
                yield Found(
                    _group_of(current, name, group),
                    child,
                    raw_variable(value),
                    isinstance(current, _GENERATORS),
                )
            elif isinstance(value, OPTIMIZERS):
                pending.append((child, value, "optimizer"))
            elif isinstance(value, keras.metrics.Metric):
                pending.append((child, value, "metrics"))
            elif isinstance(value, (list, tuple, dict, *_CONTAINERS)):
                pending.append((child, value, _group_of(current, name, group)))


def step_functions(model: Any) -> dict[str, Any]:
    """Return the owners of the functions that a training step runs: the losses and the model."""
    losses = tf.nest.flatten(getattr(model, "loss", None))
    return {**{f"loss {index}": loss for index, loss in enumerate(losses)}, "model": model}


def _walk_functions(model: Any) -> Iterator[Found]:
    """Yield the variables that the user's loss and step refer to as global or enclosing names."""
    for path, value in list_function_variables(step_functions(model)):
        if is_variable(value):
            yield Found("functions", path, raw_variable(value))
        elif isinstance(value, (list, tuple, dict, *_CONTAINERS)):
            for item in _walk(value, "functions"):
                yield dataclasses.replace(item, group="functions", name=f"{path}/{item.name}")


def _group_of(owner: Any, name: str, group: str) -> str:
    """Return the group of an attribute, given the group of its owner."""
    if name in _COUNTERS:
        return "counters"
    if isinstance(owner, _CONFIGURED):
        # A `LossScaleOptimizer` of Keras 2 lists the variables of its inner optimizer as its own.
        kinds = (type(owner), type(getattr(owner, "inner_optimizer", owner)))
        if any(_is_hyperparameter(kind, name) for kind in kinds):
            return "hyperparameters"
    return group


def _is_hyperparameter(kind: type, name: str) -> bool:
    """Whether an attribute of an optimizer or a schedule keeps an argument of its constructor.

    ``_hyper`` is the dictionary of them in Keras 2's legacy optimizers. Its others have
    ``_current_learning_rate`` for the present value of a schedule.
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


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((str(key), child) for key, child in value.items())
        return
    if isinstance(value, list | tuple):
        yield from ((str(index), child) for index, child in enumerate(value))
        return
    attributes = getattr(value, "__dict__", {})
    yield from ((name, attributes[name]) for name in sorted(attributes.keys() - _NOT_STATE))
    if isinstance(value, tf.__internal__.tracking.Trackable):
        yield from sorted(tf.train.TrackableView.children(value).items())


def is_variable(value: Any) -> bool:
    """Whether a value is a variable of TensorFlow or of Keras 3."""
    if isinstance(value, tf.Variable):
        return True
    return KERAS_MAJOR == 3 and isinstance(value, keras.Variable)
