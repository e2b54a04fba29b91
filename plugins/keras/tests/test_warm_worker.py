"""A Keras trial in a worker that was forked after the import of TensorFlow."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from warm_trials import Trials, finish

from detcore.launch import LocalLauncher

MODEL = """
import json, os
import numpy as np
import tensorflow as tf
from detcore_keras import TFKerasTrial, TFKerasTrialContext

unseeded = float(tf.random.uniform([]))  # before the trial is seeded


class Trial(TFKerasTrial):
    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context

    def build_model(self):
        model = self.context.wrap_model(tf.keras.Sequential([
            tf.keras.Input((8,)),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dropout(0.3),
            tf.keras.layers.Dense(1),
        ]))
        model.compile(tf.keras.optimizers.Adam(0.01), "mse")
        self.model = model
        return model

    def build_training_data_loader(self):
        x = np.random.default_rng(0).random((96, 8), dtype=np.float32)
        return x, x.sum(axis=1, keepdims=True)

    def build_validation_data_loader(self):
        x, y = self.build_training_data_loader()
        facts = {"parent": os.getppid(), "unseeded": unseeded,
                 "blas": float((x @ x.T @ x).sum())}
        with open(self.context.get_hparam("facts"), "w") as file:
            json.dump(facts, file)
        return x, y
"""
CONFIG: dict[str, Any] = {
    "name": "warm",
    "entrypoint": "model_def:Trial",
    "hyperparameters": {"global_batch_size": 16},
    "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": 24}},
    "scheduling_unit": 4,
}


def weights(home: Path) -> dict[str, bytes]:
    """Return the array files of the newest checkpoint, by name."""
    newest = max((home / "checkpoints").glob("*/manifest.json"), key=os.path.getmtime).parent
    files = {
        str(path.relative_to(newest)): path.read_bytes()
        for path in sorted(newest.rglob("*"))
        if path.suffix in (".npz", ".h5", ".weights", ".keras")
    }
    assert files, sorted(newest.rglob("*"))
    return files


@pytest.mark.cold
def test_forked_worker_trains_bit_identically(tmp_path: Path) -> None:
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    (model_dir / "model_def.py").write_text(MODEL)
    trials = Trials(tmp_path / "home", model_dir, CONFIG)
    facts = tmp_path / "facts.json"
    launcher = LocalLauncher(fork_frameworks=["keras"], notice=pytest.fail)
    cold: list[dict[str, Any]] = []
    warm: list[dict[str, Any]] = []
    try:
        deadline = time.monotonic() + 200
        while len(warm) < 2 and time.monotonic() < deadline:
            group = trials.start(launcher, global_batch_size=16, facts=str(facts))
            assert finish(group) == 0, trials.output
            result = json.loads(facts.read_text())
            result["weights"] = weights(trials.home)
            (cold if result["parent"] == os.getpid() else warm).append(result)
    finally:
        launcher.close()
        trials.close()
    assert cold, "the first trial does not wait for the process that imports"
    assert len(warm) == 2
    for warm_result in warm:
        assert warm_result["weights"] == cold[0]["weights"]
        assert warm_result["blas"] == cold[0]["blas"]
    # Unseeded numbers differ between forked workers.
    assert warm[0]["unseeded"] != warm[1]["unseeded"]
