"""Positions of hyperparameters and metrics on the axes of charts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Minimum ratio of the largest to the smallest positive value for a log scale.
_LOG_RATIO = 100
# The margins around smaller and larger values on a logarithmic scale are not finite floats.
_MIN_DRAWN, _MAX_DRAWN = 1e-150, 1e150


def number_of(value: object) -> float | None:
    """Return a finite number as float, or None for other values (strings, NaN, booleans)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def limit_number(number: float) -> float:
    """Return the nearest number that can be drawn."""
    size = min(_MAX_DRAWN, max(_MIN_DRAWN, abs(number)))
    return math.copysign(size, number) if number else 0.0


def needs_log_scale(values: Iterable[float]) -> bool:
    """Return whether values are positive and far apart."""
    numbers = list(values)
    return bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= _LOG_RATIO


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A hyperparameter or the metric, as an axis from 0 to 1.

    Attributes:
        name: Name of the hyperparameter or metric.
        positions: Position of each trial with a value.
        low: Number at 0.
        high: Number at 1.
        is_log: Whether equal ratios have equal distances; `low` is positive then.
        categories: The values in order, evenly spaced, if they are not numbers.
    """

    name: str
    positions: Mapping[int, float]
    low: float = 0.0
    high: float = 1.0
    is_log: bool = False
    categories: Sequence[str] = ()

    def place_number(self, number: float) -> float:
        """Return the position of a number from `low` to `high`."""
        low, high = self.low, self.high
        if self.is_log:
            number, low, high = math.log10(number), math.log10(low), math.log10(high)
        return 0.5 if low == high else (number - low) / (high - low)

    @property
    def title(self) -> str:
        """The name, and the scale if it is logarithmic."""
        return f"{self.name} (log scale)" if self.is_log else self.name


def make_axis(
    name: str, values: Mapping[int, object], setting: Mapping[str, Any] | None = None
) -> Axis:
    """Return the axis of a hyperparameter or metric.

    Args:
        name: The hyperparameter, with dots if it is nested, or the metric.
        values: Its values, by trial.
        setting: Its range in the experiment file, or None.
    """
    setting = setting or {}
    kind = setting.get("type")
    numbers = {trial: number_of(value) for trial, value in values.items()}
    finite = {
        trial: limit_number(number) for trial, number in numbers.items() if number is not None
    }
    if kind == "categorical" or len(finite) < len(values):
        return _make_category_axis(name, values, setting.get("vals") or ())
    ends = [*finite.values(), *_read_ends(setting)] or [0.0, 1.0]
    low, high = min(ends), max(ends)
    is_log = low > 0 and (kind == "log" or (kind is None and needs_log_scale(ends)))
    axis = Axis(name=name, positions={}, low=low, high=high, is_log=is_log)
    positions = {trial: axis.place_number(number) for trial, number in finite.items()}
    return dataclasses.replace(axis, positions=positions)


def _read_ends(setting: Mapping[str, Any]) -> list[float]:
    """Return the ends of a range, or an empty list if unknown."""
    try:
        ends = [float(setting[key]) for key in ("minval", "maxval")]
        if setting["type"] == "log":
            ends = [float(setting["base"]) ** end for end in ends]
        return [limit_number(end) for end in ends if math.isfinite(end)]
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return []


def _make_category_axis(
    name: str, values: Mapping[int, object], all_values: Iterable[object]
) -> Axis:
    ordered = sorted(values.values(), key=_sort_key)
    categories = list(dict.fromkeys(map(str, [*all_values, *ordered])))
    positions_by_text = {
        text: (index + 0.5) / len(categories) for index, text in enumerate(categories)
    }
    positions = {trial: positions_by_text[str(value)] for trial, value in values.items()}
    return Axis(name=name, positions=positions, categories=categories)


def _sort_key(value: object) -> tuple[bool, float, str]:
    """Return a key that puts numbers first."""
    number = number_of(value)
    return number is None, number or 0.0, str(value)
