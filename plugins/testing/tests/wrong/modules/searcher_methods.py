"""Search methods with one fault each. ``broken`` names the broken clause."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from detcore.search import Answer, ExitReason, NewTrial, SearchSetup, TrainTo
from detcore_testing import SearcherSuite

__all__ = ["WRONG", "make_suite"]

_SPACE = {
    "rate": {"type": "double", "minval": 0.0, "maxval": 1.0},
    "width": {"type": "int", "minval": 1, "maxval": 8},
    "group": {"kind": {"type": "categorical", "vals": ["a", "b", "c", "d"]}},
    "global_batch_size": 32,
}
_TRIALS = 12
Answers = Sequence[Answer]


class Right:
    """Each trial trains to half the length. Trials better than all earlier trials continue."""

    broken: ClassVar[str] = ""

    def __init__(self, setup: SearchSetup) -> None:
        self.setup = setup
        self.random = random.Random(setup.seed)
        self.half = setup.max_length // 2
        self.left = self.total = int(setup.settings["max_trials"])
        self.ended = 0
        self.best = float("inf")
        self.prepare()

    def prepare(self) -> None:
        """Change the method's setup."""

    def start(self) -> Answers:
        return [self.new() for _ in range(int(self.setup.settings["max_concurrent_trials"]))]

    def draw(self) -> float:
        return self.random.random()

    def kind(self) -> str:
        return self.random.choice(["a", "b", "c", "d"])

    def hparams(self) -> dict[str, Any]:
        return {
            "rate": self.draw(),
            "width": self.random.randint(1, 8),
            "group": {"kind": self.kind()},
            "global_batch_size": 32,
        }

    def new(self) -> NewTrial:
        self.left -= 1
        return NewTrial(self.hparams(), self.half)

    def more(self) -> list[Answer]:
        return [self.new()] if self.left else []

    def close(self, trial: int) -> list[Answer]:
        self.ended += 1
        return [TrainTo(trial, None), *self.more()]

    def signed(self, metric: float) -> float:
        return self.setup.signed(metric)

    def validated(self, trial: int, length: int, metric: float) -> Answers:
        if length == self.half and self.signed(metric) < self.best:
            self.best = self.signed(metric)
            return [TrainTo(trial, self.setup.max_length)]
        return self.close(trial)

    def exited(self, trial: int, reason: ExitReason) -> Answers:
        self.ended += 1
        return self.more()

    def progress(self) -> float:
        return self.ended / self.total


class LacksProgress(Right):
    broken = "answers-are-valid"
    progress = None  # type: ignore[assignment]


class BeginsWithNothing(Right):
    broken = "answers-are-valid"

    def start(self) -> Answers:
        return []


class AnswersNone(Right):
    broken = "answers-are-valid"

    def exited(self, trial: int, reason: ExitReason) -> Answers:
        return super().exited(trial, reason) or None  # type: ignore[return-value]


class HalvesOddly(Right):
    broken = "answers-are-valid"

    def prepare(self) -> None:
        self.half = self.setup.max_length / 2  # type: ignore[assignment]


class BeginsAtZero(Right):
    broken = "answers-are-valid"

    def prepare(self) -> None:
        self.half = 0


class CountsFromTheLastStop(Right):
    """Returns the additional length instead of the total length."""

    broken = "answers-are-valid"

    def validated(self, trial: int, length: int, metric: float) -> Answers:
        return [
            TrainTo(answer.trial, answer.length - self.half)
            if isinstance(answer, TrainTo) and answer.length else answer
            for answer in super().validated(trial, length, metric)
        ]  # fmt: skip


class ClosesWhatHasEnded(Right):
    broken = "answers-are-valid"

    def exited(self, trial: int, reason: ExitReason) -> Answers:
        return [TrainTo(trial, None), *super().exited(trial, reason)]


class LeavesTrialsWaiting(Right):
    broken = "search-ends"

    def validated(self, trial: int, length: int, metric: float) -> Answers:
        answers = super().validated(trial, length, metric)
        return [] if self.left == 0 and length == self.half else answers


class NeverEnds(Right):
    broken = "search-ends"

    def more(self) -> list[Answer]:
        return [self.new()]


class WaitsForEverybody(Right):
    """Decides only after all trials have reported, although failed trials never report."""

    broken = "search-survives-failures"

    def prepare(self) -> None:
        self.waiting: list[int] = []

    def start(self) -> Answers:
        return [self.new() for _ in range(self.total)]

    def validated(self, trial: int, length: int, metric: float) -> Answers:
        self.waiting.append(trial)
        if len(self.waiting) < self.total:
            return []
        self.ended = self.total
        return [TrainTo(trial_index, None) for trial_index in self.waiting]


class ReplacesWhatWasStopped(Right):
    broken = "search-survives-failures"

    def exited(self, trial: int, reason: ExitReason) -> Answers:
        if reason is ExitReason.STOPPED:
            return [self.new()]
        return super().exited(trial, reason)


class AsksForEver(Right):
    """Replaces rejecting trials without limit."""

    broken = "search-survives-failures"

    def exited(self, trial: int, reason: ExitReason) -> Answers:
        if reason is ExitReason.INVALID_HP:
            self.left += 1
            return self.more()
        return super().exited(trial, reason)


