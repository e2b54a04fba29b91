"""Compare a run with its own replay."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from detcore_replay._before import version_notes
from detcore_replay._compare import DATA_CHANGED, Difference, find_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from detcore_replay._replay import Replayer
    from detcore_replay._runs import Run


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
