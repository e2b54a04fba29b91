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
    """Return a part of a metric as a tensor; values that are no tensors become constants.

    Raises:
        MetricTypeError: If it cannot be a dense tensor that NumPy has a type for.
    """
    if part is None or isinstance(part, (tf.SparseTensor, tf.RaggedTensor)):
        raise MetricTypeError(
            f"the metric has {describe(part)}; a part of a metric must be a dense tensor.\n"
            "tf.sparse.to_dense and RaggedTensor.to_tensor make one."
        )
    try:
        tensor = tf.convert_to_tensor(part)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise MetricTypeError(
            f"the metric has {describe(part)}, which cannot be made a tensor: {error}"
        ) from error
    if not tensor.dtype.base_dtype.is_numpy_compatible:
        raise MetricTypeError(
            f"the metric has a tensor of type {tensor.dtype.name}, which NumPy has no type for.\n"
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
            raise TypeError("None is no type")  # np.dtype would take it for float64
        if isinstance(numpy_dtype, tf.DType):
            dtype = numpy_dtype.base_dtype
        else:
            # tf.as_dtype(float) would be float32, where NumPy says float64.
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
        MetricError: If it is None, or no array of this ``tf.DType`` can be made from it.
    """
    if result is None:
        raise MetricError(
            "the reducer returned None instead of the value of the metric.\n"
            "A function that ends without a return statement does that."
        )
    try:
        array = np.asarray(result)
        if dtype == tf.string:
            return _as_bytes(array)
        if array.dtype == object and any(item is None for item in array.flat):
            raise ValueError("a part of it is None")  # NumPy would make NaN of it
        return np.asarray(array.astype(dtype.as_numpy_dtype), order="C")
    except (TypeError, ValueError) as error:
        raise MetricError(
            f"the reducer returned {describe(result)}, which cannot be made an array of type "
            f"{dtype.name}: {error}"
        ) from error


def _as_bytes(array: Array) -> Array:
    # TensorFlow encodes str by itself, but only ASCII.
    encoded = np.empty(array.shape, object)
    for index, item in np.ndenumerate(array):
        if not isinstance(item, bytes | str):
            raise TypeError(f"{describe(item)} is no string")
        encoded[index] = item.encode() if isinstance(item, str) else bytes(item)
    return encoded


class Reducers:
    """The metrics of a trial that reducers compute, in all its graphs.

    An evaluation starts where the local variables of its graph are initialized, as for every other
    metric of TensorFlow, or with `begin_evaluation`. Each starts with a fresh reducer.

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
            The tensor with the value of the metric, and the one whose evaluation takes the
            values of a batch (it is the number of batches taken).
        """
        if tf.executing_eagerly():
            raise ContextStateError(
                "context.make_metric was called outside of a graph.\n"
                "Call it in model_fn, where eval_metric_ops are made."
            )
        dtype = _check_type(numpy_dtype)
        source = _ReducerSource(reducer)
        # Built on the CPU wherever the model is: Python code runs nowhere else.
        with tf1.name_scope("make_metric"), tf.device("/CPU:0"):
            tensors = [_convert_part(part) for part in tf.nest.flatten(metric)]
            if not tensors:
                raise MetricTypeError(
                    f"the metric is an empty {type(metric).__name__}, so there is nothing to "
                    "reduce.\nPass a tensor, or a list or dict with at least one."
                )
            graph = tf1.get_default_graph()
            state = _Metric(source, metric, dtype, self._distributed)
            known = self._metrics.setdefault(graph, [])
            count = _count_variable()
            update = self._add_update(state, count, tensors)
            value = self._add_value(state, count, [each.operation_name for each in known[-1:]])
        known.append(state)
        return value, update

    def value_operations(self, graph: Any) -> list[str]:
        """Return the names of the operations that have the metrics' values, over all workers."""
        return [metric.operation_name for metric in self._metrics.get(graph, ())]

    def begin_evaluation(self) -> None:
        """Start an evaluation: all metrics have seen no batch."""
        self._error = None
        for metrics in self._metrics.values():
            for metric in metrics:
                metric.begin()

    def take_error(self) -> BaseException | None:
        """Return the exception that a reducer raised, once, or None.

        TensorFlow raises a different error for it, which contains only the text.
        """
        error, self._error = self._error, None
        return error

    def _add_update(self, state: _Metric, count: Any, tensors: Iterable[Any]) -> Any:
        took = tf.numpy_function(
            self._guarded(state.update), [count.read_value(), *tensors], tf.int64
        )
        with tf.control_dependencies([took]):
            return tf1.assign_add(count, np.int64(1), name="update")

    def _add_value(self, state: _Metric, count: Any, previous: Iterable[str]) -> Any:
        """Add the value: on all ranks after that of the metric before, for they meet in it."""
        waits = map(tf1.get_default_graph().get_operation_by_name, previous)
        with tf.control_dependencies(list(waits)):
            value = tf.numpy_function(
                self._guarded(state.value),
                [count.read_value()],
                state.dtype,
                name="value",
            )
        state.operation_name = value.op.name
        return value

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except BaseException as error:
                if self._error is None:
                    self._error = error
                # Of another kind: StopIteration would look like the end of the data.
                kind = type(error).__name__
                raise RuntimeError(f"a reducer of make_metric failed: {kind}: {error}") from error

        return call


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

    It refers to nothing of the graph, which would then live as long as the trial.
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
        """Take the values of a batch; `num_batches` were taken before."""
        if num_batches == 0 or self._reducer is None:
            self._reducer = self.source.fresh()
        # Copies: TensorFlow may reuse the memory, and reducers keep their arguments.
        batch = [value.copy() if isinstance(value, np.ndarray) else value for value in values]
        self._state = self._reducer.accumulate(tf.nest.pack_sequence_as(self._structure, batch))
        return np.int64(int(num_batches) + 1)

    def value(self, num_batches: Any) -> Array:
        """Return the value over the batches of all ranks; each rank calls it."""
        had_batches = bool(num_batches > 0) and self._reducer is not None
        states = self._distributed.gather((had_batches, self._state if had_batches else None))
        if states is None:
            kind, content = self._distributed.broadcast(cast("tuple[str, Any]", None))
            if kind == "error":
                raise MetricError(f"the reducer failed on rank 0: {content}")
            return cast("Array", content)
        try:
            value = self._reduced([state for had, state in states if had])
        except BaseException as error:
            # The others wait for the value, and must be notified of the failure.
            self._distributed.broadcast(("error", f"{type(error).__name__}: {error}"))
            raise
        return self._distributed.broadcast(("value", value))[1]

    def _reduced(self, states: list[Any]) -> Array:
        if not states:
            raise MetricError(
                "a metric of make_metric has no value: no worker had a batch to evaluate.\n"
                "Check that the validation data is not empty."
            )
        reducer = self.source.fresh() if self._reducer is None else self._reducer
        return _cast_result(reducer.cross_slot_reduce(states), self.dtype)


class _ReducerSource:
    """Gives out reducers that have seen no batch.

    Args:
        reducer: The argument of ``make_metric``.

    Raises:
        MetricTypeError: If it is no reducer, or cannot be copied.
    """

    def __init__(self, reducer: Any) -> None:
        _check_reducer(reducer)
        self._is_function = not hasattr(reducer, _METHODS[0])
        self._template = reducer
        if not self._is_function:
            try:
                # Copied now, so that later changes to the user's object have no effect.
                self._template = copy.deepcopy(reducer)
                if self._template is reducer:
                    raise TypeError("its copy is the same object")
            except Exception as error:
                raise MetricTypeError(
                    f"the reducer {describe(reducer)} cannot be copied "
                    f"({type(error).__name__}: {error}).\n"
                    "Each evaluation starts with a fresh copy.\n"
                    "Leave locks and open files out of it, or add __deepcopy__(self, memo)."
                ) from error

    def fresh(self) -> Any:
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
            f"the reducer is the class {reducer.__name__}, not an object of it.\n"
            f"Pass reducer={reducer.__name__}()."
        )
    if not missing:
        return
    if len(missing) < len(_METHODS) or not callable(reducer):
        raise MetricTypeError(
            f"the reducer is {describe(reducer)}, which has no method {' or '.join(missing)}.\n"
            "Pass a function that takes the list of all batches' metrics, or an object with the "
            "methods of detcore_estimator.MetricReducer."
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
