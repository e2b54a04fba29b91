"""Run one bracket of asynchronous successive halving."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from detcore.contract.search_method import Answer, ExitReason, NewTrial, TrainTo
from detcore.search.simple_methods import TooManyInvalid

_WORST = math.inf


def rung_lengths(max_length: int, *, num_rungs: int, divisor: float) -> list[int]:
    """Return the training length of each rung, counted from the start of a trial; at least 1."""
    return [
        max(1, int(max_length / divisor ** (num_rungs - 1 - rung))) for rung in range(num_rungs)
    ]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BracketPlan:
    """Settings of a bracket.

    Attributes:
        max_trials: Total number of trials, without those that reject their hyperparameters.
        num_rungs: Maximum number of times a trial is judged; >= 1.
        max_length: Length of the top rung.
        divisor: One trial in this many is promoted; > 1.
        max_concurrent_trials: Maximum number of trials at a time; >= 1.
        stop_once: Whether a trial is judged when it reports, once and for all.
    """

    max_trials: int
    num_rungs: int
    max_length: int
    divisor: float
    max_concurrent_trials: int
    stop_once: bool


class _Rung:
    """The results of trials at one length; of equal metrics, the earlier one is better.

    Attributes:
        length: Training length.
        num_outstanding: Number of trials that train to this length.
        promoted: Trials that train further from here.
        results: Metric, number and trial of each result, the best first.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.num_outstanding = 0
        self.promoted: set[int] = set()
        self.results: list[tuple[float, int, int]] = []
        self._quota = 0
        self._num_settled = 0

    def insert(self, trial: int, metric: float, *, quota: int) -> int | None:
        """Insert a result; return the trial that is now one of the best, and was not before.

        Args:
            trial: The trial.
            metric: Its metric; lower is better.
            quota: The number of best results, counting this one: as before, or one more.

        Returns:
            This trial, or another one that the larger quota admits, or None.
        """
        result = (metric, len(self.results), trial)
        place = bisect.bisect(self.results, result)
        self.results.insert(place, result)
        previous, self._quota = self._quota, quota
        if place < previous:
            return trial
        return None if quota == previous else self.results[previous][2]

    def settle(self) -> list[int]:
        """Return the trials that are not promoted, the best first; none if it did so before."""
        if self._num_settled == len(self.results):
            return []
        self._num_settled = len(self.results)
        return [trial for *_, trial in self.results if trial not in self.promoted]


