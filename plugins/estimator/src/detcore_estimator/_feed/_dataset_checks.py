"""Check the result of an input function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from detcore.errors import InvalidDataTypeError, InvalidExperimentError
from detcore_estimator._feed._pipeline import derives_from
from detcore_estimator._tf import tf

__all__ = ["check_dataset"]


def check_dataset(dataset: Any, wrapped: Iterable[Any], role: str, *, is_managed: bool) -> None:
    """Raise if an input function returned no dataset, or one that was not wrapped.

    Whether it is empty is only known in a session: see `GraphFeed.begin`.

    Args:
        dataset: Result of the input function.
        wrapped: The datasets that ``context.wrap_dataset`` returned.
        role: "training" or "validation", for messages.
        is_managed: Whether datasets must be wrapped.

    Raises:
        InvalidDataTypeError: If it is no dataset, or its elements are no features and labels.
        InvalidExperimentError: If it does not come from a wrapped dataset.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise _not_a_dataset(dataset, role)
    spec = dataset.element_spec
    if isinstance(spec, tuple) and not hasattr(spec, "_fields") and len(spec) != 2:
        raise InvalidDataTypeError(
            f"the {role} input_fn returned a tf.data.Dataset whose elements are tuples of "
            f"{len(spec)} parts.\nThe elements must be pairs (features, labels), or features alone."
        )
    if is_managed and not derives_from(dataset, wrapped):
        raise InvalidExperimentError(
            f"the {role} input_fn returned a tf.data.Dataset that was not wrapped.\n"
            "detcore shards datasets between workers, and has to know which ones.\n"
            "Wrap it right after it is created: dataset = self.context.wrap_dataset(dataset)"
        )


def _not_a_dataset(value: Any, role: str) -> InvalidDataTypeError:
    if isinstance(value, tuple | list | dict) or tf.is_tensor(value):
        return InvalidDataTypeError(
            f"the {role} input_fn returned {_described(value)}, not a tf.data.Dataset.\n"
            "The position in a dataset can be saved and continued; that of plain tensors and of "
            "one-shot iterators cannot.\n"
            "Return the dataset itself, with elements (features, labels), without making an "
            "iterator of it."
        )
    return InvalidDataTypeError(
        f"the {role} input_fn returned {type(value).__name__}, not a tf.data.Dataset.\n"
        "Return a dataset with elements (features, labels)."
    )


def _described(value: Any) -> str:
    parts = tf.nest.flatten(value)
    if not any(tf.is_tensor(part) for part in parts):
        return f"a {type(value).__name__}"
    if isinstance(value, tuple) and len(value) == 2:
        return "the tensors (features, labels)"
    return f"tensors ({type(value).__name__})"
