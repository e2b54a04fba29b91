"""Frameworks with faults in training, validation and reports."""

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
    """Trains one batch more than requested."""

    clause = SCHEDULE
    needs_own_reference = True

    def train(self, num_batches: int) -> Mapping[str, float]:
        return super().train(num_batches + 1)


class RunsOver(RightController):
    """Checks the clock only after every third batch."""

    clause = "run-completes"
    needs_own_reference = True

    def train_batch(self) -> float:
        super().train_batch()
        super().train_batch()
        return super().train_batch()


class ReportsNaN(RightController):
    """Divides zero by zero."""

    clause = TRAINING
    needs_own_reference = True

    def training_metrics(self, losses: list[float]) -> dict[str, float]:
        return {**super().training_metrics(losses), "accuracy": math.nan}


class ReportsForgottenLosses(RightController):
    """Reports the mean since the process started, which a resume changes."""

    clause = "resume-continues-at-checkpoint"
    message = "The restored state is equal, but the next batch differs"
    needs_own_reference = True
    all_losses: list[float]

    def training_metrics(self, losses: list[float]) -> dict[str, float]:
        self.all_losses = [*getattr(self, "all_losses", []), *losses]
        return super().training_metrics(self.all_losses)


class ReportsTheLastBatch(RightController):
    """Reports the loss of the last batch instead of the mean."""

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
    """Validates on a new random sample each time."""

    clause = "validation-is-repeatable"
    needs_own_reference = True

    def validation_errors(self, share: slice) -> np.ndarray:
        errors = super().validation_errors(share)
        return np.asarray(np.random.default_rng().choice(errors, len(errors)))


class ValidatesOnItsTrainingData(RightController):
    """Validates on training records, with the right number of records."""

    clause = "validation-uses-validation-data"
    needs_own_reference = True

    def validation_errors(self, share: slice) -> np.ndarray:
        x, y = self.x[:49], self.y[:49]
        return np.asarray(x[share] @ self.weights - y[share])


class TrainsOnValidationData(RightController):
    """Changes the weights in each validation, like a layer left in training mode."""

    clause = SCHEDULE
    needs_own_reference = True

    def validation_errors(self, share: slice) -> np.ndarray:
        errors = super().validation_errors(share)
        self.weights = self.weights * 0.999
        return errors


class IgnoresTheSeed(RightController):
    """Uses a fixed seed."""

    clause = "seed-changes-results"
    needs_own_reference = True

    def make_noise(self) -> np.random.Generator:
        return np.random.default_rng(1)

    def make_sampler(self) -> Any:
        sampler = super().make_sampler()
        sampler.seed = 1
        return sampler


class MiscountsEpochs(RightController):
    """Counts a batch that is never trained."""

    clause = "batches-per-epoch-is-reported"

    def batches_per_epoch(self) -> int | None:
        return (super().batches_per_epoch() or 0) + 1


class TurnsItsBatchesRound(RightController):
    """Reports batch metrics in reverse order."""

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
