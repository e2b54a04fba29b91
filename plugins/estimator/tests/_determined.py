"""Checkpoints as Determined 0.17 wrote them, and SavedModels, made with ``tf.compat.v1`` itself."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detcore_estimator._tf import tf, tf1

LARGE = 1000.0
PICKLES = ("rng_state.pkl", "workload_sequencer.pkl")
# What the state file names is on a machine that does not exist.
ELSEWHERE = "/determined_shared_fs/0f3e8c2a"


class Trap:
    """Pickled, it writes a file wherever it is loaded."""

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
        w = tf1.get_variable("w", shape=(1, 1), use_resource=False)
        b = tf1.get_variable("b", shape=(1,), use_resource=True)
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
        session.run([tf1.assign(w, [[weight]]), tf1.assign(b, [1.0])])
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


def write_determined(
    folder: Path,
    *,
    weight: float = LARGE,
    step: int = 64,
    described: str | None = "load_data.json",
    serving: bool = True,
) -> Path:
    """Write a checkpoint as Determined 0.17 did for an ``EstimatorTrial``."""
    folder.mkdir(parents=True)
    write_training_state(folder, weight=weight, step=step)
    (folder / "checkpoint").write_text(
        f'model_checkpoint_path: "{ELSEWHERE}/model.ckpt-{step}"\n'
        f'all_model_checkpoint_paths: "{ELSEWHERE}/model.ckpt-0"\n'
        f'all_model_checkpoint_paths: "{ELSEWHERE}/model.ckpt-{step}"\n'
    )
    if serving:
        write_saved_model(folder / "serving" / "1600000000", weight=weight)
    (folder / "code").mkdir()
    (folder / "code" / "model_def.py").write_text("raise AssertionError('code was run')\n")
    for name in PICKLES:
        (folder / name).write_bytes(pickle.dumps(Trap(folder.parent / "pickle-was-loaded")))
    metadata = {
        "steps_completed": step,
        "determined_version": "0.17.15",
        "framework": "tensorflow-2.4.3",
        "format": "saved_model",
    }
    if described is not None:
        (folder / "metadata.json").write_text(json.dumps(metadata))
    if described == "load_data.json":
        (folder / described).write_text(json.dumps({"trial_type": "EstimatorTrial"}))
    return folder


def write_training_state(folder: Path, *, weight: float, step: int) -> None:
    """Write ``model.ckpt-N`` and ``graph.pbtxt`` of a linear model with Adam's slots."""
    with tf1.Graph().as_default() as graph, tf1.Session() as session:
        global_step = tf1.train.get_or_create_global_step()
        w = tf1.get_variable("w", shape=(1, 1), use_resource=False)
        b = tf1.get_variable("b", shape=(1,), use_resource=False)
        loss = tf.reduce_sum(tf.square(tf.matmul([[1.0]], w) + b))
        tf1.train.AdamOptimizer(0.1).minimize(loss, global_step)
        saver = tf1.train.Saver(sharded=True)
        session.run(tf1.global_variables_initializer())
        values = {variable.op.name: variable for variable in tf1.global_variables()}
        session.run([tf1.assign(values["w"], [[weight]]), tf1.assign(values["b"], [1.0])])
        session.run([tf1.assign(global_step, step), tf1.assign(values["w/Adam"], [[0.5]])])
        tf1.train.write_graph(graph, str(folder), "graph.pbtxt")
        saver.save(session, str(folder / "model.ckpt"), global_step=step)


def serve(loaded: Any) -> list[float]:
    """Call the signature with 1 and "b"."""
    signature = loaded.signatures["serving_default"]
    outputs = signature(x=tf.constant([[1.0]]), word=tf.constant(["b"]))
    return [float(outputs["y"][0, 0]), float(outputs["id"][0])]
