"""Frameworks that go wrong at training, validating and reporting."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from framework_right import RightController, SteppingController

from detcore.trial import ValidationResult

if TYPE_CHECKING:
    from detcore.trial import Clock

TRAINING = "training-metrics-are-reported"
COVER = "training-metrics-cover-their-batches"
VALIDATION = "validation-metrics-are-reported"
ALONE = "validation-leaves-training-alone"
UNITS = "units-change-nothing"


class TrainsOneTooMany(SteppingController):
    """Trains up to and with the last batch."""

    clause = UNITS
    needs_own_reference = True

    def train(self, num_batches: int) -> Mapping[str, float]:
        return super().train(num_batches + 1)


class TrainsOneTooFew(SteppingController):
    """Trains up to the last batch, without it."""

    clause = UNITS
    is_rare = True
    needs_own_reference = True

    def train(self, num_batches: int) -> Mapping[str, float]:
        return super().train(max(1, num_batches - 1))


class StartsEachStretchAnew(RightController):
    """Makes a new optimizer for each stretch."""

    clause = UNITS
    is_rare = True
    needs_own_reference = True

    def training_metrics(self, losses: list[float]) -> dict[str, float]:
        self.momentum = np.zeros(3)
        return super().training_metrics(losses)


class RunsOver(RightController):
    """Looks at the clock after every third batch."""

    clause = "a-run-completes"
    needs_own_reference = True

    def train_batch(self) -> float:
        super().train_batch()
        super().train_batch()
        return super().train_batch()


class ReturnsEarly(RightController):
    """Returns from its loop when an epoch is over."""

    clause = "a-run-completes"
    is_rare = True
    needs_own_reference = True

    def run(self, clock: Clock) -> None:
        self.step = clock.steps_completed
        while self.step < 8:
            loss = self.train_batch()
            clock.boundary(self.step, {"loss": loss})


class CountsFromZeroAgain(RightController):
    """Tells the clock the batches of this process, not of the trial."""

    clause = "exact-resume-after-a-signal"
    is_rare = True

    def run(self, clock: Clock) -> None:
        first = clock.steps_completed
        going = True
        while going:
            loss = self.train_batch()
            going = clock.boundary(self.step - first, {"loss": loss})


class ReportsNaN(RightController):
    """Divides by the number of something that never happened."""

    clause = TRAINING
    needs_own_reference = True

    def training_metrics(self, losses: list[float]) -> dict[str, float]:
        return {**super().training_metrics(losses), "accuracy": math.nan}


class ReportsTheFirstStretch(RightController):
    """Computes its metrics once."""

    clause = TRAINING
    is_rare = True
    needs_own_reference = True

    @functools.cached_property
    def first(self) -> dict[str, float]:
        return {"loss": 4.0}

    def training_metrics(self, losses: list[float]) -> dict[str, float]:
        return self.first


class ReportsNothing(RightController):
    """Has no training metrics."""

    clause = TRAINING
    is_rare = True
    needs_own_reference = True

    def training_metrics(self, losses: list[float]) -> dict[str, float]:
        return {}


class ReportsForgottenLosses(RightController):
    """Reports the mean since the process started: a resume changes it."""

    clause = "a-resumed-run-reports-the-same"
    told = "The restored state is equal, the next batch is not"
    needs_own_reference = True
    seen: list[float]

    def training_metrics(self, losses: list[float]) -> dict[str, float]:
        self.seen = [*getattr(self, "seen", []), *losses]
        return super().training_metrics(self.seen)


class ReportsTheLastBatch(RightController):
    """Takes the loss of the last batch for that of all."""

    clause = COVER
    needs_own_reference = True

    def training_metrics(self, losses: list[float]) -> dict[str, float]:
        return {"loss": losses[-1]}


class ReportsTheStretchBefore(RightController):
    """Is one report late."""

    clause = COVER
    is_rare = True
    needs_own_reference = True
    before = 4.0

    def training_metrics(self, losses: list[float]) -> dict[str, float]:
        late, self.before = self.before, super().training_metrics(losses)["loss"]
        return {"loss": late}


class ValidatesOnce(RightController):
    """Keeps the result of the first validation."""

    clause = VALIDATION
    needs_own_reference = True

    @functools.cached_property
    def first(self) -> Any:
        return super().validate()

    def validate(self) -> Any:
        return self.first


class ValidatesToInfinity(RightController):
    """One of its metrics overflows."""

    clause = VALIDATION
    is_rare = True
    needs_own_reference = True

    def validation_result(self, total: float, count: int) -> ValidationResult:
        return ValidationResult({"val_loss": total / count, "perplexity": math.inf}, count)


class ValidatesFewerEachTime(RightController):
    """Goes on in its validation data where it stopped."""

    clause = VALIDATION
    is_rare = True
    needs_own_reference = True
    used = 0

    def my_share(self) -> slice:
        self.used += 3
        return slice(self.used, None)


class ValidatesAnotherMetric(RightController):
    """Does not call it what the search is told to look at."""

    clause = VALIDATION
    is_rare = True
    needs_own_reference = True

    def validation_result(self, total: float, count: int) -> ValidationResult:
        return ValidationResult({"loss": total / count}, count)


class ValidatesASample(RightController):
    """Validates on another sample each time, of its own generator."""

    clause = "validation-repeats"
    needs_own_reference = True

    def validation_errors(self, share: slice) -> np.ndarray:
        errors = super().validation_errors(share)
        return np.asarray(np.random.default_rng().choice(errors, len(errors)))


class ValidatesOnItsTrainingData(RightController):
    """Takes as many records as there are to validate, of those that it trains on."""

    clause = "validation-is-of-the-validation-data"
    needs_own_reference = True

    def validation_errors(self, share: slice) -> np.ndarray:
        x, y = self.x[:49], self.y[:49]
        return np.asarray(x[share] @ self.weights - y[share])


class ValidatesTheWeightsBefore(RightController):
    """Validates with a copy of the weights that is a batch old."""

    clause = "validation-is-of-the-validation-data"
    is_rare = True
    needs_own_reference = True
    before = np.zeros(3)

    def train_batch(self) -> float:
        self.before = self.weights
        return super().train_batch()

    def validation_errors(self, share: slice) -> np.ndarray:
        weights, self.weights = self.weights, self.before
        errors = super().validation_errors(share)
        self.weights = weights
        return errors


class TrainsOnValidationData(RightController):
    """Takes a step on each validation: a layer stays in training mode."""

    clause = ALONE
    needs_own_reference = True

    def validation_errors(self, share: slice) -> np.ndarray:
        errors = super().validation_errors(share)
        self.weights = self.weights * 0.999
        return errors


class ValidationDrawsNumbers(RightController):
    """Draws from the generator that training uses."""

    clause = ALONE
    is_rare = True
    needs_own_reference = True

    def validation_errors(self, share: slice) -> np.ndarray:
        self.noise.normal()
        return super().validation_errors(share)


class ValidationMovesTheData(RightController):
    """Reads validation records through the iterator of training."""

    clause = ALONE
    is_rare = True
    needs_own_reference = True
    moved = 0

    def validation_errors(self, share: slice) -> np.ndarray:
        self.moved += 1
        return super().validation_errors(share)

    def next_records(self) -> np.ndarray:
        return self.sampler.batch(self.step + self.moved)


class IgnoresTheSeed(RightController):
    """Uses a seed of its own."""

    clause = "the-seed-decides"
    needs_own_reference = True

    def make_noise(self) -> np.random.Generator:
        return np.random.default_rng(1)

    def make_sampler(self) -> Any:
        sampler = super().make_sampler()
        sampler.seed = 1
        return sampler


class SeedsByTheClock(RightController):
    """Is another one each time."""

    clause = "the-seed-decides"
    is_rare = True
    needs_own_reference = True

    def make_noise(self) -> np.random.Generator:
        return np.random.default_rng([time.time_ns(), os.getpid()])


class MiscountsEpochs(RightController):
    """Counts a batch that is left out."""

    clause = "epochs-are-counted"

    def batches_per_epoch(self) -> int | None:
        return (super().batches_per_epoch() or 0) + 1


class HasEmptyEpochs(RightController):
    """Says 0 where it does not know."""

    clause = "epochs-are-counted"
    is_rare = True
    suite = {"batches_per_epoch": None}

    def batches_per_epoch(self) -> int | None:
        return 0


class TurnsItsBatchesRound(RightController):
    """Reports the metrics of batches from the last to the first."""

    clause = "training-metrics-cover-their-batches"
    needs_own_reference = True

    def run(self, clock: Clock) -> None:
        self.step = clock.steps_completed
        going = True
        while going:
            losses: list[float] = []
            while self.step < clock.next_boundary and not (losses and self.must_look(clock)):
                losses.append(self.train_batch())
            batches = [{"loss": loss} for loss in reversed(losses)]
            going = clock.boundary(self.step, self.training_metrics(losses), batches)
