"""Run one bracket of asynchronous successive halving."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from detcore.contract.search_method import Answer, ExitReason, NewTrial, TrainTo
from detcore.search.simple_methods import InvalidTrialCounter

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
        max_trials: Total number of trials, without trials that reject their hyperparameters.
        num_rungs: Number of rungs, at each of which a trial is judged; >= 1.
        max_length: Length of the top rung.
        divisor: Inverse of the fraction of trials that are promoted; > 1.
        max_concurrent_trials: Maximum number of concurrent trials; >= 1.
        stop_once: Whether the decision at a report is final.
    """

    max_trials: int
    num_rungs: int
    max_length: int
    divisor: float
    max_concurrent_trials: int
    stop_once: bool


class _Rung:
    """The results of trials at one length. If metrics are equal, the earlier result is better.

    Attributes:
        length: Training length.
        num_outstanding: Number of trials that train to this length.
        promoted: Trials that were promoted from this rung.
        results: Metric, number and trial of each result, the best first.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.num_outstanding = 0
        self.promoted: set[int] = set()
        self.results: list[tuple[float, int, int]] = []
        self._quota = 0
        self._num_settled = 0

    def insert_result(self, trial: int, metric: float, *, quota: int) -> int | None:
        """Insert a result, and return the trial that newly belongs to the best results.

        Args:
            trial: The trial.
            metric: Metric of the trial; lower is better.
            quota: Number of best results including this one: the previous number, or one more.

        Returns:
            This trial, or a different trial that the larger quota admits, or None.
        """
        result = (metric, len(self.results), trial)
        place = bisect.bisect(self.results, result)
        self.results.insert(place, result)
        previous, self._quota = self._quota, quota
        if place < previous:
            return trial
        return None if quota == previous else self.results[previous][2]

    def find_unpromoted(self) -> list[int]:
        """Return the trials that are not promoted, the best first; empty if nothing has changed."""
        if self._num_settled == len(self.results):
            return []
        self._num_settled = len(self.results)
        return [trial for *_, trial in self.results if trial not in self.promoted]


class Bracket:
    """Makes the decisions of one bracket.

    Args:
        plan: Settings of the bracket.
        sample: Returns hyperparameters for a new trial.
    """

    def __init__(self, plan: BracketPlan, sample: Callable[[], Mapping[str, Any]]) -> None:
        self._plan = plan
        self._sample = sample
        lengths = rung_lengths(plan.max_length, num_rungs=plan.num_rungs, divisor=plan.divisor)
        self._rungs = [_Rung(length) for length in lengths]
        self._trial_rungs: dict[int, int] = {}
        self._running: set[int] = set()
        self._num_created = 0
        self._num_invalid = 0
        self._exited: set[int] = set()
        self._closed: set[int] = set()
        self._invalid = InvalidTrialCounter()

    def start(self) -> list[Answer]:
        """Return the first trials."""
        count = min(self._plan.max_concurrent_trials, self._plan.max_trials)
        return [self._create_trial() for _ in range(count)]

    def record_creation(self, trial: int) -> None:
        """Record the index of a new trial of this bracket."""
        self._trial_rungs[trial] = 0
        self._running.add(trial)

    def validated(self, trial: int, metric: float) -> list[Answer]:
        """Record a trial's metric (lower is better), and return the next decisions."""
        self._invalid.record_accepted()
        return self._apply_report(trial, metric)

    def exited(self, trial: int, reason: ExitReason) -> list[Answer]:
        """Record a trial that ended early; it counts as the worst unless it is replaced."""
        if trial not in self._running:  # the trial is waiting, and its metric is known
            self._exited.add(trial)
            self._closed.add(trial)
            return self._close_leftovers()
        if reason is ExitReason.INVALID_HP:
            self._invalid.record_rejected()
            self._running.discard(trial)
            self._rungs[self._trial_rungs.pop(trial)].num_outstanding -= 1
            self._num_invalid += 1
            return [*self._replace_trial(), *self._close_leftovers()]
        self._exited.add(trial)
        self._closed.add(trial)
        return self._apply_report(trial, _WORST)

    def progress(self) -> float:
        """Return the mean of two fractions: results in the bottom rung, and closed trials."""
        total = self._plan.max_trials
        # A promoted trial that rejects its hyperparameters later leaves an additional result.
        return min(1.0, 0.5 * (len(self._rungs[0].results) + len(self._closed)) / total)

    def _apply_report(self, trial: int, metric: float) -> list[Answer]:
        rung = self._rungs[self._trial_rungs[trial]]
        self._running.discard(trial)
        rung.num_outstanding -= 1
        answers: list[Answer] = []
        if rung is self._rungs[-1]:
            rung.insert_result(trial, metric, quota=0)
            answers += self._close_trial(trial)
        elif self._plan.stop_once:
            answers += self._continue_or_stop(rung, trial, metric)
        else:
            answers += self._promote_best(rung, trial, metric)
        if not any(isinstance(answer, TrainTo) and answer.length is not None for answer in answers):
            answers += self._replace_trial()
        return [*answers, *self._close_leftovers()]

    def _promote_best(self, rung: _Rung, trial: int, metric: float) -> list[Answer]:
        """Promote the new trial if it is good enough, or the trial that the larger quota admits."""
        quota = int((len(rung.results) + 1) / self._plan.divisor)
        admitted = rung.insert_result(trial, metric, quota=quota)
        if admitted is None:
            return []
        # Trials that were waiting when the rung was full are closed. Since then, the rung may have
        # grown by a trial that replaces a trial with rejected hyperparameters.
        is_closed = admitted in self._closed and admitted not in self._exited
        if admitted != trial and (admitted in rung.promoted or is_closed):
            return []
        rung.promoted.add(admitted)
        return self._send_to_next_rung(admitted)

    def _continue_or_stop(self, rung: _Rung, trial: int, metric: float) -> list[Answer]:
        quota = max(1, int((len(rung.results) + 1) / self._plan.divisor))
        if rung.insert_result(trial, metric, quota=quota) == trial:
            rung.promoted.add(trial)
            if trial not in self._exited:
                return self._send_to_next_rung(trial)
        return self._close_trial(trial)

    def _send_to_next_rung(self, trial: int) -> list[Answer]:
        """Send a trial to the next rung. An ended trial immediately gets the last place there."""
        self._trial_rungs[trial] += 1
        rung = self._rungs[self._trial_rungs[trial]]
        if trial not in self._exited:
            self._running.add(trial)
            rung.num_outstanding += 1
            return [TrainTo(trial, rung.length)]
        if rung is self._rungs[-1]:
            rung.insert_result(trial, _WORST, quota=0)
            return []
        return self._promote_best(rung, trial, _WORST)

    def _replace_trial(self) -> list[Answer]:
        if self._num_created - self._num_invalid >= self._plan.max_trials:
            return []
        return [self._create_trial()]

    def _create_trial(self) -> NewTrial:
        self._num_created += 1
        self._rungs[0].num_outstanding += 1
        return NewTrial(self._sample(), self._rungs[0].length)

    def _close_trial(self, trial: int) -> list[Answer]:
        if trial in self._closed:
            return []
        self._closed.add(trial)
        return [TrainTo(trial, None)]

    def _close_leftovers(self) -> list[Answer]:
        """Close the trials that wait in rungs without further promotions."""
        if len(self._rungs[0].results) < self._plan.max_trials:
            return []
        answers: list[Answer] = []
        for rung in self._rungs:
            if rung.num_outstanding:
                break
            for trial in rung.find_unpromoted():
                answers += self._close_trial(trial)
        return answers
