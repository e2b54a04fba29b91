"""All batch structures that Keras's ``fit`` accepts: train, validate, save, restore."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from _fakes import FakeClock, OneWorker, make_context, seed_everything
from tensorflow_names import KERAS_MAJOR, keras, tf

from detcore.errors import InvalidDataTypeError
from detcore_keras import TFKerasTrial
from detcore_keras.data.data_settings import DataSettings, FitOptions
from detcore_keras.keras_controller import KerasController
from detcore_keras.loop.validation import Evaluation

SIZE = 4
X = np.random.default_rng(2).normal(size=(12, 3)).astype("float32")
Y = X[:, :1] * 2
W = np.linspace(0.5, 1.5, 12, dtype="float32")


class Named(NamedTuple):
    """Inputs or a batch with names."""

    a: Any
    b: Any


# Structures like (x, y, sample_weight), shorter tuples, or only the inputs.
STRUCTURES: dict[str, Any] = {
    "x": X,
    "x in a tuple": (X,),
    "x, y": (X, Y),
    "x, y, weight": (X, Y, W),
    "dict": {"a": X, "b": Y},
    "dict, y": ({"b": X, "a": Y}, Y),
    "nested": ({"a": X, "b": (Y, X)}, {"p": Y, "q": (W, Y)}),
    "x, None": (X, None),
    "x, y, None": (X, Y, None),
    "x, None, weight": (X, None, W),
    "named": Named(Named(X, Y), Y),
    "None inside": (X, {"p": Y, "q": Y}, {"p": W, "q": None}),
}
KINDS = ("arrays", "tf.data", "Sequence")
# Other combinations run only in soak tests.
ALWAYS = {("tf.data", "x"), ("tf.data", "x, None"), ("Sequence", "x"), ("arrays", "x in a tuple")}
ALWAYS |= {("tf.data", "named")}


def cut(structure: Any, rows: slice) -> Any:
    """Return rows of each array of a structure, as in a batch."""
    if isinstance(structure, tuple):
        parts = tuple(cut(part, rows) for part in structure)
        return type(structure)(*parts) if isinstance(structure, Named) else parts
    if isinstance(structure, dict):
        return {name: cut(part, rows) for name, part in structure.items()}
    return None if structure is None else structure[rows]


class Items(getattr(keras.utils, "PyDataset", keras.utils.Sequence)):  # type: ignore[misc]
    """Batches of a structure."""

    def __init__(self, structure: Any) -> None:
        if hasattr(keras.utils, "PyDataset"):
            super().__init__()
        self.structure = structure

    def __len__(self) -> int:
        return len(X) // SIZE

    def __getitem__(self, index: int) -> Any:
        return cut(self.structure, slice(index * SIZE, (index + 1) * SIZE))


class Model(keras.Model):  # type: ignore[misc]
    """Accepts any structure, and records how Keras unpacks each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.seen: dict[str, Any] = {}

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(tf.nest.flatten(x)[0])

    def _loss(self, kind: str, data: Any) -> Any:
        parts = keras.utils.unpack_x_y_sample_weight(data)
        self.seen[kind] = repr(tf.nest.map_structure(lambda part: part is not None, parts))
        y_pred = self(parts[0], training=True)
        means = [tf.reduce_mean(part) for part in tf.nest.flatten(parts) if part is not None]
        return tf.reduce_mean(y_pred**2) + tf.add_n(means) ** 2

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self._loss("train", data)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}

    def test_step(self, data: Any) -> Any:
        return {"loss": self._loss("test", data)}


