"""Frameworks that go wrong at training, validating and reporting."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from framework_right import RightController, SteppingController

if TYPE_CHECKING:
    from detcore.trial import Clock

TRAINING = "training-metrics-are-reported"
COVER = "training-metrics-cover-their-batches"
VALIDATION = "validation-metrics-are-reported"
SCHEDULE = "schedule-does-not-change-training"


class TrainsOneTooMany(SteppingController):
    """Trains up to and with the last batch."""

    clause = SCHEDULE
    needs_own_reference = True

    def train(self, num_batches: int) -> Mapping[str, float]:
        return super().train(num_batches + 1)


class RunsOver(RightController):
    """Looks at the clock after every third batch."""

    clause = "run-completes"
    needs_own_reference = True

    def train_batch(self) -> float:
        super().train_batch()
        super().train_batch()
        return super().train_batch()


class ReportsNaN(RightController):
    """Divides by the number of something that never happened."""

    clause = TRAINING
    needs_own_reference = True

    def training_metrics(self, losses: list[float]) -> dict[str, float]:
        return {**super().training_metrics(losses), "accuracy": math.nan}


class ReportsForgottenLosses(RightController):
    """Reports the mean since the process started: a resume changes it."""

    clause = "resume-continues-at-checkpoint"
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


class ValidatesOnce(RightController):
    """Keeps the result of the first validation."""

    clause = VALIDATION
    needs_own_reference = True

    @functools.cached_property
    def first(self) -> Any:
        return super().validate()

    def validate(self) -> Any:
        return self.first


class ValidatesASample(RightController):
    """Validates on another sample each time, of its own generator."""

    clause = "validation-is-repeatable"
    needs_own_reference = True

    def validation_errors(self, share: slice) -> np.ndarray:
        errors = super().validation_errors(share)
        return np.asarray(np.random.default_rng().choice(errors, len(errors)))


class ValidatesOnItsTrainingData(RightController):
    """Takes as many records as there are to validate, of those that it trains on."""

    clause = "validation-uses-validation-data"
    needs_own_reference = True

    def validation_errors(self, share: slice) -> np.ndarray:
        x, y = self.x[:49], self.y[:49]
        return np.asarray(x[share] @ self.weights - y[share])


class TrainsOnValidationData(RightController):
    """Takes a step on each validation: a layer stays in training mode."""

    clause = SCHEDULE
    needs_own_reference = True

    def validation_errors(self, share: slice) -> np.ndarray:
        errors = super().validation_errors(share)
        self.weights = self.weights * 0.999
        return errors


class IgnoresTheSeed(RightController):
    """Uses a seed of its own."""

    clause = "seed-changes-results"
    needs_own_reference = True

    def make_noise(self) -> np.random.Generator:
        return np.random.default_rng(1)

    def make_sampler(self) -> Any:
        sampler = super().make_sampler()
        sampler.seed = 1
        return sampler


class MiscountsEpochs(RightController):
    """Counts a batch that is left out."""

    clause = "batches-per-epoch-is-reported"

    def batches_per_epoch(self) -> int | None:
        return (super().batches_per_epoch() or 0) + 1


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
