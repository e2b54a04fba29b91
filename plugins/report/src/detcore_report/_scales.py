"""Compute the axes of plots: positions of values, and labels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from detcore.describe import format_number

# From this ratio of the largest to the smallest value on, positive values get a log scale.
_LOG_RATIO = 100
_MAX_CATEGORY_LABELS = 12


def number_of(value: object) -> float | None:
    """Return a finite number as float; None for other values (texts, NaN, booleans)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


@dataclasses.dataclass(frozen=True, slots=True)
class Scale:
    """A linear or logarithmic scale for finite numbers.

    Attributes:
        low: The smallest value, at 0.
        high: The largest one, at 1.
        is_log: Whether equal ratios have equal distances; `low` is positive then.
    """

    low: float
    high: float
    is_log: bool = False

    def position(self, value: float) -> float:
        """Return the position of a value, 0 to 1 (or outside for values outside the ends)."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        # Halved, because the difference of two large floats may be infinite.
        span = high / 2 - low / 2
        return 0.5 if span == 0 else (value / 2 - low / 2) / span

    def ticks(self, number: int = 7) -> list[tuple[float, str]]:
        """Return positions and labels of round values, about as many as requested."""
        values = _log_ticks(self.low, self.high, number) if self.is_log else []
        if len(values) < 2:
            values = _linear_ticks(self.low, self.high, number)
        labels = [format_number(float(value)) for value in values]
        if len(set(labels)) < len(labels):  # values very close to each other
            labels = [f"{value:.9g}" for value in values]
        return [(self.position(value), label) for value, label in zip(values, labels, strict=True)]


def make_scale(
    values: Iterable[float],
    *,
    is_log: bool | None = None,
    ends: tuple[float, float] | None = None,
) -> Scale:
    """Return the scale for values.

    Args:
        values: Finite numbers; without any, the scale is from 0 to 1.
        is_log: Whether it is logarithmic; None: if the values are positive and far apart.
        ends: Values that it includes in any case.
    """
    numbers = [*values, *(ends or ())]
    if not numbers:
        return Scale(0.0, 1.0)
    low, high = min(numbers), max(numbers)
    if is_log is None:
        is_log = low > 0 and high / low >= _LOG_RATIO
    return Scale(low, high, is_log=is_log and low > 0)


def _linear_ticks(low: float, high: float, number: int) -> list[float]:
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return sorted({low, high})
    power = 10.0 ** math.floor(math.log10(span / number)) if span / number > 1e-300 else 0.0
    steps = [power * factor for factor in (1, 2, 5, 10) if power * factor >= span / number]
    if not steps or not math.isfinite(steps[0]):
        return [low, high]
    step = steps[0]
    first, last = math.ceil(low / step), math.floor(high / step)
    if not 0 <= last - first <= 4 * number:  # values too close for floats to distinguish
        return [low, high]
    ticks = [index * step for index in range(first, last + 1)]
    return ticks if len(ticks) > 1 else [low, high]


def _log_ticks(low: float, high: float, number: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    powers = last - first + 1
    if powers >= 3:
        every = max(1, math.ceil(powers / (number + 1)))
        return [10.0**power for power in range(first, last + 1, every)]
    if high / low < 5:
        return []
    fine = [10.0**power * factor for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
    return [value for value in fine if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a parallel-coordinates plot.

    Attributes:
        name: Name of the hyperparameter or metric.
        note: ``log`` for a log scale, or empty.
        ticks: Positions from 0 (bottom) to 1, and labels.
        positions: Position of each trial; trials without a value are left out.
    """

    name: str
    note: str
    ticks: Sequence[tuple[float, str]]
    positions: Mapping[int, float]


def make_axis(
    name: str, values: Mapping[int, object], setting: Mapping[str, Any] | None = None
) -> Axis:
    """Return the axis for a hyperparameter.

    Args:
        name: The hyperparameter, with dots if it is nested.
        values: Its values, by trial.
        setting: Its range, as in the experiment file; None if unknown.
    """
    kind = (setting or {}).get("type")
    numbers = {trial: number_of(value) for trial, value in values.items()}
    finite = {trial: number for trial, number in numbers.items() if number is not None}
    if kind == "categorical" or len(finite) < len(values) or not finite:
        return _category_axis(name, values, (setting or {}).get("vals") or ())
    scale = make_scale(
        finite.values(),
        is_log=True if kind == "log" else False if kind in ("int", "double") else None,
        ends=_ends(setting or {}),
    )
    return Axis(
        name=name,
        note="log" if scale.is_log else "",
        ticks=scale.ticks(),
        positions={trial: scale.position(number) for trial, number in finite.items()},
    )


def _ends(setting: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the smallest and the largest value of a range, if known."""
    low, high = number_of(setting.get("minval")), number_of(setting.get("maxval"))
    if low is None or high is None:
        return None
    if setting.get("type") == "log":
        base = number_of(setting.get("base"))
        if base is None or base <= 0:
            return None
        try:
            low, high = base**low, base**high
        except OverflowError:
            return None
        if low <= 0:
            return None
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def _category_axis(name: str, values: Mapping[int, object], all_values: Iterable[object]) -> Axis:
    texts = {trial: str(value) for trial, value in values.items()}
    drawn = set(texts.values())
    known = dict.fromkeys(str(value) for value in all_values)
    order = [*known, *sorted(drawn - set(known), key=_natural)]
    place = {text: (index + 0.5) / len(order) for index, text in enumerate(order)}
    every = math.ceil(len(order) / _MAX_CATEGORY_LABELS)
    return Axis(
        name=name,
        note="",
        ticks=[(place[text], text) for text in order[::every]],
        positions={trial: place[text] for trial, text in texts.items()},
    )


def _natural(text: str) -> tuple[int, float, str]:
    try:
        number = float(text)
    except ValueError:
        return 1, 0.0, text
    return (0, number, text) if math.isfinite(number) else (1, 0.0, text)
