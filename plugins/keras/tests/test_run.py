"""Keras trials are run, killed and resumed through the command line, in real processes."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_command import Detcore

MODEL_DIR = Path(__file__).parent / "model"
KINDS = ["Arrays", "WeightedArrays", "Dataset", "Sequence", "Adapter"]
BATCHES = 1500


@pytest.fixture
def detcore(tmp_path: Path) -> Iterator[Detcore]:
    with Detcore(tmp_path) as command:
        yield command


def config(detcore: Detcore, kind: str, **changes: Any) -> Path:
    return detcore.config(
        entrypoint=f"model_def:{kind}",
        hyperparameters={"global_batch_size": 10},
        searcher={
            "name": "single",
            "metric": "val_accuracy",
            "smaller_is_better": False,
            "max_length": {"batches": BATCHES},
        },
        **{
            "scheduling_unit": 50,
            "min_validation_period": {"batches": 250},
            "min_checkpoint_period": {"batches": 100},
            **changes,
        },
    )


def arrays_of(detcore: Detcore, uuid: str) -> dict[str, np.ndarray]:
    """Return every array in a checkpoint, by file and name."""
    folder = detcore.home / "checkpoints" / uuid
    contents = {}
    for path in sorted(folder.rglob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                contents[f"{path.name}/{name}"] = arrays[name]
    return contents


def has_committed(detcore: Detcore, count: int) -> bool:
    return len(detcore.committed()) >= count


def validations(detcore: Detcore, trial_id: int) -> dict[int, dict[str, float]]:
    described = detcore("trial", "describe", trial_id, "--json")
    assert described.code == 0, described.stderr
    rows = json.loads(described.stdout)["validations"]
    return {row["steps_completed"]: row["metrics"] for row in rows}


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "is_async"),
    [*((kind, True) for kind in KINDS), ("Dataset", False)],
)
def test_killed_and_resumed_ends_bit_identical(detcore: Detcore, kind: str, is_async: bool) -> None:
    has_ledger = kind in ("Arrays", "Dataset", "Adapter")
    settings = config(detcore, kind, checkpoint_async=is_async, data_ledger=has_ledger)
    straight = detcore("run", settings, MODEL_DIR, "--json")
    assert straight.code == 0, straight.stderr
    expected = arrays_of(detcore, straight.summary["trials"][0]["latest_checkpoint"])
    assert len(expected) > 10

    dice = random.Random(kind)
    before = len(detcore.committed())
    process = detcore.start("run", settings, MODEL_DIR)
    for kill in (1, 2):
        detcore.wait_for(functools.partial(has_committed, detcore, before + 3 * kill), 120)
        time.sleep(dice.uniform(0.0, 0.2) if kill == 2 else 0.0)  # also right after a commit
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        process = detcore.start("run", "--resume", 2, "--json")
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr

    summary = json.loads(stdout.splitlines()[-1])
    resumed = arrays_of(detcore, summary["trials"][0]["latest_checkpoint"])
    assert resumed.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name, strict=True)
    assert validations(detcore, 2) == validations(detcore, 1)
    if has_ledger:  # every record was trained on as often as expected
        verified = detcore("data", "verify", 2)
        assert verified.code == 0, verified.stdout + verified.stderr


def half_written(detcore: Detcore, known_dirs: set[Path]) -> Path | None:
    """Return the directory of a checkpoint whose arrays are being written."""
    for path in (detcore.home / "checkpoints").glob("*/*.npz"):
        if path.parent not in known_dirs and not (path.parent / "manifest.json").exists():
            return path.parent
    return None


# test_suite.py tests synchronous saves.
@pytest.mark.soak
def test_run_killed_in_write_resumes_exactly(detcore: Detcore) -> None:
    """The state is large enough for a kill during the write. A partial checkpoint is ignored."""
    settings = config(
        detcore,
        "Wide",
        checkpoint_async=True,
        searcher__max_length={"batches": 16},
        scheduling_unit=2,
        min_validation_period={"batches": 16},
        min_checkpoint_period={"batches": 4},
    )
    straight = detcore("run", settings, MODEL_DIR, "--json", timeout_s=300)
    assert straight.code == 0, straight.stderr
    expected = arrays_of(detcore, straight.summary["trials"][0]["latest_checkpoint"])

    known_dirs = {path.parent for path in detcore.committed()}
    process = detcore.start("run", settings, MODEL_DIR)
    is_hit = False
    while not is_hit:
        deadline = time.monotonic() + 200
        while process.poll() is None and time.monotonic() < deadline:
            folder = half_written(detcore, known_dirs)
            if folder is not None:
                break
            time.sleep(0.001)
        else:
            break
        known_dirs.add(folder)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        is_hit = not (folder / "manifest.json").exists()
        process = detcore.start("run", "--resume", 2, "--json")
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert is_hit

    summary = json.loads(stdout.splitlines()[-1])
    resumed = arrays_of(detcore, summary["trials"][0]["latest_checkpoint"])
    assert resumed.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name, strict=True)
    folders = {path for path in (detcore.home / "checkpoints").iterdir() if path.is_dir()}
    assert folders == {path.parent for path in detcore.committed()}


def test_end_of_training_is_repeated_after_kill(
    detcore: Detcore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search already has its result, and the last checkpoint precedes the validation."""
    settings = config(
        detcore,
        "Ends",
        searcher__max_length={"batches": 42},  # two epochs
        min_validation_period={"batches": 21},
    )
    straight = detcore("run", settings, MODEL_DIR, "--json")
    expected = arrays_of(detcore, straight.summary["trials"][0]["latest_checkpoint"])
    kill_file = tmp_path / "kill"
    kill_file.touch()
    monkeypatch.setenv("KILL_FILE", str(kill_file))
    killed = detcore("run", settings, MODEL_DIR)
    assert killed.code == -signal.SIGKILL
    resumed = detcore("run", "--resume", 2, "--json")
    assert resumed.code == 0, resumed.stderr
    resumed_arrays = arrays_of(detcore, resumed.summary["trials"][0]["latest_checkpoint"])
    np.testing.assert_equal(resumed_arrays, expected)


