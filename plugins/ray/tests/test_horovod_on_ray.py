"""A Keras trial with two workers on two nodes, whose gradients Horovod (Gloo) sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_runs import RayRuns

pytestmark = pytest.mark.each_version

# Model definition of the Keras plugin's tests.
MODEL_DIR = Path(__file__).parents[2] / "keras" / "tests" / "model"
INIT_TWICE = """
import os
import horovod.tensorflow as hvd
import tensorflow as tf

for attempt in range(2):  # the second attempt must not find the addresses of the first
    hvd.init()
    total = hvd.allreduce(tf.constant([float(hvd.rank() + 1)]), op=hvd.Sum).numpy().tolist()
    place = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()
    print("RESULT", attempt, *place, total, flush=True)
    hvd.shutdown()
"""


def arrays(folder: Path) -> dict[str, Any]:
    """Return every array in a checkpoint, by file and name."""
    arrays_by_name = {}
    for path in sorted(folder.rglob("*.npz")):
        with np.load(path, allow_pickle=False) as loaded:
            arrays_by_name.update(
                {f"{path.relative_to(folder)}/{name}": loaded[name] for name in loaded}
            )
    return arrays_by_name


@pytest.mark.soak
def test_horovod_finds_workers_on_all_nodes(detcore: RayRuns) -> None:
    """Three workers: two on one node, and one on another."""
    config = detcore.ray_config(
        entrypoint=["python3", "-c", INIT_TWICE],
        resources={"slots_per_trial": 3},
        launcher={"strategy": "PACK"},
    )
    finished = detcore("run", config, MODEL_DIR)
    assert finished.code == 0, finished.output
    # Rank, size, local rank, local size, and number of nodes with that local rank.
    packed = ("0 3 0 2 2", "1 3 1 2 1", "2 3 0 1 2")
    if "RESULT 0 0 3 0 1" in finished.stdout:  # Ray placed the single worker first
        packed = ("0 3 0 1 2", "1 3 0 2 2", "2 3 1 2 1")
    for attempt in range(2):
        for place in packed:
            assert f"RESULT {attempt} {place} [6.0]" in finished.stdout, finished.output


@pytest.mark.soak
def test_keras_trial_on_two_nodes_matches_local_run(detcore: RayRuns) -> None:
    changes: dict[str, Any] = {
        "entrypoint": "model_def:Arrays",
        "hyperparameters": {"global_batch_size": 10},
        "searcher": {
            "name": "single", "metric": "val_accuracy", "smaller_is_better": False,
            "max_length": {"batches": 30},
        },
        "resources": {"slots_per_trial": 2},
        "scheduling_unit": 10,
    }  # fmt: skip
    ends = []
    for config in (
        detcore.config(**changes),
        detcore.ray_config(launcher={"strategy": "STRICT_SPREAD"}, **changes),
    ):
        finished = detcore("run", config, MODEL_DIR, "--json")
        assert finished.code == 0, finished.output
        uuid = finished.summary["trials"][0]["latest_checkpoint"]
        ends.append(arrays(detcore.home / "checkpoints" / uuid))
    local, on_ray = ends
    assert local
    assert list(local) == list(on_ray)
    for name, value in local.items():
        np.testing.assert_array_equal(on_ray[name], value, err_msg=name)
