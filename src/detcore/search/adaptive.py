"""Search adaptively with several brackets of successive halving."""

from __future__ import annotations

import math
from collections.abc import Sequence

from detcore.contract.errors import SearchError
from detcore.contract.search_method import Answer, ExitReason, NewTrial, SearchSetup
from detcore.search.halving import Bracket, BracketPlan
from detcore.search.sampling import sample


class _Brackets:
    """Trials of several independent brackets."""

    def __init__(self, setup: SearchSetup, plans: Sequence[BracketPlan]) -> None:
        self._setup = setup
        self._num_drawn = 0
        self._brackets = [Bracket(plan, self._sample) for plan in plans]
        self._weights = [plan.max_trials for plan in plans]
        self._bracket_of: list[Bracket] = []

    def start(self) -> Sequence[Answer]:
        """Return the first trials of all brackets."""
        return [a for each in self._brackets for a in self._noted(each, each.start())]

    def validated(self, trial: int, length: int, metric: float) -> Sequence[Answer]:
        """Pass the metric to the trial's bracket."""
        bracket = self._bracket_of[trial]
        return self._noted(bracket, bracket.validated(trial, self._setup.signed(metric)))

    def exited(self, trial: int, reason: ExitReason) -> Sequence[Answer]:
        """Pass the exit to the trial's bracket."""
        bracket = self._bracket_of[trial]
        return self._noted(bracket, bracket.exited(trial, reason))

    def progress(self) -> float:
        """Return the mean progress of the brackets, weighted by their trials."""
        parts = zip(self._brackets, self._weights, strict=True)
        return sum(each.progress() * weight for each, weight in parts) / sum(self._weights)

    def _noted(self, bracket: Bracket, answers: list[Answer]) -> list[Answer]:
        for answer in answers:
            if isinstance(answer, NewTrial):
                bracket.created(len(self._bracket_of))
                self._bracket_of.append(bracket)
        return answers

    def _sample(self) -> dict[str, object]:
        index = self._num_drawn
        self._num_drawn += 1
        return sample(self._setup.hyperparameters, seed=self._setup.seed, index=index)


class AdaptiveSearch(_Brackets):
    """Several brackets that differ in how early they stop trials (``adaptive_asha``)."""

    def __init__(self, setup: SearchSetup) -> None:
        super().__init__(setup, plan_brackets(setup))


class HalvingSearch(_Brackets):
    """One bracket (``async_halving``)."""

    def __init__(self, setup: SearchSetup) -> None:
        settings = setup.settings
        trials = int(settings["max_trials"])
        plan = BracketPlan(
            max_trials=trials,
            num_rungs=int(settings["num_rungs"]),
            max_length=setup.max_length,
            divisor=float(settings["divisor"]),
            max_concurrent_trials=int(settings["max_concurrent_trials"]) or trials,
            stop_once=bool(settings["stop_once"]),
        )
        super().__init__(setup, [plan])


def plan_brackets(setup: SearchSetup) -> list[BracketPlan]:
    """Return the brackets of ``adaptive_asha``, those with most rungs first.

    Trials are divided in proportion to ``divisor ** (rungs - 1) / rungs``: a bracket that stops
    trials early can afford more of them.
    """
    settings = setup.settings
    divisor, trials = float(settings["divisor"]), int(settings["max_trials"])
    rungs = _rungs_of_brackets(setup, divisor, trials)
    if len(rungs) > trials:
        raise SearchError(
            f"searcher.max_trials is {trials}, and there are {len(rungs)} brackets "
            f"(rungs: {', '.join(map(str, rungs))}), each with at least one trial.\n"
            "Raise max_trials, or name fewer brackets in bracket_rungs."
        )
    shares = _shares(trials, [divisor ** (count - 1) / count for count in rungs])
    limits = _limits(int(settings["max_concurrent_trials"]), shares, divisor)
    return [
        BracketPlan(
            max_trials=share,
            num_rungs=count,
            max_length=setup.max_length,
            divisor=divisor,
            max_concurrent_trials=limit,
            stop_once=bool(settings["stop_once"]),
        )
        for count, share, limit in zip(rungs, shares, limits, strict=True)
    ]


def _rungs_of_brackets(setup: SearchSetup, divisor: float, trials: int) -> list[int]:
    named = [int(count) for count in setup.settings["bracket_rungs"]]
    if named:
        return sorted(named, reverse=True)
    most = min(
        int(setup.settings["max_rungs"]),
        _floor_log(setup.max_length, divisor) + 1,
        _floor_log(trials, divisor) + 1,
    )
    fewest = {"conservative": 1, "standard": (most - 1) // 2 + 1, "aggressive": most}
    return list(range(most, fewest[str(setup.settings["mode"])] - 1, -1))


def _floor_log(number: float, base: float) -> int:
    """Return the largest n with ``base ** n <= number``, for which math.log may be off by one."""
    power = max(0, round(math.log(number, base)))
    return power if base**power <= number else power - 1


def _shares(trials: int, weights: Sequence[float]) -> list[int]:
    total = sum(weights)
    shares = [max(1, int(trials * weight / total)) for weight in weights]
    while sum(shares) > trials:  # every bracket has at least one trial
        shares[shares.index(max(shares))] -= 1
    shares[0] += trials - sum(shares)
    return shares


def _limits(max_concurrent: int, shares: Sequence[int], divisor: float) -> list[int]:
    if not max_concurrent:
        return [max(shares[-1], int(divisor))] * len(shares)
    each, rest = divmod(max_concurrent, len(shares))
    return [max(1, each + (index < rest)) for index in range(len(shares))]