def in_kind(kind: str, structure: Any) -> Any:
    if kind == "arrays":
        return structure
    if kind == "Sequence":
        return Items(structure)
    tensors = tf.nest.map_structure(lambda a: None if a is None else tf.constant(a), structure)
    numbers = tf.data.Dataset.range(len(X) // SIZE)
    return numbers.map(lambda i: cut(tensors, slice(i * SIZE, (i + 1) * SIZE)))


def make(tmp_path: Path, data: Callable[[], Any]) -> tuple[KerasController, Model]:
    seed_everything()
    context = make_context(tmp_path, batch_size=SIZE)
    context.configure_fit(shuffle=False)
    model_to_train = Model()

    class Structured(TFKerasTrial):
        def __init__(self) -> None:
            pass

        def build_model(self) -> Any:
            model = context.wrap_model(model_to_train)
            model.compile(optimizer=keras.optimizers.Adam(0.1))
            return model

        def build_training_data_loader(self) -> Any:
            training_data = data()
            return (
                context.wrap_dataset(training_data)
                if isinstance(training_data, tf.data.Dataset)
                else training_data
            )

        build_validation_data_loader = build_training_data_loader

    return KerasController(Structured(), context), model_to_train


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=[] if (kind, name) in ALWAYS else pytest.mark.soak)
        for kind in KINDS
        for name in STRUCTURES
    ],
)
def test_batches_of_any_structure(tmp_path: Path, kind: str, name: str) -> None:
    def data() -> Any:
        return in_kind(kind, STRUCTURES[name])

    controller, model = make(tmp_path, data)
    whole_clock = FakeClock(
        controller, until=6, unit=2, validate_every=2, save_every=2, directory=tmp_path / "whole"
    )
    controller.run(whole_clock)
    controller.close()
    assert whole_clock.records == [8, 8, 8]
    assert whole_clock.validated_records == [12, 12, 12]

    resumed, _ = make(tmp_path, data)
    resumed.restore(tmp_path / "whole" / "step-4")
    resumed_clock = FakeClock(resumed, until=6, unit=2, start=4, validate_every=2)
    resumed.run(resumed_clock)
    resumed.close()
    assert resumed_clock.training == whole_clock.training[2:]
    assert resumed_clock.validations == whole_clock.validations[2:]

    structure = STRUCTURES[name]
    seed_everything()
    plain = Model()
    plain.compile(optimizer=keras.optimizers.Adam(0.1))
    # Keras 2 rejects None inside arrays, and Keras 3 rejects None inside items.
    takes_arrays = KERAS_MAJOR == 3 if name == "None inside" else kind == "arrays"
    if kind != "tf.data" and takes_arrays:
        names = ("x", "y", "sample_weight")
        parts = structure if isinstance(structure, tuple) else (structure,)
        arguments = dict(zip(names, parts, strict=False))
        plain.fit(**arguments, batch_size=SIZE, epochs=2, shuffle=False, verbose=0)
    elif kind != "tf.data" and isinstance(structure, tuple):  # Keras 3 rejects None in items
        end = next((i for i, part in enumerate(structure) if part is None), len(structure))
        plain.fit(Items(structure[:end]), epochs=2, shuffle=False, verbose=0)
    else:
        plain.fit(data(), epochs=2, shuffle=False, verbose=0)
    assert model.seen["train"] == model.seen["test"] == plain.seen["train"]
    for weight, plain_weight in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), plain_weight.numpy())


@pytest.mark.parametrize("bad", [(None, Y), (), (X, Y, W, W)], ids=["no x", "empty", "four"])
@pytest.mark.parametrize("kind", ["arrays", "Sequence"])
def test_invalid_batches_are_rejected(tmp_path: Path, kind: str, bad: Any) -> None:
    with pytest.raises(InvalidDataTypeError, match=r"as a batch|not supported"):
        make(tmp_path, lambda: in_kind(kind, bad))


class Listed(Items):
    """A Sequence of the given items."""

    def __len__(self) -> int:
        return len(self.structure)

    def __getitem__(self, index: int) -> Any:
        return self.structure[index]


class Size(keras.Model):  # type: ignore[misc]
    """Adds up the sizes of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.total = tf.Variable(0)

    def test_step(self, data: Any) -> Any:
        parts = tf.nest.flatten(data, expand_composites=True)
        return {"size": self.total.assign_add(tf.size(parts[0]))}


@pytest.mark.parametrize(
    ("items", "size", "n_records"),
    [
        ([np.zeros((2, 3, 1)), np.zeros((2, 5, 1)), np.zeros((1, 4, 1))], 20, 5),
        ([tf.ragged.constant([[1.0], [2.0, 3.0]]), tf.ragged.constant([[1.0, 2.0]])], 5, 3),
        ([tf.sparse.from_dense([[1.0], [2.0]]), tf.sparse.from_dense([[0.0]])], 4, 3),
        ([1.0, 2.0], 2, 2),
    ],
    ids=["longer", "ragged", "sparse", "numbers"],
)
def test_validation_items_may_differ_in_shape(items: list[Any], size: int, n_records: int) -> None:
    model = Size()
    model.compile()
    settings = DataSettings(
        batch_size=2, options=FitOptions(), wrapped=(), seed=1,
        distributed=OneWorker(),  # type: ignore[arg-type]
    )  # fmt: skip
    evaluation = Evaluation(Listed(items), settings, test_mode=False)
    metrics, record_count = evaluation.evaluate_model(model)
    evaluation.close()
    assert (metrics["size"], record_count) == (size, n_records)
