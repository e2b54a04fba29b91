"""Check the arrays of a batch, given by name or in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.contract.errors import MetricError, MetricTypeError, describe
from detcore.metrics.exact_sum import Floats

Array: TypeAlias = npt.NDArray[Any]


def take_parts(metric: Any, names: Sequence[str], *, optional: Sequence[str] = ()) -> list[Any]:
    """Return the arrays of one batch, in the order of their names; None for an optional one.

    Args:
        metric: A dict with these names, or a list or tuple in this order; if one name is enough,
            also that array alone.
        names: The arrays that must be there.
        optional: Those that may follow.

    Raises:
        MetricTypeError: If a part is missing, unknown, or no array of numbers.
    """
    every = [*names, *optional]
    if isinstance(metric, Mapping):
        if not set(names) <= set(metric) <= set(every):
            raise _wrong_parts(f"a dict with {sorted(map(str, metric))}", names, optional)
        return [_numbers(name, metric[name]) if name in metric else None for name in every]
    if isinstance(metric, list | tuple):
        if not len(names) <= len(metric) <= len(every):
            raise _wrong_parts(f"a {type(metric).__name__} of {len(metric)}", names, optional)
        padded = [*metric, *[None] * (len(every) - len(metric))]
        return [
            _numbers(name, part) if index < len(metric) else None
            for index, (name, part) in enumerate(zip(every, padded, strict=True))
        ]
    if len(names) != 1:
        raise _wrong_parts(describe(metric), names, optional)
    return [_numbers(names[0], metric), *[None] * len(optional)]


def _wrong_parts(what: str, names: Sequence[str], optional: Sequence[str]) -> MetricTypeError:
    wanted = ", ".join([*map(repr, names), *(f"{name!r} (optional)" for name in optional)])
    alone = f", the array of {names[0]!r} alone," if len(names) == 1 else ""
    return MetricTypeError(
        f"the metric of a batch is {what}.\n"
        f"This reducer takes a dict of arrays{alone} or a list in this order: {wanted}."
    )


def _numbers(name: str, part: Any) -> Array:
    try:
        array = np.asarray(part)
        if array.dtype.kind == "V" and array.dtype.names is None:
            array = array.astype(np.float64)  # bfloat16 and its like, which NumPy does not know
    except (TypeError, ValueError, RuntimeError) as error:
        raise MetricTypeError(f"{name!r} is no array: {describe(part)}: {error}") from error
    if array.dtype.kind not in "biuf":
        raise MetricTypeError(
            f"{name!r} is an array of {array.dtype}; it must hold real numbers, not {array.dtype}"
        )
    return array


def take_weights(weights: Array, values: Array, *, name: str = "values") -> Floats:
    """Return a weight per element of `values`.

    Args:
        weights: ``(records, ...)``: the shape of `values`, or its first axes; >= 0 and finite. A
            last axis of length 1 is dropped if it is one too many.
        values: ``(records, ...)``.
        name: Name of `values` in messages.

    Raises:
        MetricError: If the shape is another, or a weight is negative, NaN or infinite.
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


def labels_and_predictions(labels: Array, predictions: Array) -> tuple[Array, Array]:
    """Return both in one shape; a last axis of length 1 that only one of them has is dropped.

    Raises:
        MetricError: If the shapes differ otherwise: NumPy would pair each with each.
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


def one_per_record(name: str, array: Array) -> Array:
    """Return ``(records,)``, from that, ``(records, 1)`` or a scalar.

    Raises:
        MetricError: If there are several per record.
    """
    if array.ndim > 2 or (array.ndim == 2 and array.shape[1] != 1):
        raise MetricError(
            f"{name!r} has the shape {array.shape}; it must be (records,), one per record.\n"
            "Pass class indices in place of one-hot rows, the column of class 1 in place of both "
            "classes,\nand if each record has many (words, pixels), reshape both arrays to (-1,)."
        )
    return array.reshape(-1)


def binary_labels(labels: Array) -> npt.NDArray[np.bool_]:
    """Return which labels are 1.

    Raises:
        MetricError: If a label is neither 0 nor 1.
    """
    wrong = labels[(labels != 0) & (labels != 1)]
    if wrong.size:
        raise MetricError(f"a label is {wrong[0]}; the labels of two classes must be 0 or 1")
    is_one: npt.NDArray[np.bool_] = labels == 1
    return is_one
