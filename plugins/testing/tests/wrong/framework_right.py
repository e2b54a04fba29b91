"""A correct framework. Each wrong framework changes one detail.

It owns its loop: linear regression with momentum, one generator per worker, a shuffled
order of records, and callbacks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import heavyframe
import numpy as np

from detcore import Trial, TrialContext
from detcore.data import IndexSampler
from detcore.errors import InvalidHP
from detcore.trial import ValidationResult

if TYPE_CHECKING:
    from detcore.trial import Clock

__all__ = [
    "InexactController",
    "RightController",
    "RightTrial",
    "SteppingController",
    "load_model",
]

FRAMEWORK = heavyframe.__name__
NUM_RECORDS = 50
STATE_FILE = "line.json"
MOMENTUM = 0.8


class RightTrial(Trial):
    """Learns three weights."""

    noise = 1e-3
    shuffles = True
    stops_at = -1
    stop_training = False

    def rate(self) -> float:
        rate = float(self.context.get_hparam("learning_rate"))
        if rate <= 0:
            raise InvalidHP("learning_rate has to be above 0")
        return rate

    def batch_begins(self, step: int) -> None:
        if step == self.stops_at:
            self.stop_training = True

    def note(self, event: str) -> None:
        """Log an event in the experiment file's journal."""
        path = self.context.get_data_config().get("journal")
        if path and self.context.distributed.rank == 0:
            with open(path, "a", encoding="utf-8") as journal:
                journal.write(event + "\n")


class RightController:
    """Trains a `RightTrial`.

    Attributes:
        clause: The clause that a subclass breaks.
        message: Expected part of the error message.
        framework: Fields that override the framework registration.
        hooks: Source code added to the plugin's module.
        suite: Attributes that override the suite.
        needs_own_reference: Whether the fault changes the uninterrupted run.
    """

    clause: ClassVar[str] = ""
    message: ClassVar[str] = ""
    framework: ClassVar[Mapping[str, Any]] = {}
    hooks: ClassVar[str] = ""
    suite: ClassVar[Mapping[str, Any]] = {}
    needs_own_reference: ClassVar[bool] = False

    def __init__(self, trial: RightTrial, context: TrialContext) -> None:
        self.trial = trial
        self.context = context
        self.distributed = context.distributed
        self.x, self.y = make_records(NUM_RECORDS)
        self.rate = self.read_rate()
        self.sampler = self.make_sampler()
        self.weights = np.zeros(3)
        self.momentum = np.zeros(3)
        self.noise = self.make_noise()
        self.step = 0

    def read_rate(self) -> float:
        return self.trial.rate()

    def make_noise(self) -> np.random.Generator:
        return np.random.default_rng([self.context.get_trial_seed(), self.distributed.rank])

    def make_sampler(self) -> IndexSampler:
        return IndexSampler(
            NUM_RECORDS,
            self.context.get_per_slot_batch_size(),
            shuffle=self.trial.shuffles,
            seed=self.context.get_trial_seed(),
            rank=self.distributed.rank,
            world_size=self.distributed.size,
            drop_last=True,
        )

    def batches_per_epoch(self) -> int | None:
        return NUM_RECORDS // self.context.get_global_batch_size()

    # -- training ---------------------------------------------------------------------------------

    def run(self, clock: Clock) -> None:
        self.trial.note("train_begin")
        self.step = clock.steps_completed
        going = True
        while going:
            losses: list[float] = []
            while self.step < clock.next_boundary and not (losses and self.must_look(clock)):
                losses.append(self.train_batch())
            going = clock.boundary(self.step, self.training_metrics(losses))
        self.trial.note("train_end")

    def must_look(self, clock: Clock) -> bool:
        if self.trial.stop_training:
            self.context.set_stop_requested(True)
            return True
        return clock.interrupt_requested

    def training_metrics(self, losses: list[float]) -> dict[str, float]:
        return {"loss": float(np.mean(losses))}

    def train_batch(self) -> float:
        self.trial.batch_begins(self.step)
        index = self.next_records()
        x, y = self.x[index], self.y[index]
        error = x @ self.weights - y + self.noise.normal(scale=self.trial.noise, size=len(y))
        self.momentum = MOMENTUM * self.momentum + self.shared(x.T @ error / len(y))
        self.weights = self.weights - self.rate * self.momentum
        self.step += 1
        self.trial.note("batch_end")
        return float(np.mean(error**2))

    def next_records(self) -> np.ndarray:
        return self.sampler.batch(self.step)

    def shared(self, gradient: np.ndarray) -> np.ndarray:
        """The mean over the workers."""
        gradients = self.distributed.allgather(gradient)
        return np.asarray(np.sum(gradients, axis=0) / len(gradients))

    # -- validation -------------------------------------------------------------------------------

    def validate(self) -> ValidationResult | Mapping[str, float]:
        self.trial.note("validation_begin")
        errors = self.validation_errors(self.my_share())
        parts = self.distributed.allgather((float(np.sum(errors**2)), len(errors)))
        result = self.validation_result(*map(sum, zip(*parts, strict=True)))
        self.trial.note("validation_end")
        return result

    def my_share(self) -> slice:
        return slice(self.distributed.rank, None, self.distributed.size)

    def validation_errors(self, share: slice) -> np.ndarray:
        x, y = make_records(49)
        return np.asarray(x[share] @ self.weights - y[share])

    def validation_result(self, total: float, count: int) -> ValidationResult:
        return ValidationResult({"val_loss": total / count}, n_records=int(count))

    # -- checkpoints ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Complete state, the same on all workers except for the generator."""
        return {
            "weights": self.weights.tolist(),
            "momentum": self.momentum.tolist(),
            "step": self.step,
            "noise": self.noise.bit_generator.state,
        }

    def save(self, directory: Path) -> None:
        self.trial.note("checkpoint")
        (directory / STATE_FILE).write_text(json.dumps(self.state()))

    def snapshot(self, directory: Path) -> Callable[[], None]:
        self.trial.note("checkpoint")
        text = json.dumps(self.state())
        return functools.partial(write_text, directory / STATE_FILE, text)

    def restore(self, directory: Path) -> None:
        self.load_state(read_json(directory))
        worker_directory = self.context.worker_directory(directory)
        if worker_directory is not None:
            self.noise.bit_generator.state = read_json(worker_directory)["noise"]

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.weights = np.asarray(state["weights"])
        self.momentum = np.asarray(state["momentum"])
        self.step = state["step"]

    def start_from(self, directory: Path) -> None:
        self.weights = np.asarray(read_json(directory)["weights"])

    def close(self) -> None:
        """No-op: the controller holds no resources."""


class InexactController(RightController):
    """Does not save its noise generator, and declares inexact resume."""

    framework = {"inexact_resume": "the generator of the noise is not saved"}

    def restore(self, directory: Path) -> None:
        self.load_state(read_json(directory))


class SteppingController(RightController):
    """The same framework with a stepping controller."""

    run = None  # type: ignore[assignment]

    def train(self, num_batches: int) -> Mapping[str, float]:
        return self.training_metrics([self.train_batch() for _ in range(num_batches)])


def write_text(path: Path, text: str) -> None:
    path.write_text(text)


def make_records(count: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(count).normal(size=(count, 3))
    return x, x @ np.array([1.0, -2.0, 0.5])


def read_json(directory: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((directory / STATE_FILE).read_text())
    return state


def load_model(path: str, tags: tuple[str, ...] = ()) -> list[float]:
    """Load the model for ``Checkpoint.load``."""
    return list(read_json(Path(path))["weights"])
