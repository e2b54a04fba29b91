"""Sums of gradients between plain worker processes; see collective_scenarios.py."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from detcore.errors import DistributedError

SCENARIOS = Path(__file__).with_name("collective_scenarios.py")


def run(name: str, size: int, folder: Path) -> list[dict[str, Any] | None]:
    """Run a scenario. Return each worker's result, or None for a killed worker."""
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DETCORE_")},
        "DETCORE_JOB_KEY": secrets.token_hex(16),
        "PYTHONWARNINGS": "error::RuntimeWarning",
    }
    outputs = [(folder / f"{rank}.out", folder / f"{rank}.err") for rank in range(size)]
    workers = []
    for rank, (out, err) in enumerate(outputs):
        with out.open("w") as stdout, err.open("w") as stderr:
            command = [sys.executable, str(SCENARIOS), name, str(rank), str(size), str(folder)]
            workers.append(subprocess.Popen(command, env=environ, stdout=stdout, stderr=stderr))
    deadline = time.monotonic() + 280
    try:
        while True:
            codes = [worker.poll() for worker in workers]
            for code, (_, err) in zip(codes, outputs, strict=True):
                assert code in (None, 0, -9), err.read_text()
            if None not in codes:
                break
            errors = "\n".join(err.read_text() for _, err in outputs)
            assert time.monotonic() < deadline, f"{name}: {codes}\n{errors}"
            time.sleep(0.05)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return [
        None if code else json.loads(out.read_text().splitlines()[-1])
        for code, (out, _) in zip(codes, outputs, strict=True)
    ]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_are_identical_on_all_workers(size: int, tmp_path: Path) -> None:
    for result in run("sums", size, tmp_path):
        assert result is not None
        assert result["wrong"] == []
        ranks = sum(range(size))
        assert result["mixed"] == [6.0 * size, ranks, 2.0 * ranks]
        assert result["shapes"] == [[2, 3], [], [2, 1]]


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("killed", "PeerLostError", "rank 2 died or lost its connection"),
        ("astray", "CollectiveMismatchError", "sum different gradients at the same time"),
    ],
)
def test_remaining_workers_learn_lost_rank(
    how: str, error: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "how").write_text(how)
    *remaining_results, last = run("lose_one_worker", 3, tmp_path)
    assert (last is None) == (how == "killed")
    for result in remaining_results:
        assert result is not None
        assert (result["error"], result["ranks"]) == (error, [2])
        assert words in result["text"]
    assert last is None or last["error"] == error


@pytest.mark.timeout(600)
def test_tensors_variables_and_training_agree(tmp_path: Path) -> None:
    for rank, result in enumerate(run("tensors", 2, tmp_path)):
        assert result is not None
        assert result["eager"]
        assert result["graph"]
        assert result["twice"] == 2.0  # 0 + 1, summed again
        assert result["nothing"] == []
        assert result["compressed"] == [[2.0], [float("inf")]]
        assert result["same bits"]
        assert result["failure"] == "None"
        if rank == 0:
            assert result["difference"] < 1e-5
            assert result["moved"] > 0.05


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_killed_worker_ends_two_node_training(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        (tmp_path / "port").write_text(str(probe.getsockname()[1]))
    results = run("train_and_kill_worker", 3, tmp_path)
    assert results[2] is None
    for result in results[:2]:
        assert result is not None
        assert result["sums"]
        assert result["same bits"]
        assert result["seconds"] < 30
        assert "PeerLostError: rank 2 died" in result["error"]
        assert result["failure"][:2] == ["PeerLostError", 2]
        assert "Look at the output of rank 2" in result["failure"][2]
        assert result["again"] == result["failure"][2]


def test_missing_shared_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from detcore_keras.distributed.tensorflow_collective import TensorFlowCollective

    distributed: Any = types.SimpleNamespace(size=3, local_size=1)
    TensorFlowCollective(distributed, compress=False)
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(DistributedError, match="3 workers cannot train a Keras 3 model on this"):
        TensorFlowCollective(distributed, compress=False)
