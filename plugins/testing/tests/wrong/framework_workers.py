"""Frameworks that go wrong with several workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from framework_right import RightController, read_json

from detcore.data import IndexSampler
from detcore.trial import ValidationResult

ONE_MODEL = "two-workers-match-one-worker"
ONCE = "two-workers-validate-each-record-once"
RESUME = "two-workers-resume-exactly"


class TrainsOnTheSameRecords(RightController):
    """Deals no records out: all workers train on the first worker's."""

    clause = ONE_MODEL

    def make_sampler(self) -> IndexSampler:
        sampler = super().make_sampler()
        sampler.rank = 0
        return sampler


class DoesNotExchange(RightController):
    """Each worker trains a separate model."""

    clause = ONE_MODEL

    def shared(self, gradient: np.ndarray) -> np.ndarray:
        return gradient


class ValidatesEverythingOnEach(RightController):
    """Each worker validates all records, and the counts are summed."""

    clause = ONCE

    def my_share(self) -> slice:
        return slice(None)


class TakesTheMeanOfMeans(RightController):
    """Averages the means of unequal shards."""

    clause = ONCE

    def validate(self) -> Any:
        errors = self.validation_errors(self.my_share())
        parts = self.distributed.allgather((float(np.mean(errors**2)), len(errors)))
        means, counts = zip(*parts, strict=True)
        return ValidationResult({"val_loss": float(np.mean(means))}, n_records=sum(counts))


class RestoresTheChiefsGenerator(RightController):
    """Restores the chief's generator on every worker."""

    clause = RESUME
    message = "The restored state is equal, but the next batch differs"

    def restore(self, directory: Path) -> None:
        super().restore(directory)
        self.noise.bit_generator.state = read_json(directory)["noise"]


class DeclinesInSilence(RightController):
    """Trains on one worker, and does not say so."""

    clause = "several-workers-are-rejected"
    framework = {"several_workers": False}
