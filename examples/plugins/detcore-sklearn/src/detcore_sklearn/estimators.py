"""Which estimators there are, and what they are made of.

Checkpoints name these classes and no other: loading one imports nothing that a file asks for.
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
"""Estimators that can be trained and restored, with the modules that have them."""

# Objects inside of fitted estimators; they are rebuilt from their attributes.
_PARTS: Mapping[str, str] = {
    "AdamOptimizer": "sklearn.neural_network._stochastic_optimizers",
    "LabelBinarizer": "sklearn.preprocessing",
    "SGDOptimizer": "sklearn.neural_network._stochastic_optimizers",
}
DERIVED = frozenset({"_loss_function_"})
"""Attributes that ``partial_fit`` makes anew from the parameters each time."""

# Added to a weight that is not 0 it changes no bit; scikit-learn refuses 0 itself.
_NOTHING = 1e-300
# With these a step changes nothing; the others take weights of records.
_NO_STEP: Mapping[str, Mapping[str, float]] = {
    "MLPClassifier": {"learning_rate_init": _NOTHING},
    "MLPRegressor": {"learning_rate_init": _NOTHING},
    "PassiveAggressiveClassifier": {"C": _NOTHING},
    "PassiveAggressiveRegressor": {"C": _NOTHING},
}


def untrained(model: Any, x: Any, y: Any, **options: Any) -> Any:
    """Return a copy of an estimator that can predict, with the weights that it begins with.

    An estimator makes its weights in its first call of ``partial_fit``, so the copy is given a
    step that changes nothing. The estimator itself is left as it was, its generator too.

    Args:
        model: One that was never fitted.
        x: Features of some records.
        y: Their targets.
        **options: What the first ``partial_fit`` needs besides.
    """
    made = copy.deepcopy(model)
    still = _NO_STEP.get(check_estimator(model))
    if still is None:
        made.partial_fit(x, y, sample_weight=np.full(len(y), _NOTHING), **options)
        return made
    made.set_params(**still).partial_fit(x, y, **options)
    return made.set_params(**{name: getattr(model, name) for name in still})


def check_estimator(model: Any) -> str:
    """Return the name of an estimator's class.

    Raises:
        InvalidModelError: If it is none that can be restored exactly.
    """
    name = type(model).__name__
    if name not in ESTIMATORS or type(model) is not estimator_class(name):
        raise InvalidModelError(
            f"build_model returned a {type(model).__module__}.{name}, which cannot be trained.\n"
            "Its state could not be restored exactly, or it has no partial_fit.\n"
            f"Estimators that can: {', '.join(ESTIMATORS)}."
        )
    return name


def estimator_class(name: str) -> type[Any]:
    """Return an estimator's class.

    Raises:
        InvalidCheckpointError: If it is not one of `ESTIMATORS`.
    """
    return _find(name, ESTIMATORS, "estimator")


def part_class(name: str) -> type[Any]:
    """Return the class of an object inside of estimators.

    Raises:
        InvalidCheckpointError: If it is none that estimators are made of.
    """
    return _find(name, _PARTS, "part of an estimator")


def part_name(value: object) -> str | None:
    """Return the name under which an object's class is known, or None."""
    name = type(value).__name__
    return name if name in _PARTS and type(value) is part_class(name) else None


def _find(name: str, table: Mapping[str, str], what: str) -> type[Any]:
    if name not in table:
        raise InvalidCheckpointError(
            f"the checkpoint names the {what} {name!r}; known are {', '.join(table)}.\n"
            "It was changed, or written by another version of detcore-sklearn."
        )
    found: type[Any] = getattr(importlib.import_module(table[name]), name)
    return found
