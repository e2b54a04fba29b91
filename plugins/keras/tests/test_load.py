"""Load models from detcore's checkpoints."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from _fakes import write_training_state
from tensorflow_names import keras, tf

import detcore_keras
from detcore.errors import (
    CheckpointNotFoundError,
    InvalidCheckpointError,
    InvalidExperimentError,
    InvalidModelError,
)

X = np.random.default_rng(1).normal(size=(8, 6)).astype("float32")

MODEL_DEF = """
from pathlib import Path
import tensorflow as tf
from detcore_keras import TFKerasTrial
from shapes import WIDTH
import parts.heads

keras = tf.keras

class Lazy(keras.Model):
    def __init__(self, width):
        super().__init__()
        self.first = keras.layers.Dense(width, activation="relu")
        self.drop = keras.layers.Dropout(0.5)
        self.head = parts.heads.make()
        self.steps = tf.Variable(0, trainable=False)

    def call(self, inputs, training=False):
        if training:
            self.steps.assign_add(1)
        return self.head(self.drop(self.first(inputs), training=training))

class Base(TFKerasTrial):
    def __init__(self, context):
        self.context = context

    def make(self):
        from late import EXTRA
        assert Path("names.txt").read_text() == "a b"
        width = self.context.get_hparam("width") + EXTRA
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(width), parts.heads.make()])

    def build_model(self):
        model = self.context.wrap_model(self.make())
        optimizer = keras.optimizers.Adam(self.context.get_hparam("lr"))
        optimizer = self.context.wrap_optimizer(optimizer)
        model.compile(optimizer, "mse", metrics=["mae"])
        return model

    def build_training_data_loader(self):
        raise AssertionError("loading needs no data")

    build_validation_data_loader = build_training_data_loader

class Plain(Base):
    pass

class ReturnsNothing(Base):
    def build_model(self):
        super().build_model()

class Subclassed(Base):
    def make(self):
        return Lazy(WIDTH)

class Odd(Base):
    def build_model(self):
        return "model"
