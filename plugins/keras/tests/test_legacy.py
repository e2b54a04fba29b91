"""Checkpoints of Determined 0.12 to 0.17, in layouts that the tests write."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from _fakes import FakeClock, SmallTrial, make_context
from tensorflow_names import KERAS_MAJOR, keras, tf

import detcore_keras
from detcore.errors import InvalidCheckpointError, PluginNotFoundError
from detcore_keras.keras_controller import KerasController

layers = keras.layers
WEIGHTS = "determined-keras-model-weights"

MODEL_DEF = """
import numpy as np
import tensorflow as tf
from determined import keras as det_keras
from determined.keras import InputData, TFKerasTrial, TFKerasTrialContext
from determined.keras.callbacks import TFKerasTensorBoard
import determined as det

class OldTrial(TFKerasTrial):
    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context
        assert det_keras.TFKerasTrial is TFKerasTrial

    def build_model(self):
        layers = tf.keras.layers
        model = tf.keras.Sequential([
            tf.keras.Input((8, 3)),
            layers.LSTM(4),
            layers.BatchNormalization(),
            layers.Dense(self.context.get_hparam("width"), activation="relu"),
            tf.keras.Sequential([tf.keras.Input((5,)), layers.Dense(2)]),
        ])
        model = self.context.wrap_model(model)
        optimizer = self.context.wrap_optimizer(tf.keras.optimizers.SGD(0.25))
        model.compile(optimizer, "mse")
        return model

    def build_training_data_loader(self) -> InputData:
        raise AssertionError

    def build_validation_data_loader(self) -> InputData:
        raise AssertionError
"""

SHAPES = {
    "layer_with_weights-0/cell/kernel": (3, 16),
    "layer_with_weights-0/cell/recurrent_kernel": (4, 16),
    "layer_with_weights-0/cell/bias": (16,),
    "layer_with_weights-1/gamma": (4,),
    "layer_with_weights-1/beta": (4,),
    "layer_with_weights-1/moving_mean": (4,),
    "layer_with_weights-1/moving_variance": (4,),
    "layer_with_weights-2/kernel": (4, 5),
    "layer_with_weights-2/bias": (5,),
    "layer_with_weights-3/layer_with_weights-0/kernel": (5, 2),
    "layer_with_weights-3/layer_with_weights-0/bias": (2,),
}
RNG = np.random.default_rng(2)
VALUES = {key: RNG.uniform(0.5, 1, size=s).astype("float32") for key, s in SHAPES.items()}


def write_object_graph(folder: Path, values: dict[str, np.ndarray], prefix: str = WEIGHTS) -> None:
    """Write the format of Keras 2's `save_weights`: objects by their names in their parents."""
    root = tf.train.Checkpoint()
    for key, value in values.items():
        parent = root
        *names, last = key.split("/")
        for name in names:
            if not hasattr(parent, name):
                setattr(parent, name, tf.train.Checkpoint())
            parent = getattr(parent, name)
        setattr(parent, last, tf.Variable(value))
    # Unlike `Checkpoint.save`, Keras writes no `save_counter`.
    root.write(str(folder / prefix))


def describe_trial(folder: Path, *, old: bool = False, **changes: Any) -> None:
    config = {
        "entrypoint": "model_def:OldTrial",
        "hyperparameters": {"width": {"type": "const", "val": 5}, "global_batch_size": 8},
        "reproducibility": {"experiment_seed": 1642793013},
        "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": 1}},
    }
    hparams = {"width": 5, "global_batch_size": 8}
    record = {"experiment_config": config, "hparams": hparams}
    if old:
        record.update({"framework": "tensorflow-2.4.4", "format": "saved_weights"})
    else:
        record.update({"trial_type": "TFKerasTrial", "trial_cls_spec": "model_def:OldTrial"})
    record.update(changes)
    name = "metadata.json" if old else "load_data.json"
    (folder / name).write_text(json.dumps(record))
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "model_def.py").write_text(MODEL_DEF)
    for pickle_name in ("determined-callbacks.v1.pkl", "rng_state.pkl", "workload_sequencer.pkl"):
        # Unpickling this would end the process.
        (folder / pickle_name).write_bytes(b"cos\n_exit\n(I77\ntR.")


