"""Reducers over real processes: the value is that of one worker, bit for bit."""

from __future__ import annotations

import json
import math
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metric_worker import NUM_RECORDS, records, reducers

WORKER = Path(__file__).parents[1] / "support" / "metric_worker.py"


def run(size: int) -> list[dict[str, Any]]:
    """Return what each of `size` workers found."""
    environ = {**os.environ, "DETCORE_JOB_KEY": secrets.token_hex(16), "OPENBLAS_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(WORKER), str(rank), str(size)],
            env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        outputs = [worker.communicate(timeout=120) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for worker, (_, errors) in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, errors
    return [json.loads(output) for output, _ in outputs]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_reducer_over_processes(size: int) -> None:
    results = run(size)
    for found in results:
        assert found["wrong"] == []
        assert set(found["values"]) == set(reducers())
    # The one worker that they are compared with is itself right.
    values = results[0]["values"]
    data = records()
    assert values["count"] == [NUM_RECORDS]
    assert values["sum"] == [math.fsum(data["number"])]
    assert values["mean"] == pytest.approx([math.fsum(data["number"]) / NUM_RECORDS], rel=1e-12)
    squared = math.fsum((data["near"].astype(np.float64) - data["number"]) ** 2) / NUM_RECORDS
    assert values["mse"] == pytest.approx([squared], rel=1e-12)
    assert values["rmse"] == pytest.approx([math.sqrt(squared)], rel=1e-12)
    assert values["accuracy"] == [float(np.mean(data["label"] == data["class"]))]
    assert values["f1 of all"] == pytest.approx(values["accuracy"], rel=1e-12)
    assert sum(values["confusion"]) == NUM_RECORDS
    assert values["quantiles"][0] == data["number"].min()
    ones, zeros = (data["score"][data["binary"] == kind] for kind in (1, 0))
    wins = (ones[:, None] > zeros).sum() + (ones[:, None] == zeros).sum() / 2
    assert values["auroc"] == pytest.approx([wins / (len(ones) * len(zeros))], rel=1e-12)
