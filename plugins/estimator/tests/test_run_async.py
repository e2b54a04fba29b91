"""A trial killed around or during a synchronous or background save loses no data."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from test_run import MODEL_DIR, detcore, folder_of, variables_of, write_config
from toy_command import Detcore

__all__ = ["detcore"]  # a fixture

BATCHES = 30
_TRIES = 8


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Return the final variables of an uninterrupted run."""
    detcore = Detcore(tmp_path_factory.mktemp("straight"))
    straight = detcore("run", heavy_config(detcore, True), MODEL_DIR, "--json", timeout_s=300)
    assert straight.code == 0, straight.stderr
    return variables_of(folder_of(detcore, straight.summary))


def heavy_config(detcore: Detcore, is_async: bool) -> Path:
    return write_config(
        detcore,
        "SlowSaves",
        BATCHES,
        scheduling_unit=5,
        min_validation_period={"batches": BATCHES},
        min_checkpoint_period={"batches": 5},
        checkpoint_async=is_async,
    )


def half_written(detcore: Detcore) -> list[Path]:
    """Return checkpoints that have TensorFlow's files but no manifest."""
    return [
        folder
        for folder in (detcore.home / "checkpoints").glob("*")
        if not (folder / "manifest.json").exists()
        and any(".ckpt" in path.name for path in folder.rglob("*"))
    ]


def kill_command(detcore: Detcore, *, in_a_write: bool) -> bool:
    """Kill the command started last, right after a commit or in the middle of a save.

    Returns:
        Whether the kill was at that moment.
    """
    process = detcore.started[-1]
    before = len(detcore.committed())
    if in_a_write:
        detcore.wait_for(lambda: len(detcore.committed()) > before, 200)
        caught = detcore.wait_for(lambda: half_written(detcore), 200)
    else:
        detcore.wait_for(lambda: len(detcore.committed()) > before, 200)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    time.sleep(0.5)  # the worker ends after the command
    return not in_a_write or any(folder in half_written(detcore) for folder in caught)


# test_run.py tests kills between two synchronous saves.
@pytest.mark.soak
@pytest.mark.long(together="async")
@pytest.mark.parametrize(
    ("is_async", "in_a_write"),
    [(True, False), (True, True), (False, True)],
    ids=["async, after a commit", "async, during a write", "sync, during a write"],
)
def test_kill_during_save_resumes_exactly(
    detcore: Detcore, expected: dict[str, np.ndarray], is_async: bool, in_a_write: bool
) -> None:
    assert expected["ballast"].any()

    for experiment_id in range(1, _TRIES + 1):
        detcore.start("run", heavy_config(detcore, is_async), MODEL_DIR)
        if kill_command(detcore, in_a_write=in_a_write):
            process = detcore.start("run", "--resume", experiment_id, "--json")
            break
    else:
        raise AssertionError(f"none of {_TRIES} kills was in the middle of a save")
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr

    resumed = variables_of(folder_of(detcore, json.loads(stdout.splitlines()[-1])))
    assert resumed.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name, strict=True)
    assert half_written(detcore) == []
    checked = detcore("checkpoint", "verify", "--all")
    assert checked.code == 0, checked.stdout + checked.stderr


def test_manifest_lists_the_tensors(detcore: Detcore) -> None:
    finished = detcore("run", write_config(detcore, "Repeated", 5), MODEL_DIR, "--json")
    assert finished.code == 0, finished.stderr
    folder = folder_of(detcore, finished.summary)
    manifest = json.loads((folder / "manifest.json").read_text())
    tensors = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    variables = variables_of(folder)
    assert set(variables) <= set(tensors)
    for name, value in variables.items():
        assert tensors[name]["shape"] == list(value.shape)
        assert tensors[name]["dtype"] == value.dtype.name
        assert tensors[name]["file"] in manifest["files"]
