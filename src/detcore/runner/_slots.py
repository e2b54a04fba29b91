"""The places that trials run in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detcore.environment import read_variables
from detcore.errors import RunError

__all__ = ["Place", "Slots", "count_slots"]

_DEVICES = "CUDA_VISIBLE_DEVICES"
_MOST_AT_ONCE = 10_000


class Slots:
    """The slots of this machine, divided into places for trials.

    Args:
        total: All slots; >= `per_trial`.
        per_trial: Slots that each trial takes; >= 1.
        devices: Names of the accelerators, as their variable has them. If they are enough for all
            slots, each trial sees only its own.

    Attributes:
        at_once: How many trials run at once.
        places: Their places.
    """

    def __init__(self, total: int, per_trial: int, devices: Sequence[str] = ()) -> None:
        # A number that means "no limit" gives as many as any machine has.
        self.at_once = min(max(1, total // per_trial), _MOST_AT_ONCE)
        self.places = [
            Place(tuple(devices[first : first + per_trial]))
            if self.at_once > 1 and len(devices) >= self.at_once * per_trial
            else Place(())
            for first in range(0, self.at_once * per_trial, per_trial)
        ]


class Place:
    """The devices that a trial runs on, or no particular ones."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        self._devices = devices

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which the trial's workers see their devices only."""
        return {_DEVICES: ",".join(self._devices)} if self._devices else {}


def count_slots(plain: Mapping[str, Any], *, max_slots: int | None) -> tuple[int, Slots]:
    """Return the number of workers of a trial, and the slots for all trials.

    Args:
        plain: The experiment's configuration.
        max_slots: Slots in all; default: ``resources.max_slots``, else the accelerators, else
            those of one trial.

    Raises:
        RunError: If one trial needs more.
    """
    resources = plain["resources"]
    # 0 slots are one worker, on the CPU.
    per_trial = max(1, int(resources["slots_per_trial"]))
    devices = _accelerators() if resources["slots_per_trial"] else []
    total = max_slots if max_slots is not None else resources.get("max_slots")
    if total is None:
        total = max(per_trial, len(devices))
    elif 0 < total < per_trial:
        raise RunError(
            f"each trial has {per_trial} workers (resources.slots_per_trial), but there are "
            f"{total} slots (max_slots): no trial could start.\n"
            f"Give at least {per_trial}: --max-slots {per_trial}"
        )
    return per_trial, Slots(max(total, per_trial), per_trial, devices)


def _accelerators() -> list[str]:
    """Return the names of the NVIDIA devices that this process may use."""
    visible = read_variables((_DEVICES,)).get(_DEVICES)
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return [name for name in names if name and name != "-1"]
    found = (re.fullmatch(r"nvidia(\d+)", path.name) for path in Path("/dev").glob("nvidia*"))
    return sorted((match[1] for match in found if match), key=int)
