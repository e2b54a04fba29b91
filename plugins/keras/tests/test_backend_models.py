"""Models, steps and settings of every kind resume exactly on the back end of this process."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from _fakes import (
    DATA,
    MODELS,
    FakeClock,
    OneWorker,
    SmallTrial,
    assert_same,
    fingerprint,
    functional,
    make_context,
    records,
    seed_everything,
)
from resume_checks import check_resumes, run_trial

from detcore.errors import (
    InvalidCheckpointError,
    InvalidDataTypeError,
    InvalidExperimentError,
    InvalidModelError,
    PeerLostError,
)
from detcore.types import GradientSettings
from detcore_keras import load_weights_from_checkpoint_path
from detcore_keras.distributed.workers import Workers
from detcore_keras.frameworks import backend, keras
from detcore_keras.keras_controller import KerasController

is_tensorflow = backend.name == "tensorflow"


class Reader(keras.callbacks.Callback):  # type: ignore[misc]
    """Reads and changes the model during an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.sums.append(float(np.sum(self.model.get_weights()[0])))
        if batch == 2:
            bias = self.model.layers[-1].bias
            bias.assign(bias + 0.5)


class GraphStep(keras.Model):  # type: ignore[misc]
    """A step in the signature of TensorFlow, which accumulates a second metric."""

    def train_step(self, data: Any) -> Any:
        return {**super().train_step(data), "twice": 2.0 * self.metrics[0].result()}


class StatelessStep(keras.Model):  # type: ignore[misc]
    """The same step in the signature of JAX."""

    def train_step(self, state: Any, data: Any) -> Any:
        logs, state = super().train_step(state, data)
        return {**logs, "twice": 2.0 * logs["loss"]}, state


class TorchStep(keras.Model):  # type: ignore[misc]
    """The same step in the signature of PyTorch."""

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        return {**logs, "twice": 2.0 * logs["loss"]}


STEPS: dict[str, type] = {"tensorflow": GraphStep, "jax": StatelessStep, "torch": TorchStep}


def with_class(kind: type) -> Callable[[], Any]:
    """Return a function that builds the functional model as an instance of a class."""

    def build() -> Any:
        model = functional()
        return kind(model.inputs, model.outputs)

    return build


class CountingLayer(keras.layers.Layer):  # type: ignore[misc]
    """Keeps state that is not in variables, as a step that Python runs can."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.history: list[int] = []
        self.mean = keras.ops.zeros((6,))
        self.generator = np.random.default_rng(5)

    def call(self, x: Any, training: Any = None) -> Any:
        if training and not isinstance(x, getattr(keras, "KerasTensor", ())):
            self.calls = (self.calls + 1) % 4
            self.history.append(self.calls)
            self.mean = 0.9 * self.mean + 0.1 * keras.ops.mean(x, axis=0)
            x = x * (1 + 0.1 * self.generator.uniform()) + self.mean
        return x * (1 + 0.1 * sum(self.history[-2:]))


def counting() -> Any:
    return keras.Sequential([keras.Input((6,)), CountingLayer(), keras.layers.Dense(3)])


class ScaledLoss(keras.losses.Loss):  # type: ignore[misc]
    """A loss with a variable, which `Anneal` changes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = keras.Variable(1.0, trainable=False)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        loss = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        return self.scale * loss


