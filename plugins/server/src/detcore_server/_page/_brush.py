"""A range of an axis, marked with the pointer, as a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore_report import ExperimentView


_QUOTES = ("'", '"')


def axis_filter(view: ExperimentView, name: str, low: float, high: float) -> str:
    """Return the filter that the trials pass whose values are in a part of an axis.

    Args:
        view: The experiment.
        name: The axis: a hyperparameter, or the metric.
        low: Where the part begins, 0 (the bottom of the axis) to 1.
        high: Where it ends.

    Returns:
        The filter; "" if there is no such axis, no trial is in it, or no filter can name it.
    """
    axis = next((axis for axis in view.axes if axis.name == name), None)
    if axis is None or "`" in name:
        return ""
    is_metric = axis is view.axes[-1]
    chosen = [
        trial.value if is_metric else trial.hparams.get(name)
        for trial in view.trials
        if low <= axis.positions.get(trial.id, -1.0) <= high
    ]
    operand = "best" if is_metric else f"`hparams.{name}`"
    numbers = [
        value for value in chosen
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]  # fmt: skip
    if numbers and len(numbers) == len(chosen):
        return f"{min(numbers)!r} <= {operand} <= {max(numbers)!r}"
    texts = dict.fromkeys(filter(None, map(_literal, chosen)))
    parts = [f"{operand} == {text}" for text in texts]
    return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})" if parts else ""


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    quote = next((quote for quote in _QUOTES if quote not in str(value)), None)
    return "" if quote is None or not isinstance(value, str) else f"{quote}{value}{quote}"
