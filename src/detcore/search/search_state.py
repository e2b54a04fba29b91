"""Track a search: its method, the state of its trials, and the log that determines both."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from detcore.contract.errors import DetcoreError, SearchError
from detcore.contract.search_method import Answer, ExitReason, NewTrial, SearchMethod
from detcore.search.sampling import get_trial_seed


@dataclasses.dataclass(frozen=True, slots=True)
class Validated:
    """A trial trained to its requested length and was validated.

    Attributes:
        trial: Index of the trial in its search, in order of creation; >= 0.
        length: Training length since its start, in the unit of ``searcher.max_length``.
        metric: The searcher's metric at this length; not NaN.
    """

    trial: int
    length: int
    metric: float


@dataclasses.dataclass(frozen=True, slots=True)
class Exited:
    """A trial ended early: it failed permanently, rejected its hyperparameters, or was stopped.

    Attributes:
        trial: Index of the trial in its search.
        reason: Why the trial ended.
    """

    trial: int
    reason: ExitReason


@dataclasses.dataclass(frozen=True, slots=True)
class Create:
    """Start a trial.

    Attributes:
        trial: Index of the new trial: the number of trials created before it.
        hparams: Hyperparameters; JSON values.
        seed: Seed of the trial, ``0 <= seed < 2**31``.
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
        return {"type": "validated", **dataclasses.asdict(event)}
    return {"type": "exited", "trial": event.trial, "reason": event.reason.value}


