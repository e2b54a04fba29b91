"""Detection of the launcher that started this process, and its ranks."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from detcore.distributed import DistributedContext
from detcore.distributed.launcher_settings import find_launcher_ranks
from detcore.errors import DistributedError

TORCH = {
    "RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4, "GROUP_RANK": 1,
    "GROUP_WORLD_SIZE": 2, "MASTER_ADDR": "n0",
}  # fmt: skip
DEEPSPEED = {
    "RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_SIZE": 4, "CROSS_RANK": 1, "CROSS_SIZE": 2,
    "MASTER_ADDR": "n0",
}  # fmt: skip
HOROVOD = {
    f"HOROVOD_{name}": number
    for name, number in zip(
        ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"),
        (5, 8, 1, 4, 1, 2),
        strict=True,
    )
}
MPI = {
    f"OMPI_COMM_WORLD_{name}": number
    for name, number in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), (5, 8, 1, 4), strict=True)
}
SLURM = {
    "SLURM_PROCID": 5, "SLURM_STEP_NUM_TASKS": 8, "SLURM_LOCALID": 1, "SLURM_NODEID": 1,
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_STEP_NODELIST": "n[0-1]",
}  # fmt: skip
TF = {
    "TF_CONFIG": json.dumps(
        {
            "cluster": {
                "chief": ["n0:1"],
                "worker": ["n0:2", "n0:3", "n0:4", "n1:1", "n1:2", "n1:3", "n1:4"],
                "ps": ["n2:1"],
            },
            "task": {"type": "worker", "index": 4},
        }
    )
}
JAX = {"JAX_PROCESS_ID": 1, "JAX_NUM_PROCESSES": 2, "JAX_COORDINATOR_ADDRESS": "n0:1234"}

EIGHT = (5, 8, 1, 4, 1, 2)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes = ("HOROVOD_", "OMPI_", "SLURM_", "JAX_", "TF_CONFIG", *TORCH, *DEEPSPEED)
    for name in list(os.environ):
        if name.startswith(prefixes):
            monkeypatch.delenv(name)


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    ("launcher", "variables", "numbers", "chief_ip"),
    [
        ("torchrun", TORCH, EIGHT, "n0"),
        ("DeepSpeed", DEEPSPEED, EIGHT, "n0"),
        ("Horovod", HOROVOD, EIGHT, None),
        ("Open MPI", MPI, EIGHT, None),
        ("Slurm", SLURM, EIGHT, "n0"),
        ("TF_CONFIG", TF, EIGHT, "n0"),
        ("JAX", JAX, (1, 2, 0, 1, 1, 2), "n0"),
        ("JAX", {**JAX, "JAX_COORDINATOR_ADDRESS": "localhost:1"}, (1, 2, 1, 2, 0, 1), None),
        ("Slurm", {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2,4(x1),2"}, (5, 8, 1, 4, 1, 3), "n0"),
        ("torchrun", {**TORCH, **MPI, **SLURM}, EIGHT, "n0"),
        (
            "torchrun",
            {**TORCH, **JAX},
            EIGHT,
            "n0",
        ),  # one launcher starts another launcher on each node
    ],
)
def test_each_launcher(
    monkeypatch: pytest.MonkeyPatch,
    launcher: str,
    variables: dict[str, Any],
    numbers: tuple[int, ...],
    chief_ip: str | None,
) -> None:
    set_all(monkeypatch, variables)
    place = find_launcher_ranks()
    assert place is not None
    assert (place.launcher, place.numbers, place.chief_ip) == (launcher, numbers, chief_ip)


def test_no_launcher_means_one_worker() -> None:
    assert find_launcher_ranks() is None
    with DistributedContext.from_env() as context:
        assert context.allgather(3) == [3]


def test_torchrun_with_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    one = dict(zip(TORCH, (0, 1, 0, 1, 0, 1, "localhost"), strict=True))
    set_all(monkeypatch, one)
    with DistributedContext.from_env() as context:
        assert context.size == 1


@pytest.mark.parametrize("given", [None, "given.invalid"])
def test_chief_address_is_from_caller_or_launcher(
    monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    set_all(monkeypatch, {**TORCH, "MASTER_ADDR": "launcher.invalid", "DETCORE_JOB_KEY": "k"})
    address = given or "launcher.invalid"
    with pytest.raises(DistributedError, match=f"unknown address chief_ip='{address}'"):
        DistributedContext.from_env(given)


def test_disagreeing_launchers_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {**HOROVOD, **MPI, "OMPI_COMM_WORLD_RANK": 6})
    with pytest.raises(DistributedError) as caught:
        DistributedContext.from_env()
    assert "Horovod: rank=5, size=8" in str(caught.value)
    assert "Open MPI: rank=6, size=8" in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({**HOROVOD, "HOROVOD_SIZE": "many"}, "Horovod's variables are inconsistent"),
        ({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": 3}, "the nodes are uneven"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG's variables are inconsistent"),
    ],
)
def test_inconsistent_variables_raise(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any], message: str
) -> None:
    set_all(monkeypatch, variables)
    with pytest.raises(DistributedError, match=message):
        find_launcher_ranks()
