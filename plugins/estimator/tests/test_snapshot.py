"""A snapshot is bit-identical to the saver's files, even if it is written later."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorflow.python.training.saver import BulkSaverBuilder
from tensorflow.python.training.saving.saveable_object import SaveableObject, SaveSpec

from detcore_estimator.checkpoint.model_files import ModelFiles
from detcore_estimator.tensorflow_versions import tf, tf1


class Model:
    """A graph with a training step, a saver and a session.

    Args:
        build: Creates variables, and returns the operation of a step, and a saver or None.
    """

    def __init__(self, build: Callable[[], tuple[Any, Any]], config: Any = None) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf1.set_random_seed(4)
            step, saver = build()
            self.saver = saver or tf1.train.Saver(sharded=True)
            self.files = ModelFiles(self.graph, self.saver, None, None, None, session_config=config)
            first = tf1.variables_initializer(tf1.trainable_variables())
            init = [tf1.global_variables_initializer(), tf1.tables_initializer()]
        self.graph.finalize()
        self.session = tf1.Session(graph=self.graph, config=config)
        # Averages need their variables to be initialized first.
        self.session.run(first)
        self.session.run(init)
        self._step = self.session.make_callable(step)

    def train(self, count: int) -> None:
        for _ in range(count):
            self._step()

    def snapshot(self, folder: Path) -> Callable[[], None]:
        """Create the directory and a snapshot, and return the function that writes it."""
        folder.mkdir()
        with self.graph.as_default():
            return self.files.snapshot(self.session, folder, 7)

    def save(self, folder: Path) -> dict[str, bytes]:
        """Save with TensorFlow, and return the files."""
        folder.mkdir()
        path = str(folder / "model.ckpt-7")
        with self.graph.as_default():
            self.saver.save(self.session, path, write_meta_graph=False, write_state=False)
        return read_tensor_files(folder)


def read_tensor_files(folder: Path) -> dict[str, bytes]:
    """Return the files with tensors in a directory."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if ".ckpt" in p.name}


def without_meta(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.endswith(".meta")}


def embeddings(*, use_resource: bool) -> Callable[[], tuple[Any, Any]]:
    """Build sparse and dense gradients, variable partitions, averages and many types."""

    def build() -> tuple[Any, Any]:
        with tf1.variable_scope("", use_resource=use_resource):
            count = tf1.train.create_global_step()
            table = tf1.get_variable("table", [50, 6])
            parts = tf1.get_variable("parts", [30, 6], partitioner=tf1.fixed_size_partitioner(3))
            mean = tf1.get_variable("bn/moving_mean", [6], trainable=False)
            kernel = tf1.get_variable("kernel", [6, 400])
            ids = tf.cast([count, count * 7 + 1, count * 3], tf.int32)
            rows = tf.nn.embedding_lookup(table, ids % 50)
            rows += tf.nn.embedding_lookup(parts, ids % 30)
            loss = tf.reduce_sum((rows - mean) @ kernel)
            train = tf1.train.AdamOptimizer(0.1).minimize(loss, global_step=count)
            averages = tf1.train.ExponentialMovingAverage(0.9, zero_debias=False)
            with tf1.control_dependencies([train]):
                moved = tf1.assign_sub(mean, 0.1 * (mean - tf.reduce_mean(rows, axis=0)))
                average = averages.apply([kernel])
            return tf.group(moved, average, *changes_of_all_types()), None

    return build


def changes_of_all_types() -> list[Any]:
    """Build variables of many types that different operations change."""
    changes = []
    for name in ("int64", "uint8", "float16", "bfloat16", "float64", "complex64"):
        kind = tf.as_dtype(name)
        variable = tf1.get_variable(name, initializer=tf.cast([1, 2, 3], kind), trainable=False)
        changes.append(tf1.assign(variable, variable + tf.cast(1, kind)))
    flag = tf1.get_variable("flag", initializer=tf.constant([True, False]), trainable=False)
    changes.append(tf1.assign(flag, tf.logical_not(flag)))
    words = tf1.get_variable("words", initializer=tf.constant([b"a", b"bb"]), trainable=False)
    longer = tf.strings.substr(tf.strings.join([words, words[::-1]]), 0, 40)
    changes.append(tf1.assign(words, longer))
    rows = tf1.get_variable("rows", initializer=tf.zeros([4, 3]), trainable=False)
    more = tf1.get_variable("more", initializer=tf.zeros([4]), trainable=False)
    changes += [
        tf1.scatter_add(rows, [1, 2], tf.ones([2, 3])),
        tf1.scatter_nd_add(more, [[0], [3]], tf.ones([2])),
        tf1.assign_add(tf1.get_variable("n", initializer=0, trainable=False), 3),
    ]
    return changes


@pytest.mark.parametrize("use_resource", [True, False])
def test_copy_equals_the_saver_files(tmp_path: Path, use_resource: bool) -> None:
    model = Model(embeddings(use_resource=use_resource))
    dice = random.Random(use_resource)
    for number in range(3):
        model.train(dice.randint(1, 9))
        expected = model.save(tmp_path / f"saved-{number}")
        folder = tmp_path / f"copied-{number}"
        write = model.snapshot(folder)
        assert list(folder.iterdir()) == []
        model.train(dice.randint(1, 9))
        write()
        copied = read_tensor_files(folder)
        assert sorted(copied) == sorted([*expected, "model.ckpt-7.meta"])
        assert without_meta(copied) == expected
        later = model.save(tmp_path / f"later-{number}")
        assert later != expected  # training continued
        check_tensors(model, folder)
        check_tensors(model, folder)


