"""The examples, run as a user runs them: ``detcore run``, and the model loaded afterwards."""

from __future__ import annotations

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


def test_digits_reach_97_percent_in_a_minute(detcore: Detcore) -> None:
    check_digits(detcore, "digits_keras")


def test_the_digits_model_is_loaded_and_predicts(detcore: Detcore) -> None:
    finished = run_example(detcore, "digits_keras", **short(150))
    script = """
import sys, detcore_keras
from sklearn.datasets import load_digits
model = detcore_keras.load_model_from_checkpoint_path(sys.argv[1])
digits = load_digits()
answers = model.predict(digits.images[..., None] / 16, verbose=0).argmax(axis=1)
print((answers == digits.target).mean())
"""
    folder = checkpoint_of(detcore, finished)
    assert float(run_script(script, folder)) > 0.9
    assert not list(folder.rglob("__pycache__"))


def test_fashion_mnist_learns_from_small_files(detcore: Detcore, tmp_path: Path) -> None:
    write_pictures(tmp_path, ".gz")
    data = {"dir": str(tmp_path)}
    finished = run_example(detcore, "fashion_mnist_tf_keras", **short(60), data=data)
    assert finished.code == 0, finished.stderr
    assert finished.summary["trials"][0]["best_validation"] > 0.8


def test_fashion_mnist_of_another_size_is_refused(detcore: Detcore, tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", np.zeros((4, 28, 28)))
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.zeros(5))
    finished = run_example(
        detcore, "fashion_mnist_tf_keras", data={"dir": str(tmp_path)}, max_restarts=0
    )
    assert finished.code == 1
    text = finished.stderr + finished.stdout
    assert "has images of shape (4, 28, 28)" in text
    assert "The files do not match." in text


@pytest.mark.soak
def test_cifar10_learns_from_small_files(detcore: Detcore, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, count in (("data_batch_1", 64), ("data_batch_2", 96), ("test_batch", 64)):
        labels = rng.integers(0, 2, size=count).astype(np.uint8)
        images = rng.integers(0, 64, size=(count, 3, 1024)).astype(np.uint8)
        images[np.arange(count), labels * 2] += 150  # red or blue
        rows = np.concatenate([labels[:, None], images.reshape(count, -1)], axis=1)
        (tmp_path / f"{name}.bin").write_bytes(rows.astype(np.uint8).tobytes())
    finished = run_example(
        detcore, "cifar10_cnn_tf_keras", **short(40), data={"dir": str(tmp_path)}
    )
    assert finished.code == 0, finished.stderr
    assert finished.summary["trials"][0]["best_validation"] > 0.8