class DrawsBeyondTheRange(Right):
    broken = "hyperparameters-are-in-the-space"

    def draw(self) -> float:
        return self.random.gauss(0.5, 0.5)


class ForgetsConstants(Right):
    broken = "hyperparameters-are-in-the-space"

    def hparams(self) -> dict[str, Any]:
        hparams = super().hparams()
        del hparams["global_batch_size"]
        return hparams


class AnswersInNumpy(Right):
    broken = "hyperparameters-are-in-the-space"

    def draw(self) -> float:
        return cast(float, np.float64(super().draw()))


class TrainsTooLong(Right):
    broken = "max-length-is-respected"

    def validated(self, trial: int, length: int, metric: float) -> Answers:
        return [
            TrainTo(answer.trial, answer.length + 1)
            if isinstance(answer, TrainTo) and answer.length else answer
            for answer in super().validated(trial, length, metric)
        ]  # fmt: skip


class MakesOneMore(Right):
    broken = "max-trials-is-respected"

    def more(self) -> list[Answer]:
        return [self.new()] if self.left >= 0 else []


class StartsAllAtOnce(Right):
    broken = "max-concurrent-is-respected"

    def start(self) -> Answers:
        return [self.new() for _ in range(self.total)]


class CountsInPercent(Right):
    broken = "progress-reaches-1"

    def progress(self) -> float:
        return 100.0 * super().progress()


class FallsBack(Right):
    """Computes progress from running trials, which decreases near the end."""

    broken = "progress-reaches-1"

    def progress(self) -> float:
        return 1.0 if self.ended >= self.total else 1 - self.ended / self.total


class StopsShortOf1(Right):
    broken = "progress-reaches-1"

    def progress(self) -> float:
        return self.ended / (self.total + 1)


class ForgetsWhatWasRejected(Right):
    """Neither replaces nor counts rejecting trials."""

    broken = "progress-reaches-1"

    def exited(self, trial: int, reason: ExitReason) -> Answers:
        if reason is ExitReason.INVALID_HP:
            return self.more()
        return super().exited(trial, reason)


class DividesByTheMetric(Right):
    broken = "finite-metrics-are-accepted"

    def signed(self, metric: float) -> float:
        return -1 / metric


class WaitsForABetterOne(Right):
    """Waits forever on equal metrics."""

    broken = "finite-metrics-are-accepted"

    def validated(self, trial: int, length: int, metric: float) -> Answers:
        if length == self.half and self.signed(metric) == self.best and not self.left:
            return []
        return super().validated(trial, length, metric)


class SeedsItself(Right):
    broken = "replay-gives-same-answers"

    def prepare(self) -> None:
        self.random = random.Random()


class SeedsByTheClock(Right):
    broken = "replay-gives-same-answers"

    def prepare(self) -> None:
        self.random = random.Random(int(time.time()) // 1_000_000)


class DrawsFromTheUsersGenerator(Right):
    broken = "replay-gives-same-answers"

    def draw(self) -> float:
        return random.random()


class SeedsTheUsersGenerator(Right):
    broken = "process-state-is-unchanged"

    def prepare(self) -> None:
        np.random.seed(self.setup.seed)


class ChoosesFromASet(Right):
    broken = "answers-do-not-depend-on-process"

    def kind(self) -> str:
        return next(iter({"a", "b", "c", "d"}))


class ChangesItsSettings(Right):
    broken = "answers-are-valid"

    def prepare(self) -> None:
        self.setup.settings["max_trials"] = 0  # type: ignore[index]


class SharesItsCount(Right):
    broken = "instances-are-independent"
    numbers: ClassVar[Any] = None

    def prepare(self) -> None:
        type(self).numbers = itertools.count()

    def draw(self) -> float:
        return float(next(self.numbers) % 100) / 100


class TakesSmallerForBetter(Right):
    broken = "smaller-is-better-is-respected"

    def signed(self, metric: float) -> float:
        return metric


class StopsAfterAnHour(Right):
    broken = "replay-gives-same-answers"

    def prepare(self) -> None:
        self.began = time.monotonic()

    def validated(self, trial: int, length: int, metric: float) -> Answers:
        if time.monotonic() - self.began > 3600:
            return self.close(trial)
        return super().validated(trial, length, metric)


class KeepsItsStateInAFile(Right):
    broken = "process-state-is-unchanged"

    def close(self, trial: int) -> list[Answer]:
        Path("search.json").write_text(f'{{"ended": {self.ended}}}')
        return super().close(trial)


class HasASeedOfItsOwn(Right):
    broken = "seed-changes-results"

    def prepare(self) -> None:
        self.random = random.Random(42)


class DrawsOnce(Right):
    broken = "seed-changes-results"

    def new(self) -> NewTrial:
        self.random.seed(self.setup.seed)
        return super().new()


WRONG: tuple[type[Right], ...] = tuple(
    value for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Right) and value.broken
)  # fmt: skip


def make_suite(method_class: type[Right]) -> type[SearcherSuite]:
    """Return a suite for a search method."""

    class Suite(SearcherSuite):
        method = f"searcher_methods:{method_class.__name__}"
        max_events = 400

        def setups(self) -> Sequence[SearchSetup]:
            settings = {"max_trials": _TRIALS, "max_concurrent_trials": 3}
            return [SearchSetup(settings=settings, hyperparameters=_SPACE, seed=7, max_length=30)]

    return Suite
