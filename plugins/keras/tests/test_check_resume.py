"""The files of Keras and TensorFlow that `detcore check-resume` compares."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detcore_replay.resume_check.tensor_files import compare_files


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_saved_models_are_compared_bit_by_bit(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])
    for name, change in (("one", 0.0), ("same", 0.0), ("other", 0.5)):
        folder = tmp_path / name
        folder.mkdir()
        model.set_weights([np.full((3, 2), 1 + change), np.zeros(2)])
        model.save_weights(folder / "model.weights.h5")
        model.save(folder / "model.keras")
        weights = tf.Variable(np.full(3, change))
        tf.train.Checkpoint(weights=weights).write(str(folder / "checkpoint"))
    equal = compare_files(tmp_path / "one", tmp_path / "same")
    assert (equal.num_files, equal.differences) == (3, ())
    different = compare_files(tmp_path / "one", tmp_path / "other").differences
    assert len(different) == 3
    names = ("checkpoint.index: weights", "model.keras: ", "model.weights.h5: ")
    for line, name in zip(different, names, strict=True):
        assert line.startswith(name)
        assert line.endswith("values differ, by up to 0.5")
