"""Trial classes for Determined train after ``detcore migrate``."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from source_tree import ROOT
from toy_command import Detcore

from detcore.errors import InvalidCheckpointError
from detcore_keras import load_model_from_checkpoint_path, load_weights_from_checkpoint_path

MODEL_DEF = '''\
"""A typical trial for Determined."""

import logging
from typing import List

import determined as det
import numpy as np
import tensorflow as tf
from determined.keras import (
    InputData,  # return type of a loader
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

# In the style of the releases 0.12 to 0.26: a Sequence with augmented images, the private Keras,
# a decaying learning rate; and a GAN with a custom training step.
IMAGES = """\
import os
import pathlib
import pickle
import signal

import determined as det
import numpy as np
from determined import keras
from tensorflow.keras.losses import categorical_crossentropy
from tensorflow.keras.models import Sequential
from tensorflow.keras.optimizers import RMSprop
from tensorflow.python.keras import callbacks, layers
from tensorflow.python.keras.preprocessing.image import ImageDataGenerator
from tensorflow.python.keras.utils.data_utils import Sequence, get_file
from tensorflow.python.keras.utils.np_utils import to_categorical

try:
    from keras.datasets.cifar import load_batch
except ImportError:
    from tensorflow.python.keras.datasets.cifar import load_batch


class Kill(callbacks.Callback):
    def __init__(self, batches, folder):
        super().__init__()
        self.batches, self.folder = batches, pathlib.Path(folder)

    def on_train_batch_end(self, batch, logs=None):
        marker = self.folder / f"killed-{self.model.optimizer.iterations.numpy()}"
        if marker.name in self.batches and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class ImagesTrial(keras.TFKerasTrial):
    def __init__(self, context: det.keras.TFKerasTrialContext) -> None:
        self.context = context
        self.folder = context.get_data_config()["folder"]

    def build_model(self) -> Sequential:
        model = Sequential()
        model.add(layers.Input(shape=(32, 32, 3)))
        model.add(layers.Conv2D(4, (3, 3)))
        model.add(layers.Activation("relu"))
        model.add(layers.Dropout(0.3))
        model.add(layers.Flatten())
        model.add(layers.Dense(10, activation="softmax"))
        model = self.context.wrap_model(model)
        optimizer = self.context.wrap_optimizer(
            RMSprop(lr=self.context.get_hparam("lr"), decay=self.context.get_hparam("decay"))
        )
        model.compile(optimizer, categorical_crossentropy, ["accuracy"])
        return model

    def keras_callbacks(self):
        return [Kill(self.context.get_data_config()["kill"], self.folder)]

    def read(self, name):
        path = get_file(name, origin=f"file://{self.folder}/{name}", cache_dir=self.folder)
        images, labels = load_batch(path)
        return images.transpose(0, 2, 3, 1) / 255.0, to_categorical(labels, 10)

    def build_training_data_loader(self) -> Sequence:
        flow = ImageDataGenerator(width_shift_range=0.1, horizontal_flip=True).flow(
            *self.read("train"), batch_size=self.context.get_per_slot_batch_size(), shuffle=False
        )
        return keras.KerasDataAdapter(flow, workers=0)

    def build_validation_data_loader(self) -> keras.InputData:
        return self.read("test")
"""
GAN = """\
import numpy as np
import tensorflow as tf
from determined.keras import InputData, TFKerasTrial, TFKerasTrialContext
from tensorflow.python.keras.layers.core import Dense
from tensorflow.python.keras.optimizer_v2 import adam


class Gan(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.maker = tf.keras.Sequential([Dense(8, activation="relu"), Dense(4)])
        self.judge = tf.keras.Sequential([Dense(8, activation="relu"), Dense(1)])

    def compile(self, maker_optimizer, judge_optimizer):
        super().compile()
        self.maker_optimizer, self.judge_optimizer = maker_optimizer, judge_optimizer

    def call(self, inputs, training=None):
        return self.judge(inputs)

    def losses_of(self, real):
        entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)
        made = self.judge(self.maker(tf.random.normal([8, 3])))
        truth = self.judge(real)
        judged = entropy(tf.ones_like(truth), truth) + entropy(tf.zeros_like(made), made)
        return entropy(tf.ones_like(made), made), judged

    def train_step(self, real):
        with tf.GradientTape() as maker_tape, tf.GradientTape() as judge_tape:
            maker_loss, judge_loss = self.losses_of(real)
        for tape, loss, part, optimizer in (
            (maker_tape, maker_loss, self.maker, self.maker_optimizer),
            (judge_tape, judge_loss, self.judge, self.judge_optimizer),
        ):
            gradients = tape.gradient(loss, part.trainable_variables)
            optimizer.apply_gradients(zip(gradients, part.trainable_variables))
        return {"maker_loss": maker_loss, "judge_loss": judge_loss}

    def test_step(self, real):
        maker_loss, judge_loss = self.losses_of(real)
        return {"maker_loss": maker_loss, "judge_loss": judge_loss}