def check_tensors(model: Model, folder: Path) -> None:
    """Compare the descriptions of the tensors with the files."""
    reader = tf.train.load_checkpoint(str(folder / "model.ckpt-7"))
    types = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    infos = model.files.tensors()
    assert {info.name for info in infos} == set(shapes)
    for info in infos:
        assert list(info.shape) == shapes[info.name]
        assert info.dtype == tf.as_dtype(types[info.name]).name
        assert (folder / info.file).exists()


# -- savers of other forms -------------------------------------------------------------------------


def build_with_saver(make_saver: Callable[..., Any]) -> Callable[[], tuple[Any, Any]]:
    """Return a function that builds two variables, their training step and their saver."""

    def build() -> tuple[Any, Any]:
        first = tf1.get_variable("first", initializer=tf.ones([3, 2]))
        second = tf1.get_variable("second", initializer=tf.range(4.0))
        saver = make_saver(first, second)
        more = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        return tf.group(tf1.assign_add(first, first), tf1.assign_add(second, second), *more), saver

    return build


def on_two_devices(**arguments: Any) -> tuple[Any, Any]:
    with tf.device("/cpu:1"):
        third = tf1.get_variable("third", initializer=tf.zeros([5]))
        step = tf1.assign_add(third, tf.ones([5]))
    other, saver = build_with_saver(lambda *_: tf1.train.Saver(sharded=True, **arguments))()
    return tf.group(step, other), saver


class Doubled(SaveableObject):  # type: ignore[misc]  # TensorFlow has no types
    """Saves a computed tensor: the doubled value of a variable."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable
        spec = SaveSpec(variable * 2.0, "", "doubled")
        super().__init__(variable * 2.0, [spec], "doubled")

    def restore(self, restored_tensors: Any, restored_shapes: Any) -> Any:
        return self._variable.assign(restored_tensors[0] / 2.0)


class CustomSaver(tf1.train.Saver):  # type: ignore[misc]  # TensorFlow has no types
    """A saver that does more than its graph."""

    def save(self, *args: Any, **kwargs: Any) -> Any:
        path = super().save(*args, **kwargs)
        Path(f"{path}.note").write_text("saved by the user's class")
        return path


class ExtraOperation(BulkSaverBuilder):  # type: ignore[misc]  # TensorFlow has no types
    """A saver that adds an operation to its saves, which a copy would omit."""

    def save_op(self, filename_tensor: Any, saveables: Any) -> Any:
        operation = tf1.py_func(lambda: np.int64(0), [], tf.int64)
        with tf1.control_dependencies([operation]):
            return super().save_op(filename_tensor, saveables)


def with_a_table(first: Any, second: Any) -> Any:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    insert = table.insert(tf.strings.as_string(second[1]), tf.cast(second[1], tf.int64))
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, insert)
    return tf1.train.Saver([first, second, table])


def quantized(*variables: Any) -> Any:
    values = tf.bitcast(tf.constant([1, 2], tf.int8), tf.qint8)
    small = tf1.get_variable("small", initializer=values, trainable=False)
    return tf1.train.Saver([*variables, small])


COPIED: dict[str, Callable[..., Any]] = {
    "all variables": lambda *variables: tf1.train.Saver(variables),
    "other names": lambda first, second: tf1.train.Saver({"a/b": second, "second": first}),
    "sequential": lambda *variables: tf1.train.Saver(variables, restore_sequentially=True),
    "computed": lambda first, second: tf1.train.Saver([Doubled(first), second]),
    "table": with_a_table,
}
WRITTEN: dict[str, Callable[..., Any]] = {
    "own class": lambda *variables: CustomSaver(variables),
    "own builder": lambda *variables: tf1.train.Saver(variables, builder=ExtraOperation()),
    "quantized": quantized,
}


@pytest.mark.parametrize("form", [*COPIED, *WRITTEN])
def test_saver_kinds(tmp_path: Path, form: str) -> None:
    model = Model(build_with_saver({**COPIED, **WRITTEN}[form]))
    model.train(2)
    expected = model.save(tmp_path / "saved")
    copied = tmp_path / "copied"
    write = model.snapshot(copied)
    assert read_tensor_files(copied) == ({} if form in COPIED else expected)
    model.train(3)
    write()
    assert without_meta(read_tensor_files(copied)) == expected
    check_tensors(model, copied)
    assert form in COPIED or (copied / "checkpoint").exists()


V1 = {"write_version": tf1.train.SaverDef.V1}
TWO_DEVICES = tf1.ConfigProto(device_count={"CPU": 2})


@pytest.mark.parametrize(
    "build",
    [
        build_with_saver(lambda *variables: tf1.train.Saver(variables, **V1)),
        on_two_devices,
        lambda: on_two_devices(**V1),
    ],
)
def test_copy_is_one_v2_file(tmp_path: Path, build: Callable[[], tuple[Any, Any]]) -> None:
    model = Model(build, TWO_DEVICES)
    variables = model.graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
    model.train(2)
    values = model.session.run(variables)
    write = model.snapshot(tmp_path / "copied")
    model.train(3)
    write()
    check_tensors(model, tmp_path / "copied")
    model.files.read(model.session, tmp_path / "copied")
    for value, expected in zip(model.session.run(variables), values, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_variable_shape_may_change(tmp_path: Path) -> None:
    def build() -> tuple[Any, Any]:
        grows = tf1.get_variable(
            "grows", initializer=[1.0], validate_shape=False, use_resource=False
        )
        more = tf1.assign(grows, tf.concat([grows, [2.0]], 0), validate_shape=False)
        return more, tf1.train.Saver([grows])

    model = Model(build)
    for number in range(3):
        write = model.snapshot(tmp_path / str(number))
        model.train(1)
        write()
        value = tf.train.load_checkpoint(str(tmp_path / str(number))).get_tensor("grows")
        assert value.tolist() == [1.0] + [2.0] * number