class Bracket:
    """Makes the decisions of one bracket.

    Args:
        plan: Its settings.
        sample: Returns hyperparameters for a new trial.
    """

    def __init__(self, plan: BracketPlan, sample: Callable[[], Mapping[str, Any]]) -> None:
        self._plan = plan
        self._sample = sample
        lengths = rung_lengths(plan.max_length, num_rungs=plan.num_rungs, divisor=plan.divisor)
        self._rungs = [_Rung(length) for length in lengths]
        self._rung_of: dict[int, int] = {}
        self._running: set[int] = set()
        self._num_created = 0
        self._num_invalid = 0
        self._exited: set[int] = set()
        self._closed: set[int] = set()
        self._invalid = TooManyInvalid()

    def start(self) -> list[Answer]:
        """Return the first trials."""
        count = min(self._plan.max_concurrent_trials, self._plan.max_trials)
        return [self._new() for _ in range(count)]

    def created(self, trial: int) -> None:
        """Record the index of a new trial of this bracket."""
        self._rung_of[trial] = 0
        self._running.add(trial)

    def validated(self, trial: int, metric: float) -> list[Answer]:
        """Record a trial's metric (lower is better), and return the next decisions."""
        self._invalid.accepted()
        return self._reported(trial, metric)

    def exited(self, trial: int, reason: ExitReason) -> list[Answer]:
        """Record a trial that ended by itself; if it counts, it counts as the worst."""
        if trial not in self._running:  # it is waiting, and its metric is known
            self._exited.add(trial)
            self._closed.add(trial)
            return self._close_leftovers()
        if reason is ExitReason.INVALID_HP:
            self._invalid.rejected()
            self._running.discard(trial)
            self._rungs[self._rung_of.pop(trial)].num_outstanding -= 1
            self._num_invalid += 1
            return [*self._maybe_new(), *self._close_leftovers()]
        self._exited.add(trial)
        self._closed.add(trial)
        return self._reported(trial, _WORST)

    def progress(self) -> float:
        """Return the mean of two fractions: results in the bottom rung, and closed trials."""
        total = self._plan.max_trials
        # A promoted trial that rejects its hyperparameters later leaves an extra result.
        return min(1.0, 0.5 * (len(self._rungs[0].results) + len(self._closed)) / total)

    def _reported(self, trial: int, metric: float) -> list[Answer]:
        rung = self._rungs[self._rung_of[trial]]
        self._running.discard(trial)
        rung.num_outstanding -= 1
        answers: list[Answer] = []
        if rung is self._rungs[-1]:
            rung.insert(trial, metric, quota=0)
            answers += self._close(trial)
        elif self._plan.stop_once:
            answers += self._continue_or_stop(rung, trial, metric)
        else:
            answers += self._promote(rung, trial, metric)
        if not any(isinstance(each, TrainTo) and each.length is not None for each in answers):
            answers += self._maybe_new()
        return [*answers, *self._close_leftovers()]

    def _promote(self, rung: _Rung, trial: int, metric: float) -> list[Answer]:
        """Promote the new trial if it is good enough, else one that the larger quota admits."""
        quota = int((len(rung.results) + 1) / self._plan.divisor)
        admitted = rung.insert(trial, metric, quota=quota)
        if admitted is None:
            return []
        # Trials that were waiting when the rung was full are closed. The rung may have grown
        # since then, by a trial that replaces one that rejected its hyperparameters.
        is_closed = admitted in self._closed and admitted not in self._exited
        if admitted != trial and (admitted in rung.promoted or is_closed):
            return []
        rung.promoted.add(admitted)
        return self._raise(admitted)

    def _continue_or_stop(self, rung: _Rung, trial: int, metric: float) -> list[Answer]:
        quota = max(1, int((len(rung.results) + 1) / self._plan.divisor))
        if rung.insert(trial, metric, quota=quota) == trial:
            rung.promoted.add(trial)
            if trial not in self._exited:
                return self._raise(trial)
        return self._close(trial)

    def _raise(self, trial: int) -> list[Answer]:
        """Send a trial to the next rung; one that ended takes the last place there immediately."""
        self._rung_of[trial] += 1
        rung = self._rungs[self._rung_of[trial]]
        if trial not in self._exited:
            self._running.add(trial)
            rung.num_outstanding += 1
            return [TrainTo(trial, rung.length)]
        if rung is self._rungs[-1]:
            rung.insert(trial, _WORST, quota=0)
            return []
        return self._promote(rung, trial, _WORST)

    def _maybe_new(self) -> list[Answer]:
        if self._num_created - self._num_invalid >= self._plan.max_trials:
            return []
        return [self._new()]

    def _new(self) -> NewTrial:
        self._num_created += 1
        self._rungs[0].num_outstanding += 1
        return NewTrial(self._sample(), self._rungs[0].length)

    def _close(self, trial: int) -> list[Answer]:
        if trial in self._closed:
            return []
        self._closed.add(trial)
        return [TrainTo(trial, None)]

    def _close_leftovers(self) -> list[Answer]:
        """Close the trials waiting in rungs from which no more can be promoted."""
        if len(self._rungs[0].results) < self._plan.max_trials:
            return []
        answers: list[Answer] = []
        for rung in self._rungs:
            if rung.num_outstanding:
                break
            for trial in rung.settle():
                answers += self._close(trial)
        return answers
