"""The controller inside one ``model.fit`` trains exactly like Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fakes import (
    MODELS,
    FakeClock,
    SmallTrial,
    assert_same,
    fingerprint,
    make_context,
    records,
    seed_everything,
)
from tensorflow_names import keras, tf

from detcore_keras.keras_controller import KerasController


class BatchHooks(keras.callbacks.Callback):  # type: ignore[misc]
    """Makes training run batch by batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append({name: float(value) for name, value in logs.items()})


def train(
    tmp_path: Path, *, until: int = 20, clock: dict[str, Any] | None = None, **variant: Any
) -> tuple[KerasController, FakeClock]:
    seed_everything()
    context = make_context(tmp_path, **variant.pop("context", {}))
    context.configure_fit(**variant.pop("fit", {}))
    kind = type("Trial", (SmallTrial,), variant)
    controller = KerasController(kind(context), context)
    fake = FakeClock(controller, until=until, context=context, **(clock or {}))
    controller.run(fake)
    controller.close()
    return controller, fake


@pytest.mark.parametrize("data_kind", ["arrays", "weighted", "tf.data"])
@pytest.mark.parametrize("model_kind", ["functional", "sequential", "subclassed"])
def test_fast_loop_equals_batch_by_batch(tmp_path: Path, data_kind: str, model_kind: str) -> None:
    fast, fast_clock = train(tmp_path, data_kind=data_kind, model_kind=model_kind)
    plain, plain_clock = train(
        tmp_path, data_kind=data_kind, model_kind=model_kind, callbacks=[BatchHooks()]
    )
    assert_same(fingerprint(fast), fingerprint(plain))
    assert fast_clock.training == plain_clock.training
    assert fast_clock.batches == plain_clock.batches
    assert [steps for steps, _ in fast_clock.training] == [5, 10, 15, 20]
    assert len(fast_clock.batches) == 20
    assert set(fast_clock.training[0][1]) == {"loss", "accuracy"}


def bare_fit(
    model_kind: str, dataset: Any, steps: int, **options: Any
) -> tuple[list[np.ndarray], Any]:
    """Train with plain Keras, after the same seeding."""
    fit_options = options.pop("fit", {})
    model = MODELS[model_kind]()
    settings = {
        "optimizer": keras.optimizers.Adam(0.01),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
        **options,
    }
    model.compile(**settings)
    recorder = BatchHooks()
    model.fit(
        dataset,
        steps_per_epoch=steps,
        verbose=0,
        shuffle=False,
        callbacks=[recorder],
        **fit_options,
    )
    variables = model.optimizer.variables
    values = [*model.get_weights(), *(variables() if callable(variables) else variables)]
    return [np.asarray(value) for value in values], recorder.seen


@pytest.mark.parametrize("model_kind", ["functional", "subclassed"])
@pytest.mark.parametrize("hooks", [False, True])
def test_training_equals_plain_keras(tmp_path: Path, model_kind: str, hooks: bool) -> None:
    ours, clock = train(
        tmp_path,
        until=15,
        data_kind="tf.data",
        model_kind=model_kind,
        callbacks=[BatchHooks()] if hooks else [],
        clock={"unit": 15},
    )
    seed_everything()
    x_y = tf.data.Dataset.from_tensor_slices(records())
    dataset = x_y.shuffle(52).batch(8)
    x_y.shuffle(52).batch(8)  # the trial also creates its validation data
    plain_values, batches = bare_fit(model_kind, dataset.repeat(), 15)
    assert_same(fingerprint(ours), plain_values)
    assert clock.batches == batches


def test_class_weight_equals_plain_keras(tmp_path: Path) -> None:
    weights = {0: 0.5, 1: 1.0, 2: 3.0}
    ours, clock = train(
        tmp_path, until=15, clock={"unit": 15}, fit={"class_weight": weights, "shuffle": False}
    )
    seed_everything()
    dataset = tf.data.Dataset.from_tensor_slices(records()).batch(8).repeat()
    plain_values, batches = bare_fit("functional", dataset, 15, fit={"class_weight": weights})
    assert_same(fingerprint(ours), plain_values)
    assert clock.batches == batches
