"""Compare the steps that a resumed run trains again with those of the earlier run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detcore.data.digest_file import DigestedRun

_RANDOM = "random."
# A step consumes gradients, so a run that starts from a checkpoint may not have gradients yet.
_GRADIENT = "gradient."
# In the order of use in a step.
_ROW_KINDS = ("record order", "record content", "loss")
_NUM_NAMED = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepDifference:
    """The difference between the digests of a step in two runs.

    Attributes:
        step: The step, from 1; 0: before the first step.
        kind: "initial state", "record order", "record content", "random draw", "loss", "tensor", or
            "model" if the runs have different tensors.
        tensors: Names of the different tensors after the step, in the order of computation.
    """

    step: int
    kind: str
    tensors: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = list(self.tensors[:_NUM_NAMED])
        if len(self.tensors) > _NUM_NAMED:
            names.append(f"and {len(self.tensors) - _NUM_NAMED} more")
        return ", ".join([f"step {self.step}, {self.kind}", *names])


def compare_step(
    step: int,
    rows: tuple[Sequence[int] | None, Sequence[int] | None],
    states: tuple[Mapping[str, int] | None, Mapping[str, int] | None],
) -> StepDifference | None:
    """Return the difference of one step between two runs, or None.

    Args:
        step: The step.
        rows: Digests of record ids, content and metrics in each run; 0 or None if unknown.
        states: Digests by tensor name in each run; None if unknown.
    """
    kind, names = None, tuple[str, ...]()
    first_row, second_row = rows
    if first_row and second_row:
        for row_kind, first, second in zip(_ROW_KINDS, first_row, second_row, strict=True):
            if first and second and first != second:
                kind = row_kind
                break
    one, other = states
    if one is not None and other is not None:
        if any(not name.startswith(_GRADIENT) for name in one.keys() ^ other.keys()):
            kind = kind or "model"
        names = _list_differing_names(one, other)
    if not kind and not names:
        return None
    if step == 0:
        kind = kind or "initial state"
    elif kind not in ("record order", "record content", "model"):
        draws = any(name.startswith(_RANDOM) for name in names)
        kind = "random draw" if draws else kind or "tensor"
    return StepDifference(step=step, kind=kind, tensors=names)


def _list_differing_names(one: Mapping[str, int], other: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names with different digests, without gradients that only one run has."""
    return tuple(
        name
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
        and not (name.startswith(_GRADIENT) and (name not in one or name not in other))
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResumeComparison:
    """The comparison of a resumed run with the steps that an earlier run has trained already.

    Attributes:
        start_step: The step of the checkpoint from which the run resumed.
        last_step: The last step of the earlier run with digests; `start_step` if there is none.
        num_compared: Number of steps with digests of both runs.
        difference: The first difference, or None.
    """

    start_step: int
    last_step: int
    num_compared: int = 0
    difference: StepDifference | None = None

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ResumeComparison:
        """Return the comparison with the fields of a `detcore.log.events.ResumeCompared`."""
        difference = fields.get("difference")
        if difference is not None:
            difference = StepDifference(
                step=difference["step"],
                kind=difference["kind"],
                tensors=tuple(difference["tensors"]),
            )
        return cls(**{**fields, "difference": difference})

    def __str__(self) -> str:
        start = f"resumed at batch {self.start_step}"
        if self.last_step == self.start_step:
            return f"{start}; 0 batches replayed: not compared"
        replayed = f"{start}; batches {self.start_step + 1} to {self.last_step} are trained again"
        if self.difference is not None:
            return f"{replayed}, and differ from the earlier run: {self.difference}"
        return f"{replayed}: identical ({self.num_compared} compared)"


class ReplayedSteps:
    """The digests of an earlier run after the step from which this run resumed.

    Args:
        earlier: Digests of the earlier run, or None if there are none.
        start_step: The step from which this run resumed.
    """

    def __init__(self, earlier: DigestedRun | None, start_step: int) -> None:
        self._start_step = start_step
        rows = {} if earlier is None else earlier.steps
        states = {} if earlier is None else earlier.states
        self._rows = {step: row for step, row in rows.items() if step > start_step}
        self._states = {step: state for step, state in states.items() if step >= start_step}
        self._last_step = max([start_step, *self._rows, *self._states])
        self._newest_step = start_step
        self._compared: set[int] = set()
        self._difference: StepDifference | None = None

    @property
    def is_over(self) -> bool:
        """Whether the run has passed all steps of the earlier run."""
        return self._newest_step >= self._last_step

    @property
    def result(self) -> ResumeComparison:
        """The comparison so far."""
        return ResumeComparison(
            start_step=self._start_step,
            last_step=self._last_step,
            num_compared=len(self._compared),
            difference=self._difference,
        )

    def compare_row(self, step: int, row: Sequence[int]) -> None:
        """Compare the batch and the metrics of a step."""
        self._compare(step, (self._rows.get(step), row), (None, None))

    def compare_state(self, step: int, state: Mapping[str, int]) -> None:
        """Compare the state after a step."""
        self._compare(step, (None, None), (self._states.get(step), state))

    def _compare(
        self,
        step: int,
        rows: tuple[Sequence[int] | None, Sequence[int] | None],
        states: tuple[Mapping[str, int] | None, Mapping[str, int] | None],
    ) -> None:
        self._newest_step = max(self._newest_step, step)
        if rows[0] is None and states[0] is None:
            return
        if step > self._start_step:
            self._compared.add(step)
        difference = compare_step(step, rows, states)
        if self._difference is None or (difference and step < self._difference.step):
            self._difference = difference
