"""Convert the result of an input function to tensors of a graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from detcore.errors import DataError, describe
from detcore_estimator._inputs import call_input_fn
from detcore_estimator._spec import ModeKeys
from detcore_estimator._tf import tf, tf1

_logger = logging.getLogger("detcore.estimator")


class Inputs(NamedTuple):
    """The tensors of a batch.

    Attributes:
        features: Features for ``model_fn``; a tensor or a structure of them.
        labels: The same, or None.
        hooks: ``SessionRunHook`` objects that start the data; they are not called per step.
        has_end: Whether the data come from a dataset or a queue. Plain tensors never end.
    """

    features: Any
    labels: Any
    hooks: tuple[Any, ...]
    has_end: bool


def read_inputs(
    input_fn: Callable[..., Any], mode: str, *, params: Mapping[str, Any], config: Any
) -> Inputs:
    """Call an input function in the graph that is being built.

    Args:
        input_fn: Returns a ``tf.data.Dataset``, ``(features, labels)`` or ``features``.
        mode: One of `ModeKeys`. For PREDICT, labels are dropped.
        params: The estimator's hyperparameters.
        config: The run configuration.

    Raises:
        DataError: If it returns nothing, or a tuple of another length. It is a ``ValueError``.
    """
    result = call_input_fn(input_fn, mode=mode, params=params, config=config)
    hooks: tuple[Any, ...] = ()
    is_dataset = isinstance(result, tf.data.Dataset)
    if is_dataset:
        iterator = _iterator(result)
        hooks = (_StartIterator(iterator),)
        result = iterator.get_next()
    features, labels = _split(result, mode)
    has_end = is_dataset or bool(tf1.get_collection(tf1.GraphKeys.QUEUE_RUNNERS))
    has_end = has_end or any(
        getattr(getattr(part, "op", None), "type", "").startswith("IteratorGetNext")
        for part in tf.nest.flatten(features)
    )
    return Inputs(features, labels, hooks, has_end)


def _iterator(dataset: Any) -> Any:
    try:
        return tf1.data.make_initializable_iterator(dataset)
    except ValueError as error:
        raise DataError(
            f"the dataset that input_fn returned cannot be used in the model's graph: {error}\n"
            "A dataset belongs to the graph in which it was made, and each call of train, evaluate "
            "and predict has its own.\n"
            "Make the dataset inside input_fn."
        ) from error


def _split(result: Any, mode: str) -> tuple[Any, Any]:
    is_pair = isinstance(result, (tuple, list))
    if is_pair and mode == ModeKeys.PREDICT and result:
        return result[0], None
    if is_pair:
        if len(result) != 2:
            raise DataError(
                f"input_fn gives a {type(result).__name__} of {len(result)} parts per batch.\n"
                "It is features alone, or a pair (features, labels).\n"
                "Put several features into a dict."
            )
        return result[0], result[1]
    if result is None:
        raise DataError(
            f"input_fn returned {describe(result)}; it returns a tf.data.Dataset, a pair "
            "(features, labels) or features"
        )
    return result, None


class _StartIterator(tf1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow has no types
    """Starts a dataset's iterator when the session exists."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self._initializer: Any = None

    def begin(self) -> None:
        self._initializer = self._iterator.initializer

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._initializer)