def my_model(width: int = 5, units: int = 4) -> Any:
    return keras.Sequential(
        [
            keras.Input((8, 3)),
            layers.LSTM(units),
            layers.BatchNormalization(),
            layers.Dense(width, activation="relu"),
            keras.Sequential([keras.Input((width,)), layers.Dense(2)]),
        ]
    )


def assert_has_values(model: Any) -> None:
    weights = [weight.numpy() for weight in model.weights]
    assert [w.shape for w in weights] == list(SHAPES.values())
    for weight, (key, value) in zip(weights, VALUES.items(), strict=True):
        assert np.array_equal(weight, value), key


@pytest.mark.parametrize("old", [False, True])
def test_model_of_determined_0_17_is_loaded(tmp_path: Path, old: bool) -> None:
    write_object_graph(tmp_path, VALUES)
    describe_trial(tmp_path, old=old)
    before = {name for name in sys.modules if name.partition(".")[0] == "determined"}
    model = detcore_keras.load_model_from_checkpoint_path(tmp_path)
    assert_has_values(model)
    assert float(keras.backend.get_value(model.optimizer.learning_rate)) == 0.25
    assert {name for name in sys.modules if name.partition(".")[0] == "determined"} == before
    assert "model_def" not in sys.modules


def test_weights_load_without_description(tmp_path: Path) -> None:
    write_object_graph(tmp_path, VALUES)
    model = my_model()
    detcore_keras.load_weights_from_checkpoint_path(tmp_path, model)
    assert_has_values(model)
    with pytest.raises(
        InvalidCheckpointError, match=r"the trial class of the checkpoint .* is unknown"
    ):
        detcore_keras.load_model_from_checkpoint_path(tmp_path)


class Subclassed(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, 3)
        self.blocks = [layers.Dense(3), layers.EinsumDense("abc,cd->abd", (None, 4))]
        self.table = layers.Embedding(9, 6)

    def call(self, inputs: Any) -> Any:
        hidden = self.table(inputs)
        hidden = self.attention(hidden, hidden)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


SUBCLASSED = {
    "table/embeddings": (9, 6),
    "attention/_query_dense/kernel": (6, 2, 3),
    "attention/_query_dense/bias": (2, 3),
    "attention/_key_dense/kernel": (6, 2, 3),
    "attention/_key_dense/bias": (2, 3),
    "attention/_value_dense/kernel": (6, 2, 3),
    "attention/_value_dense/bias": (2, 3),
    "attention/_output_dense/kernel": (2, 3, 6),
    "attention/_output_dense/bias": (6,),
    "blocks/0/kernel": (6, 3),
    "blocks/0/bias": (3,),
    "blocks/1/kernel": (3, 4),
}


def test_subclassed_model_weights_are_loaded(tmp_path: Path) -> None:
    values = {key: RNG.normal(size=shape).astype("float32") for key, shape in SUBCLASSED.items()}
    write_object_graph(tmp_path, values)
    model = Subclassed()
    with pytest.raises(
        InvalidCheckpointError, match="first call of Subclassed creates its weights"
    ):
        detcore_keras.load_weights_from_checkpoint_path(tmp_path, model)
    model(np.zeros((1, 7), "int32"))
    detcore_keras.load_weights_from_checkpoint_path(tmp_path, model)
    assert np.array_equal(model.table.embeddings.numpy(), values["table/embeddings"])
    assert np.array_equal(model.blocks[1].kernel.numpy(), values["blocks/1/kernel"])
    assert sorted(w.numpy().sum() for w in model.weights) == sorted(
        value.sum() for value in values.values()
    )


