"""A trial's records name the cause of Keras's errors in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensorflow_names import keras, tf

from detcore import core
from detcore.records import Database

layers = keras.layers


@pytest.mark.parametrize(
    ("width", "label", "kind", "cause"),
    [
        (7, 0, ValueError, "is incompatible with the layer: expected"),
        (6, 10, tf.errors.InvalidArgumentError, "10 "),
    ],
)
def test_fit_error_cause_is_recorded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    label: int,
    kind: type[Exception],
    cause: str,
) -> None:
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path))
    model = keras.Sequential([keras.Input((6,)), layers.Dense(10)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    records = np.zeros((8, width), "float32"), np.full(8, label)
    with pytest.raises(kind), core.init():
        model.fit(*records, verbose=0)
    with Database.open(f"sqlite:///{tmp_path / 'detcore.db'}") as database:
        (trial,) = database.list_trials(1)
    assert cause in str(trial.error)
