"""Convert the inputs and outputs of a metric: structures of tensors, and NumPy results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.errors import MetricError, MetricTypeError, describe
from detcore_estimator._tf import tf

__all__ = ["Array", "MetricParts", "ResultType", "metric_parts"]

Array: TypeAlias = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class MetricParts:
    """The tensors of a metric, and how to put their values back together.

    Attributes:
        tensors: The parts, in order.
        rebuild: Makes the value of one batch out of the parts' values.
    """

    tensors: list[Any]
    rebuild: Callable[[Sequence[Any]], Any]


def metric_parts(metric: Any) -> MetricParts:
    """Take a metric apart: a tensor, or a list, tuple or dict of tensors.

    Everything that is not a tensor becomes a constant.

    Raises:
        MetricTypeError: If the structure is nested or empty, a key is no string, or a part cannot
            be a dense tensor.
    """
    if isinstance(metric, Mapping):
        wrong = [key for key in metric if not isinstance(key, str)]
        if wrong:
            raise MetricTypeError(
                f"the metric is a dict with the key {describe(wrong[0])}.\n"
                "The keys of a metric must be strings."
            )
        keys = list(metric)
        return MetricParts(
            _tensors([(f"metric[{key!r}]", metric[key]) for key in keys], "dict"),
            lambda values: dict(zip(keys, values, strict=True)),
        )
    if isinstance(metric, list | tuple) and not _is_composite(metric):
        parts = [(f"metric[{index}]", part) for index, part in enumerate(metric)]
        return MetricParts(_tensors(parts, type(metric).__name__), _rebuild_sequence(type(metric)))
    return MetricParts([_tensor("metric", metric)], lambda values: values[0])


def _rebuild_sequence(kind: Any) -> Callable[[Sequence[Any]], Any]:
    if hasattr(kind, "_make"):
        make: Callable[[Sequence[Any]], Any] = kind._make  # a namedtuple
        return make
    return tuple if issubclass(kind, tuple) else list


def _tensors(parts: Sequence[tuple[str, Any]], kind: str) -> list[Any]:
    if not parts:
        raise MetricTypeError(
            f"the metric is an empty {kind}, so there is nothing to reduce.\n"
            "Pass a tensor, or a list or dict with at least one."
        )
    for where, part in parts:
        if isinstance(part, Mapping | list | tuple) and not _is_composite(part):
            raise MetricTypeError(
                f"{where} is a {type(part).__name__}: {describe(part)}.\n"
                "Nested metrics are not supported.\n"
                "Pass a tensor, a list of tensors or a dict of tensors."
            )
    return [_tensor(where, part) for where, part in parts]


def _is_composite(value: Any) -> bool:
    return isinstance(value, (tf.SparseTensor, tf.RaggedTensor, tf.IndexedSlices))


def _tensor(where: str, part: Any) -> Any:
    if part is None or isinstance(part, (tf.SparseTensor, tf.RaggedTensor)):
        raise MetricTypeError(
            f"{where} is {describe(part)}; a part of a metric must be a dense tensor.\n"
            "tf.sparse.to_dense and RaggedTensor.to_tensor make one."
        )
    if isinstance(part, tf.Operation):
        if len(part.outputs) != 1:
            raise MetricTypeError(
                f"{where} is the operation {part.name!r} with {len(part.outputs)} outputs.\n"
                "Pass the tensor that is meant, such as operation.outputs[0]."
            )
        part = part.outputs[0]
    try:
        tensor = tf.convert_to_tensor(part)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise MetricTypeError(
            f"{where} is {describe(part)}, which cannot be made a tensor: {error}"
        ) from error
    if not tensor.dtype.base_dtype.is_numpy_compatible:
        raise MetricTypeError(
            f"{where} is a tensor of type {tensor.dtype.name}, which NumPy has no type for.\n"
            "Pass a tensor of numbers or strings."
        )
    return tensor


@dataclasses.dataclass(frozen=True, slots=True)
class ResultType:
    """The type of a metric's value, known to both NumPy and TensorFlow.

    Attributes:
        numpy: Type of results; ``object`` for strings.
        graph: The ``tf.DType``.
    """

    numpy: np.dtype[Any]
    graph: Any

    @classmethod
    def checked(cls, numpy_dtype: Any) -> ResultType:
        """Take anything that ``np.dtype`` accepts, or a ``tf.DType``.

        Raises:
            MetricTypeError: If NumPy or TensorFlow does not know the type.
        """
        try:
            if numpy_dtype is None:
                raise TypeError("None is no type")  # np.dtype would take it for float64
            if isinstance(numpy_dtype, tf.DType):
                graph = numpy_dtype.base_dtype
            else:
                # tf.as_dtype(float) would be float32, where NumPy says float64.
                graph = tf.as_dtype(np.dtype(numpy_dtype))
            if not graph.is_numpy_compatible:
                raise TypeError(f"NumPy has no type for {graph.name}")
        except (TypeError, ValueError) as error:
            raise MetricTypeError(
                f"numpy_dtype is {describe(numpy_dtype)}, which cannot be the type of a metric: "
                f"{error}\nPass a type that NumPy and TensorFlow both know, such as np.float32."
            ) from error
        return cls(np.dtype(graph.as_numpy_dtype), graph)

    def cast(self, result: Any) -> Array:
        """Return the result of a reducer as an array of this type.

        Raises:
            MetricError: If it is None, or no array of this type can be made from it.
        """
        if result is None:
            raise MetricError(
                "the reducer returned None instead of the value of the metric.\n"
                "A function that ends without a return statement does that."
            )
        try:
            if self.numpy.hasobject:
                return _as_bytes(np.asarray(result))
            array = np.asarray(result)
            if array.dtype == object and any(item is None for item in array.flat):
                raise ValueError("a part of it is None")  # NumPy would make NaN of it
            return np.asarray(array.astype(self.numpy), order="C")
        except (TypeError, ValueError) as error:
            raise MetricError(
                f"the reducer returned {describe(result)}, which cannot be made an array of type "
                f"{self.graph.name}: {error}"
            ) from error


def _as_bytes(array: Array) -> Array:
    # TensorFlow encodes str by itself, but only ASCII.
    encoded = np.empty(array.shape, object)
    for index, item in np.ndenumerate(array):
        if not isinstance(item, bytes | str):
            raise TypeError(f"{describe(item)} is no string")
        encoded[index] = item.encode() if isinstance(item, str) else bytes(item)
    return encoded
