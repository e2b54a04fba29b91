"""Write checkpoints in the format of Determined 0.17, and SavedModels, with ``tf.compat.v1``."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detcore_estimator.checkpoint.tensorflow_files import (
    find_tensorflow_checkpoint,
    restore_variables,
)
from detcore_estimator.tensorflow_versions import tf, tf1

LARGE = 1000.0
PICKLES = ("rng_state.pkl", "workload_sequencer.pkl")
# The state file names checkpoints on a machine that does not exist.
ELSEWHERE = "/determined_shared_fs/0f3e8c2a"


class Trap:
    """An object whose unpickling writes a file."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self._path}'",)


def write_saved_model(
    folder: Path, *, weight: float = 1.0, tags: Sequence[str] = ("serve",), as_text: bool = False
) -> None:
    """Write a SavedModel: ``y = x * weight + 1`` (a reference variable), and a table of words."""
    words = folder.parent / "words.txt"
    words.parent.mkdir(parents=True, exist_ok=True)
    words.write_text("a\nb\n")
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, (None, 1), "x")
        word = tf1.placeholder(tf.string, (None,), "word")
        w = tf1.get_variable("w", initializer=tf.constant([[float(weight)]]), use_resource=False)
        b = tf1.get_variable("b", initializer=tf.constant([1.0]), use_resource=True)
        asset = tf.constant(str(words))
        tf1.add_to_collection(tf1.GraphKeys.ASSET_FILEPATHS, asset)
        initializer = tf.lookup.TextFileInitializer(
            asset,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        )
        table = tf.lookup.StaticVocabularyTable(initializer, 1)
        outputs = {"y": tf.matmul(x, w) + b, "id": table.lookup(word)}
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        signature = tf1.saved_model.signature_def_utils.predict_signature_def(
            {"x": x, "word": word}, outputs
        )
        builder = tf1.saved_model.builder.SavedModelBuilder(str(folder))
        builder.add_meta_graph_and_variables(
            session,
            list(tags),
            {"serving_default": signature},
            assets_collection=tf1.get_collection(tf1.GraphKeys.ASSET_FILEPATHS),
            main_op=tf1.tables_initializer(),
        )
        builder.save(as_text)
    words.unlink()


def write_checkpoint(folder: Path, step: int, value: float = 1.0, size: int = 3) -> None:
    """Save a numeric and a string variable as ``model.ckpt-step``."""
    folder.mkdir(parents=True, exist_ok=True)
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("w", initializer=tf.constant([value] * size))
        tf1.get_variable("label", initializer=tf.constant("abc"))
        session.run(tf1.global_variables_initializer())
        tf1.train.Saver().save(session, str(folder / "model.ckpt"), global_step=step)


def truncate_file(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:-size])


def restore_variable(folder: Path, name: str = "w", size: int = 3) -> list[float]:
    """Restore one variable from the checkpoint in a directory, as the plugin does."""
    prefix = find_tensorflow_checkpoint(folder)
    with tf1.Graph().as_default(), tf1.Session() as session:
        variable = tf1.get_variable(name, shape=(size,))
        restore_variables(tf1.train.Saver(), session, prefix)
        values: list[float] = session.run(variable).tolist()
        return values


def write_determined(
    folder: Path,
    *,
    weight: float = LARGE,
    described: str | None = "load_data.json",
) -> Path:
    """Write a checkpoint like Determined 0.17 for an ``EstimatorTrial``."""
    write_checkpoint(folder, 64)
    (folder / "checkpoint").write_text(
        f'model_checkpoint_path: "{ELSEWHERE}/model.ckpt-64"\n'
        f'all_model_checkpoint_paths: "{ELSEWHERE}/model.ckpt-0"\n'
        f'all_model_checkpoint_paths: "{ELSEWHERE}/model.ckpt-64"\n'
    )
    write_saved_model(folder / "serving" / "1600000000", weight=weight)
    (folder / "code").mkdir()
    (folder / "code" / "model_def.py").write_text("raise AssertionError('code was run')\n")
    for name in PICKLES:
        (folder / name).write_bytes(pickle.dumps(Trap(folder.parent / "pickle-was-loaded")))
    metadata = {
        "steps_completed": 64,
        "determined_version": "0.17.15",
        "framework": "tensorflow-2.4.3",
        "format": "saved_model",
    }
    if described is not None:
        (folder / "metadata.json").write_text(json.dumps(metadata))
    if described == "load_data.json":
        (folder / described).write_text(json.dumps({"trial_type": "EstimatorTrial"}))
    return folder


def call_signature(loaded: Any) -> list[float]:
    """Call the signature with 1 and "b"."""
    signature = loaded.signatures["serving_default"]
    outputs = signature(x=tf.constant([[1.0]]), word=tf.constant(["b"]))
    return [float(outputs["y"][0, 0]), float(outputs["id"][0])]
