"""The Estimator examples, run as a user runs them, and their models loaded afterwards."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from example_runs import (
    check_digits,
    checkpoint_of,
    run_example,
    run_script,
    short,
    write_idx,
    write_pictures,
)
from toy_command import Detcore

NEEDS_TF_ESTIMATOR = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_estimator") is None,
    reason="premade estimators are part of tf.estimator, which TensorFlow has lost in 2.16",
)


def test_digits_reach_97_percent_in_a_minute(detcore: Detcore) -> None:
    check_digits(detcore, "digits_estimator", epochs=10)


def test_the_digits_model_is_loaded_and_predicts(detcore: Detcore) -> None:
    finished = run_example(detcore, "digits_estimator", **short(200, metric="accuracy"))
    assert finished.code == 0, finished.stderr
    folder = checkpoint_of(detcore, finished)
    script = """
import sys
import tensorflow as tf
from sklearn.datasets import load_digits
from detcore_estimator import load_estimator_from_checkpoint_path
model = load_estimator_from_checkpoint_path(sys.argv[1])
digits = load_digits()
images = tf.constant(digits.images, tf.float32)
answers = model.signatures["serving_default"](image=images)["digit"].numpy()
print((answers == digits.target).mean())
"""
    assert float(run_script(script, folder)) > 0.9
    facts = json.loads((folder / "provenance.json").read_text())
    assert (facts["data"], facts["records"]) == ("scikit-learn digits", 1437)
    metrics = json.loads(detcore("trial", "describe", 1, "--json").stdout)
    (validation,) = metrics["validations"]
    assert 0.5 < validation["metrics"]["worst_digit_accuracy"] <= validation["metrics"]["accuracy"]


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_mnist_learns_from_small_files(detcore: Detcore, tmp_path: Path, suffix: str) -> None:
    write_pictures(tmp_path, suffix)
    changes = {**short(60, metric="accuracy"), "data": {"dir": str(tmp_path)}}
    finished = run_example(detcore, "mnist_estimator", **changes)
    assert finished.code == 0, finished.stderr
    assert finished.summary["trials"][0]["best_validation"] > 0.8


def test_mnist_serving_functions_agree(detcore: Detcore, tmp_path: Path) -> None:
    write_pictures(tmp_path, ".gz")
    changes = {**short(5, metric="accuracy"), "data": {"dir": str(tmp_path)}}
    finished = run_example(detcore, "mnist_estimator", **changes)
    assert finished.code == 0, finished.stderr
    script = """
import sys
import numpy as np
import tensorflow as tf
from detcore_estimator import load_estimator_from_checkpoint_path
image = np.random.default_rng(0).random((1, 28, 28, 1), "float32")
pixels = load_estimator_from_checkpoint_path(sys.argv[1], name="pixels")
feature = tf.train.Feature(float_list=tf.train.FloatList(value=image.ravel()))
example = tf.train.Example(features=tf.train.Features(feature={"image": feature}))
examples = load_estimator_from_checkpoint_path(sys.argv[1], name="examples")
first = pixels.signatures["serving_default"](image=tf.constant(image))
(second,) = [
    examples.signatures["serving_default"](**{name: tf.constant([example.SerializeToString()])})
    for name in examples.signatures["serving_default"].structured_input_signature[1]
]
print(np.abs(first["probabilities"] - second["probabilities"]).max())
"""
    assert float(run_script(script, checkpoint_of(detcore, finished))) < 1e-6


def test_mismatched_mnist_files_are_rejected(detcore: Detcore, tmp_path: Path) -> None:
    write_pictures(tmp_path, "")
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(5))
    finished = run_example(detcore, "mnist_estimator", data={"dir": str(tmp_path)}, max_restarts=0)
    assert finished.code == 1
    text = finished.stderr + finished.stdout
    assert "has images of shape (800, 28, 28)" in text
    assert "The files do not match." in text


@NEEDS_TF_ESTIMATOR
def test_premade_estimator_learns_small_mnist(detcore: Detcore, tmp_path: Path) -> None:
    write_pictures(tmp_path, ".gz")
    changes = {**short(60, metric="accuracy"), "data": {"dir": str(tmp_path)}}
    finished = run_example(detcore, "mnist_estimator", file="premade.yaml", **changes)
    assert finished.code == 0, finished.stderr
    assert finished.summary["trials"][0]["best_validation"] > 0.8
    script = """
import sys
from detcore_estimator import load_estimator_from_checkpoint_path
model = load_estimator_from_checkpoint_path(sys.argv[1])
print(sorted(model.signatures))
"""
    signatures = run_script(script, checkpoint_of(detcore, finished))
    assert "predict" in signatures
    assert "serving_default" in signatures