class GanTrial(TFKerasTrial):
    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context

    def build_model(self):
        model = self.context.wrap_model(Gan())
        optimizers = [self.context.wrap_optimizer(adam.Adam(lr=1e-3, decay=0.1)) for _ in range(2)]
        model.compile(*optimizers)
        return model

    def dataset(self, seed) -> InputData:
        records = np.random.default_rng(seed).normal(size=(64, 4)).astype("float32")
        dataset = self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(records))
        return dataset.shuffle(64).batch(self.context.get_per_slot_batch_size())

    def build_training_data_loader(self) -> InputData:
        return self.dataset(0)

    def build_validation_data_loader(self) -> InputData:
        return self.dataset(1)
"""

# A native script, in the style of 0.12: the configuration in Python, and arrays in a Sequence.
IRIS = """\
import argparse
import os
import pathlib
import signal

import determined as det
import numpy as np
import tensorflow as tf
from determined import experimental
from determined.experimental import keras
from determined.keras import InMemorySequence


class Kill(tf.keras.callbacks.Callback):
    def __init__(self, batches, folder):
        super().__init__()
        self.batches, self.folder = batches, pathlib.Path(folder)

    def on_train_batch_end(self, batch, logs=None):
        marker = self.folder / f"killed-{self.model.optimizer.iterations.numpy()}"
        if marker.name in self.batches and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def read_flowers(seed):
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 3, 48)
    sizes = rng.normal(size=(48, 4)) + kinds[:, None]
    return sizes.astype("float32"), tf.keras.utils.to_categorical(kinds, 3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="cluster")
    args = parser.parse_args()
    config = {
        "hyperparameters": {
            "global_batch_size": det.Constant(value=8),
            "lr": det.Log(-3.0, -1.0),
            "units": det.Categorical([8, 16]),
        },
        "searcher": {"name": "single", "metric": "val_acc", "max_steps": 1},
    }
    context = keras.init(
        config, mode=experimental.Mode(args.mode), context_dir=str(pathlib.Path.cwd())
    )
    x, y = read_flowers(0)
    data = InMemorySequence(data=x, labels=y, batch_size=context.get_per_slot_batch_size())
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(8, activation="relu", input_shape=(4,)),
            tf.keras.layers.Dropout(0.2),
            tf.keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model = context.wrap_model(model)
    optimizer = tf.keras.optimizers.RMSprop(lr=context.get_hparam("lr"), decay=0.01)
    model.compile(optimizer, "categorical_crossentropy", ["accuracy"])
    settings = context.get_data_config()
    model.fit_generator(
        generator=data,
        validation_data=read_flowers(1),
        epochs=1,
        callbacks=[Kill(settings.get("kill", []), settings.get("folder", "."))],
    )
"""

# A trial in the style of 0.13: text, with the preprocessing of the early Keras.
TEXTS = """\
import os
import pathlib
import signal

import numpy as np
from determined.keras import InMemorySequence, TFKerasTrial, TFKerasTrialContext
from tensorflow.python import keras
from tensorflow.python.keras.preprocessing import sequence


class Kill(keras.callbacks.Callback):
    def __init__(self, batches, folder):
        super().__init__()
        self.batches, self.folder = batches, pathlib.Path(folder)

    def on_train_batch_end(self, batch, logs=None):
        marker = self.folder / f"killed-{self.model.optimizer.iterations.numpy()}"
        if marker.name in self.batches and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class TextsTrial(TFKerasTrial):
    def __init__(self, context: TFKerasTrialContext):
        self.context = context

    def build_model(self):
        model = keras.Sequential()
        model.add(keras.layers.Embedding(50, 8))
        model.add(keras.layers.Bidirectional(keras.layers.LSTM(4)))
        model.add(keras.layers.Dropout(0.5))
        model.add(keras.layers.Dense(1, activation="sigmoid"))
        model = self.context.wrap_model(model)
        model.compile(
            self.context.wrap_optimizer(keras.optimizers.Adam(lr=self.context.get_hparam("lr"))),
            loss="binary_crossentropy",
            metrics=["accuracy"],
        )
        return model

    def keras_callbacks(self):
        settings = self.context.get_data_config()
        return [Kill(settings["kill"], settings["folder"])]

    def read_reviews(self, seed):
        rng = np.random.default_rng(seed)
        words = [rng.integers(1, 50, rng.integers(3, 20)).tolist() for _ in range(48)]
        return InMemorySequence(
            sequence.pad_sequences(words, maxlen=12),
            np.array([sum(review) % 2 for review in words]),
            self.context.get_per_slot_batch_size(),
        )

    def build_training_data_loader(self):
        return self.read_reviews(0)

    def build_validation_data_loader(self):
        return self.read_reviews(1)
