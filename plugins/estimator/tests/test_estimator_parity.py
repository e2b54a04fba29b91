"""The stand-alone Estimator has the same results as tf.estimator, and accepts its objects."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_models import (
    FEATURES,
    eval_input,
    make_estimator,
    model_fn,
    run_python,
    run_signature,
    train_input,
)

import detcore_estimator as de
from detcore_estimator.tensorflow_versions import tf, tf_estimator

needs_tf_estimator = pytest.mark.skipif(
    tf_estimator() is None, reason="this TensorFlow has no tf.estimator"
)


def make_tf_estimator(model_dir: Path, **config: Any) -> Any:
    module: Any = tf_estimator()
    config = {"tf_random_seed": 1, "save_checkpoints_steps": 10_000, **config}
    params = {"spec": module.EstimatorSpec}
    return module.Estimator(model_fn, str(model_dir), module.RunConfig(**config), params)


def files_in(folder: Path) -> tuple[set[str], str]:
    """Return the names of the files, and the latest checkpoint."""
    names = {p.name for p in folder.iterdir() if not p.name.startswith("events")}
    return names, (folder / "checkpoint").read_text()


@needs_tf_estimator
def test_results_equal_tf_estimator(tmp_path: Path) -> None:
    ours, other = make_estimator(tmp_path / "a"), make_tf_estimator(tmp_path / "b")
    for estimator in (ours, other):
        estimator.train(train_input, steps=12)
        estimator.train(train_input, max_steps=20)
    assert ours.get_variable_names() == sorted(other.get_variable_names())
    for name in ours.get_variable_names():
        np.testing.assert_array_equal(
            ours.get_variable_value(name), other.get_variable_value(name), name
        )
    assert ours.evaluate(eval_input) == other.evaluate(eval_input)
    pairs = zip(ours.predict(eval_input), other.predict(eval_input), strict=True)
    assert all(np.array_equal(a["twice"], b["twice"]) for a, b in pairs)
    assert files_in(tmp_path / "a") == files_in(tmp_path / "b")


@needs_tf_estimator
def test_checkpoints_are_interchangeable(tmp_path: Path) -> None:
    make_estimator(tmp_path).train(train_input, steps=4)
    make_tf_estimator(tmp_path).train(train_input, steps=4)
    estimator = make_estimator(tmp_path).train(train_input, steps=4)
    assert estimator.get_variable_value("global_step") == 12
    assert make_tf_estimator(tmp_path).evaluate(eval_input)["global_step"] == 12


@needs_tf_estimator
def test_tf_estimator_objects_are_accepted(tmp_path: Path) -> None:
    module: Any = tf_estimator()

    def function(features: Any, labels: Any, mode: str) -> Any:
        spec = model_fn(features, labels, mode, {"spec": module.EstimatorSpec})
        if mode != module.ModeKeys.PREDICT:
            return spec
        outputs = {"value": module.export.PredictOutput(spec.predictions)}
        return spec._replace(export_outputs=outputs)

    config = module.RunConfig(model_dir=str(tmp_path / "m"), save_checkpoints_steps=2)
    estimator = de.Estimator(function, config=config).train(train_input, steps=3)
    assert estimator.evaluate(eval_input)["global_step"] == 3
    receiver = module.export.build_raw_serving_input_receiver_fn({"x": tf.constant(FEATURES)})
    path = estimator.export_saved_model(tmp_path / "out", receiver)
    assert run_signature(path, x=FEATURES)["value"].shape == (len(FEATURES), 1)


@needs_tf_estimator
def test_exporters_accept_a_tf_estimator(tmp_path: Path) -> None:
    module: Any = tf_estimator()
    other = make_tf_estimator(tmp_path / "m").train(train_input, steps=1)
    raw = module.export.build_raw_serving_input_receiver_fn({"x": tf.constant(FEATURES)})
    for exporter in (de.LatestExporter("a", raw), de.BestExporter("b", raw)):
        path = exporter.export(
            other, str(tmp_path / exporter.name), other.latest_checkpoint(), {"loss": 1.0}, False
        )
        assert Path(os.fsdecode(path)).is_dir()


@needs_tf_estimator
def test_numpy_input_fn_queues(tmp_path: Path) -> None:
    inputs = tf.compat.v1.estimator.inputs.numpy_input_fn(
        {"x": FEATURES}, FEATURES.sum(1, keepdims=True), batch_size=8, num_epochs=2, shuffle=False
    )
    estimator = make_estimator(tmp_path).train(inputs)
    assert estimator.get_variable_value("global_step") == 12
    assert len(list(estimator.predict(inputs))) == 2 * len(FEATURES)


V1_SCRIPT = """
import sys
import tensorflow as tf
tf.compat.v1.disable_v2_behavior()
tf.compat.v1.enable_resource_variables()
from estimator_models import eval_input, make_estimator, serving_input, train_input
estimator = make_estimator(sys.argv[1], save_checkpoints_steps=2).train(train_input, steps=3)
estimator.train(train_input, max_steps=5)
assert estimator.evaluate(eval_input)["global_step"] == 5
assert len(list(estimator.predict(eval_input))) == 48
estimator.export_saved_model(sys.argv[1] + "/out", serving_input)
"""


def test_v2_behavior_disabled(tmp_path: Path) -> None:
    run_python("-c", V1_SCRIPT, tmp_path)
    assert make_estimator(tmp_path).evaluate(eval_input)["global_step"] == 5
    [path] = (tmp_path / "out").iterdir()
    assert "serving_default" in tf.saved_model.load(str(path)).signatures
