"""Preprocessing layers inside the model resume exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fakes import FakeClock, SmallTrial, make_context, seed_everything
from tensorflow_names import keras

from detcore_keras import load_weights_from_checkpoint_path
from detcore_keras.keras_controller import KerasController

layers = keras.layers
SENTENCES = np.array(["the cat sat", "a dog ran", "the bird flew", "no one here"] * 13)[:, None]
COLORS = np.array(["red", "blue", "green", "red"] * 13)[:, None]
NUMBERS = np.array([3, 5, 7, 9] * 13)[:, None]
REALS = np.random.default_rng(0).normal(size=(52, 3)).astype("float32")
LABELS = np.array([0, 1, 2, 1] * 13)


def adapted(layer: Any, x: np.ndarray) -> Any:
    layer.adapt(x)
    return layer


def one_hot(kind: Any, **options: Any) -> Any:
    return kind(output_mode="one_hot", **options)


CASES: dict[str, tuple[np.ndarray, Callable[[], Any]]] = {
    "text": (
        SENTENCES,
        lambda: adapted(
            layers.TextVectorization(20, output_mode="tf_idf", pad_to_max_tokens=True), SENTENCES
        ),
    ),
    "words": (COLORS, lambda: one_hot(layers.StringLookup, vocabulary=["red", "blue", "green"])),
    "adapted words": (COLORS, lambda: adapted(one_hot(layers.StringLookup), COLORS)),
    "adapted integers": (NUMBERS, lambda: adapted(one_hot(layers.IntegerLookup), NUMBERS)),
    "hashing": (COLORS, lambda: one_hot(layers.Hashing, num_bins=8)),
    "normalization": (REALS, lambda: adapted(layers.Normalization(), REALS)),
    "discretization": (
        REALS,
        lambda: adapted(layers.Discretization(num_bins=4, output_mode="multi_hot"), REALS),
    ),
}


class Preprocessing(SmallTrial):
    case = ""

    def build_model(self) -> Any:
        x, make_layer = CASES[self.case]
        inputs = keras.Input(x.shape[1:], dtype="string" if x.dtype.kind == "U" else x.dtype.name)
        # Keras 3 accepts no integers in Dropout.
        hidden = layers.Dense(8)(make_layer()(inputs))
        outputs = layers.Dense(3)(layers.Dropout(0.2)(hidden))
        model = self.context.wrap_model(keras.Model(inputs, outputs))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss)
        return model

    def build_training_data_loader(self) -> Any:
        return CASES[self.case][0], LABELS

    def build_validation_data_loader(self) -> Any:
        return CASES[self.case][0], LABELS


def train(
    tmp_path: Path, case: str, *, save_to: Path | None = None, resume: int = 0
) -> tuple[KerasController, FakeClock]:
    seed_everything()
    context = make_context(tmp_path)
    controller = KerasController(type("Trial", (Preprocessing,), {"case": case})(context), context)
    if resume:
        controller.restore(tmp_path / "saved" / f"step-{resume}")
    clock = FakeClock(
        controller, until=12, unit=2, validate_every=4, save_every=4 if save_to else 0,
        directory=save_to, start=resume,
    )  # fmt: skip
    controller.run(clock)
    controller.close()
    return controller, clock


@pytest.mark.parametrize(
    "case",
    [case if case == "text" else pytest.param(case, marks=pytest.mark.soak) for case in CASES],
)
def test_preprocessing_layer_resumes_exactly(tmp_path: Path, case: str) -> None:
    uninterrupted, clock = train(tmp_path, case, save_to=tmp_path / "saved")
    for step in (4, 8):
        resumed, resumed_clock = train(tmp_path, case, resume=step)
        assert resumed_clock.batches == clock.batches[step:]
        assert resumed_clock.validations == [v for v in clock.validations if v[0] > step]
    context = make_context(tmp_path)
    other = type("Trial", (Preprocessing,), {"case": case})(context).build_model()
    load_weights_from_checkpoint_path(tmp_path / "saved" / "step-12", other)
    x = CASES[case][0][:8]
    predicted = [np.asarray(m(keras.ops.convert_to_tensor(x) if hasattr(keras, "ops") else x))
                 for m in (uninterrupted._model, resumed._model, other)]  # fmt: skip
    np.testing.assert_array_equal(predicted[0], predicted[1])
    np.testing.assert_array_equal(predicted[0], predicted[2])
