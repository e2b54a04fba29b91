"""Simulation of a search method, without any training."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from detcore.search import (
    Answer,
    Event,
    Exited,
    ExitReason,
    NewTrial,
    SearchMethod,
    TrainTo,
    Validated,
)


@dataclasses.dataclass(slots=True)
class SimulatedTrial:
    """A trial that a method created.

    Attributes:
        hparams: Its hyperparameters.
        length: How far it is to train, or has trained if `is_waiting`.
        is_waiting: Whether it trained that far, and waits for the method's next decision.
        is_closed: Whether it is trained no further.
    """

    hparams: Mapping[str, Any]
    length: int
    is_waiting: bool = False
    is_closed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """An answer that a method must not give.

    Attributes:
        clause: The clause that it breaks, as in `detcore_testing.SearcherSuite`.
        text: Description of the answer.
    """

    clause: str
    text: str


class SearchSimulation:
    """Trials that report in a random order, and sometimes fail.

    An invalid answer is recorded in `fault` and ends the simulation. Exceptions of the method
    propagate.

    Args:
        method: The search method, new.
        seed: Of the order, and of which trials fail.
        metric: The metric of a trial at a length.
        failing: Fraction of the reports that are exits instead, by reason.
        max_events: How many reports and exits there may be.

    Attributes:
        trials: The trials, by index.
        events: The events that the method received, in order.
        answers: Its answers: first to `start`, then to each event.
        progress: Its progress after each answer.
        most_at_once: The most trials that trained at one time.
        fault: The invalid answer, or None.
    """

    def __init__(
        self,
        method: SearchMethod,
        *,
        seed: int,
        metric: Callable[[Mapping[str, Any], int], float],
        failing: Mapping[ExitReason, float] | None = None,
        max_events: int = 5000,
    ) -> None:
        self._method = method
        self._random = random.Random(seed)
        self._metric = metric
        self._failing = failing or {}
        self._max_events = max_events
        self._training: list[int] = []
        self.trials: list[SimulatedTrial] = []
        self.events: list[Event] = []
        self.answers: list[list[Answer]] = []
        self.progress: list[float] = []
        self.most_at_once = 0
        self.fault: Fault | None = None

    def run(self) -> SearchSimulation:
        """Start, and continue until the search has ended or the method is at fault."""
        self._take(self._method.start())
        if self.fault is None and not self.trials:
            self.fault = Fault("the-search-begins", "start returned no trial")
        while self.fault is None and self._training:
            index = self._training.pop(self._random.randrange(len(self._training)))
            self.tell(self._event(index))
        return self

    def tell(self, event: Event) -> None:
        """Pass an event to the method, and take its answer."""
        trial = self.trials[event.trial]
        if isinstance(event, Validated):
            trial.is_waiting = True
            answer = self._method.validated(event.trial, event.length, event.metric)
        else:
            trial.is_closed = True
            answer = self._method.exited(event.trial, event.reason)
        self.events.append(event)
        self._take(answer)
        if self.fault is None:
            self.fault = self._deadlock()

    def _event(self, index: int) -> Event:
        trial = self.trials[index]
        for reason in sorted(self._failing):
            if self._random.random() < self._failing[reason]:
                return Exited(index, reason)
        return Validated(index, trial.length, self._metric(trial.hparams, trial.length))

    def _deadlock(self) -> Fault | None:
        if len(self.events) >= self._max_events:
            return Fault("the-search-ends", f"it goes on after {len(self.events)} reports")
        waiting = [str(i) for i, trial in enumerate(self.trials) if trial.is_waiting]
        if waiting and not self._training:
            return Fault(
                "the-search-ends",
                f"no trial trains any more, and these wait for ever: {', '.join(waiting)}",
            )
        return None

    def _take(self, answers: Sequence[Answer]) -> None:
        if not isinstance(answers, (list, tuple)):
            self.fault = Fault("answers-are-sequences", f"it answered {answers!r}")
            return
        self.answers.append(list(answers))
        for answer in answers:
            self.fault = self.fault or self._do(answer)
        self.most_at_once = max(self.most_at_once, len(self._training))
        self.progress.append(self._method.progress())

    def _do(self, answer: Answer) -> Fault | None:
        if isinstance(answer, NewTrial):
            if not _is_length(answer.length):
                return Fault("lengths-are-whole", f"{answer}: its length is no whole number > 0")
            self._training.append(len(self.trials))
            self.trials.append(SimulatedTrial(answer.hparams, answer.length))
            return None
        if not isinstance(answer, TrainTo):
            return Fault("answers-are-sequences", f"it answered {answer!r} among others")
        if not 0 <= answer.trial < len(self.trials):
            return Fault("only-open-trials-go-on", f"{answer}: there is no such trial")
        trial = self.trials[answer.trial]
        if trial.is_closed:
            return Fault("only-open-trials-go-on", f"{answer}: the trial has ended")
        if answer.length is None:
            trial.is_closed, trial.is_waiting = True, False
            if answer.trial in self._training:
                self._training.remove(answer.trial)
            return None
        return self._go_on(answer.trial, answer.length)

    def _go_on(self, index: int, length: int) -> Fault | None:
        trial = self.trials[index]
        if not trial.is_waiting:
            return Fault("only-open-trials-go-on", f"trial {index} trains to {trial.length} still")
        if not _is_length(length):
            return Fault("lengths-are-whole", f"{length!r} of trial {index} is no whole number > 0")
        if length <= trial.length:
            return Fault(
                "lengths-increase",
                f"trial {index} trained to {trial.length}, and is sent to {length}",
            )
        trial.length, trial.is_waiting = length, False
        self._training.append(index)
        return None


def _is_length(length: object) -> bool:
    return type(length) is int and 0 < length < math.inf
