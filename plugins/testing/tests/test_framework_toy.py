"""The toy framework passes the framework suite."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from toy_command import TOY_PLUGIN

from detcore_testing import FrameworkSuite


class TestToyFramework(FrameworkSuite):
    framework = "toy"
    python_path = (TOY_PLUGIN,)
    model_dir = Path(__file__).parent / "model"
    entrypoint = "toy_def:LineTrial"
    worker_entrypoint = "toy_def:SteadyTrial"
    broken_entrypoint = "toy_def:BrokenTrial"
    stop_entrypoint = "toy_def:StoppingTrial"
    hyperparameters = {"global_batch_size": 8, "learning_rate": 0.05}
    invalid_hyperparameters = {"learning_rate": -1.0}
    changed_hyperparameters = {"learning_rate": 0.02}
    batches_per_epoch = 12
    declined = {"callbacks": "the toy framework has no callbacks"}
    batch_counter = "step"

    def read_state(self, checkpoint: Path) -> Mapping[str, np.ndarray]:
        state = json.loads((checkpoint / "toy.json").read_text())
        return {"weights": np.asarray(state["weights"]), "step": np.asarray(state["step"])}
