"""Find the newest complete model.ckpt-N, without the state file and without links outside."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _determined import restore_variable, truncate_file, write_checkpoint

from detcore.errors import CheckpointNotFoundError, InvalidCheckpointError, UnsafePathError
from detcore_estimator.checkpoint.tensorflow_files import (
    find_tensorflow_checkpoint,
    restore_variables,
)
from detcore_estimator.tensorflow_versions import tf, tf1


def test_newest_step_is_compared_as_a_number(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        write_checkpoint(tmp_path, step, float(step))
    assert find_tensorflow_checkpoint(tmp_path) == tmp_path / "model.ckpt-100"
    assert restore_variable(tmp_path) == [100.0] * 3


def test_state_file_is_ignored(tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_checkpoint(other, 500, 5.0)
    write_checkpoint(tmp_path / "here", 7, 7.0)
    (tmp_path / "here" / "checkpoint").write_text(
        f'model_checkpoint_path: "{other}/model.ckpt-500"\n'
    )
    assert find_tensorflow_checkpoint(tmp_path / "here").name == "model.ckpt-7"
    (tmp_path / "here" / "checkpoint").unlink()
    assert find_tensorflow_checkpoint(tmp_path / "here").name == "model.ckpt-7"


def data_file(folder: Path, step: int) -> Path:
    return folder / f"model.ckpt-{step}.data-00000-of-00001"


FAULTS: dict[str, Callable[[Path], Any]] = {
    "truncated data": lambda folder: truncate_file(data_file(folder, 2), 9),
    "truncated index": lambda folder: truncate_file(folder / "model.ckpt-2.index", 8),
    "empty index": lambda folder: (folder / "model.ckpt-2.index").write_bytes(b""),
    "missing data": lambda folder: data_file(folder, 2).unlink(),
    "missing shard": lambda folder: data_file(folder, 2).rename(
        folder / "model.ckpt-2.data-00001-of-00002"
    ),
    "temporary data": lambda folder: data_file(folder, 2).rename(
        f"{data_file(folder, 2)}.tempstate123"
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_incomplete_checkpoint_is_skipped(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(tmp_path, 1)
    write_checkpoint(tmp_path, 2, 2.0, size=100)
    with caplog.at_level(logging.WARNING, "detcore.estimator"):
        assert find_tensorflow_checkpoint(tmp_path).name == "model.ckpt-2"
        assert not caplog.records
        FAULTS[fault](tmp_path)
        assert find_tensorflow_checkpoint(tmp_path).name == "model.ckpt-1"
    assert "model.ckpt-2" in caplog.text
    for path in tmp_path.glob("model.ckpt-1.*"):
        path.unlink()
    with pytest.raises(InvalidCheckpointError, match=r"model\.ckpt-2: .*\n.*Download"):
        find_tensorflow_checkpoint(tmp_path)


def test_directory_without_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises(InvalidCheckpointError, match=r"no model\.ckpt-N\.index(.|\n)*metadata"):
        find_tensorflow_checkpoint(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match="nowhere does not exist"):
        find_tensorflow_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
def test_link_outside_the_directory_is_rejected(suffix: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, 2)
    moved = tmp_path / f"secret{suffix}"
    shutil.move(folder / f"model.ckpt-2{suffix}", moved)
    (folder / f"model.ckpt-2{suffix}").symlink_to(moved)
    with pytest.raises(UnsafePathError, match="outside of the checkpoint"):
        find_tensorflow_checkpoint(folder)


def test_directory_can_be_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "run [1] *?"
    write_checkpoint(tmp_path / "plain", 3, 3.0)
    (tmp_path / "plain").rename(folder)
    (tmp_path / "link").symlink_to(folder)
    assert restore_variable(folder) == restore_variable(tmp_path / "link") == [3.0, 3.0, 3.0]


@pytest.mark.parametrize(("name", "size"), [("v", 3), ("w", 4)])
def test_different_variables_are_rejected(name: str, size: int, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 3)
    with pytest.raises(InvalidCheckpointError, match="the same variables"):
        restore_variable(tmp_path, name, size)


def test_renamed_and_partitioned_variables(tmp_path: Path) -> None:
    with tf1.Graph().as_default():
        parts = tf1.get_variable(
            "p", initializer=tf.range(8.0), partitioner=tf1.fixed_size_partitioner(2)
        )
        other = tf1.get_variable("other", initializer=tf.ones((3, 1)))
        swapped = tf1.get_variable("swapped", initializer=tf.zeros((2,)))
        reference = tf1.get_variable("ref", initializer=tf.ones((2,)), use_resource=False)
        saver = tf1.train.Saver({"p": parts, "swapped": other, "other": swapped, "ref": reference})
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            saver.save(session, str(tmp_path / "model.ckpt"), global_step=1)
        with tf1.Session() as session:
            restore_variables(saver, session, find_tensorflow_checkpoint(tmp_path))
            assert session.run(parts.as_tensor()).tolist() == list(range(8))
            assert session.run(other).tolist() == [[1.0]] * 3


def test_damaged_data_is_rejected(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 3)
    path = data_file(tmp_path, 3)
    content = bytearray(path.read_bytes())
    content[-1] ^= 255
    path.write_bytes(content)
    with pytest.raises(InvalidCheckpointError):
        restore_variable(tmp_path)
