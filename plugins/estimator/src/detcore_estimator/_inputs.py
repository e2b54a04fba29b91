"""Call input functions as Estimators do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from detcore_estimator._model_fn import parameter_names
from detcore_estimator._tf import tf


def call_input_fn(
    input_fn: Callable[..., Any], *, mode: str, params: Mapping[str, Any], config: Any
) -> Any:
    """Call an input function with those of the arguments that it takes, on the CPU.

    Args:
        input_fn: The user's function; it may take ``mode``, ``params`` and ``config``.
        mode: One of `ModeKeys`.
        params: The estimator's hyperparameters.
        config: The run configuration.
    """
    parameters = parameter_names(input_fn)
    arguments = {"mode": mode, "params": params, "config": config}
    taken = {name: value for name, value in arguments.items() if name in parameters}
    with tf.device("/cpu:0"):
        return input_fn(**taken)
