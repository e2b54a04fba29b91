"""Simulation of a search method, without any training."""

from __future__ import annotations

import dataclasses
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
from detcore_testing.searcher.searcher_child import pass_event


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


class SearchSimulation:
    """Trials that report in a random order, and sometimes fail.

    An invalid answer is an `AssertionError`. Exceptions of the method propagate.

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

    def run(self) -> SearchSimulation:
        """Start, and continue until the search has ended."""
        self._take(self._method.start())
        assert self.trials, "start returned no trial"
        while self._training:
            event = self._event(self._training.pop(self._random.randrange(len(self._training))))
            if isinstance(event, Validated):
                self.trials[event.trial].is_waiting = True
            else:
                self.trials[event.trial].is_closed = True
            self.events.append(event)
            num_events = len(self.events)
            assert num_events < self._max_events, f"it goes on after {num_events} events"
            self._take(pass_event(self._method, event))
        waiting = [str(i) for i, trial in enumerate(self.trials) if trial.is_waiting]
        assert not waiting, f"no trial trains, and these wait for ever: {', '.join(waiting)}"
        return self

    def _event(self, index: int) -> Event:
        trial = self.trials[index]
        for reason in sorted(self._failing):
            if self._random.random() < self._failing[reason]:
                return Exited(index, reason)
        return Validated(index, trial.length, self._metric(trial.hparams, trial.length))

    def _take(self, answers: Sequence[Answer]) -> None:
        assert isinstance(answers, (list, tuple)), f"it answered {answers!r}"
        self.answers.append(list(answers))
        for answer in answers:
            self._do(answer)
        self.most_at_once = max(self.most_at_once, len(self._training))
        self.progress.append(self._method.progress())

    def _do(self, answer: Answer) -> None:
        assert isinstance(answer, (NewTrial, TrainTo)), f"it answered {answer!r} among others"
        length = answer.length
        is_length = type(length) is int and length > 0
        if isinstance(answer, NewTrial):
            assert is_length, f"{answer}: its length is no whole number > 0"
            self._training.append(len(self.trials))
            self.trials.append(SimulatedTrial(answer.hparams, answer.length))
            return
        assert 0 <= answer.trial < len(self.trials), f"{answer}: there is no such trial"
        trial = self.trials[answer.trial]
        assert not trial.is_closed, f"{answer}: the trial has ended"
        if length is None:
            trial.is_closed, trial.is_waiting = True, False
            if answer.trial in self._training:
                self._training.remove(answer.trial)
            return
        assert trial.is_waiting, f"{answer}: the trial trains to {trial.length} still"
        assert (length if is_length else 0) > trial.length, (
            f"{answer}: the trial trained to {trial.length}, and lengths are whole numbers"
        )
        trial.length, trial.is_waiting = length, False
        self._training.append(answer.trial)