class Anneal(keras.callbacks.Callback):  # type: ignore[misc]
    """Changes a loss from the second epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch:
            self.model.loss.scale.assign(1 / (1 + epoch))


def two_inputs() -> Any:
    first, second = keras.Input((4,), name="first"), keras.Input((2,), name="second")
    joined = keras.layers.Concatenate()([first, second])
    hidden = keras.layers.Dropout(0.2)(keras.layers.Dense(6, activation="relu")(joined))
    outputs = {"label": keras.layers.Dense(3)(hidden), "size": keras.layers.Dense(1)(hidden)}
    return keras.Model({"first": first, "second": second}, outputs)


def two_targets(context: Any, training: bool) -> Any:
    x, y = records()
    targets = {"label": y, "size": x[:, :1]}
    return {"first": x[:, :4], "second": x[:, 4:]}, targets


@pytest.mark.parametrize("data_kind", ["arrays", "weighted", "augmented", "adapter"])
def test_data_kind_resumes_exactly(tmp_path: Path, data_kind: str) -> None:
    check_resumes(tmp_path, False, data_kind=data_kind)


@pytest.mark.parametrize("model_kind", ["sequential", "subclassed"])
def test_lazily_built_model_resumes_exactly(tmp_path: Path, model_kind: str) -> None:
    check_resumes(tmp_path, False, model_kind=model_kind)


def test_eager_model_resumes_exactly(tmp_path: Path) -> None:
    check_resumes(tmp_path, False, compile_options={"run_eagerly": True})


@pytest.mark.skipif(backend.keras_major == 2, reason="the layer uses keras.ops")
def test_state_outside_variables_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "counting", counting)
    check_resumes(tmp_path, False, model_kind="counting", compile_options={"run_eagerly": True})


@pytest.mark.skipif(backend.name != "torch", reason="the parts are PyTorch's")
def test_modules_and_second_optimizer_of_torch_resume_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    class TwoOptimizers(keras.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            logs = super().train_step(data)
            weights = self.layers[-1].trainable_weights
            self.count.add_(1)
            with torch.no_grad():
                self.second.learning_rate.assign(0.01 * (1 + int(self.count) % 3))
                self.second.apply([weight.value.grad for weight in weights], weights)
            return logs

    def build() -> Any:
        normalize = keras.layers.TorchModuleWrapper(torch.nn.BatchNorm1d(6), output_shape=(None, 6))
        inputs = keras.Input((6,))
        model = TwoOptimizers(inputs, keras.layers.Dense(3)(normalize(inputs)))
        model.second = keras.optimizers.Adam(0.02)
        model.register_buffer("count", torch.zeros((), dtype=torch.int64))
        return model

    monkeypatch.setitem(MODELS, "torch", build)
    check_resumes(tmp_path, False, model_kind="torch")
    trained, _ = run_trial(tmp_path, until=6, save_to=tmp_path / "kept", model_kind="torch")
    loaded = load_weights_from_checkpoint_path(tmp_path / "kept" / "step-6", build())
    x, _ = records()
    assert_same([trained._model.predict(x, verbose=0)], [loaded.predict(x, verbose=0)])


@pytest.mark.skipif(backend.name == "torch", reason="Keras cannot train stateful layers on PyTorch")
def test_model_of_fixed_batch_size_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> Any:
        inputs = keras.Input(batch_shape=(13, 6))
        states = keras.layers.LSTM(4, stateful=True)(keras.layers.Reshape((3, 2))(inputs))
        return keras.Model(inputs, keras.layers.Dense(3)(states))

    monkeypatch.setitem(MODELS, "stateful", build)
    check_resumes(tmp_path, False, model_kind="stateful", batch_size=13)


@pytest.mark.skipif(backend.keras_major == 2, reason="the loss uses keras.Variable")
def test_variable_that_a_compiled_step_reads_once_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On JAX. The other back ends read the present value."""
    variant = {"compile_options": {"loss": ScaledLoss()}, "callbacks": [Anneal()]}
    run_trial(tmp_path, until=14, save_to=tmp_path / "saved", **variant)
    assert ("reads loss 0.scale, which training has changed" in caplog.text) == (
        backend.name == "jax"
    )


def test_own_train_step_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "own step", with_class(STEPS[backend.name]))
    check_resumes(tmp_path, False, model_kind="own step")
    _, clock = run_trial(tmp_path, until=3, model_kind="own step")
    assert clock.batches[0]["twice"] == pytest.approx(2 * clock.batches[0]["loss"])


def test_several_inputs_and_outputs_resume_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "two", two_inputs)
    monkeypatch.setitem(DATA, "two", two_targets)
    label = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"loss": {"label": label, "size": "mse"}, "metrics": {"label": ["accuracy"]}}
    check_resumes(tmp_path, False, model_kind="two", data_kind="two", compile_options=options)


@pytest.fixture
def mixed_precision(request: pytest.FixtureRequest) -> Iterator[None]:
    keras.mixed_precision.set_global_policy(request.param)
    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("mixed_precision", ["mixed_float16", "mixed_bfloat16"], indirect=True)
@pytest.mark.usefixtures("mixed_precision")
def test_mixed_precision_resumes_exactly(tmp_path: Path) -> None:
    check_resumes(tmp_path, False)


