"""Keras trials created for debugging, and their checkpoints."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import detcore_keras
from detcore.client import Checkpoint
from detcore.errors import InvalidCheckpointError
from detcore_replay import create_trial_instance

MODEL_DEF = """
import numpy as np
import tensorflow as tf
from detcore_keras import TFKerasTrial

X = np.random.default_rng(1).normal(size=(24, 6)).astype("float32")

class Net(TFKerasTrial):
    def __init__(self, context):
        self.context = context

    def build_model(self):
        keras = tf.keras
        width = self.context.get_hparam("width")
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(width)])
        model = self.context.wrap_model(model)
        model.compile(self.context.wrap_optimizer(keras.optimizers.Adam(0.1)), "mse")
        return model

    def build_training_data_loader(self):
        data = tf.data.Dataset.from_tensor_slices((X, X[:, :2]))
        return self.context.wrap_dataset(data).batch(self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return X, X[:, :2]
"""
X = np.random.default_rng(2).normal(size=(4, 6)).astype("float32")
HPARAMS = {"width": 2, "global_batch_size": 8}


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "net_def.py").write_text(MODEL_DEF)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "home"))
    yield importlib.import_module("net_def").Net
    sys.modules.pop("net_def")


def test_hand_trained_model_is_saved_and_loaded(net: Any, tmp_path: Path) -> None:
    first: Any = create_trial_instance(net, tmp_path / "kept", hparams=HPARAMS)
    model = first.build_model()
    assert first.build_model() is model
    fresh = model.predict(X, verbose=0)
    model.fit(first.build_training_data_loader(), epochs=3, shuffle=False, verbose=0)
    trained = model.predict(X, verbose=0)
    assert not np.array_equal(fresh, trained)
    folder = first.context.checkpoints.save(steps_completed=9)
    assert folder.parent == tmp_path / "kept"
    before = first.context.checkpoints.validate()
    first.context.checkpoints.close()

    for tags in (None, ["serve"]):
        loaded = Checkpoint.load_from_path(folder, tags)
        assert np.array_equal(loaded.predict(X, verbose=0), trained)

    second: Any = create_trial_instance(net, tmp_path / "kept", hparams=HPARAMS)
    assert np.array_equal(second.build_model().predict(X, verbose=0), trained)
    assert second.context.checkpoints.restore() == folder  # also the optimizer's state
    assert second.context.checkpoints.validate() == before
    second.context.checkpoints.close()

    third: Any = create_trial_instance(net, tmp_path / "kept", hparams={**HPARAMS, "width": 3})
    with pytest.raises(InvalidCheckpointError, match="kernel"):
        third.build_model()
    empty: Any = create_trial_instance(net, tmp_path / "other", hparams=HPARAMS)
    assert not np.array_equal(empty.build_model().predict(X, verbose=0), trained)
    weights = detcore_keras.load_weights_from_checkpoint_path(folder, empty.build_model())
    assert np.array_equal(weights.predict(X, verbose=0), trained)
