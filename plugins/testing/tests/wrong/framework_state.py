"""Frameworks that go wrong at saving and restoring."""

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
    """Restores the weights, and starts the optimizer afresh."""

    clause = KILL
    told = "The restored state differs already: restore or save loses\n  momentum differs"

    def restore(self, directory: Path) -> None:
        super().restore(directory)
        self.momentum = np.zeros(3)


class ForgetsTheGenerator(RightController):
    """Starts its generator from the seed again."""

    clause = KILL
    told = "The restored state is equal, the next batch is not"

    def restore(self, directory: Path) -> None:
        super().restore(directory)
        self.noise = self.make_noise()


class ForgetsTheDataPosition(RightController):
    """Begins its epoch from the start after a resume."""

    clause = KILL
    first = 0

    def restore(self, directory: Path) -> None:
        super().restore(directory)
        self.first = self.step

    def next_records(self) -> np.ndarray:
        return self.sampler.batch(self.step - self.first)


class ForgetsTheDataPositionThoughInexact(ForgetsTheDataPosition):
    """Says that a resume is not exact, which does not excuse other records."""

    clause = INEXACT
    framework = {"inexact_resume": "the generator of the noise is not saved"}


class SkipsABatch(RightController):
    """Takes the data position to be the batch that comes next: it is the one after."""

    clause = KILL
    ahead = 0

    def restore(self, directory: Path) -> None:
        super().restore(directory)
        self.ahead = 1

    def next_records(self) -> np.ndarray:
        return self.sampler.batch(self.step + self.ahead)


class SnapshotIsLate(RightController):
    """Writes what the state is when the thread gets to it."""

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
    """Writes its generator with pickle, in a file that does not look like it."""

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
    """Saves the weights that it was made with."""

    clause = "checkpoints-contain-the-state"
    needs_own_reference = True

    @functools.cached_property
    def beginning(self) -> dict[str, Any]:
        return super().state()

    def state(self) -> dict[str, Any]:
        return self.beginning


class SavesAnAverageForNobody(RightController):
    """Saves an average of the weights, and starts another one after a resume."""

    clause = "restore-reads-each-file"
    told = "save writes files that restore never reads: average.npy."
    needs_own_reference = True

    def save(self, directory: Path) -> None:
        super().save(directory)
        np.save(directory / "average.npy", self.weights)


class SavingChangesWeights(RightController):
    """Rounds the weights for the checkpoint, and trains on with those."""

    clause = "schedule-does-not-change-training"
    needs_own_reference = True

    def save(self, directory: Path) -> None:
        self.weights = np.round(self.weights, 3)
        super().save(directory)

    snapshot = None  # type: ignore[assignment]


class SavesOtherThanItRestores(RightController):
    """Restores the momentum with the other sign."""

    clause = "save-after-restore-is-identical"

    def take(self, state: Mapping[str, Any]) -> None:
        super().take(state)
        self.momentum = -self.momentum


class LeavesThreads(RightController):
    """Starts a thread for each save, which waits for ever."""

    clause = NOTHING_BEHIND
    needs_own_reference = True

    def save(self, directory: Path) -> None:
        super().save(directory)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class LeavesAProcess(RightController):
    """Starts a server for its data, and does not stop it."""

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
    """Takes what there is, and goes on without the rest."""

    clause = "restore-rejects-damage"

    def restore(self, directory: Path) -> None:
        try:
            super().restore(directory)
        except (OSError, ValueError):
            self.step = 0


class NamesFilesOfAnother(RightController):
    """Tells of tensors in a file that it does not write any more."""

    clause = "tensors-match-their-files"

    def tensors(self) -> list[TensorInfo]:
        return [TensorInfo("weights", (3,), "float64", "weights.npy")]


class NamesOldTensors(RightController):
    """Returns the tensors of its first answer for ever."""

    clause = "state-tensors-match-the-state"

    def state_tensors(self) -> dict[str, Any]:
        self.named = getattr(self, "named", None) or {"model.weights": self.weights.copy()}
        return self.named


class StartsAfresh(RightController):
    """Takes nothing over from the other trial."""

    clause = "start-from-loads-weights"

    def start_from(self, directory: Path) -> None:
        read_json(directory)


class CountsTheOtherTrialsBatches(RightController):
    """Counts on from where the other trial was."""

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
    """What it registers for loading returns None."""

    clause = "load-checkpoint-returns-the-model"
    framework = {"load_checkpoint": "framework_state:load_nothing"}


def load_nothing(path: str) -> None:
    """Look, and return nothing."""
    read_json(Path(path))


class PicklesIntoAnArray(RightController):
    """Writes a pickle as numbers."""

    clause = "checkpoints-contain-no-pickle"
    needs_own_reference = True

    def save(self, directory: Path) -> None:
        super().save(directory)
        data = np.frombuffer(pickle.dumps(self.noise), dtype=np.uint8)
        np.savez(directory / "generator.npz", data=data)


class LoadsTheSameModel(RightController):
    """Loads a model that was not trained."""

    clause = "load-checkpoint-returns-the-model"
    framework = {"load_checkpoint": "framework_state:load_zeros"}


def load_zeros(path: str, tags: tuple[str, ...] = ()) -> list[float]:
    return [0.0] * len(read_json(Path(path))["weights"])


class ShufflesTheFirstEpochOnly(RightController):
    """Goes on with the order of the first epoch, whichever it is."""

    clause = "exact-resume-in-later-epoch"
    framework = {"several_workers": False}
    suite = {"declined": {"several-workers": "it trains on one"}}

    def next_records(self) -> np.ndarray:
        if not hasattr(self, "began"):
            self.began = self.step // self.sampler.batches_per_epoch
        return self.sampler.batch(self.step - self.began * self.sampler.batches_per_epoch)


class WritesItsSnapshotLate(SteppingController):
    """Counts batches that were trained after the snapshot."""

    clause = SNAPSHOT

    def snapshot(self, directory: Path) -> Callable[[], None]:
        state = self.state()

        def write() -> None:
            write_text(directory / STATE_FILE, json.dumps({**state, "step": self.step}))

        return write
