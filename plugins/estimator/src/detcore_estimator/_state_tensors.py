"""The training state as arrays by name, for step digests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from detcore.trial import capture_random_state
from detcore_estimator._tf import tf, tf1

if TYPE_CHECKING:
    from detcore_estimator._training import TrainingSession


_NO_VALUES = (tf.resource, tf.variant)


def name_state(graph: Any, training: TrainingSession) -> dict[str, npt.NDArray[Any]]:
    """Return Python's and NumPy's generators, and the graph's global variables.

    Args:
        graph: The training graph; nothing is added to it.
        training: Its session.
    """
    found = {
        f"random.{name}": np.frombuffer(json.dumps(state).encode(), np.uint8)
        for name, state in capture_random_state().items()
    }
    trainable = {id(each) for each in graph.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)}
    variables = {
        variable.op.name: variable
        for variable in graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
        if variable.dtype.base_dtype not in _NO_VALUES
    }
    values = training.session.run(variables)
    # A stable sort: the order of their creation is that of the computation.
    for name in sorted(variables, key=lambda name: id(variables[name]) not in trainable):
        group = "model" if id(variables[name]) in trainable else "optimizer"
        found[f"{group}.{name}"] = _as_numbers(values[name])
    return found


def _as_numbers(value: Any) -> npt.NDArray[Any]:
    array = np.asarray(value)
    return (
        np.frombuffer(repr(array.tolist()).encode(), np.uint8) if array.dtype.hasobject else array
    )
