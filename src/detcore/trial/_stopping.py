"""What to save when the machine is about to go away: decided from the saves seen so far."""

from __future__ import annotations

import dataclasses
import enum
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from detcore.errors import CheckpointTimeoutError

if TYPE_CHECKING:
    from detcore.checkpoint import SaveProgress, SaveTimes

__all__ = ["Choice", "LastSave", "StopPlan", "expected_save_s", "plan_stop"]

# A save is not worth beginning where even at this many times the best speed seen it would be late.
_HOPELESS = 20.0
# How much longer than expected a save may take for which another one is given up.
_SAFETY = 1.25
# What is left of a save that takes longer than those before it, as a part of one.
_LEAST_REST = 0.1
# From this part on, what has arrived tells more of the present speed than the saves before.
_TELLING = 0.05
_RECENT = 5


class Choice(enum.Enum):
    """What is saved before the kill."""

    FULL = "full"
    FINISH = "finish"
    NONE = "none"


@dataclasses.dataclass(frozen=True, slots=True)
class StopPlan:
    """A decision, and why.

    Attributes:
        choice: Save the present state; only finish the save that is under way; or neither.
        gives_up: Whether the save that is under way is given up for it.
        reason: The numbers, for people.
    """

    choice: Choice
    gives_up: bool
    reason: str


def expected_save_s(saves: Sequence[SaveTimes]) -> tuple[float, float] | None:
    """Return how long the next save should take, and at best, in seconds; None = nothing seen.

    Args:
        saves: Those seen, oldest first. Each counts as if it had been as large as the last one.
    """
    if not saves:
        return None
    size = saves[-1].size_bytes
    took = [
        save.total_s * (size / save.size_bytes if size and save.size_bytes else 1.0)
        for save in saves
    ]
    return statistics.median(took[-_RECENT:]), min(took)


def plan_stop(
    *,
    left_s: float,
    margin_s: float,
    saves: Sequence[SaveTimes],
    under_way: SaveProgress | None,
) -> StopPlan:
    """Decide what to save before the kill.

    A save that is cut off leaves no trace and harms none before it, so the present state is saved
    unless there is no hope at all; giving up a save that is under way is what takes certainty.

    Args:
        left_s: Seconds until the kill.
        margin_s: Seconds of that to keep for ending.
        saves: How long the saves took so far, oldest first.
        under_way: The save that goes on behind the training, if there is one.
    """
    usable = left_s - margin_s
    seen = expected_save_s(saves)
    numbers = f"{max(0.0, left_s):.1f} s are left until the kill ({margin_s:.1f} s kept for ending)"
    if under_way is None:
        if seen is None:
            hopeless, expected = usable <= 0, "no save was seen yet"
        else:
            hopeless = usable <= seen[1] / _HOPELESS
            expected = f"a save should take {seen[0]:.1f} s, {seen[1]:.1f} s at best"
        if hopeless:
            return _plan(Choice.NONE, f"{numbers}, {expected}: nothing more is saved")
        return _plan(Choice.FULL, f"{numbers}, {expected}: the present state is saved")
    rest, whole = _outlook(under_way, seen)
    first = f"the checkpoint of batch {under_way.steps_completed} is still being saved"
    if rest is None or whole is None:
        return _plan(Choice.FULL, f"{numbers}, {first}: the present state is saved after it")
    expected = f"{first} for about {rest:.1f} s, and a save takes about {whole:.1f} s"
    if rest + whole <= usable:
        return _plan(
            Choice.FULL, f"{numbers}, {expected}: the present state is saved after that one"
        )
    if whole * _SAFETY <= usable:
        return _plan(
            Choice.FULL,
            f"{numbers}, {expected}: that one is given up, and the present state is saved",
            gives_up=True,
        )
    return _plan(Choice.FINISH, f"{numbers}, {expected}: that one is finished first")


def _plan(choice: Choice, reason: str, *, gives_up: bool = False) -> StopPlan:
    return StopPlan(choice, gives_up, reason)


def _outlook(
    under_way: SaveProgress, seen: tuple[float, float] | None
) -> tuple[float | None, float | None]:
    """Return how long a save under way has left, and how long a new one should take."""
    part = under_way.fraction
    if part is not None and part >= _TELLING and under_way.upload_s > 0:
        upload_s = under_way.upload_s / part
        return upload_s * (1 - part), under_way.age_s - under_way.upload_s + upload_s
    if seen is None:
        return None, None
    whole = max(seen[0], under_way.age_s)
    return max(whole - under_way.age_s, _LEAST_REST * whole), whole


class Saves(Protocol):
    """What is asked of a `CheckpointContext`."""

    @property
    def save_times(self) -> list[SaveTimes]:
        """How long the last saves took."""

    def progress(self) -> SaveProgress | None:
        """Return how far the save under way is."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for it."""

    def give_up(self, timeout_s: float = ...) -> None:
        """Give it up."""


class LastSave:
    """Clears the way for the last save before a kill, as long as that can still be in time.

    Args:
        saves: The trial's checkpoints.
        left_s: Returns the seconds until the kill.
        margin_s: Seconds of that to keep for ending.
        say: Told each decision, with its numbers.
    """

    def __init__(
        self,
        saves: Saves,
        *,
        left_s: Callable[[], float],
        margin_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._saves = saves
        self._left_s = left_s
        self._margin_s = margin_s
        self._say = say

    def is_worth_it(self) -> bool:
        """Whether to save the present state now; the save under way is over then.

        Raises:
            StorageError: If the save under way failed.
        """
        while True:
            under_way = self._saves.progress()
            plan = plan_stop(
                left_s=self._left_s(),
                margin_s=self._margin_s,
                saves=self._saves.save_times,
                under_way=under_way,
            )
            self._say(plan.reason)
            if under_way is None:
                self._saves.wait()  # it is over, if there was one: take note of it
                return plan.choice is Choice.FULL
            if plan.gives_up:
                # Its traces are removed meanwhile: there is no time to wait for that.
                self._saves.give_up(0.0)
                return True
            if not self._finish():
                return False

    def _finish(self) -> bool:
        """Wait for the save under way, as long as there is time; return whether it is whole."""
        try:
            self._saves.wait(max(0.0, self._left_s() - self._margin_s))
        except CheckpointTimeoutError as error:
            self._say(f"no time is left: {str(error).partition(chr(10))[0]}")
            self._saves.give_up(0.0)
            return False
        return True
