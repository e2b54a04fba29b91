"""Linear regression by stochastic gradient descent, as a minimal framework with exact resume."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detcore import Trial, TrialContext
from detcore.data import IdKind, IndexSampler
from detcore.trial import ValidationResult
from detcore.types import TensorInfo

__all__ = ["ToyController", "ToyTrial", "load_weights"]


class ToyTrial(Trial):
    """Base class for toy trials."""

    restarts_data = False
    noise = 1e-3
    controller: Any = None

    def build_data(self) -> tuple[np.ndarray, np.ndarray]:
        """Return features ``(records, features)`` and targets ``(records,)``, float64."""
        raise TypeError("a toy trial needs build_data")

    def on_batch(self, step: int) -> None:
        """Called before each batch."""


class ToyController:
    """A stepping controller. Several workers sum their gradients.

    Hyperparameters slow it down. It waits ``pause_s`` after each batch, from batch ``pause_from``
    on, while the file ``pause_while`` exists.
    """

    def __init__(self, trial: ToyTrial, context: TrialContext) -> None:
        self._trial = trial
        trial.controller = self  # for trials that break the controller
        self._context = context
        self._distributed = context.distributed
        self._x, self._y = trial.build_data()
        self._rate = float(context.get_hparam("learning_rate"))
        hparams = context.setup.hparams
        names = ("write_s", "pause_s", "pause_from", "pause_while")
        options = {name: context.get_hparam(name) for name in names if name in hparams}
        self._write_s = float(options.get("write_s", 0.0))
        self._is_closed = False
        self._pause_s = float(options.get("pause_s", 0.0))
        self._pause_from = int(options.get("pause_from", 0))
        self._pause_while = options.get("pause_while")
        self._sampler = IndexSampler(
            len(self._x),
            context.get_per_slot_batch_size(),
            shuffle=True,
            seed=context.get_trial_seed(),
            rank=self._distributed.rank,
            world_size=self._distributed.size,
        )
        self._ledger = context.ledger
        if self._ledger is not None:
            self._ledger.describe(IdKind.RECORD_INDEX, num_records=len(self._x))
        self._digests = context.digests
        self._weights = np.zeros(self._x.shape[1])
        self._gradient: np.ndarray | None = None  # not saved, because each step resets it
        self._noise = np.random.default_rng(context.get_trial_seed() + self._distributed.rank)
        self._step = 0
        self._data_start = 0

    def batches_per_epoch(self) -> int | None:
        return -(-self._sampler.batches_per_epoch // self._distributed.size)

    def train(self, num_batches: int) -> Mapping[str, float]:
        losses = []
        for _ in range(num_batches):
            self._trial.on_batch(self._step)
            index = self._sampler.batch(self._step - self._data_start)
            if self._ledger is not None:
                epoch = self._step // self._sampler.batches_per_epoch
                self._ledger.log(self._step + 1, epoch, index)
            x, y = self._x[index], self._y[index]
            if self._digests is not None:
                self._digests.log(self._step + 1, index, (x, y))
            noise = self._noise.normal(scale=self._trial.noise, size=len(y))
            error = x @ self._weights - y + noise
            gradients = self._distributed.allgather(x.T @ error / len(y))
            self._gradient = gradients[0]
            self._weights -= self._rate * np.sum(gradients, axis=0) / len(gradients)
            losses.append(float(np.mean(error**2)))
            self._step += 1
            if self._digests is not None:
                self._digests.log_metrics(self._step, [{"loss": losses[-1]}])
            self._pause()
        return {"loss": float(np.mean(losses))}

    def _pause(self) -> None:
        is_over = self._pause_while is not None and not Path(self._pause_while).exists()
        if self._step >= self._pause_from and not is_over:
            time.sleep(self._pause_s)

    def validate(self) -> ValidationResult:
        part = slice(self._distributed.rank, None, self._distributed.size)
        errors = (self._x[part] @ self._weights - self._y[part]) ** 2
        parts = self._distributed.allgather((float(errors.sum()), len(errors)))
        total, count = map(sum, zip(*parts, strict=True))
        return ValidationResult({"val_loss": total / count}, n_records=int(count))

    def save(self, directory: Path) -> None:
        state: dict[str, Any] = {"noise": self._noise.bit_generator.state}
        if self._distributed.rank == 0:
            state |= {"weights": self._weights.tolist(), "step": self._step}
        (directory / "toy.json").write_text(json.dumps(state))

    def snapshot(self, directory: Path) -> Callable[[], None]:
        with tempfile.TemporaryDirectory() as copy:
            self.save(Path(copy))
            state = (Path(copy) / "toy.json").read_bytes()

        def write() -> None:
            time.sleep(self._write_s)
            if self._is_closed:
                raise ValueError("the controller was closed while its copy was being written")
            (directory / "toy.json").write_bytes(state)

        return write

    def tensors(self) -> Sequence[TensorInfo]:
        return [TensorInfo("weights", self._weights.shape, "float64", "toy.json")]

    def state_tensors(self) -> Mapping[str, np.ndarray]:
        noise = json.dumps(self._noise.bit_generator.state).encode()
        tensors = {"random.noise": np.frombuffer(noise, np.uint8)}
        if self._gradient is not None:
            tensors["gradient.weights"] = self._gradient
        return {**tensors, "model.weights": self._weights}

    def restore(self, directory: Path) -> None:
        state = json.loads((directory / "toy.json").read_text())
        self._weights = np.asarray(state["weights"])
        self._step = state["step"]
        self._data_start = self._step if self._trial.restarts_data else 0
        worker_directory = self._context.worker_directory(directory)
        if worker_directory is not None:
            noise = json.loads((worker_directory / "toy.json").read_text())["noise"]
            self._noise.bit_generator.state = noise

    def start_from(self, directory: Path) -> None:
        state = json.loads((directory / "toy.json").read_text())
        self._weights = np.asarray(state["weights"])

    def close(self) -> None:
        self._is_closed = True
        self._trial.on_batch(-1)


def load_weights(path: str, tags: Sequence[str] = ("all",), scale: float = 1.0) -> dict[str, Any]:
    """Return the weights in a checkpoint and the arguments of the call."""
    state = json.loads((Path(path) / "toy.json").read_text())
    return {"weights": [scale * weight for weight in state["weights"]], "tags": list(tags)}
