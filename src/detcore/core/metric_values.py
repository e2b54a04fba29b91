"""Convert the metrics of a training loop to plain numbers."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from detcore.contract.errors import MetricError

_MAX_INTEGER = 2**63
_EXPECTED_VALUES = {
    "steps_completed": "batches, 0 or more.\nMetrics are recorded at the number of batches trained "
    "so far.",
    "n_records": "records, 0 or more",
}


def clean_count(name: Literal["steps_completed", "n_records"], value: object) -> int:
    """Return a number of steps or records as an int.

    Raises:
        MetricError: If it is not a whole number from 0 to 2**63 - 1.
    """
    if type(value) is int and 0 <= value < _MAX_INTEGER:
        return value
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            number = operator.index(value)  # type: ignore[arg-type]  # checked by raising
            if 0 <= number < _MAX_INTEGER:
                return number
            if number > 0:
                raise MetricError(f"{name} is 2**63 or more, which the records cannot hold")
    raise MetricError(f"{name} is {value!r}; expected a whole number of {_EXPECTED_VALUES[name]}")


def clean_metrics(metrics: Mapping[str, Any], where: str) -> dict[str, float]:
    """Return metrics as plain numbers; NaN and infinities stay.

    Args:
        metrics: Numbers by name. NumPy scalars, and arrays or tensors without axes, are accepted.
        where: The kind of metrics, for messages, such as ``"training"``.

    Raises:
        MetricError: If a value is not a number; the message names the metric.
    """
    if not isinstance(metrics, Mapping):
        raise MetricError(
            f"{where} metrics are a {type(metrics).__name__}; expected a dictionary of numbers "
            "by name, such as {'loss': 0.25}"
        )
    return {name: clean_metric(name, value, where) for name, value in metrics.items()}


def clean_batch_metrics(
    batch_metrics: Sequence[Mapping[str, Any]] | None,
) -> list[dict[str, float]] | None:
    """Return the metrics of each batch as plain numbers."""
    if batch_metrics is None:
        return None
    return [
        clean_metrics(metrics, f"batch_metrics[{index}]")
        for index, metrics in enumerate(batch_metrics)
    ]


def clean_metric(name: object, value: object, where: str = "") -> float:
    """Return one metric as a plain number.

    Raises:
        MetricError: If the name is not a string, or the value is not a number.
    """
    label = f"{where} metric {name!r}".lstrip()
    if not isinstance(name, str):
        raise MetricError(f"the {label} has a name that is a {type(name).__name__}, not a string")
    if value is None:
        raise MetricError(f"the {label} is None.\nLeave it out, or report float('nan').")
    shape = tuple(getattr(value, "shape", ()))
    cause: Exception | None = None
    if not isinstance(value, str | bytes | complex) and not shape:
        try:
            number = float(value)  # type: ignore[arg-type]  # NumPy and tensor scalars
            # A plain int stays exact. bool and NumPy's float64 are subclasses, which JSON encoders
            # may not know.
            return value if type(value) is int else number
        except OverflowError as error:
            raise MetricError(
                f"the {label} is larger than any float (1.8e308).\nMetrics are compared and plotted"
                " as floats.\nReport its logarithm or a ratio instead."
            ) from error
        except (TypeError, ValueError) as error:
            cause = error
    kind = type(value).__name__ + (f" of shape {shape}" if shape else "")
    raise MetricError(
        f"the {label} is a {kind}, not a single number.\n"
        "Metrics are compared and plotted, so each metric must be one number.\n"
        "Reduce it first (to its mean, for example), or report each part under a separate name."
    ) from cause
