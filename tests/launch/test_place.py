"""Ranks of a worker with the variables of detcore and of other launchers."""

from __future__ import annotations

import pytest

from detcore.distributed import launcher_variables
from detcore.distributed.launcher_settings import find_launcher_ranks
from detcore.errors import DistributedError
from detcore.launch.host_worker import torch_variables
from detcore.launch.nodes import LocalJob, find_services, place_ranks, rank_variables


def place_in(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> tuple[str, int, int]:
    for name in launcher_variables():
        monkeypatch.delenv(name, raising=False)
    for name in launcher_variables() & variables.keys():
        monkeypatch.setenv(name, variables[name])
    place = find_launcher_ranks()
    assert place is not None
    return (place.launcher, *place.numbers[:2])


def of_torch(rank: int, size: int) -> dict[str, str]:
    return torch_variables(place_ranks(["here"] * size)[rank], "127.0.0.1", 4713)


@pytest.mark.parametrize(("services", "torch"), [((), False), (("horovod",), False), ((), True)])
def test_all_variables_of_a_job_agree(
    monkeypatch: pytest.MonkeyPatch, services: tuple[str, ...], torch: bool
) -> None:
    services_by_name = find_services()
    job = LocalJob(3, services={name: services_by_name[name] for name in services})
    variables = job.make_environment(2, of_torch(2, 3) if torch else {})
    job.close()
    assert place_in(monkeypatch, variables) == ("detcore", 2, 3)


@pytest.mark.parametrize(("nodes", "chief"), [("aab", ("10.0.0.1", "4711")), ("aaa", (None, None))])
def test_workers_on_nodes_get_chief_address(
    monkeypatch: pytest.MonkeyPatch, nodes: str, chief: tuple[str | None, str | None]
) -> None:
    variables = rank_variables(
        place_ranks(nodes)[2], key="key", chief_address="10.0.0.1", chief_port=4711,
        master_port=4712, interface=None,
    )  # fmt: skip
    assert place_in(monkeypatch, variables) == ("detcore", 2, 3)
    assert (variables.get("DET_CHIEF_IP"), variables.get("DETCORE_CHIEF_PORT")) == chief


def test_single_worker_may_use_another_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = {**of_torch(1, 2), **_of_detcore(LocalJob(1).make_environment(0, {}))}
    assert place_in(monkeypatch, variables) == ("torchrun", 1, 2)
    other = _of_detcore(LocalJob(4).make_environment(3, {}))
    with pytest.raises(DistributedError, match=r"detcore: rank=3, size=4.*\n.*torchrun: rank=1"):
        place_in(monkeypatch, {**of_torch(1, 2), **other})


def _of_detcore(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith("DETCORE_")}
