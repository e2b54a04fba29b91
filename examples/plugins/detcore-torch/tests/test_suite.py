"""The suite that every framework plugin of detcore runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from detcore_testing import FrameworkSuite


class TestTorch(FrameworkSuite):
    framework = "torch"
    model_dir = Path(__file__).parent / "model"
    entrypoint = "model_def:FullTrial"
    worker_entrypoint = "model_def:LineTrial"
    hyperparameters = {"global_batch_size": 8, "learning_rate": 0.05}
    broken_entrypoint = "model_def:BrokenTrial"
    invalid_hyperparameters = {"learning_rate": -1.0}
    modules = ("torch", "safetensors")
    batches_per_epoch = 6

    def read_state(self, checkpoint: Path) -> Mapping[str, np.ndarray]:
        found = {}
        for path in sorted(checkpoint.glob("*.safetensors")):
            found |= {f"{path.name}/{name}": value for name, value in load_file(path).items()}
        for name in ("torch.json", "worker.json"):
            text = json.dumps(json.loads((checkpoint / name).read_text()), sort_keys=True)
            found[name] = np.frombuffer(text.encode(), np.uint8)
        return found

    def callback_events(self, journal: Path) -> Sequence[str]:
        return journal.read_text().split()
