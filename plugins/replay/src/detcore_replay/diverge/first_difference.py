"""Find where two runs part, or a run and its replay: by stored digests, and by training again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detcore.errors import DetcoreError
from detcore_replay.diverge.digest_comparison import (
    DATA_CHANGED,
    Difference,
    find_first,
    last_equal_state,
    name_tensors,
)
from detcore_replay.diverge.run_settings import compare_code, compare_settings, version_notes
from detcore_replay.training.step_replay import code_of

if TYPE_CHECKING:
    from detcore_replay.digest_file import DigestedRun
    from detcore_replay.recorded_runs import Run
    from detcore_replay.training.step_replay import Replayer


# A change of the weights may show in the metrics of the next step only.
_SAVED_STEPS = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where two runs part.

    Attributes:
        labels: The runs.
        settings: The name of each setting that differs, and its value in each run.
        code: The difference of their code, lines of a unified diff.
        compared_to: The last step that was compared.
        found: The first difference; None: no difference was found.
        num_replays: Replays that it took.
        notes: Limits of the answer.
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
        """Whether every step that could be compared is equal."""
        return self.found is None


def find_divergence(one: Run, other: Run, replayer: Replayer, *, replay: bool) -> Divergence:
    """Find where two runs part.

    Args:
        one: A run.
        other: The other.
        replayer: Trains them again.
        replay: Whether it may.
    """
    until = min(one.last_step, other.last_step)
    notes: list[str] = []
    if one.last_step != other.last_step:
        notes.append(
            f"{one.label} has {one.last_step} steps, {other.label} {other.last_step}: compared "
            f"up to step {until}"
        )
    found, after = None, 0
    if one.digests is not None and other.digests is not None:
        found = find_first(one.digests, other.digests, until=until)
        is_open = found is not None and found.kind != "model"
        after = last_equal_state(one.digests, other.digests, found.step if found else until + 1)
    else:
        without = [run.label for run in (one, other) if run.digests is None]
        notes.append(f"{' and '.join(without)} stored no step digests, so both are replayed")
        is_open = True
    facts = [run.digests.facts if run.digests else None for run in (one, other)]
    if replay and is_open and until:
        last = found.step if found else until
        try:
            replayed, again = _find_by_replays(one, other, replayer, after=after, until=last)
            found = replayed or found
            facts = [known or mine for known, mine in zip(facts, again, strict=True)]
        except (DetcoreError, OSError) as error:
            notes.append(f"not replayed: {error}")
    settings = compare_settings(one, other, (facts[0], facts[1]))
    folders = code_of(one), code_of(other)
    code = compare_code(*folders, (one.label, other.label))
    for run, folder in zip((one, other), folders, strict=True):
        if folder is None:
            where = run.info.code_dir
            notes.append(
                f"the code of {run.label} is no longer in {where}"
                if where
                else f"the code of {run.label} is not recorded, as detcore run did not start it"
            )
    return Divergence(
        labels=(one.label, other.label),
        settings=settings,
        code=code,
        compared_to=until,
        found=found,
        num_replays=replayer.num_replays,
        notes=(*notes, *replayer.notes),
    )


def _find_by_replays(
    one: Run, other: Run, replayer: Replayer, *, after: int, until: int
) -> tuple[Difference | None, list[Mapping[str, Any]]]:
    """Replay both from before the difference, and compare every step; return the facts, too."""
    saved = range(max(0, until - _SAVED_STEPS), until + 1)
    pair = [replayer.start(run, after=after, stop=until, saved=saved) for run in (one, other)]
    digests = [replay.result() for replay in pair]
    for run, mine in zip((one, other), digests, strict=True):
        _note_unfaithful(run, mine, replayer)
    found = find_first(digests[0], digests[1], until=until)
    facts = [mine.facts for mine in digests]
    if found is None:
        replayer.notes.append(
            f"the replays of both are equal up to step {until}, so the difference does not come "
            "from code, settings or data that are recorded: nondeterministic operations, other "
            "hardware or packages, or data that was changed meanwhile"
        )
        return None, facts
    if not found.tensors:
        return found, facts
    tensors = [replay.tensors(found.step) for replay in pair]
    if tensors[0] is None or tensors[1] is None:
        again = [
            replayer.start(
                run, after=max(after, found.step - 1), stop=found.step, saved=[found.step]
            )
            for run in (one, other)
        ]
        for replay in again:
            replay.result()
        tensors = [replay.tensors(found.step) for replay in again]
    return name_tensors(found, tensors[0], tensors[1]), facts


def _note_unfaithful(run: Run, replayed: DigestedRun, replayer: Replayer) -> None:
    if run.digests is None:
        return
    replayer.notes += version_notes(run.label, run.digests, replayed)
    wrong = find_first(run.digests, replayed, until=max(replayed.steps, default=0))
    if wrong is not None and wrong.kind == "record content":
        replayer.notes.append(f"{run.label}, step {wrong.step}: {DATA_CHANGED}")
    elif wrong is not None:
        replayer.notes.append(
            f"the replay of {run.label} does not repeat the run: {wrong.kind} differs at step "
            f"{wrong.step}{f', {wrong.tensor}' if wrong.tensor else ''}. Its packages or the "
            "machine changed since, or an operation is not deterministic"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSteps:
    """Steps of a run that were trained again.

    Attributes:
        label: The run.
        ranges: First and last step of each range.
        num_compared: Steps with digests in the run and the replays.
        num_states: Of these, steps whose whole state was compared.
        found: The first difference; None: equal.
        notes: Limits of the answer.
    """

    label: str
    ranges: tuple[tuple[int, int], ...]
    num_compared: int
    num_states: int
    found: Difference | None
    notes: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether every step that was compared is equal."""
        return self.found is None


def check_steps(run: Run, replayer: Replayer, ranges: Sequence[tuple[int, int]]) -> CheckedSteps:
    """Train ranges of steps again, each from the checkpoint before; stop at a difference.

    Ranges that follow the same checkpoint share a replay.
    """
    assert run.digests is not None  # checked by the command
    compared: set[int] = set()
    states: set[int] = set()
    found = None
    for after, stop in _group(run, ranges):
        # The state after the last step is stored with the next scheduling unit.
        end = min((step for step in run.digests.states if step >= stop), default=stop)
        replay = replayer.start(run, after=after, stop=end)
        replayed = replay.result()
        # The state of a checkpoint is the run's own; that before the first step is compared.
        found = find_first(run.digests, replayed, until=end, after=replay.start or -1)
        notes = version_notes(run.label, run.digests, replayed)
        replayer.notes += [note for note in notes if note not in replayer.notes]
        compared |= run.digests.steps.keys() & replayed.steps.keys()
        states |= run.digests.states.keys() & replayed.states.keys()
        if found is not None:
            if found.kind == "record content":
                replayer.notes.append(DATA_CHANGED)
            break
    return CheckedSteps(
        label=run.label,
        ranges=tuple(ranges),
        num_compared=len(compared),
        num_states=len(states),
        found=found,
        notes=tuple(replayer.notes),
    )


def _group(run: Run, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return where each replay starts and ends."""
    groups: dict[int, int] = {}
    for first, last in ranges:
        record = run.checkpoint_before(first - 1)
        start = record.steps_completed if record else 0
        groups[start] = max(groups.get(start, 0), last)
    return sorted(groups.items())
