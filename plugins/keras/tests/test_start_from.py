"""Start from another trial's checkpoint: copied state and fresh state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fakes import (
    FakeClock,
    SmallTrial,
    assert_same,
    fingerprint,
    make_context,
    records,
    seed_everything,
)
from tensorflow_names import KERAS_MAJOR, keras, tf

from detcore.errors import InvalidCheckpointError
from detcore_keras.keras_controller import KerasController

VARIANTS: dict[str, dict[str, Any]] = {
    "functional": {},
    "subclassed": {"model_kind": "subclassed"},
    "eager": {"compile_options": {"run_eagerly": True}},
    "dataset": {"data_kind": "tf.data"},
}


def controller_of(tmp_path: Path, **variant: Any) -> KerasController:
    seed_everything()
    context = make_context(tmp_path)
    kind = type("Trial", (SmallTrial,), variant)
    return KerasController(kind(context), context)


def train(controller: KerasController, until: int, save_to: Path | None = None) -> FakeClock:
    clock = FakeClock(controller, until=until, save_every=until, directory=save_to, unit=1)
    if save_to is None:
        clock.save_every = 0
    controller.run(clock)
    controller.close()
    return clock


def iterations(controller: KerasController) -> int:
    return int(np.asarray(controller._model.optimizer.iterations))


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS)
def variant(request: pytest.FixtureRequest) -> dict[str, Any]:
    options: dict[str, Any] = request.param
    return options


def test_start_from_copies_weights_and_optimizer(tmp_path: Path, variant: dict[str, Any]) -> None:
    source = controller_of(tmp_path, **variant)
    train(source, 9, tmp_path / "source")
    started = controller_of(tmp_path, **variant)
    started.start_from(tmp_path / "source" / "step-9")
    assert_same(fingerprint(started), fingerprint(source))
    assert iterations(started) == 9
    train(started, 5)
    assert iterations(started) == 14
    with pytest.raises(AssertionError):
        assert_same(fingerprint(started), fingerprint(source))


def test_repeated_start_from_trains_the_same(tmp_path: Path, variant: dict[str, Any]) -> None:
    train(controller_of(tmp_path, **variant), 9, tmp_path / "source")
    folder = tmp_path / "source" / "step-9"
    runs = []
    for validates in (False, True):
        controller = controller_of(tmp_path, **variant)
        controller.start_from(folder)
        if validates:
            controller.validate()
        runs.append((controller, train(controller, 10)))
    assert_same(fingerprint(runs[0][0]), fingerprint(runs[1][0]))
    assert runs[0][1].batches == runs[1][1].batches


class Scaled(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Keeps its rate in a variable, for callbacks to change."""

    def __init__(self, rate: float) -> None:
        self.rate = tf.Variable(rate)

    def __call__(self, step: Any) -> Any:
        return self.rate / (1.0 + tf.cast(step, tf.float32))


def new_rate(name: str, rate: float) -> Any:
    """Return an optimizer whose rate is in a variable or in a schedule."""
    optimizers = keras.optimizers
    if name == "schedule":
        return optimizers.SGD(optimizers.schedules.ExponentialDecay(rate, 4, 0.5))
    if name == "own schedule":
        return optimizers.SGD(Scaled(rate))
    if name.startswith("scaled "):
        return LossScaleOptimizer(new_rate(name.removeprefix("scaled "), rate))
    return optimizers.legacy.Adam(rate) if name == "legacy" else getattr(optimizers, name)(rate)


LossScaleOptimizer = (
    keras.optimizers if KERAS_MAJOR == 3 else keras.mixed_precision
).LossScaleOptimizer
RATES = ["Adam", "schedule", "own schedule", "scaled Adam"]
if KERAS_MAJOR == 2:
    RATES += ["legacy", "scaled legacy"]


@pytest.mark.parametrize("name", RATES)
def test_start_from_uses_new_learning_rate(tmp_path: Path, name: str) -> None:
    """A rate of 0 trains nothing, although the source was trained with another rate."""
    before, after = ({"compile_options": {"optimizer": new_rate(name, r)}} for r in (0.1, 0.0))
    train(controller_of(tmp_path, **before), 9, tmp_path / "source")
    started = controller_of(tmp_path, **after)
    started.start_from(tmp_path / "source" / "step-9")
    weights = trained_weights(started)
    train(started, 3)
    assert iterations(started) == 12
    assert all(map(np.array_equal, weights, trained_weights(started)))


def trained_weights(controller: KerasController) -> list[np.ndarray]:
    return [variable.numpy().copy() for variable in controller._model.trainable_variables]


@pytest.mark.parametrize("names", [("SGD", "schedule"), ("schedule", "SGD")])
def test_start_from_may_change_rate_to_schedule(tmp_path: Path, names: tuple[str, str]) -> None:
    before, after = ({"compile_options": {"optimizer": new_rate(name, 0.1)}} for name in names)
    train(controller_of(tmp_path, **before), 9, tmp_path / "source")
    started = controller_of(tmp_path, **after)
    started.start_from(tmp_path / "source" / "step-9")
    train(started, 3)
    assert iterations(started) == 12


class Fixed(SmallTrial):
    """Has no dropout, so only the data determines the losses."""

    def build_model(self) -> Any:
        model = self.context.wrap_model(
            keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        )
        model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy")
        return model

    def build_training_data_loader(self) -> Any:
        dataset = self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(records()))
        return dataset.shuffle(52, seed=5).batch(self.context.get_per_slot_batch_size())


def test_start_from_begins_data_at_first_batch(tmp_path: Path) -> None:
    """With a learning rate of 0, the losses identify the batches."""

    def losses(folder: Path | None) -> list[float]:
        seed_everything()
        context = make_context(tmp_path)
        controller = KerasController(Fixed(context), context)
        if folder is not None:
            controller.start_from(folder)
        clock = train(controller, 4, tmp_path / "source" if folder is None else None)
        return [float(metrics["loss"]) for metrics in clock.batches]

    first = losses(None)
    assert losses(tmp_path / "source" / "step-4") == first
    assert len(set(first)) == 4


def test_start_from_begins_with_fresh_generators(tmp_path: Path) -> None:
    """Dropout draws the same numbers as in a trial without a source."""
    zero = {"compile_options": {"optimizer": keras.optimizers.SGD(0.0)}}
    first = train(source := controller_of(tmp_path, **zero), 9, tmp_path / "source")
    del source
    zero = {"compile_options": {"optimizer": keras.optimizers.SGD(0.0)}}
    started = controller_of(tmp_path, **zero)
    started.start_from(tmp_path / "source" / "step-9")
    again = train(started, 9)
    # The moving averages of batch normalization do not affect training.
    assert [m["loss"] for m in again.batches] == [m["loss"] for m in first.batches]


def test_start_from_rejects_other_models(tmp_path: Path) -> None:
    train(controller_of(tmp_path), 3, tmp_path / "source")
    other = controller_of(tmp_path, compile_options={"optimizer": keras.optimizers.SGD(0.1)})
    before = fingerprint(other)
    with pytest.raises(InvalidCheckpointError, match="does not fit this model"):
        other.start_from(tmp_path / "source" / "step-3")
    assert_same(fingerprint(other)[: len(before)], before)


def test_start_from_rejects_other_directories(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(InvalidCheckpointError, match="is not a checkpoint of a TFKerasTrial"):
        controller_of(tmp_path).start_from(tmp_path)
