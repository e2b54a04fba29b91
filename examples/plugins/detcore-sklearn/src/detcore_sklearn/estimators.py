"""Supported estimators and their parts.

Checkpoints may name only these classes, so loading a file cannot import other code.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from detcore.errors import InvalidCheckpointError, InvalidModelError

ESTIMATORS: Mapping[str, str] = {
    "BernoulliNB": "sklearn.naive_bayes",
    "ComplementNB": "sklearn.naive_bayes",
    "GaussianNB": "sklearn.naive_bayes",
    "MLPClassifier": "sklearn.neural_network",
    "MLPRegressor": "sklearn.neural_network",
    "MultinomialNB": "sklearn.naive_bayes",
    "PassiveAggressiveClassifier": "sklearn.linear_model",
    "PassiveAggressiveRegressor": "sklearn.linear_model",
    "Perceptron": "sklearn.linear_model",
    "SGDClassifier": "sklearn.linear_model",
    "SGDRegressor": "sklearn.linear_model",
}
"""Modules of the supported estimators by class name."""

# Objects inside fitted estimators, which are rebuilt from their attributes.
_PARTS: Mapping[str, str] = {
    "AdamOptimizer": "sklearn.neural_network._stochastic_optimizers",
    "LabelBinarizer": "sklearn.preprocessing",
    "SGDOptimizer": "sklearn.neural_network._stochastic_optimizers",
}
DERIVED = frozenset({"_loss_function_"})
"""Attributes that each call of ``partial_fit`` derives from the parameters."""

# Too small to change a nonzero weight. scikit-learn rejects 0.
_TINY = 1e-300
# Parameters with which a step changes nothing. Other estimators accept sample weights.
_NO_STEP: Mapping[str, Mapping[str, float]] = {
    "MLPClassifier": {"learning_rate_init": _TINY},
    "MLPRegressor": {"learning_rate_init": _TINY},
    "PassiveAggressiveClassifier": {"C": _TINY},
    "PassiveAggressiveRegressor": {"C": _TINY},
}


def make_untrained_copy(model: Any, x: Any, y: Any, **options: Any) -> Any:
    """Return a copy of an estimator that can predict with its initial weights.

    The first call of ``partial_fit`` creates an estimator's weights, so the copy makes one step
    that does not change them. The estimator and its generator stay unchanged.

    Args:
        model: An estimator that was never fitted.
        x: Features of some records.
        y: Targets of these records.
        **options: Other arguments of the first ``partial_fit``.
    """
    model_copy = copy.deepcopy(model)
    parameters = _NO_STEP.get(check_estimator(model))
    if parameters is None:
        model_copy.partial_fit(x, y, sample_weight=np.full(len(y), _TINY), **options)
        return model_copy
    model_copy.set_params(**parameters).partial_fit(x, y, **options)
    return model_copy.set_params(**{name: getattr(model, name) for name in parameters})


def check_estimator(model: Any) -> str:
    """Return the name of an estimator's class.

    Raises:
        InvalidModelError: If the estimator cannot be restored exactly.
    """
    name = type(model).__name__
    if name not in ESTIMATORS or type(model) is not find_estimator_class(name):
        raise InvalidModelError(
            f"build_model returned a {type(model).__module__}.{name}, which is not supported.\n"
            "It has no partial_fit, or its state cannot be restored exactly.\n"
            f"Supported estimators: {', '.join(ESTIMATORS)}."
        )
    return name


def find_estimator_class(name: str) -> type[Any]:
    """Return an estimator's class.

    Raises:
        InvalidCheckpointError: If the name is not in `ESTIMATORS`.
    """
    return _import_class(name, ESTIMATORS, "estimator")


def find_part_class(name: str) -> type[Any]:
    """Return the class of an object inside estimators.

    Raises:
        InvalidCheckpointError: If the class is unknown.
    """
    return _import_class(name, _PARTS, "part of an estimator")


def find_part_name(value: object) -> str | None:
    """Return the name of an object's class if it is a known part, or None."""
    name = type(value).__name__
    return name if name in _PARTS and type(value) is find_part_class(name) else None


def _import_class(name: str, table: Mapping[str, str], kind: str) -> type[Any]:
    if name not in table:
        raise InvalidCheckpointError(
            f"the checkpoint names an unknown {kind} {name!r}; known: {', '.join(table)}.\n"
            "The checkpoint was changed, or written by another version of detcore-sklearn."
        )
    cls: type[Any] = getattr(importlib.import_module(table[name]), name)
    return cls
