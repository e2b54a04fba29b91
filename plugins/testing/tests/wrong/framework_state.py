"""Frameworks with faults in saving and restoring."""

from __future__ import annotations

import functools
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from framework_right import (
    STATE_FILE,
    RightController,
    SteppingController,
    read_json,
    write_text,
)

from detcore.types import TensorInfo

KILL = "exact-resume-after-kill"
INEXACT = "resume-continues-at-checkpoint"
SNAPSHOT = "snapshot-equals-save"
NOTHING_BEHIND = "run-leaves-nothing-behind"


class ForgetsMomentum(RightController):
    """Restores the weights and resets the optimizer."""

    clause = KILL
    message = "The restored state differs: restore or save loses\n  momentum differs"

    def restore(self, directory: Path) -> None:
        super().restore(directory)
        self.momentum = np.zeros(3)


class ForgetsTheGenerator(RightController):
    """Resets its generator to the seed."""

    clause = KILL
    message = "The restored state is equal, but the next batch differs"

    def restore(self, directory: Path) -> None:
        super().restore(directory)
        self.noise = self.make_noise()


class ForgetsTheDataPosition(RightController):
    """Restarts the epoch after a resume."""

    clause = KILL
    first = 0

    def restore(self, directory: Path) -> None:
        super().restore(directory)
        self.first = self.step

    def next_records(self) -> np.ndarray:
        return self.sampler.batch(self.step - self.first)


class ForgetsTheDataPositionThoughInexact(ForgetsTheDataPosition):
    """Declares inexact resume, which does not allow other records."""

    clause = INEXACT
    framework = {"inexact_resume": "the generator of the noise is not saved"}


class SkipsABatch(RightController):
    """Skips one batch after a resume."""

    clause = KILL
    ahead = 0

    def restore(self, directory: Path) -> None:
        super().restore(directory)
        self.ahead = 1

    def next_records(self) -> np.ndarray:
        return self.sampler.batch(self.step + self.ahead)


class SnapshotIsLate(RightController):
    """Reads the state when the writer thread runs."""

    clause = SNAPSHOT

    def snapshot(self, directory: Path) -> Callable[[], None]:
        step = self.step

        def write() -> None:
            deadline = time.monotonic() + 1
            while self.step == step and time.monotonic() < deadline:
                time.sleep(0.001)
            (directory / STATE_FILE).write_text(json.dumps(self.state()))

        return write


class Pickles(RightController):
    """Pickles its generator into a file with another suffix."""

    clause = "checkpoints-contain-no-pickle"
    needs_own_reference = True

    def save(self, directory: Path) -> None:
        super().save(directory)
        (directory / "generator.bin").write_bytes(pickle.dumps(self.noise))


class SavesNothing(RightController):
    """Writes no file."""

    clause = "checkpoints-are-complete"
    needs_own_reference = True

    def save(self, directory: Path) -> None:
        self.trial.note("checkpoint")


class SavesTheBeginning(RightController):
    """Saves its initial weights."""

    clause = "checkpoints-contain-the-state"
    needs_own_reference = True

    @functools.cached_property
    def beginning(self) -> dict[str, Any]:
        return super().state()

    def state(self) -> dict[str, Any]:
        return self.beginning


class NeverRestoresTheAverage(RightController):
    """Saves an average of the weights and does not restore it."""

    clause = "restore-reads-each-file"
    message = "save writes files that restore never reads: average.npy."
    needs_own_reference = True

    def save(self, directory: Path) -> None:
        super().save(directory)
        np.save(directory / "average.npy", self.weights)


class SavingChangesWeights(RightController):
    """Rounds the weights for the checkpoint and continues with the rounded weights."""

    clause = "schedule-does-not-change-training"
    needs_own_reference = True

    def save(self, directory: Path) -> None:
        self.weights = np.round(self.weights, 3)
        super().save(directory)

    snapshot = None  # type: ignore[assignment]


class SavesOtherThanItRestores(RightController):
    """Restores the momentum with the opposite sign."""

    clause = "save-after-restore-is-identical"

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self.momentum = -self.momentum


