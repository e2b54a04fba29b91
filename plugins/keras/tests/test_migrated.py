"""A trial class written for Determined, migrated by the command, trains here."""

from __future__ import annotations

from pathlib import Path

from toy_command import Detcore

MODEL_DEF = '''\
"""A trial as people wrote them."""

import logging
from typing import List

import determined as det
import numpy as np
import tensorflow as tf
from determined.keras import (
    InputData,  # what a loader returns
    TFKerasTrial,
    TFKerasTrialContext,
)


def records(seed: int) -> InputData:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(64, 4)).astype("float32")
    return x, (x.sum(axis=1) > 0).astype("int64")


class SignTrial(TFKerasTrial):
    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context
        if context.get_hparam("units") < 1:
            raise det.InvalidHP("no units")

    def build_model(self) -> tf.keras.models.Model:
        units = self.context.get_hparam("units")
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(units, activation="relu"), tf.keras.layers.Dense(2)]
        )
        model = self.context.wrap_model(model)
        optimizer = self.context.wrap_optimizer(tf.keras.optimizers.Adam(0.01))
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
        return model

    def keras_callbacks(self) -> List[tf.keras.callbacks.Callback]:
        logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
        return [det.keras.callbacks.EarlyStopping(monitor="val_loss", patience=3)]

    def build_training_data_loader(self) -> InputData:
        return records(0)

    def build_validation_data_loader(self) -> InputData:
        return records(1)
'''
EXPERIMENT = """\
name: sign
entrypoint: python3 -m determined.launch.horovod --trial model_def:SignTrial
batches_per_step: 4   # of 2020
hyperparameters:
  global_batch_size: 16
  units: 8
searcher:
  name: single
  metric: val_accuracy
  smaller_is_better: false
  max_length: {batches: 8}
environment:
  image: determinedai/environments:py-3.8
max_restarts: 0
"""


def test_a_migrated_trial_trains(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "model_def.py").write_text(MODEL_DEF)
    (folder / "const.yaml").write_text(EXPERIMENT)
    with Detcore(tmp_path) as detcore:
        migrated = detcore("migrate", folder)
        assert migrated.code == 0, migrated.stderr
        assert "0 places left to do by hand" in migrated.stderr
        assert "determined." not in (folder / "model_def.py").read_text()
        finished = detcore("run", folder / "const.yaml", folder, "--json", timeout_s=240)
        assert finished.code == 0, finished.stderr
        (trial,) = finished.summary["trials"]
        assert (trial["state"], trial["steps_completed"]) == ("COMPLETED", 8)
        assert 0 <= trial["best_validation"] <= 1
        assert detcore("migrate", "--check", folder).code == 0