def test_callbacks_see_and_change_the_model(tmp_path: Path) -> None:
    one, other = Reader(), Reader()
    uninterrupted, _ = run_trial(tmp_path, until=14, save_to=tmp_path / "saved", callbacks=[one])
    resumed, _ = run_trial(
        tmp_path, until=14, resume=tmp_path / "saved" / "step-6", step=6, callbacks=[other]
    )
    assert other.sums == one.sums
    assert len({round(value, 6) for value in one.sums}) == 14
    assert [a.tobytes() for a in fingerprint(uninterrupted)] == [
        a.tobytes() for a in fingerprint(resumed)
    ]


def test_class_weights_equal_sample_weights(tmp_path: Path) -> None:
    factors = {0: 0.5, 1: 2.0}

    def weighted(context: Any, training: bool) -> Any:
        x, y = records()
        return x, y, np.array([factors.get(int(label), 1.0) for label in y], "float32")

    ends = []
    for data, options in ((DATA["arrays"], {"class_weight": factors}), (weighted, {})):
        seed_everything()
        context = make_context(tmp_path)
        context.configure_fit(**options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(DATA, "arrays", data)
            controller = KerasController(SmallTrial(context), context)
            controller.run(FakeClock(controller, until=5))
        ends.append(fingerprint(controller))
    for one, other in zip(*ends, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def without_dropout() -> Any:
    """Return a model without random numbers."""
    layers = [keras.layers.Dense(7), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((6,)), *layers])


def test_training_equals_fit_of_keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend.name == "torch":
        # Keras reads data with PyTorch's loaders, which draw from the generator of Dropout.
        monkeypatch.setitem(MODELS, "functional", without_dropout)
    seed_everything()
    context = make_context(tmp_path)
    context.configure_fit(shuffle=False)
    controller = KerasController(SmallTrial(context), context)
    clock = FakeClock(controller, until=14, unit=7, validate_every=7)
    controller.run(clock)

    seed_everything()
    model = SmallTrial(make_context(tmp_path)).build_model()
    history = model.fit(
        *records(), batch_size=8, epochs=2, shuffle=False, verbose=0, validation_data=records()
    ).history
    for one, other in zip(controller._model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [metrics["loss"] for _, metrics in clock.training] == history["loss"]
    assert [m["val_accuracy"] for _, m in clock.validations] == history["val_accuracy"]


class Hook(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


def convolutional() -> Any:
    layers = [keras.layers.Reshape((6, 1)), keras.layers.Conv1D(4, 3), keras.layers.Flatten()]
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])


@pytest.mark.parametrize(
    ("model", "slow_backends"),
    [
        pytest.param(functional, {"torch"}, marks=pytest.mark.each_version),
        (convolutional, {"torch", "jax"}),
    ],
    ids=["dense", "convolutions"],
)
def test_many_batches_equal_batch_by_batch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    model: Callable[[], Any],
    slow_backends: set[str],
) -> None:
    monkeypatch.setitem(MODELS, "tried", model)
    caplog.set_level(logging.INFO, "detcore.keras")
    fast, clock = run_trial(tmp_path, until=24, model_kind="tried")
    assert ("batch by batch" in caplog.text) == (backend.name in slow_backends)
    single, single_clock = run_trial(tmp_path, until=24, model_kind="tried", callbacks=[Hook()])
    assert_same(fingerprint(fast), fingerprint(single))
    assert clock.batches == single_clock.batches
    assert clock.training == single_clock.training


class WrongStep(keras.Model):  # type: ignore[misc]
    """A step in the signature of another back end."""

    def train_step(self, state: Any, data: Any, more: Any) -> Any:
        raise AssertionError


def test_train_step_of_wrong_signature_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "wrong", with_class(WrongStep))
    with pytest.raises(InvalidModelError, match=rf"cannot be called on the '{backend.name}' back"):
        run_trial(tmp_path, until=3, model_kind="wrong")


