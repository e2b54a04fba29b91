"""Snapshots keep the state of their moment, regardless of later training."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fakes import FakeClock, SmallTrial, make_context, seed_everything
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorflow_names import KERAS_MAJOR, keras, tf

from detcore.trial import SupportsSnapshot, SupportsTensors
from detcore_keras import callbacks
from detcore_keras.keras_controller import KerasController
from detcore_keras.state.array_files import decode_array, read_arrays
from detcore_keras.state.training_state import capture_training_state, write_array_files
from detcore_keras.state.variables import NamedVariable

ARRAYS = ("weights.npz", "optimizer.npz", "state.npz", "callbacks.npz")


# -- every kind of variable, every way to change it ------------------------------------------------


def variables() -> dict[str, Any]:
    generator = tf.random.Generator.from_seed(3)
    return {
        "dense": tf.Variable(np.linspace(0, 1, 40, dtype=np.float32).reshape(10, 4)),
        "sparse": tf.Variable(np.linspace(1, 2, 40, dtype=np.float32).reshape(10, 4)),
        "slot": tf.Variable(np.zeros((10, 4), np.float32)),
        "half": tf.Variable(tf.cast(np.linspace(0, 1, 9), tf.bfloat16)),
        "count": tf.Variable(0, dtype=tf.int64),
        "flag": tf.Variable(True),
        "text": tf.Variable(["a\0b", "ü"]),
        "complex": tf.Variable([1 + 2j, 3j]),
        "empty": tf.Variable(np.zeros((0, 3), np.float32)),
        "generator": generator.state,
    }


ROWS = tf.constant([1, 7])
DELTA = tf.ones((2, 4)) * 0.25


@tf.function(jit_compile=True)
def compiled(variable: Any) -> None:
    variable.assign(variable * 1.25 + 0.125)


@tf.function
def traced(variable: Any, slot: Any) -> None:
    for _ in tf.range(3):
        slot.assign_add(variable * 0.5)
        variable.assign_sub(slot)


def adam(v: dict[str, Any], kind: str) -> None:
    """Run in-place operations of TensorFlow's optimizers."""
    ones = tf.ones((10, 4))
    raw = tf.raw_ops
    if kind == "dense":
        raw.ResourceApplyGradientDescent(
            var=v["dense"].handle, alpha=tf.constant(0.1), delta=ones * 0.5
        )
    else:
        raw.ResourceSparseApplyAdagradV2(
            var=v["sparse"].handle,
            accum=v["slot"].handle,
            lr=tf.constant(0.1),
            epsilon=tf.constant(1.0),
            grad=DELTA,
            indices=ROWS,
        )


UPDATES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "assign": lambda v: v["dense"].assign(v["dense"] + 1.0),
    "assign of another's value": lambda v: v["dense"].assign(v["slot"].value()),
    "assign_add": lambda v: v["dense"].assign_add(tf.ones((10, 4))),
    "assign_sub": lambda v: v["slot"].assign_sub(tf.ones((10, 4)) * 0.5),
    "slice": lambda v: v["dense"][2:4].assign(DELTA),
    "gradient descent": lambda v: adam(v, "dense"),
    "sparse adagrad": lambda v: adam(v, "sparse"),
    "scatter_add": lambda v: v["sparse"].scatter_add(tf.IndexedSlices(DELTA, ROWS)),
    "scatter_update": lambda v: v["sparse"].scatter_update(tf.IndexedSlices(DELTA, ROWS)),
    "scatter into a slot": lambda v: v["slot"].scatter_sub(tf.IndexedSlices(DELTA, ROWS)),
    "dense after sparse": lambda v: v["sparse"].assign_add(tf.ones((10, 4))),
    "compiled": lambda v: compiled(v["dense"]),
    "traced": lambda v: traced(v["dense"], v["slot"]),
    "half": lambda v: v["half"].assign_add(tf.cast(tf.ones(9), tf.bfloat16)),
    "count": lambda v: v["count"].assign_add(1),
    "flag": lambda v: v["flag"].assign(tf.logical_not(v["flag"])),
    "text": lambda v: v["text"].assign(tf.strings.join([v["text"], "x"])),
    "complex": lambda v: v["complex"].assign(v["complex"] * (1 + 1j)),
    "generator": lambda v: v["generator"].assign_add(np.ones(3, np.int64)),
}
updates = st.lists(st.sampled_from(sorted(UPDATES)), max_size=6)