def event_from_json(value: Mapping[str, Any]) -> Event:
    """Return the event for a result of `event_to_json`.

    Raises:
        SearchError: If the value is not an event.
    """
    try:
        if value["type"] == "validated":
            return Validated(int(value["trial"]), int(value["length"]), float(value["metric"]))
        if value["type"] == "exited":
            return Exited(int(value["trial"]), ExitReason(value["reason"]))
        raise ValueError(f"its type is {value['type']!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise SearchError(f"not an event of a search: {value!r} ({error})") from error


@dataclasses.dataclass(slots=True)
class PlannedTrial:
    """A trial's state in the search.

    Attributes:
        hparams: Its hyperparameters.
        seed: Its seed.
        length: Length to train to, or that it has trained to if `is_waiting`.
        is_waiting: Whether it reached that length, and the method has not decided its next step.
        is_closed: Whether its training has ended.
    """

    hparams: Mapping[str, Any]
    seed: int
    length: int
    is_waiting: bool = False
    is_closed: bool = False


class Search:
    """Passes events to a search method and keeps the resulting state.

    The method's decisions depend only on the events, so the log of events is the complete state. A
    new search that receives the same events in the same order makes the same decisions.

    Args:
        method: A new search method.
        seed: The experiment's seed.

    Attributes:
        method: The search method.
        trials: All trials, by index.
        events: The events applied so far.
        first: The operations that the method requested at the start.
        trained: Completed fraction of each trial's current length, 0 to 1, by index. The caller
            updates it, for displays.
    """

    def __init__(self, method: SearchMethod, *, seed: int) -> None:
        self.method = method
        self._seed = seed
        self.trials: list[PlannedTrial] = []
        self.events: list[Event] = []
        self.trained: dict[int, float] = {}
        # These sets avoid a loop over all trials for each event.
        self._open: set[int] = set()
        self._training: set[int] = set()
        try:
            self.first = self._perform_answers(method.start())
        except DetcoreError:
            raise
        except Exception as error:
            raise self._make_error("start()", error) from error

    @classmethod
    def replay(cls, method: SearchMethod, events: Iterable[Event], *, seed: int) -> Search:
        """Return a search to which these events have been applied."""
        search = cls(method, seed=seed)
        for event in events:
            search.apply(event)
        return search

    @property
    def is_finished(self) -> bool:
        """Whether all trials have finished training."""
        return not self._open

    @property
    def num_open(self) -> int:
        """Number of trials that have not finished training."""
        return len(self._open)

    @property
    def num_training(self) -> int:
        """Number of trials that have training left to do now."""
        return len(self._training)

    @property
    def planned_length(self) -> int:
        """Total training length of all trials, in the unit of their lengths; 0 if unknown."""
        return int(getattr(self.method, "planned_length", 0))

    @property
    def progress(self) -> float:
        """Completed fraction of the search, 0 to 1, for displays.

        If the planned length is known, running trials count in proportion to their progress.
        """
        if self.is_finished:
            return 1.0
        fraction = self.method.progress()
        if self.planned_length:
            parts = self.trained.items()
            trained = sum(self.trials[index].length * part for index, part in parts)
            fraction += trained / self.planned_length
        return min(1.0, max(0.0, fraction))

    def apply(self, event: Event) -> tuple[Operation, ...]:
        """Apply an event, and return the operations to perform now.

        Raises:
            SearchError: If the event or the method's answer is impossible in this state, or if the
                method fails.
        """
        try:
            return self._apply_event(event)
        except DetcoreError:
            raise
        except Exception as error:
            raise self._make_error(str(event), error) from error

    def _make_error(self, what: str, error: Exception) -> SearchError:
        return SearchError(
            f"the search method {type(self.method).__name__} failed at {what}: "
            f"{type(error).__name__}: {error}.\n"
            "Nothing was recorded. Fix the method, then start the experiment, or resume it with:\n"
            "  detcore run --resume ID"
        )

    def _apply_event(self, event: Event) -> tuple[Operation, ...]:
        trial = self._check_event(event)
        if isinstance(event, Validated):
            trial.is_waiting = True
            self._training.discard(event.trial)
            answers = self.method.validated(event.trial, event.length, event.metric)
        else:
            self._close_trial(event.trial)
            answers = self.method.exited(event.trial, event.reason)
        self.events.append(event)
        operations = self._perform_answers(answers)
        if trial.is_closed:
            self.trained.pop(event.trial, None)
        elif isinstance(event, Validated):
            self.trained[event.trial] = event.length / trial.length
        if self._open and not self._training:
            waiting = map(str, sorted(self._open))
            raise SearchError(
                f"{type(self.method).__name__} neither trains nor closes a trial, so the trials "
                f"{', '.join(waiting)} would wait forever.\n"
                "After the last possible event, a method must close all waiting trials."
            )
        return operations

    def _check_event(self, event: Event) -> PlannedTrial:
        if not 0 <= event.trial < len(self.trials):
            raise SearchError(f"{event} refers to a trial that the search never created")
        trial = self.trials[event.trial]
        if trial.is_closed:
            raise SearchError(f"{event} refers to a trial that is already closed")
        if isinstance(event, Exited):
            return trial
        if trial.is_waiting or event.length != trial.length:
            raise SearchError(
                f"{event}: the requested length was {trial.length}"
                f"{', and the trial has already reported it' if trial.is_waiting else ''}"
            )
        if math.isnan(event.metric):
            raise SearchError(f"{event}: NaN cannot be compared")
        return trial

    def _perform_answers(self, answers: Sequence[Answer]) -> tuple[Operation, ...]:
        return tuple(operation for answer in answers for operation in self._perform_answer(answer))

    def _perform_answer(self, answer: Answer) -> list[Operation]:
        if isinstance(answer, NewTrial):
            if answer.length < 1:
                raise SearchError(f"{answer}: the length of a trial must be at least 1")
            index = len(self.trials)
            seed = get_trial_seed(self._seed, index)
            self.trials.append(PlannedTrial(answer.hparams, seed, answer.length))
            self._open.add(index)
            self._training.add(index)
            return [Create(index, answer.hparams, seed), Train(index, answer.length)]
        if not 0 <= answer.trial < len(self.trials):
            raise SearchError(f"{answer}: unknown trial")
        trial = self.trials[answer.trial]
        if trial.is_closed:
            raise SearchError(f"{answer}: the trial is already closed")
        if answer.length is None:
            self._close_trial(answer.trial)
            return [Close(answer.trial)]
        if not trial.is_waiting or answer.length <= trial.length:
            raise SearchError(f"{answer}: the trial already had the length {trial.length}")
        trial.length, trial.is_waiting = answer.length, False
        self._training.add(answer.trial)
        return [Train(answer.trial, answer.length)]

    def _close_trial(self, index: int) -> None:
        self.trials[index].is_closed = True
        self._open.discard(index)
        self._training.discard(index)
