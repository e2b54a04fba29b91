"""Check the arrays of a batch, which are passed by name or in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.contract.errors import MetricError, MetricTypeError, describe
from detcore.metrics.exact_sum import Floats

Array: TypeAlias = npt.NDArray[Any]


def take_parts(metric: Any, names: Sequence[str], *, optional: Sequence[str] = ()) -> list[Any]:
    """Return the arrays of a batch in the order of their names; None for missing optional arrays.

    Args:
        metric: A dict with these names, or a list or tuple in this order. If only one array is
            required, also the array alone.
        names: The required arrays.
        optional: The optional arrays.

    Raises:
        MetricTypeError: If a part is missing, unknown, or not an array of numbers.
    """
    all_names = [*names, *optional]
    if isinstance(metric, Mapping):
        if not set(names) <= set(metric) <= set(all_names):
            raise _wrong_parts(f"a dict with {sorted(map(str, metric))}", names, optional)
        return [_to_array(name, metric[name]) if name in metric else None for name in all_names]
    if isinstance(metric, list | tuple):
        if not len(names) <= len(metric) <= len(all_names):
            raise _wrong_parts(f"a {type(metric).__name__} of {len(metric)}", names, optional)
        padded = [*metric, *[None] * (len(all_names) - len(metric))]
        return [
            _to_array(name, part) if index < len(metric) else None
            for index, (name, part) in enumerate(zip(all_names, padded, strict=True))
        ]
    if len(names) != 1:
        raise _wrong_parts(describe(metric), names, optional)
    return [_to_array(names[0], metric), *[None] * len(optional)]


def _wrong_parts(what: str, names: Sequence[str], optional: Sequence[str]) -> MetricTypeError:
    expected = ", ".join([*map(repr, names), *(f"{name!r} (optional)" for name in optional)])
    alternative = f", the array of {names[0]!r} alone," if len(names) == 1 else ""
    return MetricTypeError(
        f"the metric of a batch is {what}.\n"
        f"This reducer accepts a dict of arrays{alternative} or a list in this order: {expected}."
    )


def _to_array(name: str, part: Any) -> Array:
    try:
        array = np.asarray(part)
        if array.dtype.kind == "V" and array.dtype.names is None:
            array = array.astype(np.float64)  # bfloat16 and similar types, unknown to NumPy
    except (TypeError, ValueError, RuntimeError) as error:
        raise MetricTypeError(f"{name!r} is not an array: {describe(part)}: {error}") from error
    if array.dtype.kind not in "biuf":
        raise MetricTypeError(
            f"{name!r} is an array of {array.dtype}; it must contain real numbers"
        )
    return array


def take_weights(weights: Array, values: Array, *, name: str = "values") -> Floats:
    """Return a weight per element of `values`.

    Args:
        weights: ``(records, ...)``: the shape of `values`, or its first axes; >= 0 and finite. An
            additional last axis of length 1 is dropped.
        values: ``(records, ...)``.
        name: Name of `values` in messages.

    Raises:
        MetricError: If the shape does not fit, or a weight is negative, NaN or infinite.
    """
    if weights.shape == (*values.shape, 1):
        weights = weights.reshape(values.shape)
    fits = weights.shape == values.shape[: weights.ndim] and (weights.ndim > 0 or values.ndim == 0)
    if not fits:
        raise MetricError(
            f"'weights' has the shape {weights.shape}, but {name!r} has {values.shape}.\n"
            "Pass one weight per record."
        )
    as_floats = weights.astype(np.float64)
    wrong = as_floats[~(np.isfinite(as_floats) & (as_floats >= 0))]
    if wrong.size:
        raise MetricError(f"a weight is {wrong[0]}; weights must be finite and >= 0")
    inner = (1,) * (values.ndim - weights.ndim)
    return np.broadcast_to(as_floats.reshape(weights.shape + inner), values.shape)


def match_shapes(labels: Array, predictions: Array) -> tuple[Array, Array]:
    """Return both arrays in the same shape. A last axis of length 1 in only one array is dropped.

    Raises:
        MetricError: If the shapes differ otherwise, because NumPy would broadcast them.
    """
    if labels.shape == (*predictions.shape, 1):
        labels = labels.reshape(predictions.shape)
    elif predictions.shape == (*labels.shape, 1):
        predictions = predictions.reshape(labels.shape)
    if labels.shape != predictions.shape:
        raise MetricError(
            f"'labels' has the shape {labels.shape}, but 'predictions' has {predictions.shape}.\n"
            "There must be one prediction per label."
        )
    return labels, predictions


def take_one_per_record(name: str, array: Array) -> Array:
    """Convert ``(records,)``, ``(records, 1)`` or a scalar into ``(records,)``.

    Raises:
        MetricError: If the array has several values per record.
    """
    if array.ndim > 2 or (array.ndim == 2 and array.shape[1] != 1):
        raise MetricError(
            f"{name!r} has the shape {array.shape}; it must be (records,), one per record.\n"
            "Pass class indices in place of one-hot rows, the column of class 1 in place of both "
            "classes,\nand if each record has many (words, pixels), reshape both arrays to (-1,)."
        )
    return array.reshape(-1)


def find_positive_labels(labels: Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the labels that are 1.

    Raises:
        MetricError: If a label is neither 0 nor 1.
    """
    wrong = labels[(labels != 0) & (labels != 1)]
    if wrong.size:
        raise MetricError(f"a label is {wrong[0]}; the labels of two classes must be 0 or 1")
    is_one: npt.NDArray[np.bool_] = labels == 1
    return is_one
