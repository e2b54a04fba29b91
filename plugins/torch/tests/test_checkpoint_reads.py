"""A restore reads all content of a checkpoint."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from _killed_scripts import MANIFESTS, SCRIPTS, Script, Signal
from _lab import Lab, LineTrial
from _reads import ReadRecorder

from detcore_torch import PyTorchCallback


class Counter(PyTorchCallback):
    def __init__(self) -> None:
        self.batches = 0

    def on_training_workload_end(self, avg_metrics: object, batch_metrics: object) -> None:
        self.batches += 1

    def state_dict(self) -> dict[str, int]:
        return {"batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.batches = state_dict["batches"]


class CountingTrial(LineTrial):
    def __init__(self, context: object) -> None:
        super().__init__(context)  # type: ignore[arg-type]  # as detcore passes it
        scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.context.wrap_lr_scheduler(scheduler)

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return {"counter": Counter()}


def test_trial_reads_its_whole_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Lab(CountingTrial).train(3).save(tmp_path / "checkpoint")
    recorder = ReadRecorder(tmp_path / "reads")
    recorder.install(monkeypatch)
    Lab(CountingTrial, steps_completed=3).restore(checkpoint)
    assert recorder.find_unread(checkpoint) == set()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("library", "case"),
    [
        ("trainer", "early_stopping"),
        pytest.param("trainer", "callbacks", marks=pytest.mark.soak),
        pytest.param("lightning", "attributes", marks=pytest.mark.soak),
        pytest.param("accelerate", "finetune", marks=pytest.mark.soak),
    ],
)
def test_library_reads_its_whole_checkpoint(tmp_path: Path, library: str, case: str) -> None:
    recorder = ReadRecorder(tmp_path / "reads")
    run = Script(SCRIPTS / f"{library}_cases.py", tmp_path / "run", [f"--case={case}"])
    run.interrupt(Signal(5, signal.SIGTERM))  # saves the last step
    checkpoints = run.folder.glob(MANIFESTS)
    newest = max(checkpoints, key=lambda path: path.stat().st_mtime_ns).parent
    run.interrupt(recorder)
    assert recorder.find_unread(newest) == set()