@pytest.mark.skipif(KERAS_MAJOR == 3, reason="Keras 3 cannot write TensorFlow's weight format")
@pytest.mark.parametrize("legacy_optimizer", [False, True])
def test_weights_written_by_keras_2_are_loaded(tmp_path: Path, legacy_optimizer: bool) -> None:
    model = my_model()
    kind = keras.optimizers.legacy.Adam if legacy_optimizer else keras.optimizers.Adam
    model.compile(kind(), "mse")
    model.fit(np.ones((4, 8, 3), "float32"), np.ones((4, 2), "float32"), verbose=0)
    model.save_weights(str(tmp_path / WEIGHTS), save_format="tf")
    with h5py.File(tmp_path / "determined-keras-optimizer-weights.h5", "w") as file:
        group = file.create_group("optimizer-0").create_group("optimizer_weights")
        group.attrs["weight_names"] = [b"Adam/iter:0"]
        group["Adam/iter:0"] = np.int64(1)
    describe_trial(tmp_path)
    loaded = detcore_keras.load_model_from_checkpoint_path(tmp_path)
    for weight, loaded_weight in zip(model.weights, loaded.weights, strict=True):
        assert np.array_equal(weight.numpy(), loaded_weight.numpy())


def test_misfitting_weights_change_nothing(tmp_path: Path) -> None:
    values = {key: value for key, value in VALUES.items() if "moving_mean" not in key}
    values["layer_with_weights-2/bias"] = np.zeros(6, "float32")
    write_object_graph(tmp_path, values)
    model = my_model()
    before = [w.numpy() for w in model.weights]
    with pytest.raises(InvalidCheckpointError) as raised:
        detcore_keras.load_weights_from_checkpoint_path(tmp_path, model)
    text = str(raised.value)
    assert "2 weight(s) of the model do not match the checkpoint" in text
    assert "moving_mean" in text
    assert "(4,): not found" in text
    assert "saved as float32 (6,), but the model has float32 (5,)" in text
    assert "layer_with_weights-1/gamma" in text
    assert ('pip install "tensorflow==2.15.*"' in text) == (KERAS_MAJOR == 3)
    for weight, value in zip(model.weights, before, strict=True):
        assert np.array_equal(weight.numpy(), value)


def test_damaged_weights_are_rejected(tmp_path: Path) -> None:
    (tmp_path / f"{WEIGHTS}.index").write_bytes(b"no index")
    with pytest.raises(InvalidCheckpointError, match="cannot be read as a TensorFlow checkpoint"):
        detcore_keras.load_weights_from_checkpoint_path(tmp_path, my_model())


# -- HDF5 -----------------------------------------------------------------------------------------

H5_ORDER = ["gamma", "beta", "moving_mean", "moving_variance"]


def write_h5(path: Path, *, whole_model: bool, values: dict[str, np.ndarray]) -> None:
    """Write the layout of Keras 2's `model.save(..., save_format="h5")`."""
    by_layer: dict[str, dict[str, np.ndarray]] = {"dropout": {}}
    for key, value in values.items():
        layer, _, weight_name = key.partition("/")
        by_layer.setdefault(layer, {})[f"{layer}/{weight_name}:0"] = value
    with h5py.File(path, "w") as file:
        group = file.create_group("model_weights") if whole_model else file
        names = [name.encode() for name in by_layer]
        group.attrs["layer_names0"], group.attrs["layer_names1"] = names[:2], names[2:]
        if not whole_model:
            del group.attrs["layer_names0"], group.attrs["layer_names1"]
            group.attrs["layer_names"] = names
        for layer, weights in by_layer.items():
            part = group.create_group(layer)
            part.attrs["weight_names"] = [name.encode() for name in weights]
            for name, value in weights.items():
                part[name] = value
        file.attrs["model_config"] = b"not read"


@pytest.mark.parametrize(
    ("name", "whole_model"),
    [("determined-keras-model.h5", True), ("determined-keras-model", True), (None, False)],
)
def test_hdf5_models_are_loaded(tmp_path: Path, name: str | None, whole_model: bool) -> None:
    path = tmp_path / (name or "determined-keras-model.h5")
    write_h5(path, whole_model=whole_model, values=VALUES)
    describe_trial(tmp_path, old=True, format="h5")
    assert_has_values(detcore_keras.load_model_from_checkpoint_path(tmp_path))


@pytest.mark.skipif(KERAS_MAJOR == 3, reason="Keras 3 writes another HDF5 layout")
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_hdf5_written_by_keras_2_is_loaded(tmp_path: Path) -> None:
    model = my_model()
    for weight, value in zip(model.weights, VALUES.values(), strict=True):
        weight.assign(value)
    model.compile("sgd", "mse")
    model.save(str(tmp_path / "determined-keras-model.h5"), save_format="h5")
    other = my_model()
    detcore_keras.load_weights_from_checkpoint_path(tmp_path, other)
    assert_has_values(other)


