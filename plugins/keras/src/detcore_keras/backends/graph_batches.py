"""Convert arrays to TensorFlow's tensors, and describe batches of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

_KINDS = {"tensor": tf.TensorSpec, "sparse": tf.SparseTensorSpec, "ragged": tf.RaggedTensorSpec}


def batch_records(batch: Any) -> Any:
    """Return the number of records in a batch of tensors, as an int32 scalar, also in a graph.

    A batch of scalars only is one record.
    """
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    first = next((leaf for leaf in leaves if leaf.shape.rank != 0), None)
    if first is None:
        return tf.constant(1)
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int32)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    return tf.shape(first)[0]


def make_tensor_spec(tensor: Any) -> Any:
    """Return the specification of tensors like this one, with any number of records."""
    shape = (None, *tensor.shape[1:])
    if isinstance(tensor, tf.RaggedTensor):
        row_splits = tensor.row_splits.dtype
        return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank, row_splits)
    kind = tf.SparseTensorSpec if isinstance(tensor, tf.SparseTensor) else tf.TensorSpec
    return kind(shape, tensor.dtype)


def without_none_specs(make_spec: Any) -> Any:
    """Return tf.data's specification of elements, with None for parts that are always None."""
    none = type(tf.type_spec_from_value(None))
    return tf.nest.map_structure(lambda part: None if isinstance(part, none) else part, make_spec)


def without_optionals(data: Any) -> Any:
    """Replace `tf.experimental.Optional`, a pipeline's None, with None, as Keras 3 does."""
    if isinstance(data, tf.experimental.Optional):
        return None
    if isinstance(data, tuple | list):
        parts = [without_optionals(part) for part in data]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    if isinstance(data, dict):
        return {name: without_optionals(part) for name, part in data.items()}
    return data


def is_tensor(part: Any) -> bool:
    """Whether a part of a batch is a dense, sparse or ragged tensor."""
    return isinstance(part, tf.Tensor | tf.SparseTensor | tf.RaggedTensor)


def tensor_type(array: npt.NDArray[Any], floatx: str) -> Any:
    """Return TensorFlow's type for the values of an array, with floats in Keras's precision."""
    if np.issubdtype(array.dtype, np.floating):
        return tf.as_dtype(floatx)
    if array.dtype.kind in "OUS":
        return tf.string
    return tf.as_dtype(array.dtype)


def spec_to_json(spec: Any) -> dict[str, Any] | None:
    """Return the ``tf.TypeSpec`` of one tensor as JSON values; None for other objects."""
    for kind, spec_class in _KINDS.items():
        if isinstance(spec, spec_class):
            shape = None if spec.shape.rank is None else spec.shape.as_list()
            json_spec = {"kind": kind, "shape": shape, "dtype": spec.dtype.name}
            if kind == "ragged":
                json_spec.update(
                    ragged_rank=spec.ragged_rank, row_splits=spec.row_splits_dtype.name
                )
            return json_spec
    return None


def spec_from_json(value: Mapping[str, Any]) -> Any:
    """Return the ``tf.TypeSpec`` for a result of `spec_to_json`."""
    kind = value["kind"]
    ranks: list[Any] = []
    if kind == "ragged":
        ranks = [value["ragged_rank"], tf.as_dtype(value["row_splits"])]
    return _KINDS[kind](value["shape"], tf.as_dtype(value["dtype"]), *ranks)
