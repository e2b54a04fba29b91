"""One worker's place among one."""

from __future__ import annotations

import types
from typing import Any

import pytest

from detcore import core
from detcore.distributed import check_assigned
from detcore.errors import DistributedError

ONE = {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "cross_rank": 0, "cross_size": 1}


@pytest.mark.parametrize("numbers", [{}, ONE])
def test_single_worker_collectives(numbers: dict[str, Any]) -> None:
    with core.DistributedContext(**numbers, port_offset=3, force_tcp=True) as context:
        assert {name: getattr(context, name) for name in ONE} == ONE
        assert (context.get_rank(), context.get_local_rank()) == (0, 0)
        assert (context.get_size(), context.get_num_agents()) == (1, 1)
        stuff = {"any": object()}
        assert context.gather(stuff) == context.gather_local(stuff) == [stuff]
        assert context.allgather(stuff) == context.allgather_local(stuff) == [stuff]
        assert context.broadcast(stuff) is stuff
        assert context.broadcast_local(stuff) is stuff
        assert context.broadcast_local() is None
    context.close()
    with pytest.raises(DistributedError, match=r"allgather\(\) was called on .* closed"):
        context.allgather(1)


@pytest.mark.parametrize("name", sorted(ONE))
def test_all_six_ranks_are_required(name: str) -> None:
    some: dict[str, Any] = {key: value for key, value in ONE.items() if key != name}
    with pytest.raises(
        DistributedError, match=rf"without {name}.\nPass all six numbers .* or none"
    ):
        core.DistributedContext(**some)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 1}, "rank=1 is outside of size=1"),
        ({"rank": -1}, "rank=-1 is outside"),
        ({"local_rank": 2}, "local_rank=2 is outside of local_size=1"),
        ({"cross_rank": 1}, "cross_rank=1 is outside of cross_size=1"),
        ({"local_size": 2}, "size=1 workers in all, but local_size=2"),
        (
            {"size": 2, "local_size": 2, "rank": 1},
            r"all 2 workers are on this node, but rank=1 has local_rank=0",
        ),
        ({"size": 2, "cross_size": 2}, r"2 workers on 2 nodes, but no chief_ip.*\n.*\n.*DET_CHIEF"),
        ({"size": 2, "cross_size": 2, "chief_ip": "10.0.0.1"}, r"need the job's key.*\n.*JOB_KEY"),
    ],
)
def test_inconsistent_ranks_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DistributedError, match=message):
        core.DistributedContext(**{**ONE, **changes})


def test_from_horovod() -> None:
    hvd = types.SimpleNamespace(**{name: lambda v=value: v for name, value in ONE.items()})
    assert core.DistributedContext.from_horovod(hvd).size == 1


@pytest.mark.parametrize(
    ("factory", "names"),
    [
        ("from_deepspeed", "RANK WORLD_SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE"),
        (
            "from_torch_distributed",
            "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE",
        ),
    ],
)
def test_from_environment_variables(
    monkeypatch: pytest.MonkeyPatch, factory: str, names: str
) -> None:
    make = getattr(core.DistributedContext, factory)
    for name in names.split():
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DistributedError, match=rf"not set: {', '.join(names.split())}"):
        make()
    for name, value in zip(names.split(), ONE.values(), strict=True):
        monkeypatch.setenv(name, str(value))
    assert make().get_size() == 1
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(DistributedError, match=r"variables are not numbers: .*'RANK': 'first'"):
        make()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("DET_CHIEF_IP", "10.0.0.1")
    monkeypatch.delenv("DETCORE_JOB_KEY", raising=False)
    with pytest.raises(DistributedError, match="need the job's key"):
        make()


def test_init_requires_distributed_in_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DETCORE_SIZE", "2")
    with pytest.raises(DistributedError, match=r"one of 2 workers.*\n.*\nPass distributed=core\."):
        core.init()


DETCORE_NAMES = tuple(f"DETCORE_{name.upper()}" for name in ONE)
TORCHRUN_NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"
)  # fmt: skip
RANK_1_OF_2 = (1, 2, 1, 2, 0, 1)


@pytest.mark.parametrize("names", [DETCORE_NAMES, TORCHRUN_NAMES], ids=["detcore", "torchrun"])
def test_unassigned_rank_is_refused(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in zip(names, RANK_1_OF_2, strict=True):
        monkeypatch.setenv(name, str(number))
    claimed: dict[str, Any] = dict(zip(ONE, (0, 2, 0, 2, 0, 1), strict=True))
    with pytest.raises(DistributedError, match=r"rank 0 of 2 was claimed .* as rank 1 of 2"):
        core.DistributedContext(**claimed)
    with pytest.raises(DistributedError, match=r"rank 0 of 1 was claimed .* as rank 1 of 2"):
        core.init(distributed=core.DistributedContext())


def test_single_worker_may_start_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for names, numbers in ((DETCORE_NAMES, ONE.values()), (TORCHRUN_NAMES, RANK_1_OF_2)):
        for name, number in zip(names, numbers, strict=True):
            monkeypatch.setenv(name, str(number))
    check_assigned(*RANK_1_OF_2)
