"""Find where two runs, or a run and its replay, diverge, by digests and repeated training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detcore.errors import DetcoreError
from detcore_replay.diverge.digest_comparison import (
    DATA_CHANGED,
    Difference,
    find_first_difference,
    find_last_equal_state,
    name_tensors,
)
from detcore_replay.diverge.run_settings import compare_code, compare_settings, compare_versions
from detcore_replay.training.step_replay import find_code

if TYPE_CHECKING:
    from detcore.data import DigestedRun
    from detcore_replay.recorded_runs import Run
    from detcore_replay.training.step_replay import Replayer


# A change of weights may first affect the metrics of the next step.
_NUM_SAVED_STEPS = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The point at which two runs diverge.

    Attributes:
        labels: Labels of the runs.
        settings: Name of each different setting, and its value in each run.
        code: Difference of their code, as lines of a unified diff.
        compared_to: The last step that was compared.
        found: The first difference, or None.
        num_replays: Number of replays.
        notes: Limitations of the result.
    """

    labels: tuple[str, str]
    settings: list[tuple[str, str, str]]
    code: list[str]
    compared_to: int
    found: Difference | None
    num_replays: int
    notes: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether all comparable steps are equal."""
        return self.found is None


def find_divergence(one: Run, other: Run, replayer: Replayer, *, replay: bool) -> Divergence:
    """Find where two runs diverge.

    Args:
        one: The first run.
        other: The second run.
        replayer: Trains the runs again.
        replay: Whether to train the runs again.
    """
    until = min(one.last_step, other.last_step)
    notes: list[str] = []
    if one.last_step != other.last_step:
        notes.append(
            f"{one.label} has {one.last_step} steps, {other.label} has {other.last_step}: compared "
            f"up to step {until}"
        )
    difference, after = None, 0
    if one.digests is not None and other.digests is not None:
        difference = find_first_difference(one.digests, other.digests, until=until)
        needs_replay = difference is not None and difference.kind != "model"
        after = find_last_equal_state(
            one.digests, other.digests, difference.step if difference else until + 1
        )
    else:
        labels = [run.label for run in (one, other) if run.digests is None]
        notes.append(f"{' and '.join(labels)} stored no step digests, so both are replayed")
        needs_replay = True
    facts = [run.digests.facts if run.digests else None for run in (one, other)]
    if replay and needs_replay and until:
        last = difference.step if difference else until
        try:
            replayed, new_facts = _find_by_replays(one, other, replayer, after=after, until=last)
            difference = replayed or difference
            facts = [
                replayed_facts or run_facts
                for replayed_facts, run_facts in zip(facts, new_facts, strict=True)
            ]
        except (DetcoreError, OSError) as error:
            notes.append(f"not replayed: {error}")
    settings = compare_settings(one, other, (facts[0], facts[1]))
    folders = find_code(one), find_code(other)
    code = compare_code(*folders, (one.label, other.label))
    for run, folder in zip((one, other), folders, strict=True):
        if folder is None:
            code_dir = run.info.code_dir
            notes.append(
                f"the code of {run.label} is no longer in {code_dir}"
                if code_dir
                else f"the code of {run.label} is not recorded, as detcore run did not start it"
            )
    return Divergence(
        labels=(one.label, other.label),
        settings=settings,
        code=code,
        compared_to=until,
        found=difference,
        num_replays=replayer.num_replays,
        notes=(*notes, *replayer.notes),
    )


def _find_by_replays(
    one: Run, other: Run, replayer: Replayer, *, after: int, until: int
) -> tuple[Difference | None, list[Mapping[str, Any]]]:
    """Replay both runs from before the difference; return the difference and the facts."""
    saved_steps = range(max(0, until - _NUM_SAVED_STEPS), until + 1)
    pair = [replayer.start(run, after=after, stop=until, saved=saved_steps) for run in (one, other)]
    digests = [replay.result() for replay in pair]
    for run, run_digests in zip((one, other), digests, strict=True):
        _note_unfaithful(run, run_digests, replayer)
    difference = find_first_difference(digests[0], digests[1], until=until)
    facts = [run_digests.facts for run_digests in digests]
    if difference is None:
        replayer.notes.append(
            f"the replays of both runs are equal up to step {until}, so recorded code, settings "
            "and data do not cause the difference. Possible causes: nondeterministic operations, "
            "other hardware or packages, or data that was changed since"
        )
        return None, facts
    if not difference.tensors:
        return difference, facts
    tensors = [replay.tensors(difference.step) for replay in pair]
    if tensors[0] is None or tensors[1] is None:
        new_replays = [
            replayer.start(
                run,
                after=max(after, difference.step - 1),
                stop=difference.step,
                saved=[difference.step],
            )
            for run in (one, other)
        ]
        for replay in new_replays:
            replay.result()
        tensors = [replay.tensors(difference.step) for replay in new_replays]
    return name_tensors(difference, tensors[0], tensors[1]), facts


def _note_unfaithful(run: Run, replayed: DigestedRun, replayer: Replayer) -> None:
    if run.digests is None:
        return
    replayer.notes += compare_versions(run.label, run.digests, replayed)
    difference = find_first_difference(run.digests, replayed, until=max(replayed.steps, default=0))
    if difference is not None and difference.kind == "record content":
        replayer.notes.append(f"{run.label}, step {difference.step}: {DATA_CHANGED}")
    elif difference is not None:
        replayer.notes.append(
            f"the replay of {run.label} does not reproduce the run: {difference.kind} differs at "
            f"step {difference.step}{f', {difference.tensor}' if difference.tensor else ''}. The "
            "packages or the machine changed since, or an operation is not deterministic"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSteps:
    """Steps of a run that were trained again.

    Attributes:
        label: The run.
        ranges: First and last step of each range.
        num_compared: Number of steps with digests in the run and the replays.
        num_states: Number of these steps whose whole state was compared.
        found: The first difference, or None.
        notes: Limitations of the result.
    """

    label: str
    ranges: tuple[tuple[int, int], ...]
    num_compared: int
    num_states: int
    found: Difference | None
    notes: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether all compared steps are equal."""
        return self.found is None


