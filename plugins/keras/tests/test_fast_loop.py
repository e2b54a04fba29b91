"""Many batches in one graph execution: its conditions, and equal results."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fakes import (
    MODELS,
    FakeClock,
    SmallTrial,
    Subclassed,
    assert_same,
    fingerprint,
    make_context,
    records,
    seed_everything,
)
from tensorflow_names import KERAS_MAJOR, keras, tf

from detcore.errors import InvalidModelError
from detcore_keras import callbacks as ours
from detcore_keras.keras_controller import KerasController
from detcore_keras.state.variables import training_variables


class Hooks(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(batch)


def run(tmp_path: Path, until: int = 12, clock: Any = None, **variant: Any) -> Any:
    seed_everything()
    context = make_context(tmp_path)
    controller = KerasController(type("Trial", (SmallTrial,), variant)(context), context)
    fake = FakeClock(controller, until=until, context=context, **(clock or {}))
    controller.run(fake)
    controller.close()
    return controller, fake


class CustomStep(Subclassed):
    """A custom train step, with a metric that Keras does not know."""

    def train_step(self, data: Any) -> Any:
        x, y = data[:2]
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = tf.reduce_mean(
                tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
            )
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss, "norm": tf.linalg.global_norm(gradients), "constant": 1.5}


def two_in_two_out() -> Any:
    inputs = {name: keras.Input((3,), name=name) for name in ("left", "right")}
    joined = keras.layers.Dropout(0.3)(keras.layers.Concatenate()(list(inputs.values())))
    return keras.Model(
        inputs,
        {
            "kind": keras.layers.Dense(3, name="kind")(joined),
            "size": keras.layers.Dense(1, name="size")(joined),
        },
    )


def regularized() -> Any:
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l1")(inputs)
    return keras.Model(inputs, keras.layers.Dense(3)(hidden))


def half_precision() -> Any:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return MODELS["functional"]()
    finally:
        keras.mixed_precision.set_global_policy("float32")


def two_kinds(self: Any) -> Any:
    x, y = records()
    sizes = x.sum(axis=1, keepdims=True)
    return {"left": x[:, :3], "right": x[:, 3:]}, {"kind": y, "size": sizes}


CROSSENTROPY = "sparse_categorical_crossentropy"
VARIANTS: dict[str, dict[str, Any]] = {
    "custom step": {"model": CustomStep, "compile_options": {"metrics": None}},
    "regularized": {"model": regularized},
    "half precision": {"model": half_precision},
    "two inputs and outputs": {
        "model": two_in_two_out,
        "build_training_data_loader": two_kinds,
        "build_validation_data_loader": two_kinds,
        "compile_options": {
            "loss": {"kind": CROSSENTROPY, "size": "mse"},
            "metrics": {"kind": ["accuracy"], "size": ["mae"]},
        },
    },
    "momentum": {
        "model": MODELS["functional"],
        "compile_options": {"optimizer": "rmsprop", "steps_per_execution": 4},
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_model_variants_equal_batch_by_batch(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    variant = dict(VARIANTS[name])
    monkeypatch.setitem(MODELS, "variant", variant.pop("model"))
    caplog.set_level(logging.INFO, "detcore.keras")
    fast, fast_clock = run(tmp_path, model_kind="variant", **variant)
    assert "batch by batch" not in caplog.text
    hooks = Hooks()
    plain, plain_clock = run(tmp_path, model_kind="variant", callbacks=[hooks], **variant)
    assert "not many batches in one call: a callback has batch-level" in caplog.text
    assert_same(fingerprint(fast), fingerprint(plain))
    assert fast_clock.batches == plain_clock.batches
    assert len(hooks.batches) == 12


def averaged(self: Any) -> dict[str, Any]:
    """Options with an optimizer that averages the weights, and several kinds of metrics."""
    optimizer = keras.optimizers.Adam(0.01, use_ema=True)
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
    return {"optimizer": optimizer, "metrics": metrics, "weighted_metrics": ["accuracy"]}


def with_step_on_instance() -> Any:
    """A model with Keras's step as an instance attribute, like a custom step."""
    model = MODELS["functional"]()
    model.train_step = model.train_step
    return model


