"""Reduce metrics with Python code, over batches and over workers."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from detcore.errors import ContextStateError, MetricError, MetricTypeError, describe
from detcore.metrics import FunctionReducer, MetricReducer
from detcore_estimator.tensorflow_versions import tf, tf1

if TYPE_CHECKING:
    from detcore.distributed import DistributedContext


_METHODS = ("accumulate", "cross_slot_reduce")
Array: TypeAlias = npt.NDArray[Any]


def _convert_part(part: Any) -> Any:
    """Return a part of a metric as a tensor. Values that are not tensors become constants.

    Raises:
        MetricTypeError: If the part cannot be a dense tensor of a type that NumPy has.
    """
    if part is None or isinstance(part, (tf.SparseTensor, tf.RaggedTensor)):
        raise MetricTypeError(
            f"the metric has {describe(part)}; a part of a metric must be a dense tensor.\n"
            "Convert it with tf.sparse.to_dense or RaggedTensor.to_tensor."
        )
    try:
        tensor = tf.convert_to_tensor(part)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise MetricTypeError(
            f"the metric has {describe(part)}, which cannot be converted to a tensor: {error}"
        ) from error
    if not tensor.dtype.base_dtype.is_numpy_compatible:
        raise MetricTypeError(
            f"the metric has a tensor of type {tensor.dtype.name}, which NumPy does not have.\n"
            "Pass a tensor of numbers or strings."
        )
    return tensor


def _check_type(numpy_dtype: Any) -> Any:
    """Return the ``tf.DType`` for anything that ``np.dtype`` accepts, or for a ``tf.DType``.

    Raises:
        MetricTypeError: If NumPy or TensorFlow does not know the type.
    """
    try:
        if numpy_dtype is None:
            raise TypeError("None is not a type")  # np.dtype(None) is float64
        if isinstance(numpy_dtype, tf.DType):
            dtype = numpy_dtype.base_dtype
        else:
            # tf.as_dtype(float) would be float32, but NumPy uses float64.
            dtype = tf.as_dtype(np.dtype(numpy_dtype))
        if not dtype.is_numpy_compatible:
            raise TypeError(f"NumPy has no type for {dtype.name}")
    except (TypeError, ValueError) as error:
        raise MetricTypeError(
            f"numpy_dtype is {describe(numpy_dtype)}, which cannot be the type of a metric: "
            f"{error}\nPass a type that NumPy and TensorFlow both know, such as np.float32."
        ) from error
    return dtype


def _cast_result(result: Any, dtype: Any) -> Array:
    """Return the result of a reducer as an array.

    Raises:
        MetricError: If the result is None, or cannot be converted to an array of this
            ``tf.DType``.
    """
    if result is None:
        raise MetricError(
            "the reducer returned None instead of the value of the metric.\n"
            "Add a return statement to the function."
        )
    try:
        array = np.asarray(result)
        if dtype == tf.string:
            return _as_bytes(array)
        if array.dtype == object and any(item is None for item in array.flat):
            raise ValueError("a part of it is None")  # NumPy would convert None to NaN
        return np.asarray(array.astype(dtype.as_numpy_dtype), order="C")
    except (TypeError, ValueError) as error:
        raise MetricError(
            f"the reducer returned {describe(result)}, which cannot be converted to an array of "
            f"type {dtype.name}: {error}"
        ) from error


def _as_bytes(array: Array) -> Array:
    # TensorFlow encodes only ASCII strings.
    encoded = np.empty(array.shape, object)
    for index, item in np.ndenumerate(array):
        if not isinstance(item, bytes | str):
            raise TypeError(f"{describe(item)} is not a string")
        encoded[index] = item.encode() if isinstance(item, str) else bytes(item)
    return encoded


class Reducers:
    """The metrics of a trial that reducers compute, in all its graphs.

    An evaluation starts when the local variables of its graph are initialized, as for other
    TensorFlow metrics, or with `begin_evaluation`. Each evaluation starts with a fresh reducer.

    Args:
        distributed: The workers between which metrics are reduced.
    """

    def __init__(self, distributed: DistributedContext) -> None:
        self._distributed = distributed
        self._error: BaseException | None = None
        # A metric lives as long as its graph.
        self._metrics: weakref.WeakKeyDictionary[Any, list[_Metric]] = weakref.WeakKeyDictionary()

    def make_metric(self, metric: Any, reducer: Any, numpy_dtype: Any) -> tuple[Any, Any]:
        """Add a metric to the default graph; see `EstimatorContext.make_metric`.

        Returns:
            The tensor with the metric's value, and the tensor that adds a batch when it is
            evaluated. The value of the latter is the number of added batches.
        """
        if tf.executing_eagerly():
            raise ContextStateError(
                "context.make_metric was called outside of a graph.\n"
                "Call it in model_fn, where eval_metric_ops are created."
            )
        dtype = _check_type(numpy_dtype)
        source = _ReducerSource(reducer)
        # Always built on the CPU, because Python code cannot run on other devices.
        with tf1.name_scope("make_metric"), tf.device("/CPU:0"):
            tensors = [_convert_part(part) for part in tf.nest.flatten(metric)]
            if not tensors:
                raise MetricTypeError(
                    f"the metric is an empty {type(metric).__name__}.\n"
                    "Pass a tensor, or a list or dict with at least one tensor."
                )
            graph = tf1.get_default_graph()
            state = _Metric(source, metric, dtype, self._distributed)
            graph_metrics = self._metrics.setdefault(graph, [])
            count = _count_variable()
            update = self._add_update(state, count, tensors)
            value = self._add_value(
                state, count, [other.operation_name for other in graph_metrics[-1:]]
            )
        graph_metrics.append(state)
        return value, update

    def value_operations(self, graph: Any) -> list[str]:
        """Return the names of the operations with the metrics' values over all workers."""
        return [metric.operation_name for metric in self._metrics.get(graph, ())]

    def begin_evaluation(self) -> None:
        """Start an evaluation, and reset all metrics."""
        self._error = None
        for metrics in self._metrics.values():
            for metric in metrics:
                metric.begin()

    def take_error(self) -> BaseException | None:
        """Return the exception that a reducer raised, once, or None.

        TensorFlow raises a different error, which contains only the text of the exception.
        """
        error, self._error = self._error, None
        return error

    def _add_update(self, state: _Metric, count: Any, tensors: Iterable[Any]) -> Any:
        took = tf.numpy_function(
            self._record_errors(state.update), [count.read_value(), *tensors], tf.int64
        )
        with tf.control_dependencies([took]):
            return tf1.assign_add(count, np.int64(1), name="update")

    def _add_value(self, state: _Metric, count: Any, previous: Iterable[str]) -> Any:
        """Add the value operation. It waits for the previous metric, so ranks meet in order."""
        waits = map(tf1.get_default_graph().get_operation_by_name, previous)
        with tf.control_dependencies(list(waits)):
            value = tf.numpy_function(
                self._record_errors(state.value),
                [count.read_value()],
                state.dtype,
                name="value",
            )
        state.operation_name = value.op.name
        return value

    def _record_errors(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except BaseException as error:
                if self._error is None:
                    self._error = error
                # Raise another class, because StopIteration would look like the end of the data.
                kind = type(error).__name__
                raise RuntimeError(f"a reducer of make_metric failed: {kind}: {error}") from error

        return call_function


def _count_variable() -> Any:
    """Add the number of batches in this evaluation to the graph."""
    return tf1.Variable(
        np.int64(0),
        trainable=False,
        collections=[tf1.GraphKeys.LOCAL_VARIABLES, tf1.GraphKeys.METRIC_VARIABLES],
        use_resource=True,
        name="num_batches",
    )


class _Metric:
    """One metric in one graph: the reducer of the current evaluation, and its state.

    It has no reference to the graph, which would otherwise live as long as the trial.
    """

    def __init__(
        self,
        source: _ReducerSource,
        metric: Any,
        dtype: Any,
        distributed: DistributedContext,
    ) -> None:
        self.source = source
        self.dtype = dtype
        self.operation_name = ""  # the operation itself would keep the graph
        self._structure = tf.nest.map_structure(lambda part: None, metric)
        self._distributed = distributed
        self._reducer: Any = None
        self._state: Any = None

    def begin(self) -> None:
        self._reducer = None
        self._state = None

    def update(self, num_batches: Any, *values: Any) -> Any:
        """Add the values of a batch. `num_batches` batches were added before."""
        if num_batches == 0 or self._reducer is None:
            self._reducer = self.source.make_reducer()
        # Copied, because TensorFlow may reuse the memory, and reducers keep their arguments.
        batch = [value.copy() if isinstance(value, np.ndarray) else value for value in values]
        self._state = self._reducer.accumulate(tf.nest.pack_sequence_as(self._structure, batch))
        return np.int64(int(num_batches) + 1)

    def value(self, num_batches: Any) -> Array:
        """Return the value over the batches of all ranks. All ranks must call it."""
        had_batches = bool(num_batches > 0) and self._reducer is not None
        states = self._distributed.gather((had_batches, self._state if had_batches else None))
        if states is None:
            kind, content = self._distributed.broadcast(cast("tuple[str, Any]", None))
            if kind == "error":
                raise MetricError(f"the reducer failed on rank 0: {content}")
            return cast("Array", content)
        try:
            value = self._reduce_states([state for had, state in states if had])
        except BaseException as error:
            # The other ranks wait for the value, and must be notified of the failure.
            self._distributed.broadcast(("error", f"{type(error).__name__}: {error}"))
            raise
        return self._distributed.broadcast(("value", value))[1]

    def _reduce_states(self, states: list[Any]) -> Array:
        if not states:
            raise MetricError(
                "a metric of make_metric has no value: no worker had a batch to evaluate.\n"
                "Check that the validation data is not empty."
            )
        reducer = self.source.make_reducer() if self._reducer is None else self._reducer
        return _cast_result(reducer.cross_slot_reduce(states), self.dtype)


class _ReducerSource:
    """Creates fresh reducers.

    Args:
        reducer: The argument of ``make_metric``.

    Raises:
        MetricTypeError: If the argument is not a reducer, or cannot be copied.
    """

    def __init__(self, reducer: Any) -> None:
        _check_reducer(reducer)
        self._is_function = not hasattr(reducer, _METHODS[0])
        self._template = reducer
        if not self._is_function:
            try:
                # Copied immediately, so that later changes to the user's object have no effect.
                self._template = copy.deepcopy(reducer)
                if self._template is reducer:
                    raise TypeError("its copy is the same object")
            except Exception as error:
                raise MetricTypeError(
                    f"the reducer {describe(reducer)} cannot be copied "
                    f"({type(error).__name__}: {error}).\n"
                    "Each evaluation starts with a fresh copy.\n"
                    "Remove locks and open files from it, or add __deepcopy__(self, memo)."
                ) from error

    def make_reducer(self) -> Any:
        """Return a reducer for a new evaluation."""
        if self._is_function:
            return FunctionReducer(self._template)
        reducer = copy.deepcopy(self._template)
        if callable(getattr(reducer, "reset", None)):
            reducer.reset()
        return reducer


def _check_reducer(reducer: Any) -> None:
    missing = [name for name in _METHODS if not callable(getattr(reducer, name, None))]
    if isinstance(reducer, type) and (not missing or issubclass(reducer, MetricReducer)):
        raise MetricTypeError(
            f"the reducer is the class {reducer.__name__}, not an instance.\n"
            f"Pass reducer={reducer.__name__}()."
        )
    if not missing:
        return
    if len(missing) < len(_METHODS) or not callable(reducer):
        raise MetricTypeError(
            f"the reducer is {describe(reducer)}, which has no method {' or '.join(missing)}.\n"
            "Pass a function of the list of all batches' metrics, or an object with the methods "
            "of detcore_estimator.MetricReducer."
        )
    try:
        inspect.signature(reducer).bind([])
    except ValueError:
        return  # written in C, without a signature
    except TypeError as error:
        raise MetricTypeError(
            f"the reducer {describe(reducer)} cannot be called with one argument, the list of all "
            f"batches' metrics: {error}"
        ) from error