def test_checkpoint_of_another_back_end_is_refused(tmp_path: Path) -> None:
    uninterrupted, _ = run_trial(tmp_path, until=6, save_to=tmp_path)
    record = json.loads((tmp_path / "step-6" / "variables.json").read_text())
    record["backend"] = "other"
    (tmp_path / "step-6" / "variables.json").write_text(json.dumps(record))
    with pytest.raises(InvalidCheckpointError, match="KERAS_BACKEND=other"):
        run_trial(tmp_path, until=12, resume=tmp_path / "step-6", step=6)
    model = load_weights_from_checkpoint_path(tmp_path / "step-6", functional())
    for one, other in zip(uninterrupted._model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(is_tensorflow, reason="TensorFlow sums gradients over batches")
def test_aggregation_frequency_is_refused(tmp_path: Path) -> None:
    context = make_context(tmp_path, config={"optimizations": {"aggregation_frequency": 2}})
    with pytest.raises(InvalidExperimentError, match="gradient_accumulation_steps"):
        KerasController(SmallTrial(context), context)


def with_words(context: Any, training: bool) -> Any:
    return np.array([["red"], ["green"]] * 8), records()[1][:16]


def from_loader(context: Any, training: bool) -> Any:
    """Return an object whose class belongs to a package for data."""
    return type("DataLoader", (), {"__module__": "torch.utils.data.dataloader"})()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(
            with_words,
            f"<U5, which the '{backend.name}' back end of Keras cannot compute.*\n.*KERAS_BACKEND=",
            marks=pytest.mark.skipif(is_tensorflow, reason="TensorFlow has strings"),
        ),
        (from_loader, r"does not report its position(.*\n)*.*detcore_torch.resumable"),
    ],
)
def test_unusable_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Any, message: str
) -> None:
    monkeypatch.setitem(DATA, "unusable", data)
    with pytest.raises(InvalidDataTypeError, match=message):
        run_trial(tmp_path, until=3, data_kind="unusable")


def test_model_of_another_keras_is_refused(tmp_path: Path) -> None:
    model = type("Functional", (), {"__module__": "tf_keras.src.engine.functional"})()
    with pytest.raises(InvalidModelError, match=f"This process trains {backend}, where a model"):
        make_context(tmp_path).wrap_model(model)


class TwoRanks(OneWorker):
    """The ranks of the first of two processes, without the second."""

    size, local_rank = 2, 0

    def __init__(self, cross_size: int) -> None:
        self.cross_size = cross_size

    def broadcast(self, value: Any) -> Any:
        return value


@pytest.mark.skipif(is_tensorflow, reason="TensorFlow connects workers of several machines")
def test_workers_on_several_machines_are_refused() -> None:
    distributed: Any = TwoRanks(cross_size=2)
    with pytest.raises(InvalidExperimentError, match=r"on one\.\n.*\n?.*KERAS_BACKEND=tensorflow"):
        backend.open_collective(distributed, compress=False)


@pytest.mark.skipif(backend.name != "jax", reason="only JAX connects before its first operation")
def test_late_connection_is_refused() -> None:
    distributed: Any = TwoRanks(cross_size=1)
    keras.ops.zeros(1)
    with pytest.raises(InvalidExperimentError, match="used JAX before its workers were connected"):
        backend.open_collective(distributed, compress=False)


@pytest.mark.skipif(backend.name != "jax", reason="the other back ends sum eagerly")
def test_eager_model_of_several_workers_is_refused() -> None:
    from detcore_keras.distributed.jax_collective import JaxCollective

    collective = object.__new__(JaxCollective)  # as if two workers were connected
    collective.size = 2
    model = functional()
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(InvalidModelError, match="its 2 workers sum gradients inside a compiled"):
        backend.make_step(model, "train", collective)


def test_lost_connection_names_the_rank() -> None:
    distributed: Any = TwoRanks(cross_size=1)
    collective: Any = SimpleNamespace(failure=None)
    workers = Workers(distributed, GradientSettings(), collective)
    lost = workers.find_failure(RuntimeError("Read error: Connection reset by peer"))
    assert isinstance(lost, PeerLostError)
    assert "rank 0 lost another worker" in str(lost)
    assert workers.find_failure(RuntimeError("shapes differ")) is None


MISSING = next((name for name in ("tensorflow", "jax", "torch") if not find_spec(name)), "absent")


@pytest.mark.skipif(backend.keras_major == 2, reason="Keras 2 ignores KERAS_BACKEND")
@pytest.mark.parametrize(
    ("name", "remedy"),
    [("absent", "Set KERAS_BACKEND to one of these"), (MISSING, "pip install")],
)
def test_unusable_back_end_is_named_with_its_remedy(name: str, remedy: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", "import detcore_keras.frameworks"],
        env={"KERAS_BACKEND": name},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert finished.returncode == 1
    assert repr(name) in finished.stderr or f": {name}" in finished.stderr
    assert remedy in finished.stderr or name == "absent"