def check_steps(run: Run, replayer: Replayer, ranges: Sequence[tuple[int, int]]) -> CheckedSteps:
    """Train ranges of steps again, each from the previous checkpoint; stop at a difference.

    Ranges that follow the same checkpoint share a replay.
    """
    assert run.digests is not None  # checked by the command
    compared: set[int] = set()
    states: set[int] = set()
    difference = None
    for after, stop in _group_ranges(run, ranges):
        # The state after the last step is stored with the next scheduling unit.
        end = min((step for step in run.digests.states if step >= stop), default=stop)
        replay = replayer.start(run, after=after, stop=end)
        replayed = replay.result()
        # The state of the checkpoint is the run's own state. The state before the first step is
        # compared.
        difference = find_first_difference(
            run.digests, replayed, until=end, after=replay.start or -1
        )
        notes = compare_versions(run.label, run.digests, replayed)
        replayer.notes += [note for note in notes if note not in replayer.notes]
        compared |= run.digests.steps.keys() & replayed.steps.keys()
        states |= run.digests.states.keys() & replayed.states.keys()
        if difference is not None:
            if difference.kind == "record content":
                replayer.notes.append(DATA_CHANGED)
            break
    return CheckedSteps(
        label=run.label,
        ranges=tuple(ranges),
        num_compared=len(compared),
        num_states=len(states),
        found=difference,
        notes=tuple(replayer.notes),
    )


def _group_ranges(run: Run, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the start and end of each replay."""
    groups: dict[int, int] = {}
    for first, last in ranges:
        record = run.find_checkpoint_before(first - 1)
        start = record.steps_completed if record else 0
        groups[start] = max(groups.get(start, 0), last)
    return sorted(groups.items())
