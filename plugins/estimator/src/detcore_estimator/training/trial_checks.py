"""Check the results of a trial's methods before anything is built."""

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
# Names in a checkpoint's folder that detcore and this plugin write themselves.
_TAKEN = frozenset({"checkpoint", "code", "export"})


class TrialParts:
    """Results of the methods of a trial; each is called once, in this order.

    Attributes:
        estimator: The estimator.
        train_spec: How to train.
        eval_spec: How to validate.
        serving: Serving input receiver functions by name.

    Raises:
        InvalidModelError: If a method returned something of another type.
        UnsafePathError: If a serving function's name cannot be the name of a folder.
    """

    def __init__(self, trial: EstimatorTrial) -> None:
        estimators = _kinds("Estimator", Estimator)
        self.estimator = _checked(trial.build_estimator(), estimators, "build_estimator")
        train_specs = _kinds("TrainSpec", TrainSpec)
        self.train_spec = _checked(trial.build_train_spec(), train_specs, "build_train_spec")
        eval_specs = _kinds("EvalSpec", EvalSpec)
        self.eval_spec = _checked(
            trial.build_validation_spec(), eval_specs, "build_validation_spec"
        )
        self.serving = _checked_serving(trial.build_serving_input_receiver_fns())


def _kinds(name: str, ours: type) -> tuple[type, ...]:
    """Return the classes of a name: ours, and those of ``tf.estimator`` where there is one."""
    module = tf_estimator()
    if module is None:
        return (ours,)
    theirs = [getattr(module, name), getattr(tf1.estimator, name)]
    return (ours, *dict.fromkeys(theirs))


def _checked(value: Any, kinds: tuple[type, ...], method: str) -> Any:
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
                f"build_serving_input_receiver_fns names a function {name!r}, which cannot be the "
                "name of a folder.\n"
                "The exported model is a folder of that name in every checkpoint.\n"
                "Use letters, digits, '.', '_' and '-', not beginning with '.' or '-'."
            )
        if name in _TAKEN:
            raise InvalidExperimentError(
                f"build_serving_input_receiver_fns names a function {name!r}, but a checkpoint has "
                "something else of that name.\nUse another name."
            )
        if not callable(function):
            raise InvalidModelError(
                f"build_serving_input_receiver_fns gives {describe(function)} for {name!r}.\n"
                "It must be a function, such as "
                "detcore_estimator.export.build_raw_serving_input_receiver_fn(...) returns."
            )
    return dict(functions)
