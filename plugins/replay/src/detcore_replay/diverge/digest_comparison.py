"""Find the first difference between the digests of two runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from detcore.data import compare_step

if TYPE_CHECKING:
    from detcore.data import DigestedRun


DATA_CHANGED = "the content of the batch differs: the data was changed since the run"
_RANDOM = "random."
_MODEL = "model"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first difference between two runs.

    Attributes:
        step: The step, from 1; 0: before the first step.
        kind: "initial state", "record order", "record content", "random draw", "loss", "tensor", or
            "model" if the runs have different tensors.
        is_exact: Whether the previous step is known to be equal. If not, only some steps were
            compared, and `after` is the last step known to be equal.
        after: The last step that is known to be equal.
        tensors: Names of the different tensors after the step, in the order of computation.
        tensor: The first different tensor that is not a random generator, or None.
        largest: Tensor with the largest difference of an element, the difference, and both values;
            None if the tensors were not compared.
        measured: Name, largest difference and both values, for each different tensor.
    """

    step: int
    kind: str
    is_exact: bool = False
    after: int = 0
    tensors: tuple[str, ...] = ()
    tensor: str | None = None
    largest: tuple[str, float, float, float] | None = None
    measured: tuple[tuple[str, float, float, float], ...] = ()


def find_first_difference(
    one: DigestedRun, other: DigestedRun, *, until: int, after: int = -1
) -> Difference | None:
    """Return the first difference between common digests, or None.

    Args:
        one: Digests of the first run.
        other: Digests of the second run.
        until: The last step to compare.
        after: The last step to skip, because it is known to be equal.
    """
    equal = after
    for step in _list_common_steps(one, other, after, until):
        states = one.states.get(step), other.states.get(step)
        difference = compare_step(step, (one.steps.get(step), other.steps.get(step)), states)
        if difference is not None:
            names = difference.tensors
            return Difference(
                step=step,
                kind=difference.kind,
                is_exact=equal == step - 1 and step - 1 in one.states and step - 1 in other.states,
                after=equal,
                tensors=names,
                tensor=next((name for name in names if not name.startswith(_RANDOM)), None),
            )
        if states[0] is not None and states[1] is not None:
            equal = step
    return None


def find_last_equal_state(one: DigestedRun, other: DigestedRun, before: int) -> int:
    """Return the last step before `before` after which both states are equal; 0 if none."""
    equal = 0
    for step in sorted(one.states.keys() & other.states.keys()):
        states = one.states[step], other.states[step]
        if step >= before or compare_step(step, (None, None), states):
            break
        equal = step
    return equal


def name_tensors(
    found: Difference, one: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> Difference:
    """Add the largest difference of an element of each tensor to a difference."""
    if one is None or other is None:
        return found
    measured = []
    shapes = [
        [getattr(state.get(name), "shape", None) for state in (one, other)]
        for name in found.tensors
        if name.startswith(_MODEL)  # strings in other states may have different lengths
    ]
    if found.step == 0 and any(first != second for first, second in shapes):
        found = dataclasses.replace(found, kind="model")
    for name in found.tensors:
        values = (
            None if name.startswith(_RANDOM) else measure_difference(one.get(name), other.get(name))
        )
        if values is not None:
            measured.append((name, *values))
    largest = max(measured, key=lambda entry: _rank_difference(entry[1:]), default=None)
    return dataclasses.replace(found, largest=largest, measured=tuple(measured))


def _list_common_steps(one: DigestedRun, other: DigestedRun, after: int, until: int) -> list[int]:
    steps = (one.steps.keys() & other.steps.keys()) | (one.states.keys() & other.states.keys())
    return sorted(step for step in steps if after < step <= until)


def measure_difference(one: Any, other: Any) -> tuple[float, float, float] | None:
    """Return the largest difference of an element, and both values."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return None
    # Byte arrays represent strings, and numbers that NumPy does not support.
    if one.dtype.kind not in "biufc" or one.dtype == np.uint8 or not one.size:
        return None
    dtype = np.complex128 if one.dtype.kind == "c" else np.float64
    first, second = one.astype(dtype).ravel(), other.astype(dtype).ravel()
    difference = np.abs(first - second)
    # The difference between NaN and a number is NaN, which counts as the largest.
    index = int(np.argmax(np.where(np.isnan(difference), np.inf, difference)))
    return (float(difference[index]), float(np.real(first[index])), float(np.real(second[index])))


def _rank_difference(measured: tuple[float, ...]) -> float:
    return float("inf") if np.isnan(measured[0]) else measured[0]