"""
KILLS = ["killed-1", "killed-6", "killed-11"]


def write_cifar(path: Path, seed: int) -> None:
    """Write a file in CIFAR-10's format."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 255, (48, 3072), dtype=np.uint8)
    path.write_bytes(pickle.dumps({b"data": data, b"labels": rng.integers(0, 10, 48).tolist()}))


def train_migrated(
    detcore: Detcore, target: Path, code: str, metric: str, **data: Any
) -> tuple[dict[str, Any], Path]:
    """Migrate a trial and train 12 batches. Return its record and its latest checkpoint."""
    target.mkdir()
    (target / "model_def.py").write_text(code)
    trial_class = f"{code.partition('Trial(')[0].rpartition(' ')[2]}Trial"
    is_script = "__main__" in code
    experiment = {
        "entrypoint": "python3 model_def.py" if is_script else f"model_def:{trial_class}",
        "hyperparameters": {"global_batch_size": 8, "lr": 0.01, "decay": 0.1},
        "searcher": {"name": "single", "metric": metric, "max_length": {"batches": 12}},
        "min_checkpoint_period": {"batches": 4},
        "data": data,
        "reproducibility": {"experiment_seed": 7},
        "max_restarts": 4,
    }
    (target / "const.yaml").write_text(json.dumps(experiment))
    assert detcore("migrate", target).code == 0
    finished = detcore("run", target / "const.yaml", target, "--json", timeout_s=240)
    assert finished.code == 0, finished.stderr
    (trial,) = finished.summary["trials"]
    return trial, detcore.home / "checkpoints" / trial["latest_checkpoint"]


def train_plain_and_killed(tmp_path: Path, code: str, kills: list[str] = KILLS) -> Path:
    """Train without and with kills, compare the states, and return the last checkpoint."""
    results = []
    with Detcore(tmp_path) as detcore:
        for name in ("plain", "killed"):
            data = {"folder": str(tmp_path), "kill": kills if name == "killed" else []}
            _, checkpoint = train_migrated(detcore, tmp_path / name, code, "val_loss", **data)
            states = sorted(checkpoint.glob("*.npz"))
            results.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in states])
    assert all((tmp_path / kill).exists() for kill in kills)
    assert results[0]
    assert results[0] == results[1]
    return checkpoint


def test_migrated_images_trial_resumes_and_loads(tmp_path: Path) -> None:
    write_cifar(tmp_path / "train", 0)
    write_cifar(tmp_path / "test", 1)
    checkpoint = train_plain_and_killed(tmp_path, IMAGES)
    model = load_model_from_checkpoint_path(checkpoint)
    assert model.predict(np.zeros((1, 32, 32, 3)), verbose=0).shape == (1, 10)


@pytest.mark.soak
def test_migrated_text_trial_resumes_and_loads(tmp_path: Path) -> None:
    model = load_model_from_checkpoint_path(train_plain_and_killed(tmp_path, TEXTS))
    assert model.predict(np.zeros((1, 12)), verbose=0).shape == (1, 1)


@pytest.mark.parametrize("kills", [["killed-6"], pytest.param(KILLS, marks=pytest.mark.soak)])
def test_migrated_script_resumes_and_loads(tmp_path: Path, kills: list[str]) -> None:
    checkpoint = train_plain_and_killed(tmp_path, IRIS, kills)
    with pytest.raises(InvalidCheckpointError, match="is the checkpoint of a script"):
        load_model_from_checkpoint_path(checkpoint)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [tf.keras.Input((4,)), layers.Dense(8), layers.Dropout(0.2), layers.Dense(3)]
    )
    load_weights_from_checkpoint_path(checkpoint, model)
    bias = np.load(checkpoint / "weights.npz")
    assert any(np.array_equal(model.weights[1], bias[name]) for name in bias.files)


@pytest.mark.soak
def test_migrated_gan_trains(tmp_path: Path) -> None:
    with Detcore(tmp_path) as detcore:
        trial, _ = train_migrated(detcore, tmp_path / "gan", GAN, "val_judge_loss")
    assert trial["state"] == "COMPLETED"


def test_recorded_names_match_installed_keras() -> None:
    spec = importlib.util.spec_from_file_location("tool", ROOT / "tools/record_keras_names.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.main([]) == 0


def test_migrated_trial_trains(tmp_path: Path) -> None:
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
