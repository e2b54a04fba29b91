"""Define the events that a search method receives, and the operations that follow."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, TypeAlias

from detcore.errors import SearchError

__all__ = [
    "Close",
    "Create",
    "Event",
    "ExitReason",
    "Exited",
    "Operation",
    "Train",
    "Validated",
    "event_from_json",
    "event_to_json",
]


class ExitReason(str, enum.Enum):
    """Why a trial ended before its search method closed it."""

    ERRORED = "errored"
    INVALID_HP = "invalid_hp"
    STOPPED = "stopped"


@dataclasses.dataclass(frozen=True, slots=True)
class Validated:
    """A trial trained to its requested length, and was validated there.

    Attributes:
        trial: Index of the trial in its search, in order of creation; >= 0.
        length: Its training length since its start, in the unit of ``searcher.max_length``.
        metric: The searcher's metric there; not NaN.
    """

    trial: int
    length: int
    metric: float


@dataclasses.dataclass(frozen=True, slots=True)
class Exited:
    """A trial ended by itself: it failed for good, rejected its hyperparameters, or was stopped.

    Attributes:
        trial: Index of the trial in its search.
        reason: Why it ended.
    """

    trial: int
    reason: ExitReason


@dataclasses.dataclass(frozen=True, slots=True)
class Create:
    """Start a trial.

    Attributes:
        trial: Index of the new trial: the number of trials created before it.
        hparams: Its hyperparameters; JSON values.
        seed: Its seed, ``0 <= seed < 2**31``.
    """

    trial: int
    hparams: Mapping[str, Any]
    seed: int


@dataclasses.dataclass(frozen=True, slots=True)
class Train:
    """Train a trial up to a length, counted from its start, and validate it there."""

    trial: int
    length: int


@dataclasses.dataclass(frozen=True, slots=True)
class Close:
    """End the training of a trial."""

    trial: int


Event: TypeAlias = Validated | Exited
Operation: TypeAlias = Create | Train | Close


def event_to_json(event: Event) -> dict[str, Any]:
    """Return an event as JSON values, for the log."""
    if isinstance(event, Validated):
        return {
            "type": "validated",
            "trial": event.trial,
            "length": event.length,
            "metric": event.metric,
        }
    return {"type": "exited", "trial": event.trial, "reason": event.reason.value}


def event_from_json(value: Mapping[str, Any]) -> Event:
    """Return the event for a result of `event_to_json`.

    Raises:
        SearchError: If the value is not an event.
    """
    try:
        kind = value["type"]
        if kind == "validated":
            return Validated(int(value["trial"]), int(value["length"]), float(value["metric"]))
        if kind == "exited":
            return Exited(int(value["trial"]), ExitReason(value["reason"]))
    except (KeyError, TypeError, ValueError) as error:
        raise SearchError(f"not an event of a search: {value!r} ({error})") from error
    raise SearchError(f"not an event of a search: its type is {kind!r}")
