"""Compare the digests of two runs, and name what differs first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from detcore_replay.digest_file import DigestedRun


DATA_CHANGED = "the batch has another content: its data was changed since the run"
_RANDOM = "random."
_MODEL = "model"
# Used up when a step is done, so a run that starts from a checkpoint may not have them yet.
_GRADIENT = "gradient."
# In the order in which a step uses them.
_ROW_KINDS = ("record order", "record content", "loss")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first thing that differs.

    Attributes:
        step: The step, counted from 1; 0: before the first one.
        kind: "initial state", "record order", "record content", "random draw", "loss", "tensor",
            or "model" where the runs have different tensors.
        is_exact: Whether it is known that the step before is equal. If not, only some steps were
            compared, and `after` is the last one known to be equal.
        after: The last step that is known to be equal.
        tensors: Names of the tensors that differ after the step, in the order of the computation.
        tensor: The first of them that is no random generator, or None.
        largest: The largest difference of an element, the tensor that has it, and both values;
            None where the tensors were not compared.
        measured: The same for each of them: its name, the difference, and both values.
    """

    step: int
    kind: str
    is_exact: bool = False
    after: int = 0
    tensors: tuple[str, ...] = ()
    tensor: str | None = None
    largest: tuple[str, float, float, float] | None = None
    measured: tuple[tuple[str, float, float, float], ...] = ()


def find_first(
    one: DigestedRun, other: DigestedRun, *, until: int, after: int = -1
) -> Difference | None:
    """Return the first difference between digests that both have, or None.

    Args:
        one: A run's digests.
        other: The other's.
        until: The last step that counts.
        after: The last step that does not count, because it is known to be equal.
    """
    equal = after
    for step in _common_steps(one, other, after, until):
        mine, others = one.steps.get(step), other.steps.get(step)
        states = one.states.get(step), other.states.get(step)
        kind = _row_kind(mine, others) if mine and others else None
        names: tuple[str, ...] = ()
        if states[0] is not None and states[1] is not None:
            if _fixed_names(states[0]) != _fixed_names(states[1]):
                kind = kind or "model"
            names = _differing(states[0], states[1])
        if kind or names:
            return Difference(
                step=step,
                kind=_kind(kind, names, is_start=step == 0),
                is_exact=equal == step - 1 and step - 1 in one.states and step - 1 in other.states,
                after=equal,
                tensors=names,
                tensor=next((name for name in names if not name.startswith(_RANDOM)), None),
            )
        if states[0] is not None and states[1] is not None:
            equal = step
    return None


def last_equal_state(one: DigestedRun, other: DigestedRun, before: int) -> int:
    """Return the last step before another one after which both states are equal; 0: none."""
    equal = 0
    for step in sorted(one.states.keys() & other.states.keys()):
        if step >= before or _differing(one.states[step], other.states[step]):
            break
        equal = step
    return equal


def name_tensors(
    found: Difference, one: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> Difference:
    """Return a difference with the largest difference of an element of each of its tensors."""
    if one is None or other is None:
        return found
    measured = []
    shapes = [
        [getattr(state.get(name), "shape", None) for state in (one, other)]
        for name in found.tensors
        if name.startswith(_MODEL)  # the length of a text in other states may differ
    ]
    if found.step == 0 and any(mine != others for mine, others in shapes):
        found = dataclasses.replace(found, kind="model")
    for name in found.tensors:
        values = None if name.startswith(_RANDOM) else _measure(one.get(name), other.get(name))
        if values is not None:
            measured.append((name, *values))
    largest = max(measured, key=lambda each: _size(each[1:]), default=None)
    return dataclasses.replace(found, largest=largest, measured=tuple(measured))


def _fixed_names(state: Mapping[str, int]) -> set[str]:
    return {name for name in state if not name.startswith(_GRADIENT)}


def _differing(one: Mapping[str, int], other: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names whose digests differ; gradients that only one has do not count."""
    names = dict.fromkeys([*one, *other])
    return tuple(
        name
        for name in names
        if one.get(name) != other.get(name)
        and not (name.startswith(_GRADIENT) and (name not in one or name not in other))
    )


def _common_steps(one: DigestedRun, other: DigestedRun, after: int, until: int) -> list[int]:
    steps = (one.steps.keys() & other.steps.keys()) | (one.states.keys() & other.states.keys())
    return sorted(step for step in steps if after < step <= until)


def _row_kind(one: tuple[int, int, int], other: tuple[int, int, int]) -> str | None:
    for kind, mine, others in zip(_ROW_KINDS, one, other, strict=True):
        if mine and others and mine != others:
            return kind
    return None


def _kind(kind: str | None, names: tuple[str, ...], *, is_start: bool) -> str:
    if is_start:
        return kind or "initial state"
    if kind in ("record order", "record content", "model"):
        return kind
    if any(name.startswith(_RANDOM) for name in names):
        return "random draw"
    return kind or "tensor"


def _measure(one: Any, other: Any) -> tuple[float, float, float] | None:
    """Return the largest difference of an element, and both values."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return None
    # Bytes stand for texts, and for numbers that NumPy does not have.
    if one.dtype.kind not in "biufc" or one.dtype == np.uint8 or not one.size:
        return None
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    first, second = one.astype(wide).ravel(), other.astype(wide).ravel()
    difference = np.abs(first - second)
    # Of a NaN against a number the difference is NaN, and nothing is larger.
    place = int(np.argmax(np.where(np.isnan(difference), np.inf, difference)))
    return (float(difference[place]), float(np.real(first[place])), float(np.real(second[place])))


def _size(measured: tuple[float, ...]) -> float:
    return float("inf") if np.isnan(measured[0]) else measured[0]