def test_trial_error_shows_only_user_frames(detcore: Detcore) -> None:
    finished = detcore("run", config(detcore, "Raises"), MODEL_DIR)
    assert finished.code == 1
    assert "in build_model" in finished.stdout
    assert "ZeroDivisionError" in finished.stdout
    assert "_controller.py" not in finished.stdout


@pytest.mark.parametrize("call", ["disable_v2_behavior", "disable_eager_execution"])
def test_disabled_tensorflow_2_is_enabled_again(
    detcore: Detcore, tmp_path: Path, call: str
) -> None:
    plain = detcore("run", config(detcore, "Dataset"), MODEL_DIR, "--test", "--json")
    off = f"import tensorflow as tf\ntf.compat.v1.{call}()\n"
    folder = model_dir(tmp_path, off)
    finished = detcore("run", config(detcore, "Dataset"), folder, "--test", "--json")
    assert finished.code == 0, finished.stderr
    assert "turns TensorFlow 2's behaviour off" in finished.stdout + finished.stderr
    plain_arrays, repaired_arrays = (
        arrays_of(detcore, run.summary["trials"][0]["latest_checkpoint"])
        for run in (plain, finished)
    )
    np.testing.assert_equal(plain_arrays, repaired_arrays)


def test_prebuilt_graph_is_rejected(detcore: Detcore, tmp_path: Path) -> None:
    off = "import tensorflow as tf\ntf.compat.v1.disable_v2_behavior()\n"
    folder = model_dir(tmp_path, f"{off}tf.constant(3, name='three')\n")
    finished = detcore("run", config(detcore, "Dataset"), folder, "--test")
    assert finished.code == 1
    assert "then created a graph (1 operations, the first is 'three')" in finished.stdout


@pytest.mark.soak
def test_constructor_may_disable_tensorflow_2(detcore: Detcore, tmp_path: Path) -> None:
    folder = model_dir(tmp_path, "")
    code = (folder / "model_def.py").read_text()
    first = "        self.context = context\n"
    off = f"{first}        tf.compat.v1.disable_v2_behavior()\n"
    (folder / "model_def.py").write_text(code.replace(first, off, 1))
    finished = detcore("run", config(detcore, "Dataset"), folder, "--test")
    assert finished.code == 0, finished.stdout
    assert "turns TensorFlow 2's behaviour off" in finished.stdout


def model_dir(tmp_path: Path, first: str) -> Path:
    """Return a directory of the model with additional first lines."""
    folder = tmp_path / "model"
    folder.mkdir()
    docstring, body = (MODEL_DIR / "model_def.py").read_text().split("annotations\n", 1)
    (folder / "model_def.py").write_text(f"{docstring}annotations\n{first}{body}")
    return folder


@pytest.mark.cold
def test_smoke_run(detcore: Detcore) -> None:
    finished = detcore("run", config(detcore, "Dataset"), MODEL_DIR, "--test", "--json")
    assert finished.code == 0, finished.stderr
    assert finished.summary["trials"][0]["steps_completed"] == 1
    assert len(detcore.committed()) == 1


def test_batch_by_batch_reason_is_logged_once(detcore: Detcore) -> None:
    finished = detcore("run", config(detcore, "Sequence"), MODEL_DIR, "--test")
    assert finished.code == 0, finished.stderr
    assert finished.stdout.count("training runs batch by batch") == 1
    assert "the data is neither arrays nor a tf.data.Dataset" in finished.stdout


def test_callback_files_are_part_of_checkpoint(detcore: Detcore) -> None:
    finished = detcore("run", config(detcore, "Arrays"), MODEL_DIR, "--test", "--json")
    (manifest,) = detcore.committed()
    versions = json.loads(manifest.read_text())["versions"]
    assert {"detcore", "detcore-keras", "tensorflow", "keras"} <= set(versions)
    assert (manifest.parent / "note.txt").read_text() == "from a callback"
    uuid = finished.summary["trials"][0]["latest_checkpoint"]
    assert detcore("checkpoint", "verify", uuid).code == 0