def values(variables_by_name: dict[str, Any]) -> dict[str, Any]:
    return {
        name: np.array(variable.numpy(), copy=True) for name, variable in variables_by_name.items()
    }


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=updates, rounds=st.lists(updates, min_size=1, max_size=3))
def test_snapshot_keeps_values_of_its_moment(
    before: list[str], rounds: list[list[str]], tmp_path: Path
) -> None:
    variables_by_name = variables()
    named_variables = [
        NamedVariable("weights", name, variable) for name, variable in variables_by_name.items()
    ]
    for name in before:
        UPDATES[name](variables_by_name)
    for after in rounds:
        expected = values(variables_by_name)
        state = capture_training_state(named_variables)
        for name in after:
            UPDATES[name](variables_by_name)
        with ThreadPoolExecutor(1) as thread:
            thread.submit(write_array_files, tmp_path, state.files).result()
        arrays = read_arrays(tmp_path / "weights.npz")
        for row in state.record["variables"]:
            name, value = row["name"], expected[row["name"]]
            read = decode_array(arrays, row["key"], row["dtype"])
            assert read.shape == value.shape
            assert read.tolist() == value.tolist() if read.dtype == object else True
            assert read.dtype == object or read.tobytes() == value.tobytes(), name


# -- the controller --------------------------------------------------------------------------------