class LeavesThreads(RightController):
    """Starts a thread in each save that never ends."""

    clause = NOTHING_BEHIND
    needs_own_reference = True

    def save(self, directory: Path) -> None:
        super().save(directory)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class LeavesAProcess(RightController):
    """Starts a data server and does not stop it."""

    clause = NOTHING_BEHIND
    needs_own_reference = True

    def make_sampler(self) -> Any:
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(120)"],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return super().make_sampler()


class RestoresInPart(RightController):
    """Restores the existing files and ignores missing files."""

    clause = "restore-rejects-damage"

    def restore(self, directory: Path) -> None:
        try:
            super().restore(directory)
        except (OSError, ValueError):
            self.step = 0


class NamesFilesOfAnother(RightController):
    """Names a tensor file that it does not write."""

    clause = "tensors-match-their-files"

    def tensors(self) -> list[TensorInfo]:
        return [TensorInfo("weights", (3,), "float64", "weights.npy")]


class NamesOldTensors(RightController):
    """Always returns its first tensors."""

    clause = "state-tensors-match-the-state"

    def state_tensors(self) -> dict[str, Any]:
        self.named = getattr(self, "named", None) or {"model.weights": self.weights.copy()}
        return self.named


class StartsAfresh(RightController):
    """Ignores the other trial's checkpoint."""

    clause = "start-from-loads-weights"

    def start_from(self, directory: Path) -> None:
        read_json(directory)


class CountsTheOtherTrialsBatches(RightController):
    """Continues the other trial's batch count."""

    clause = "start-from-loads-weights"
    first = 0

    def start_from(self, directory: Path) -> None:
        super().start_from(directory)
        self.first = read_json(directory)["step"]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "step": self.first + self.step}


class StartsWithTheOtherTrialsRate(RightController):
    """Restores the learning rate with the weights."""

    clause = "start-from-keeps-hyperparameters"

    def state(self) -> dict[str, Any]:
        return {**super().state(), "rate": self.rate}

    def start_from(self, directory: Path) -> None:
        super().start_from(directory)
        self.rate = read_json(directory).get("rate", 0.05)


class LoadsNothing(RightController):
    """Registers a load function that returns None."""

    clause = "load-checkpoint-returns-the-model"
    framework = {"load_checkpoint": "framework_state:load_nothing"}


def load_nothing(path: str) -> None:
    """Return None."""
    read_json(Path(path))


class PicklesIntoAnArray(RightController):
    """Writes a pickle as a byte array."""

    clause = "checkpoints-contain-no-pickle"
    needs_own_reference = True

    def save(self, directory: Path) -> None:
        super().save(directory)
        data = np.frombuffer(pickle.dumps(self.noise), dtype=np.uint8)
        np.savez(directory / "generator.npz", data=data)


class LoadsTheSameModel(RightController):
    """Loads an untrained model."""

    clause = "load-checkpoint-returns-the-model"
    framework = {"load_checkpoint": "framework_state:load_zeros"}


def load_zeros(path: str, tags: tuple[str, ...] = ()) -> list[float]:
    return [0.0] * len(read_json(Path(path))["weights"])


class ShufflesTheFirstEpochOnly(RightController):
    """Resumes every epoch with the order of the first epoch."""

    clause = "exact-resume-in-later-epoch"
    framework = {"several_workers": False}
    suite = {"declined": {"several-workers": "it trains on one"}}

    def next_records(self) -> np.ndarray:
        if not hasattr(self, "began"):
            self.began = self.step // self.sampler.batches_per_epoch
        return self.sampler.batch(self.step - self.began * self.sampler.batches_per_epoch)


class WritesItsSnapshotLate(SteppingController):
    """Includes batches trained after the snapshot."""

    clause = SNAPSHOT

    def snapshot(self, directory: Path) -> Callable[[], None]:
        state = self.state()

        def write() -> None:
            write_text(directory / STATE_FILE, json.dumps({**state, "step": self.step}))

        return write
