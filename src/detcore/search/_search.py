"""Track a search: its method, the state of its trials, and the log that determines both."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from detcore.errors import SearchError
from detcore.search._messages import Close, Create, Event, Exited, Operation, Train, Validated
from detcore.search._method import Answer, NewTrial, SearchMethod
from detcore.search._simple import seed_of_trial

__all__ = ["PlannedTrial", "Search"]


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

    The method's decisions follow from the events alone, so the log of events is the whole state: a
    new search that receives the same events, in the same order, is the same search.

    Args:
        method: The search method, new.
        seed: The experiment's seed.

    Attributes:
        method: The search method.
        trials: All trials, by index.
        events: The events applied so far.
        trained: Completed fraction of each trial's present length, 0 to 1, by index; for displays,
            updated by the caller.
    """

    def __init__(self, method: SearchMethod, *, seed: int) -> None:
        self.method = method
        self._seed = seed
        self.trials: list[PlannedTrial] = []
        self.events: list[Event] = []
        self.trained: dict[int, float] = {}
        self._first = self._operations(method.start())

    @classmethod
    def replay(cls, method: SearchMethod, events: Iterable[Event], *, seed: int) -> Search:
        """Return a search to which these events have been applied."""
        search = cls(method, seed=seed)
        for event in events:
            search.apply(event)
        return search

    @property
    def first(self) -> tuple[Operation, ...]:
        """The operations that the method requested at the start."""
        return self._first

    @property
    def is_finished(self) -> bool:
        """Whether all trials have finished training."""
        return all(trial.is_closed for trial in self.trials)

    @property
    def planned_length(self) -> int:
        """How far all trials train together, in the unit of their lengths; 0: not known."""
        return int(getattr(self.method, "planned_length", 0))

    @property
    def progress(self) -> float:
        """How much of the search is done, 0 to 1; for displays.

        Where the planned length is known, trials that are under way count as far as they are.
        """
        if self.is_finished:
            return 1.0
        done = self.method.progress()
        if self.planned_length:
            parts = self.trained.items()
            trained = sum(self.trials[index].length * part for index, part in parts)
            done += trained / self.planned_length
        return min(1.0, max(0.0, done))

    def apply(self, event: Event) -> tuple[Operation, ...]:
        """Apply an event; return the operations to perform now.

        Raises:
            SearchError: If the event is impossible in this state, or the method's answer is.
        """
        trial = self._checked(event)
        if isinstance(event, Validated):
            trial.is_waiting = True
            answers = self.method.validated(event.trial, event.length, event.metric)
        else:
            trial.is_closed = True
            answers = self.method.exited(event.trial, event.reason)
        self.events.append(event)
        operations = self._operations(answers)
        if trial.is_closed:
            self.trained.pop(event.trial, None)
        elif isinstance(event, Validated):
            self.trained[event.trial] = event.length / trial.length
        if not self.is_finished and all(t.is_closed or t.is_waiting for t in self.trials):
            waiting = [str(index) for index, t in enumerate(self.trials) if not t.is_closed]
            raise SearchError(
                f"{type(self.method).__name__} trains no trial and ends none: "
                f"{', '.join(waiting)} wait for ever.\n"
                "After the last possible event, a method must close all trials that wait."
            )
        return operations

    def _checked(self, event: Event) -> PlannedTrial:
        if not 0 <= event.trial < len(self.trials):
            raise SearchError(f"{event} is of a trial that the search never created")
        trial = self.trials[event.trial]
        if trial.is_closed:
            raise SearchError(f"{event} is of a trial that is closed already")
        if isinstance(event, Exited):
            return trial
        if trial.is_waiting or event.length != trial.length:
            raise SearchError(
                f"{event}: the trial was to train to {trial.length}"
                f"{', and has reported that' if trial.is_waiting else ''}"
            )
        if math.isnan(event.metric):
            raise SearchError(f"{event}: nothing can be compared with NaN")
        return trial

    def _operations(self, answers: Sequence[Answer]) -> tuple[Operation, ...]:
        return tuple(operation for answer in answers for operation in self._do(answer))

    def _do(self, answer: Answer) -> list[Operation]:
        if isinstance(answer, NewTrial):
            if answer.length < 1:
                raise SearchError(f"{answer}: a trial trains to a length of at least 1")
            index = len(self.trials)
            seed = seed_of_trial(self._seed, index)
            self.trials.append(PlannedTrial(answer.hparams, seed, answer.length))
            return [Create(index, answer.hparams, seed), Train(index, answer.length)]
        if not 0 <= answer.trial < len(self.trials):
            raise SearchError(f"{answer}: there is no such trial")
        trial = self.trials[answer.trial]
        if trial.is_closed:
            raise SearchError(f"{answer}: the trial is closed already")
        if answer.length is None:
            trial.is_closed = True
            return [Close(answer.trial)]
        if not trial.is_waiting or answer.length <= trial.length:
            raise SearchError(f"{answer}: the trial already had the length {trial.length}")
        trial.length, trial.is_waiting = answer.length, False
        return [Train(answer.trial, answer.length)]