class Kept(callbacks.Callback):
    """Keeps an array that it changes in place at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = np.zeros(5)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1

    def get_state(self) -> Any:
        return {"seen": self.seen}

    def load_state(self, state: Any) -> None:
        self.seen = state["seen"]


class Embedded(keras.Model):  # type: ignore[misc]
    """Sparse gradients, batch normalization, dropout, and variables of other types."""

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(40, 5)
        self.norm = keras.layers.BatchNormalization()
        self.drop = keras.layers.Dropout(0.3)
        self.last = keras.layers.Dense(3)
        self.calls = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.note = tf.Variable(["start"], trainable=False)
        self.half = tf.Variable(tf.cast([1.0, 2.0], tf.bfloat16), trainable=False)

    def call(self, inputs: Any, training: bool = False) -> Any:
        rows = tf.cast(tf.abs(inputs) * 13, tf.int32) % 40
        if training:
            self.calls.assign_add(1)
            self.half.assign(self.half * 1.25)
            self.note.assign(tf.strings.join([self.note, "."]))
        hidden = tf.reduce_mean(self.table(rows), axis=1)
        return self.last(self.drop(self.norm(hidden, training=training), training=training))


def embedded_options(kind: str) -> dict[str, Any]:
    kinds = keras.optimizers
    factories = {
        "adam": lambda: kinds.Adam(0.01),
        "ema": lambda: kinds.SGD(0.05, momentum=0.9, use_ema=True),
        "adagrad": lambda: kinds.Adagrad(0.05),
        "lookup": lambda: kinds.Ftrl(0.05),
    }
    # XLA has no strings.
    return {"optimizer": factories[kind](), "jit_compile": False}


class EmbeddedTrial(SmallTrial):
    optimizer_kind = "adam"

    def build_model(self) -> Any:
        model = self.context.wrap_model(Embedded())
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss, metrics=["accuracy"], **embedded_options(self.optimizer_kind))
        return model


def run(tmp_path: Path, folder: str, trial: type[SmallTrial], **options: Any) -> None:
    """Train, with a checkpoint at every boundary."""
    seed_everything()
    context = make_context(tmp_path, config=options.pop("config", {}))
    controller = KerasController(trial(context), context)
    clock = FakeClock(controller, until=12, save_every=1, directory=tmp_path / folder, **options)
    controller.run(clock)
    controller.close()


def check_twins(tmp_path: Path, trial: Callable[[], type[SmallTrial]], **options: Any) -> None:
    """Check that synchronous saves and snapshots written later produce equal files."""
    run(tmp_path, "saved", trial(), **options)
    run(tmp_path, "copied", trial(), asynchronous=True, **options)
    steps = sorted((tmp_path / "saved").iterdir())
    assert len(steps) > 2
    for step in steps:
        other = tmp_path / "copied" / step.name
        assert {path.name for path in step.iterdir()} == {path.name for path in other.iterdir()}
        for path in step.iterdir():
            if path.suffix in {".json", ".npz"}:
                assert path.read_bytes() == (other / path.name).read_bytes(), (step.name, path.name)
    moments = {path.read_bytes() for path in (tmp_path / "copied").rglob("weights.npz")}
    assert len(moments) == len(steps)


@pytest.mark.parametrize("kind", ["adam", "ema", "adagrad", "lookup"])
def test_snapshots_equal_saves_with_sparse_updates(kind: str, tmp_path: Path) -> None:
    def trial() -> type[SmallTrial]:
        return type("Trial", (EmbeddedTrial,), {"optimizer_kind": kind})

    check_twins(tmp_path, trial, unit=3)


# Keras 3 does not compile with deterministic operations, which these tests use.
@pytest.mark.parametrize("jit", [False, True] if KERAS_MAJOR == 2 else [False])
@pytest.mark.parametrize("frequency", [1, 4])
def test_snapshots_equal_saves(jit: bool, frequency: int, tmp_path: Path) -> None:
    def trial() -> type[SmallTrial]:
        return type("Trial", (SmallTrial,), {"compile_options": {"jit_compile": jit}})

    config = {"optimizations": {"aggregation_frequency": frequency}}
    check_twins(tmp_path, trial, unit=2 if frequency == 1 else 4, config=config)


def test_snapshots_of_callback_arrays_equal_saves(tmp_path: Path) -> None:
    def trial() -> type[SmallTrial]:
        stops = callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True)
        return type("Trial", (SmallTrial,), {"callbacks": [Kept(), stops]})

    check_twins(tmp_path, trial, unit=1, validate_every=2)
    arrays = [
        next(iter(read_arrays(tmp_path / "copied" / f"step-{step}" / "callbacks.npz").values()))
        for step in (1, 5, 12)
    ]
    assert [array.tolist() for array in arrays] == [[1.0] * 5, [5.0] * 5, [12.0] * 5]


def made(tmp_path: Path, **variant: Any) -> KerasController:
    seed_everything()
    context = make_context(tmp_path)
    return KerasController(type("Trial", (SmallTrial,), variant)(context), context)


def test_returned_function_writes_arrays(tmp_path: Path) -> None:
    controller = made(tmp_path)
    assert isinstance(controller, SupportsSnapshot)
    assert isinstance(controller, SupportsTensors)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write = controller.snapshot(folder)
    assert not list(folder.glob("*.npz"))
    assert (folder / "variables.json").exists()
    write()
    assert {path.name for path in folder.glob("*.npz")} == set(ARRAYS)
    controller.close()


def test_unwritten_snapshot_is_harmless(tmp_path: Path) -> None:
    controller = made(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    controller.snapshot(tmp_path / "one")
    controller.snapshot(tmp_path / "two")()
    assert not list((tmp_path / "one").glob("*.npz"))
    assert len(list((tmp_path / "two").glob("*.npz"))) == len(ARRAYS)
    controller.close()


class Reader(callbacks.Callback):
    """Reads the files of each checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[str]] = []

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        folder = Path(checkpoint_dir)
        self.found.append(sorted(path.name for path in folder.glob("*.npz")))
        read_arrays(folder / "weights.npz")
        (folder / "note.txt").write_text("from a callback")


def test_checkpoint_hook_finds_written_files(tmp_path: Path) -> None:
    reader = Reader()
    controller = made(tmp_path, callbacks=[reader])
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write = controller.snapshot(folder)
    assert reader.found == [["optimizer.npz", "state.npz", "weights.npz"]]
    write()
    assert (folder / "callbacks.npz").exists()
    assert (folder / "note.txt").exists()
    controller.close()


def test_tensors_describe_last_checkpoint(tmp_path: Path) -> None:
    controller = made(tmp_path)
    assert list(controller.tensors()) == []
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    controller.save(folder)
    tensors = controller.tensors()
    rows = json.loads((folder / "variables.json").read_text())["variables"]
    files = {name: read_arrays(folder / name) for name in ARRAYS}
    assert len(tensors) == len(rows) > 10
    for tensor, row in zip(tensors, rows, strict=True):
        array = decode_array(files[tensor.file], row["key"], tensor.dtype)
        assert (tensor.name, tensor.shape) == (row["name"], array.shape)
    assert {"float32"} < {tensor.dtype for tensor in tensors}
    assert any("kernel" in t.name and t.shape == (6, 7) for t in tensors if t.file == "weights.npz")
    controller.close()
