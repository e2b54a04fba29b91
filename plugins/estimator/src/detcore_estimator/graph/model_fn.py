"""Build a model's graph, and call model and input functions with the arguments they accept."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from detcore.errors import InvalidModelError
from detcore_estimator.specs.estimator_spec import check_model_fn_spec
from detcore_estimator.tensorflow_versions import (
    global_generator_of_graph,
    keras_counts_of_graph,
    tf,
    tf1,
)

_ALLOWED = ("features", "labels", "mode", "params", "config", "model_dir")


@contextlib.contextmanager
def model_graph(config: Any) -> Iterator[Any]:
    """Yield a new graph with a seed and a global step, as the default graph.

    ``tf.random.get_global_generator()`` belongs to the graph, has this seed, and is saved with the
    model. Every graph of a model is built in this context, so variables have the same names in all
    graphs.

    Args:
        config: The run configuration.
    """
    graph = tf.Graph()
    with (
        graph.as_default(),
        graph.device(config.device_fn),
        keras_counts_of_graph(),
        global_generator_of_graph(config.tf_random_seed),
    ):
        tf1.set_random_seed(config.tf_random_seed)
        tf1.train.create_global_step()
        yield graph


def parameter_names(function: Callable[..., Any]) -> set[str]:
    """Return the names of the arguments that a caller may pass by name.

    Arguments that a ``functools.partial`` has already set, ``*args`` and ``**kwargs`` are left out.

    Args:
        function: A function, method, partial or object with ``__call__``.

    Raises:
        InvalidModelError: If Python cannot determine the arguments.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError) as error:
        raise InvalidModelError(
            f"the arguments of {function!r} cannot be determined: {error}.\n"
            "Wrap it in a function that names them."
        ) from error
    names = {
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    while isinstance(function, functools.partial):
        names -= set(function.keywords)
        function = function.func
    return names


def check_model_fn(model_fn: Any, params: Mapping[str, Any] | None) -> None:
    """Check that a model function can be called.

    Args:
        model_fn: The user's function.
        params: The hyperparameters, or None if the user passed none.

    Raises:
        InvalidModelError: If the function is not callable, lacks ``features``, has an unknown
            argument, or lacks ``params`` although `params` are passed. It is a ``ValueError``.
    """
    if not callable(model_fn):
        raise InvalidModelError(
            f"model_fn must be a function (features, labels, mode, ...), but it is {model_fn!r}"
        )
    names = parameter_names(model_fn)
    unknown = sorted(names - set(_ALLOWED))
    if "features" not in names or unknown:
        wrong = f"takes {', '.join(unknown)}" if unknown else "does not take features"
        raise InvalidModelError(
            f"model_fn {_describe_function(model_fn)} {wrong}.\n"
            f"Its arguments are passed by name and are some of {', '.join(_ALLOWED)}; features "
            "is one of them.\n"
            "Rename the arguments, or set other arguments beforehand with functools.partial."
        )
    if params is not None and "params" not in names:
        raise InvalidModelError(
            f"the Estimator received params ({dict(params)}), but model_fn "
            f"{_describe_function(model_fn)} has no argument params.\n"
            "Add params to its arguments, or leave params out."
        )


def call_model_fn(
    model_fn: Callable[..., Any],
    features: Any,
    labels: Any,
    mode: str,
    *,
    params: Mapping[str, Any],
    config: Any,
    model_dir: str,
) -> Any:
    """Call a model function with the arguments that it accepts.

    Returns:
        The checked `EstimatorSpec`.

    Raises:
        InvalidModelError: If the function accepts no labels but the data has labels, or it does not
            return a spec.
    """
    names = parameter_names(model_fn)
    if labels is not None and "labels" not in names:
        raise InvalidModelError(
            f"input_fn returns labels, but model_fn {_describe_function(model_fn)} has no argument "
            "labels.\n"
            "Add labels to its arguments, or return features only."
        )
    arguments = {
        "features": features,
        "labels": labels,
        "mode": mode,
        "params": params,
        "config": config,
        "model_dir": model_dir,
    }
    spec = model_fn(**{name: value for name, value in arguments.items() if name in names})
    check_model_fn_spec(spec, mode)
    return spec


def call_input_fn(
    input_fn: Callable[..., Any], *, mode: str, params: Mapping[str, Any], config: Any
) -> Any:
    """Call an input function with the arguments that it accepts, on the CPU.

    Args:
        input_fn: The user's function. It may accept ``mode``, ``params`` and ``config``.
        mode: One of `ModeKeys`.
        params: The estimator's hyperparameters.
        config: The run configuration.
    """
    parameters = parameter_names(input_fn)
    arguments = {"mode": mode, "params": params, "config": config}
    accepted = {name: value for name, value in arguments.items() if name in parameters}
    with tf.device("/cpu:0"):
        return input_fn(**accepted)


def warm_start(estimator: Any) -> None:
    """Initialize the default graph's variables from the estimator's ``warm_start_from``."""
    # tf.estimator has no public name for it. detcore's Estimator uses the same private name.
    settings = getattr(estimator, "_warm_start_settings", None)
    if settings is not None:
        tf1.train.warm_start(*settings)


def _describe_function(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))
