"""Simulation of a search without training."""

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
    """A trial created by a search method.

    Attributes:
        hparams: Hyperparameters of the trial.
        length: Requested training length, or the length trained so far if `is_waiting`.
        is_waiting: Whether the trial has trained to `length` and waits for the next decision.
        is_closed: Whether the trial has ended.
    """

    hparams: Mapping[str, Any]
    length: int
    is_waiting: bool = False
    is_closed: bool = False


class SearchSimulation:
    """Simulated trials that report in random order and sometimes fail.

    An invalid answer raises `AssertionError`. Exceptions from the method propagate.

    Args:
        method: A new search method.
        seed: Seed of the report order and of the failures.
        metric: Function from hyperparameters and length to a metric.
        failing: Fraction of reports replaced by exits, by reason.
        max_events: Maximum number of reports and exits.

    Attributes:
        trials: Trials by index.
        events: Events passed to the method, in order.
        answers: Answers to `start` and to each event.
        progress: Progress after each answer.
        max_concurrent: Maximum number of concurrent trials so far.
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
        self.max_concurrent = 0

    def run(self) -> SearchSimulation:
        """Run the search to its end."""
        self._apply_answers(self._method.start())
        assert self.trials, "start returned no trial"
        while self._training:
            event = self._draw_event(
                self._training.pop(self._random.randrange(len(self._training)))
            )
            if isinstance(event, Validated):
                self.trials[event.trial].is_waiting = True
            else:
                self.trials[event.trial].is_closed = True
            self.events.append(event)
            num_events = len(self.events)
            assert num_events < self._max_events, f"the search runs after {num_events} events"
            self._apply_answers(pass_event(self._method, event))
        waiting = [str(i) for i, trial in enumerate(self.trials) if trial.is_waiting]
        assert not waiting, f"no trial trains, but these trials still wait: {', '.join(waiting)}"
        return self

    def _draw_event(self, index: int) -> Event:
        trial = self.trials[index]
        for reason in sorted(self._failing):
            if self._random.random() < self._failing[reason]:
                return Exited(index, reason)
        return Validated(index, trial.length, self._metric(trial.hparams, trial.length))

    def _apply_answers(self, answers: Sequence[Answer]) -> None:
        assert isinstance(answers, (list, tuple)), f"the answer {answers!r} is not a list or tuple"
        self.answers.append(list(answers))
        for answer in answers:
            self._apply_answer(answer)
        self.max_concurrent = max(self.max_concurrent, len(self._training))
        self.progress.append(self._method.progress())

    def _apply_answer(self, answer: Answer) -> None:
        assert isinstance(answer, (NewTrial, TrainTo)), f"{answer!r} is not a NewTrial or TrainTo"
        length = answer.length
        is_length = type(length) is int and length > 0
        if isinstance(answer, NewTrial):
            assert is_length, f"{answer}: the length must be a whole number above 0"
            self._training.append(len(self.trials))
            self.trials.append(SimulatedTrial(answer.hparams, answer.length))
            return
        assert 0 <= answer.trial < len(self.trials), f"{answer}: unknown trial"
        trial = self.trials[answer.trial]
        assert not trial.is_closed, f"{answer}: the trial has ended"
        if length is None:
            trial.is_closed, trial.is_waiting = True, False
            if answer.trial in self._training:
                self._training.remove(answer.trial)
            return
        assert trial.is_waiting, f"{answer}: the trial is still training to {trial.length}"
        assert (length if is_length else 0) > trial.length, (
            f"{answer}: the length must be a whole number above {trial.length}"
        )
        trial.length, trial.is_waiting = length, False
        self._training.append(answer.trial)
