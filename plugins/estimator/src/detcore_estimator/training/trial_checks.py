"""Check the results of a trial's methods before the graphs are built."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidExperimentError, InvalidModelError, UnsafePathError, describe
from detcore_estimator.engine.estimator import Estimator
from detcore_estimator.specs.run_specs import EvalSpec, TrainSpec
from detcore_estimator.tensorflow_versions import tf1, tf_estimator

if TYPE_CHECKING:
    from detcore_estimator.estimator_trial import EstimatorTrial


_SERVING_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# Names in a checkpoint's directory that detcore and this plugin use.
_TAKEN = frozenset({"checkpoint", "code", "export"})


class TrialParts:
    """Results of a trial's methods, each of which is called once, in this order.

    Attributes:
        estimator: The estimator.
        train_spec: The ``TrainSpec``.
        eval_spec: The ``EvalSpec``.
        serving: Serving input receiver functions by name.

    Raises:
        InvalidModelError: If a method returned a value of another type.
        UnsafePathError: If a serving function's name cannot be the name of a directory.
    """

    def __init__(self, trial: EstimatorTrial) -> None:
        estimators = _list_classes("Estimator", Estimator)
        self.estimator = _check_class(trial.build_estimator(), estimators, "build_estimator")
        train_specs = _list_classes("TrainSpec", TrainSpec)
        self.train_spec = _check_class(trial.build_train_spec(), train_specs, "build_train_spec")
        eval_specs = _list_classes("EvalSpec", EvalSpec)
        self.eval_spec = _check_class(
            trial.build_validation_spec(), eval_specs, "build_validation_spec"
        )
        self.serving = _checked_serving(trial.build_serving_input_receiver_fns())


def _list_classes(name: str, ours: type) -> tuple[type, ...]:
    """Return detcore's class and, if ``tf.estimator`` exists, its classes with this name."""
    module = tf_estimator()
    if module is None:
        return (ours,)
    tensorflow_classes = [getattr(module, name), getattr(tf1.estimator, name)]
    return (ours, *dict.fromkeys(tensorflow_classes))


def _check_class(value: Any, kinds: tuple[type, ...], method: str) -> Any:
    if isinstance(value, kinds):
        return value
    names = " or ".join(
        dict.fromkeys(
            f"{'tf.estimator' if kind.__module__.startswith('tensorflow') else 'detcore_estimator'}"
            f".{kind.__name__.removesuffix('V2')}"
            for kind in kinds
        )
    )
    hint = " Did it forget to return it?" if value is None else ""
    raise InvalidModelError(
        f"{method} returned {describe(value)}.\nIt must return an instance of {names}.{hint}"
    )


def _checked_serving(functions: Any) -> dict[str, Callable[..., Any]]:
    if functions is None:
        return {}
    if not isinstance(functions, Mapping):
        raise InvalidModelError(
            f"build_serving_input_receiver_fns returned {describe(functions)}.\n"
            "It must return a dict from a name to a serving input receiver function."
        )
    for name, function in functions.items():
        if not isinstance(name, str) or not _SERVING_NAME.fullmatch(name):
            raise UnsafePathError(
                f"build_serving_input_receiver_fns returned a function named {name!r}, which "
                "cannot be the name of a directory.\n"
                "The exported model is a directory with this name in every checkpoint.\n"
                "Use letters, digits, '.', '_' and '-', not beginning with '.' or '-'."
            )
        if name in _TAKEN:
            raise InvalidExperimentError(
                f"build_serving_input_receiver_fns returned a function named {name!r}, but a "
                "checkpoint contains another file or directory with this name.\nUse another name."
            )
        if not callable(function):
            raise InvalidModelError(
                f"build_serving_input_receiver_fns returned {describe(function)} for {name!r}.\n"
                "It must be a function, such as the result of "
                "detcore_estimator.export.build_raw_serving_input_receiver_fn(...)."
            )
    return dict(functions)
