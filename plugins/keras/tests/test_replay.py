"""`detcore diverge` and `replay` on Keras trials, as users run them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_command import Detcore

MODEL = """
import keras
import numpy as np
import tensorflow as tf
from detcore_keras import TFKerasTrial


class Model(keras.Sequential):
    def train_step(self, data):
        x, y = data
        x = tf.where(tf.cast(self.optimizer.iterations, tf.int32) == 41, x * FACTOR, x)
        return super().train_step((x, y))


class Line(TFKerasTrial):
    def __init__(self, context):
        self.context = context

    def build_model(self):
        layers = [keras.layers.Dense(4), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
        model = self.context.wrap_model(Model(layers))
        optimizer = self.context.wrap_optimizer(keras.optimizers.Adam(0.01))
        model.compile(optimizer=optimizer, loss="mse")
        return model

    def build_training_data_loader(self):
        x = np.random.default_rng(3).normal(size=(200, 3)).astype("float32")
        y = x.sum(axis=1)
        x[RECORD] += 0.5
        return x, y

    def build_validation_data_loader(self):
        return self.build_training_data_loader()
"""


class Runs:
    """Trials in one DETCORE_HOME."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.detcore = Detcore(folder)
        self.base = self.train()

    def train(self, factor: str = "1.0", record: str = "5", code: int = 0, **changes: Any) -> int:
        """Train, and return the trial id."""
        settings = {
            "hyperparameters": {"global_batch_size": 8},
            "searcher__max_length": {"batches": 60},
            "scheduling_unit": 10,
            "min_validation_period": {"batches": 60},
            "min_checkpoint_period": {"batches": 30},
            "reproducibility__step_digests": 1,
            **changes,
        }
        folder = self.folder / f"model-{len(list(self.folder.glob('model-*')))}"
        folder.mkdir()
        model = MODEL.replace("FACTOR", factor).replace("RECORD", record)
        (folder / "model_def.py").write_text(model)
        result = self.detcore("run", self.detcore.config(**settings), folder, "--json")
        assert result.code == code, result.output
        self.output = result.output
        return int(result.summary["trials"][0]["trial_id"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    all_runs = Runs(tmp_path_factory.mktemp("runs"))
    with all_runs.detcore:
        yield all_runs


def test_replay_equals_recorded_run(runs: Runs) -> None:
    """The replay trains batch by batch, but the run trained many batches per graph call."""
    result = runs.detcore("replay", runs.base, "--steps", "31:60")
    assert result.code == 0, result.output
    counts = "30 steps compared, 1 with the whole state"
    assert result.stdout == f"trial {runs.base}, steps 31:60: equal ({counts})\n"
    assert "training runs batch by batch" not in runs.output


def test_diverge_names_step_and_tensor(runs: Runs) -> None:
    other = runs.train(factor="1.01")
    result = runs.detcore("diverge", runs.base, other)
    assert result.code == 1, result.output
    pattern = rf"trial {runs.base} and trial {other} differ: step 42, loss, model\.\S*kernel\n"
    assert re.search(pattern, result.stdout), result.output


@pytest.mark.soak
def test_diverge_names_changed_record(runs: Runs) -> None:
    result = runs.detcore("diverge", runs.base, runs.train(record="7"), "--no-replay", "--json")
    difference = json.loads(result.stdout)["found"]
    assert (difference["kind"], difference["tensor"]) == ("record content", None)
    assert difference["step"] <= 25  # the first epoch
