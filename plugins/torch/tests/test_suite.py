"""PyTorch fulfils the contract of a framework plugin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from _lab import line_data
from safetensors.numpy import load_file

from detcore_testing import FrameworkSuite


@pytest.mark.long(together="suite")
class TestTorch(FrameworkSuite):
    framework = "torch"
    model_dir = Path(__file__).parent / "model"
    entrypoint = "model_def:FullTrial"
    worker_entrypoint = "model_def:LineTrial"
    hyperparameters = {"global_batch_size": 8, "learning_rate": 0.05}
    broken_entrypoint = "model_def:BrokenTrial"
    stop_entrypoint = "model_def:StoppingTrial"
    invalid_hyperparameters = {"learning_rate": -1.0}
    changed_hyperparameters = {"learning_rate": 0.02}
    modules = ("torch", "safetensors")
    batches_per_epoch = 6
    num_validation_records = 21
    batch_counter = "batches"
    callback_kinds = (
        *("train_begin", "epoch_begin", "batch_end", "epoch_end", "checkpoint"),
        *("validation_begin", "validation_end", "train_end"),
    )

    def read_state(self, checkpoint: Path) -> Mapping[str, np.ndarray]:
        result = {}
        for path in sorted(checkpoint.glob("*.safetensors")):
            result |= {f"{path.name}/{name}": value for name, value in load_file(path).items()}
        for name in ("optimizer.json", "torch.json", "worker.json"):
            document = json.loads((checkpoint / name).read_text())
            result[name] = np.frombuffer(json.dumps(document, sort_keys=True).encode(), np.uint8)
        result["batches"] = np.asarray(document["batches"])
        return result

    def compute_validation(self, checkpoint: Path) -> Mapping[str, float]:
        state = load_file(checkpoint / "model.safetensors")
        x, y = (tensor.numpy() for tensor in line_data(21).tensors)
        x = x @ state["0.weight"].T + state["0.bias"]
        scale = state["1.weight"] / np.sqrt(state["1.running_var"] + 1e-5)
        x = np.maximum((x - state["1.running_mean"]) * scale + state["1.bias"], 0)
        predicted = x @ state["4.weight"].T + state["4.bias"]
        return {"val_loss": float(np.square(predicted - y).mean())}

    def callback_events(self, journal: Path) -> Sequence[str]:
        return journal.read_text().split()
