"""Build the graph of an input function and a model function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from detcore.errors import DataError, describe
from detcore_estimator.graph.model_fn import call_input_fn, warm_start
from detcore_estimator.specs.estimator_spec import ModeKeys
from detcore_estimator.tensorflow_versions import tf, tf1


class Model(Protocol):
    """The properties of an `Estimator` that its methods read."""

    @property
    def model_dir(self) -> str:
        """Directory of the checkpoints and event files."""

    @property
    def config(self) -> Any:
        """The run configuration."""

    @property
    def params(self) -> Any:
        """The hyperparameters."""

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The model function, called as ``(features, labels, mode, config)``."""


class Inputs(NamedTuple):
    """The data of a graph.

    Attributes:
        hooks: ``SessionRunHook`` objects that start the data. They are not called per step.
        has_end: Whether the data comes from a dataset or a queue. Plain tensors never end.
    """

    hooks: tuple[Any, ...]
    has_end: bool


def build_model(
    estimator: Model,
    input_fn: Callable[..., Any],
    mode: str,
    *,
    config: Any,
    checkpoint: str | None,
) -> tuple[Inputs, Any]:
    """Call an input function and the model function in the graph that is being built.

    Args:
        estimator: The estimator.
        input_fn: Returns a ``tf.data.Dataset``, ``(features, labels)`` or ``features``.
        mode: One of `ModeKeys`. For PREDICT, labels are dropped.
        config: The run configuration.
        checkpoint: The checkpoint to restore. If None, variables may be warm-started.

    Returns:
        The inputs, and the checked ``EstimatorSpec``.

    Raises:
        DataError: If `input_fn` returns None, or a tuple of another length. It is a
            ``ValueError``.
    """
    result = call_input_fn(input_fn, mode=mode, params=estimator.params, config=config)
    hooks: tuple[Any, ...] = ()
    is_dataset = isinstance(result, tf.data.Dataset)
    if is_dataset:
        iterator = _make_iterator(result)
        hooks = (_StartIterator(iterator),)
        result = iterator.get_next()
    features, labels = _split_element(result, mode)
    has_end = is_dataset or bool(tf1.get_collection(tf1.GraphKeys.QUEUE_RUNNERS))
    has_end = has_end or any(
        getattr(getattr(part, "op", None), "type", "").startswith("IteratorGetNext")
        for part in tf.nest.flatten(features)
    )
    spec = estimator.model_fn(features, labels, mode, config)
    if checkpoint is None:
        warm_start(estimator)
    return Inputs(hooks, has_end), spec


def _make_iterator(dataset: Any) -> Any:
    try:
        return tf1.data.make_initializable_iterator(dataset)
    except ValueError as error:
        raise DataError(
            f"the dataset that input_fn returned cannot be used in the model's graph: {error}\n"
            "A dataset belongs to the graph in which it was created, and each call of train, "
            "evaluate and predict has its own graph.\n"
            "Create the dataset inside input_fn."
        ) from error


def _split_element(result: Any, mode: str) -> tuple[Any, Any]:
    is_pair = isinstance(result, (tuple, list))
    if is_pair and mode == ModeKeys.PREDICT and result:
        return result[0], None
    if is_pair:
        if len(result) != 2:
            raise DataError(
                f"input_fn returns a {type(result).__name__} of {len(result)} parts per batch.\n"
                "A batch is only features, or a pair (features, labels).\n"
                "Put several features into a dict."
            )
        return result[0], result[1]
    if result is None:
        raise DataError(
            f"input_fn returned {describe(result)}; expected a tf.data.Dataset, a pair "
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