"""


def write_code(folder: Path) -> None:
    (folder / "parts").mkdir(parents=True)
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "heads.py").write_text(
        "import tensorflow as tf\ndef make():\n    return tf.keras.layers.Dense(2)\n"
    )
    (folder / "shapes.py").write_text("WIDTH = 5\n")
    (folder / "late.py").write_text("EXTRA = 1\n")
    (folder / "names.txt").write_text("a b")
    (folder / "model_def.py").write_text(MODEL_DEF)


def build(kind: str) -> Any:
    """Build the same model as the code of the checkpoint, and train it a little."""
    namespace: dict[str, Any] = {}
    if kind == "Subclassed":
        source = MODEL_DEF.partition("class Base")[0]
        source = source.replace("from shapes import WIDTH\nimport parts.heads\n", "")
        source = source.replace("parts.heads.make()", "keras.layers.Dense(2)")
        exec(source, namespace)
        model = namespace["Lazy"](5)
    else:
        parts = [keras.Input((6,)), keras.layers.Dense(5), keras.layers.Dense(2)]
        model = keras.Sequential(parts)
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(X, X[:, :2], epochs=2, verbose=0)
    return model


def write_checkpoint(folder: Path, kind: str = "Plain", **changes: Any) -> Any:
    folder.mkdir(exist_ok=True)
    write_code(folder / "code")
    model = build(kind)
    spec = tf.TensorSpec((None, 6), tf.float32)
    write_training_state(model, [model.optimizer], folder, input_spec=spec)
    record = {
        "framework": "keras",
        "trial_class": f"model_def:{kind}",
        "hparams": {"width": 4, "lr": 0.5},
        "config": {"hyperparameters": {"width": {"type": "int", "minval": 1, "maxval": 9}}},
        "steps_completed": 2,
        **changes,
    }
    (folder / "trial.json").write_text(json.dumps(record))
    return model


def answers(model: Any) -> Any:
    return model.predict(X, verbose=0)


@pytest.mark.parametrize("kind", ["Plain", "ReturnsNothing", "Subclassed"])
def test_model_is_loaded_and_compiled(tmp_path: Path, kind: str) -> None:
    expected = answers(write_checkpoint(tmp_path, kind))
    model = detcore_keras.load_model_from_checkpoint_path(str(tmp_path), tags=["serve"])
    assert np.array_equal(answers(model), expected)
    assert float(keras.backend.get_value(model.optimizer.learning_rate)) == 0.5
    model.fit(X, X[:, :2], verbose=0)
    assert set(model.evaluate(X, X[:, :2], verbose=0, return_dict=True)) >= {"loss"}


def test_load_restores_the_process(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    files = sorted(tmp_path.rglob("*"))
    own_module = ModuleType("shapes")
    sys.modules["shapes"] = own_module
    importlib.invalidate_caches()  # imports of new code also do this
    before = (list(sys.path), os.getcwd(), sys.dont_write_bytecode, set(sys.path_importer_cache))
    names = set(sys.modules)
    try:
        detcore_keras.load_model_from_checkpoint_path(tmp_path)
        assert sys.modules["shapes"] is own_module
    finally:
        del sys.modules["shapes"]
    assert before == (
        list(sys.path),
        os.getcwd(),
        sys.dont_write_bytecode,
        {p for p in sys.path_importer_cache if p in before[3] or str(tmp_path) in p},
    )
    new_names = {name.partition(".")[0] for name in set(sys.modules) - names}
    assert new_names.isdisjoint({"model_def", "parts", "late", "shapes"})
    assert sorted(tmp_path.rglob("*")) == files


def test_failed_load_restores_the_process(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "code" / "late.py").write_text("raise RuntimeError('in the code')")
    before = (list(sys.path), os.getcwd())
    with pytest.raises(RuntimeError, match="in the code"):
        detcore_keras.load_model_from_checkpoint_path(tmp_path)
    assert before == (list(sys.path), os.getcwd())
    assert "model_def" not in sys.modules


def test_checkpoints_with_same_module_names_load(tmp_path: Path) -> None:
    expected = answers(write_checkpoint(tmp_path / "a"))
    write_checkpoint(tmp_path / "b", "Subclassed")
    (tmp_path / "b" / "code" / "parts" / "heads.py").write_text(
        "import tensorflow as tf\ndef make():\n    return tf.keras.layers.Dense(3)\n"
    )
    assert np.array_equal(
        answers(detcore_keras.load_model_from_checkpoint_path(tmp_path / "a")), expected
    )
    with pytest.raises(InvalidCheckpointError, match=r"saved with shape \(5, 2\), here \(5, 3\)"):
        detcore_keras.load_model_from_checkpoint_path(tmp_path / "b")


def test_loading_weights_runs_no_code(tmp_path: Path) -> None:
    for kind in ("Plain", "Subclassed"):
        folder = tmp_path / kind
        expected = answers(write_checkpoint(folder, kind))
        (folder / "code" / "model_def.py").write_text("raise AssertionError('was run')")
        model = build(kind)
        got = detcore_keras.load_weights_from_checkpoint_path(folder, model)
        assert got is model
        assert np.array_equal(answers(model), expected)


def test_lazily_built_model_is_built(tmp_path: Path) -> None:
    expected = answers(write_checkpoint(tmp_path, "Subclassed"))
    model = type(build("Subclassed"))(5)
    detcore_keras.load_weights_from_checkpoint_path(tmp_path, model)
    assert int(model.steps.numpy()) == 2
    assert np.array_equal(answers(model), expected)


def test_lazily_built_model_needs_input_spec(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "Subclassed")
    path = tmp_path / "variables.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "input_spec": None}))
    with pytest.raises(InvalidCheckpointError, match="has no specification of its inputs"):
        detcore_keras.load_model_from_checkpoint_path(tmp_path)
    wrong = {"kind": "tensor", "shape": [None], "dtype": "float32"}
    path.write_text(json.dumps({**record, "input_spec": wrong}))
    with pytest.raises(InvalidCheckpointError, match="weights of Lazy cannot be created"):
        detcore_keras.load_model_from_checkpoint_path(tmp_path)


def test_other_directories_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"the directory .*gone does not exist"):
        detcore_keras.load_model_from_checkpoint_path(tmp_path / "gone")
    (tmp_path / "readme.txt").write_text("hello")
    message = r"not a checkpoint of a TFKerasTrial.*\nIt has: readme\.txt"
    with pytest.raises(InvalidCheckpointError, match=message):
        detcore_keras.load_model_from_checkpoint_path(tmp_path)
    with pytest.raises(InvalidCheckpointError, match=message):
        detcore_keras.load_weights_from_checkpoint_path(tmp_path, build("Plain"))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"framework": "torch"}, InvalidCheckpointError, "framework 'torch'"),
        ({"trial_class": "model_def:Odd"}, InvalidModelError, "returned 'model' .str."),
        ({"trial_class": "model_def:Gone"}, InvalidExperimentError, "has no class 'Gone'"),
        ({"trial_class": "gone:Plain"}, InvalidExperimentError, "module 'gone' not found"),
    ],
)
def test_other_trials_are_rejected(
    tmp_path: Path, changes: Any, error: type[Exception], message: str
) -> None:
    write_checkpoint(tmp_path, **changes)
    with pytest.raises(error, match=message):
        detcore_keras.load_model_from_checkpoint_path(tmp_path)


def test_damaged_checkpoints_are_rejected(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "code").rename(tmp_path / "kode")
    with pytest.raises(InvalidCheckpointError, match="has no directory 'code'"):
        detcore_keras.load_model_from_checkpoint_path(tmp_path)
    (tmp_path / "trial.json").write_text('{"framework": "keras"}')
    with pytest.raises(InvalidCheckpointError, match=r"trial\.json is damaged.*trial_class"):
        detcore_keras.load_model_from_checkpoint_path(tmp_path)
    with pytest.raises(InvalidModelError, match=r"received 5 .int., not a Keras model"):
        detcore_keras.load_weights_from_checkpoint_path(tmp_path, 5)


def test_checkpoint_loads_in_another_process(tmp_path: Path) -> None:
    expected = answers(write_checkpoint(tmp_path / "saved", "Subclassed"))
    np.save(tmp_path / "x.npy", X)
    script = """
    import sys, numpy as np, detcore_keras
    model = detcore_keras.load_model_from_checkpoint_path(sys.argv[1])
    np.save(sys.argv[3], model.predict(np.load(sys.argv[2]), verbose=0))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    arguments = [tmp_path / "saved", tmp_path / "x.npy", tmp_path / "y.npy"]
    subprocess.run([*command, *map(str, arguments)], check=True, cwd=tmp_path)
    assert np.array_equal(np.load(tmp_path / "y.npy"), expected)
