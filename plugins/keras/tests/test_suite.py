"""The Keras plugin passes the framework plugin suite."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from detcore_testing import FrameworkSuite


@pytest.mark.long(together="suite")
class TestKeras(FrameworkSuite):
    framework = "keras"
    model_dir = Path(__file__).parent / "suite_model"
    entrypoint = "suite_def:LineTrial"
    worker_entrypoint = "suite_def:SteadyTrial"
    broken_entrypoint = "suite_def:BrokenTrial"
    stop_entrypoint = "suite_def:StoppingTrial"
    hyperparameters = {"global_batch_size": 8, "learning_rate": 0.01}
    invalid_hyperparameters = {"learning_rate": -1.0}
    changed_hyperparameters = {"learning_rate": 0.003}
    batches_per_epoch = 6
    num_validation_records = 50
    callback_kinds = (
        *("train_begin", "epoch_begin", "batch_end", "epoch_end", "checkpoint"),
        *("validation_begin", "validation_end", "train_end"),
    )
    worker_tolerance = 1e-5

    def read_state(self, checkpoint: Path) -> Mapping[str, np.ndarray]:
        record = json.loads((checkpoint / "variables.json").read_text())
        state = {}
        for number, row in enumerate(record["variables"]):
            # Sums of metrics are not needed, because each training unit resets them.
            if row["group"] != "metrics":
                with np.load(checkpoint / row["file"], allow_pickle=False) as arrays:
                    state[f"{number}: {row['group']}: {row['name']}"] = arrays[row["key"]]
        return state

    def callback_events(self, journal: Path) -> Sequence[str]:
        return journal.read_text().split()