@pytest.mark.parametrize(
    ("data_kind", "options"),
    [
        pytest.param("weighted", averaged, id="averaged"),
        pytest.param("tf.data", lambda self: {"optimizer": "rmsprop"}, id="momentum"),
    ],
)
def test_prebuilt_variables_equal_traced(
    tmp_path: Path, data_kind: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "step on instance", with_step_on_instance)
    results, traces = [], []

    def loss(labels: Any, logits: Any) -> Any:
        traces.append(kind)
        return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)

    for kind in ("functional", "step on instance"):
        compile_options = property(lambda self: {"loss": loss, **options(self)})
        controller, clock = run(
            tmp_path, 6, model_kind=kind, data_kind=data_kind, compile_options=compile_options
        )
        variables = training_variables(controller._model, controller._list_optimizers())
        names = [(item.group, item.name, item.is_generator) for item in variables]
        results.append((names, clock.batches, fingerprint(controller)))
    (ahead, ahead_batches, ahead_values), (names, batches, values) = results
    assert ahead == names
    assert ahead_batches == batches
    assert_same(ahead_values, values)
    assert traces == ["functional", "step on instance", "step on instance"]


@pytest.mark.parametrize("kind", ["train", "test"])
def test_replaced_keras_function_is_rejected(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_class = type("OwnFunction", (Subclassed,), {f"make_{kind}_function": lambda self: None})
    monkeypatch.setitem(MODELS, "own", model_class)
    with pytest.raises(InvalidModelError, match=rf"OwnFunction .*\nOverride {kind}_step instead"):
        run(tmp_path, model_kind="own")


def test_eager_models_skip_the_fast_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "detcore.keras")
    run(tmp_path, until=2, compile_options={"run_eagerly": True})
    assert caplog.text.count("run_eagerly") == 1


def test_validations_release_their_iterators(tmp_path: Path) -> None:
    """Each iterator has five TensorFlow threads, for which the process would wait at its end."""
    gc.collect()
    gc.disable()
    try:
        controller, _ = run(tmp_path, until=15, clock={"validate_every": 5}, data_kind="tf.data")
        iterators = [item for item in gc.get_objects() if isinstance(item, tf.data.Iterator)]
    finally:
        gc.enable()
    assert len(iterators) <= 2, "more iterators than those of the training data and of Keras's fit"
    assert controller._evaluation.state_dict()["passes"] == 3


def test_model_keeps_no_replaced_functions(tmp_path: Path) -> None:
    controller, _ = run(tmp_path)
    model = controller._model
    assert "make_train_function" not in vars(model)
    assert model.stop_training is False
    x, y = records()
    model.fit(x, y, batch_size=8, verbose=0)
    assert np.isfinite(model.evaluate(x, y, verbose=0)[0])


@pytest.mark.parametrize(
    ("data_kind", "last"), [("arrays", 3), ("arrays", 4), ("sequence", 3), ("sequence", 4)]
)
def test_stop_training_becomes_stop_request(tmp_path: Path, data_kind: str, last: int) -> None:
    """Covers the middle and the last batch of a unit of five batches."""

    class Stop(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == last:
                self.model.stop_training = True

    controller, clock = run(tmp_path, until=50, callbacks=[Stop()], data_kind=data_kind)
    assert clock.steps_completed == last + 1
    assert clock.interrupt_requested
    assert controller._model.stop_training is False


def test_stop_training_at_checkpoint_is_requested(tmp_path: Path) -> None:
    class Stop(ours.Callback):
        def on_checkpoint_end(self, checkpoint_dir: str) -> None:
            self.model.stop_training = True

    controller, clock = run(tmp_path, until=4, callbacks=[Stop()])
    assert not clock.interrupt_requested
    controller.save(tmp_path)
    assert clock.interrupt_requested
    assert controller._model.stop_training is False


def test_nan_loss_is_logged_and_tolerated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x, y = records()
    x[:] = np.nan
    _, clock = run(
        tmp_path,
        until=10,
        build_training_data_loader=lambda self: (x, y),
        model_kind="functional",
    )
    assert clock.steps_completed == 10
    assert "the loss is nan at batch 1; training continues" in caplog.text
    assert caplog.text.count("the loss is") == 1


def test_stand_in_function_keeps_other_calls(tmp_path: Path) -> None:
    """A callback may call `train_on_batch` or `test_on_batch` during `fit`."""

    class Extra(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            x, y = records()
            self.model.test_on_batch(x, y)
            self.model.train_on_batch(x, y)

    _, clock = run(tmp_path, until=3, callbacks=[Extra()])
    assert clock.steps_completed == 3
    assert KERAS_MAJOR in (2, 3)
