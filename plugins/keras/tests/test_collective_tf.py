"""Sums of gradients between plain processes; each worker is one, see collective_scenarios.py."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from detcore.errors import DistributedError
from detcore.trial import PrepareOptions

SCENARIOS = Path(__file__).with_name("collective_scenarios.py")


def run(name: str, size: int, folder: Path) -> list[dict[str, Any] | None]:
    """Run a scenario; return what each worker found, None for one that was killed."""
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
def test_sums_have_the_same_bits_everywhere(size: int, tmp_path: Path) -> None:
    for found in run("sums", size, tmp_path):
        assert found is not None
        assert found["wrong"] == []
        ranks = sum(range(size))
        assert found["mixed"] == [6.0 * size, ranks, 2.0 * ranks]
        assert found["shapes"] == [[2, 3], [], [2, 1]]


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("killed", "PeerLostError", "rank 2 died or lost its connection"),
        ("astray", "CollectiveMismatchError", "sum different gradients at the same time"),
    ],
)
def test_the_others_are_told_who_went(how: str, error: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "how").write_text(how)
    *others, last = run("one_goes", 3, tmp_path)
    assert (last is None) == (how == "killed")
    for found in others:
        assert found is not None
        assert (found["error"], found["ranks"]) == (error, [2])
        assert words in found["text"]
    assert last is None or last["error"] == error


@pytest.mark.timeout(600)
def test_tensors_variables_and_a_training_run(tmp_path: Path) -> None:
    for rank, found in enumerate(run("tensors", 2, tmp_path)):
        assert found is not None
        assert found["eager"]
        assert found["graph"]
        assert found["twice"] == 2.0  # 0 + 1, summed again
        assert found["nothing"] == []
        assert found["compressed"] == [[2.0], [float("inf")]]
        assert found["broadcast"] == [0.0, [[0]]]
        assert found["strings"] == "a"
        assert found["same bits"]
        assert found["failure"] == "None"
        if rank == 0:
            assert found["difference"] < 1e-5
            assert found["moved"] > 0.05


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_two_machines_and_a_worker_that_is_killed_while_training(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        (tmp_path / "port").write_text(str(probe.getsockname()[1]))
    results = run("nodes_and_a_death", 3, tmp_path)
    assert results[2] is None
    for found in results[:2]:
        assert found is not None
        assert found["sums"]
        assert found["same bits"]
        assert found["seconds"] < 30
        assert "PeerLostError: rank 2 died" in found["error"]
        assert found["failure"][:2] == ["PeerLostError", 2]
        assert "Look at the output of rank 2" in found["failure"][2]
        assert found["again"] == found["failure"][2]


def test_a_system_without_shared_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from detcore_keras.distributed.tensorflow_collective import prepare_process

    options = PrepareOptions(seed=1, world_size=3)
    prepare_process(options)
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(DistributedError, match="3 workers cannot train a Keras 3 model on this"):
        prepare_process(options)