def test_misfitting_hdf5_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "determined-keras-model.h5"
    write_h5(path, whole_model=True, values=VALUES)
    with pytest.raises(
        InvalidCheckpointError, match=r"saved with shape \(4, 5\), but the model has"
    ):
        detcore_keras.load_weights_from_checkpoint_path(tmp_path, my_model(width=6))
    fewer = dict(list(VALUES.items())[:-1])
    write_h5(path, whole_model=True, values=fewer)
    with pytest.raises(InvalidCheckpointError, match=r"10 weight\(s\) saved .*, 11 in the model"):
        detcore_keras.load_weights_from_checkpoint_path(tmp_path, my_model())
    path.write_bytes(b"not HDF5")
    with pytest.raises(InvalidCheckpointError, match="cannot be read as Keras HDF5"):
        detcore_keras.load_weights_from_checkpoint_path(tmp_path, my_model())


# -- rejected checkpoints -------------------------------------------------------------------------


def test_other_trial_types_are_rejected(tmp_path: Path) -> None:
    write_object_graph(tmp_path, VALUES)
    describe_trial(tmp_path, trial_type="PyTorchTrial")
    with pytest.raises(
        InvalidCheckpointError, match="from a PyTorchTrial, not from a TFKerasTrial"
    ):
        detcore_keras.load_model_from_checkpoint_path(tmp_path)
    describe_trial(tmp_path, trial_cls_spec="python3 train.py")
    with pytest.raises(InvalidCheckpointError, match=r"its entrypoint is 'python3 train\.py'"):
        detcore_keras.load_model_from_checkpoint_path(tmp_path)
    (tmp_path / "load_data.json").write_text("{")
    with pytest.raises(InvalidCheckpointError, match=r"load_data\.json is damaged"):
        detcore_keras.load_model_from_checkpoint_path(tmp_path)


def test_missing_names_of_determined_are_reported(tmp_path: Path) -> None:
    write_object_graph(tmp_path, VALUES)
    describe_trial(tmp_path)
    code = tmp_path / "code" / "model_def.py"
    code.write_text("from determined.pytorch import PyTorchTrial\n")
    with pytest.raises(PluginNotFoundError, match=r"imports 'determined\.pytorch'"):
        detcore_keras.load_model_from_checkpoint_path(tmp_path)
    code.write_text("import determined\nprint(determined.experimental.create)\n")
    with pytest.raises(
        AttributeError, match=r"uses determined\.experimental\.create, which detcore"
    ):
        detcore_keras.load_model_from_checkpoint_path(tmp_path)


@pytest.mark.parametrize("is_hdf5", [False, True])
def test_trial_starts_from_determined_weights(tmp_path: Path, is_hdf5: bool) -> None:
    source = tmp_path / "source"
    source.mkdir()
    if is_hdf5:
        write_h5(source / "determined-keras-model.h5", whole_model=True, values=VALUES)
    else:
        write_object_graph(source, VALUES)

    class Started(SmallTrial):
        def build_model(self) -> Any:
            model = self.context.wrap_model(my_model())
            model.compile(keras.optimizers.SGD(0.1), "mse")
            return model

        def build_training_data_loader(self) -> Any:
            return np.ones((8, 8, 3), "float32"), np.ones((8, 2), "float32")

        build_validation_data_loader = build_training_data_loader

    context = make_context(tmp_path)
    controller = KerasController(Started(context), context)
    controller.start_from(source)
    assert_has_values(controller._model)
    clock = FakeClock(controller, until=3, unit=1)
    controller.run(clock)
    controller.close()
    assert clock.steps_completed == 3
    with pytest.raises(AssertionError):
        assert_has_values(controller._model)
    (source / "other").mkdir()
    with pytest.raises(InvalidCheckpointError, match="is not a checkpoint of a TFKerasTrial"):
        KerasController(Started(context), context).start_from(source / "other")
