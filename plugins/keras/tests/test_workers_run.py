"""A Keras trial with two workers is killed and resumed through the command line."""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_command import Detcore

MODEL_DIR = Path(__file__).parent / "model"
BATCHES = 400


@pytest.fixture
def detcore(tmp_path: Path) -> Iterator[Detcore]:
    with Detcore(tmp_path) as command:
        yield command


def config(detcore: Detcore, kind: str, *, batches: int = BATCHES, slots: int = 2) -> Path:
    """Return an experiment whose checkpoints contain partial sums of gradients."""
    return detcore.config(
        entrypoint=f"model_def:{kind}",
        hyperparameters={"global_batch_size": 10},
        searcher={
            "name": "single",
            "metric": "val_accuracy",
            "smaller_is_better": False,
            "max_length": {"batches": batches},
        },
        resources={"slots_per_trial": slots},
        optimizations={"aggregation_frequency": 3},
        scheduling_unit=25,
        min_validation_period={"batches": 100},
        min_checkpoint_period={"batches": 50},
    )


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    """Return every array in a checkpoint, by file and name."""
    contents = {}
    for path in sorted(folder.rglob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                contents[f"{path.relative_to(folder)}/{name}"] = arrays[name]
    return contents


def checkpoint(detcore: Detcore, summary: dict[str, Any]) -> Path:
    return detcore.home / "checkpoints" / str(summary["trials"][0]["latest_checkpoint"])


def has_committed(detcore: Detcore, count: int) -> bool:
    return len(detcore.committed()) >= count


def validations(detcore: Detcore, trial_id: int) -> dict[int, dict[str, float]]:
    described = detcore("trial", "describe", trial_id, "--json")
    assert described.code == 0, described.stderr
    rows = json.loads(described.stdout)["validations"]
    return {row["steps_completed"]: row["metrics"] for row in rows}


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["Stops", "Adapter"])
@pytest.mark.timeout(600)
@pytest.mark.long
def test_killed_and_resumed_ends_bit_identical(detcore: Detcore, kind: str) -> None:
    straight = detcore("run", config(detcore, kind), MODEL_DIR, "--json", timeout_s=240)
    assert straight.code == 0, straight.stderr + straight.stdout
    folder = checkpoint(detcore, straight.summary)
    expected = arrays_of(folder)
    assert any(name.startswith("workers/1/own.npz") for name in expected)
    assert not (folder / "workers" / "1" / "weights.npz").exists()

    before = len(detcore.committed())
    process = detcore.start("run", config(detcore, kind), MODEL_DIR)
    detcore.wait_for(functools.partial(has_committed, detcore, before + 2), 240)
    time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    resumed = detcore("run", "--resume", 2, "--json", timeout_s=240)
    assert resumed.code == 0, resumed.stderr + resumed.stdout

    resumed_arrays = arrays_of(checkpoint(detcore, resumed.summary))
    assert resumed_arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(resumed_arrays[name], array, err_msg=name, strict=True)
    assert validations(detcore, 2) == validations(detcore, 1)
