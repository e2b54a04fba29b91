"""Decide what to save before the process is killed, based on previous saves."""

from __future__ import annotations

import dataclasses
import enum
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from detcore.contract.errors import CheckpointTimeoutError

if TYPE_CHECKING:
    from detcore.checkpoint import CheckpointContext
    from detcore.contract.values import SaveProgress, SaveTimes


# A save is not started if it would be late even at this many times the best speed so far.
_HOPELESS = 20.0
# How much longer than expected a save may take if another one is cancelled for it.
_SAFETY = 1.25
# Assumed remaining fraction of a save that takes longer than earlier ones.
_LEAST_REST = 0.1
# Above this fraction, the arrived bytes predict the speed better than earlier saves.
_TELLING = 0.05
_RECENT = 5


class Choice(enum.Enum):
    """The checkpoint to finish before the kill."""

    FULL = "full"
    FINISH = "finish"
    NONE = "none"


@dataclasses.dataclass(frozen=True, slots=True)
class StopPlan:
    """A decision and its reason.

    Attributes:
        choice: Save the current state; only finish the save that is under way; or neither.
        gives_up: Whether the save that is under way is cancelled for it.
        reason: The numbers, for users.
    """

    choice: Choice
    gives_up: bool
    reason: str


def expected_save_s(saves: Sequence[SaveTimes]) -> tuple[float, float] | None:
    """Return the expected and the shortest duration of a save in seconds; None without data.

    Args:
        saves: Previous saves, oldest first, each scaled to the size of the last one.
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

    An incomplete save leaves no trace and does not harm earlier ones, so the current state is saved
    unless that is hopeless; only cancelling a save that is under way needs certainty.

    Args:
        left_s: Seconds until the kill.
        margin_s: Seconds of that to reserve for shutting down.
        saves: Durations of the saves so far, oldest first.
        under_way: The save in the background, or None.
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
    """Return the time that a save under way still needs, and that of a new one, in seconds."""
    part = under_way.fraction
    if part is not None and part >= _TELLING and under_way.upload_s > 0:
        upload_s = under_way.upload_s / part
        return upload_s * (1 - part), under_way.age_s - under_way.upload_s + upload_s
    if seen is None:
        return None, None
    whole = max(seen[0], under_way.age_s)
    return max(whole - under_way.age_s, _LEAST_REST * whole), whole


class LastSave:
    """Prepares for the last save before a kill, while it can still finish in time.

    Args:
        saves: The trial's checkpoints.
        left_s: Returns the seconds until the kill.
        margin_s: Seconds of that to reserve for shutting down.
        say: Receives each decision, with its numbers.
    """

    def __init__(
        self,
        saves: CheckpointContext,
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
        """Whether to save the current state now; no save is under way afterwards.

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
                self._saves.wait()  # it has ended, if there was one: this collects its result
                return plan.choice is Choice.FULL
            if plan.gives_up:
                # Its files are removed in the background: there is no time to wait for that.
                self._saves.give_up(0.0)
                return True
            if not self._finish():
                return False

    def _finish(self) -> bool:
        """Wait for the save under way while there is time; return whether it is complete."""
        try:
            self._saves.wait(max(0.0, self._left_s() - self._margin_s))
        except CheckpointTimeoutError as error:
            self._say(f"no time is left: {str(error).partition(chr(10))[0]}")
            self._saves.give_up(0.0)
            return False
        return True
