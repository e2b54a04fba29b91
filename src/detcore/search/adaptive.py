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
        self._brackets = [Bracket(plan, self._sample_hparams) for plan in plans]
        self._weights = [plan.max_trials for plan in plans]
        self._trial_brackets: list[Bracket] = []

    def start(self) -> Sequence[Answer]:
        """Return the first trials of all brackets."""
        return [
            answer
            for bracket in self._brackets
            for answer in self._record_new_trials(bracket, bracket.start())
        ]

    def validated(self, trial: int, length: int, metric: float) -> Sequence[Answer]:
        """Pass the metric to the trial's bracket."""
        bracket = self._trial_brackets[trial]
        return self._record_new_trials(
            bracket, bracket.validated(trial, self._setup.signed(metric))
        )

    def exited(self, trial: int, reason: ExitReason) -> Sequence[Answer]:
        """Pass the exit to the trial's bracket."""
        bracket = self._trial_brackets[trial]
        return self._record_new_trials(bracket, bracket.exited(trial, reason))

    def progress(self) -> float:
        """Return the mean progress of the brackets, weighted by their trials."""
        parts = zip(self._brackets, self._weights, strict=True)
        return sum(bracket.progress() * weight for bracket, weight in parts) / sum(self._weights)

    def _record_new_trials(self, bracket: Bracket, answers: list[Answer]) -> list[Answer]:
        for answer in answers:
            if isinstance(answer, NewTrial):
                bracket.record_creation(len(self._trial_brackets))
                self._trial_brackets.append(bracket)
        return answers

    def _sample_hparams(self) -> dict[str, object]:
        index = self._num_drawn
        self._num_drawn += 1
        return sample(self._setup.hyperparameters, seed=self._setup.seed, index=index)


class AdaptiveSearch(_Brackets):
    """Several brackets, which stop trials at different stages (``adaptive_asha``)."""

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
    """Return the brackets of ``adaptive_asha``, sorted by descending number of rungs.

    Trials are divided in proportion to ``divisor ** (rungs - 1) / rungs``: a bracket that stops
    trials early can afford more of them.
    """
    settings = setup.settings
    divisor, trials = float(settings["divisor"]), int(settings["max_trials"])
    rungs = _choose_rungs(setup, divisor, trials)
    if len(rungs) > trials:
        raise SearchError(
            f"searcher.max_trials is {trials}, but the search has {len(rungs)} brackets "
            f"(rungs: {', '.join(map(str, rungs))}), each with at least one trial.\n"
            "Raise max_trials, or set fewer brackets in bracket_rungs."
        )
    shares = _divide_trials(trials, [divisor ** (count - 1) / count for count in rungs])
    limits = _divide_concurrency(int(settings["max_concurrent_trials"]), shares, divisor)
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


def _choose_rungs(setup: SearchSetup, divisor: float, trials: int) -> list[int]:
    rungs = [int(count) for count in setup.settings["bracket_rungs"]]
    if rungs:
        return sorted(rungs, reverse=True)
    max_rungs = min(
        int(setup.settings["max_rungs"]),
        _floor_log(setup.max_length, divisor) + 1,
        _floor_log(trials, divisor) + 1,
    )
    min_rungs = {"conservative": 1, "standard": (max_rungs - 1) // 2 + 1, "aggressive": max_rungs}
    return list(range(max_rungs, min_rungs[str(setup.settings["mode"])] - 1, -1))


def _floor_log(number: float, base: float) -> int:
    """Return the largest n with ``base ** n <= number``. math.log alone may be off by one."""
    power = max(0, round(math.log(number, base)))
    return power if base**power <= number else power - 1


def _divide_trials(trials: int, weights: Sequence[float]) -> list[int]:
    total = sum(weights)
    shares = [max(1, int(trials * weight / total)) for weight in weights]
    while sum(shares) > trials:  # every bracket has at least one trial
        shares[shares.index(max(shares))] -= 1
    shares[0] += trials - sum(shares)
    return shares


def _divide_concurrency(max_concurrent: int, shares: Sequence[int], divisor: float) -> list[int]:
    if not max_concurrent:
        return [max(shares[-1], int(divisor))] * len(shares)
    share, remainder = divmod(max_concurrent, len(shares))
    return [max(1, share + (index < remainder)) for index in range(len(shares))]
