"""Results of collectives, on one node and on several nodes."""

from __future__ import annotations

from typing import Any

import pytest

ACROSS = {"chief_ip": "127.0.0.1", "key": "a secret"}


@pytest.mark.parametrize("size", [2, 4])
def test_collectives_on_one_node(ranks: Any, size: int) -> None:
    every = list(range(size))
    tens = [rank * 10 for rank in every]
    first, *other_ranks = ranks("collectives", size)
    assert first == [0, tens, [0, "b"], every, every, 0]
    assert other_ranks == [[0, None, [0, "b"], every, None, 0]] * (size - 1)


def test_collectives_on_uneven_nodes(ranks: Any, free_port: int) -> None:
    context = {**ACROSS, "pub_port": free_port - 3, "port_offset": 3}
    results = ranks("collectives", 6, nodes=[1, 3, 2], context=context)
    locals_of = [[0], [1, 2, 3], [1, 2, 3], [1, 2, 3], [4, 5], [4, 5]]
    for rank, result in enumerate(results):
        mates = locals_of[rank]
        gathered = mates if rank == mates[0] else None
        everything = [0, 10, 20, 30, 40, 50] if rank == 0 else None
        assert result == [0, everything, [0, "b"], mates, gathered, mates[0]]


def test_unpicklable_value_raises(ranks: Any) -> None:
    for errors, values in ranks("unsendable", 2):
        assert len(errors) == 2
        assert all("cannot be sent to other workers" in text for text in errors)
        assert values == [0, 1]


@pytest.mark.parametrize("nodes", [[3], [1, 1, 1]], ids=["unix", "tcp"])
def test_collective_raises_in_forked_child(ranks: Any, free_port: int, nodes: list[int]) -> None:
    context = {**ACROSS, "pub_port": free_port}
    assert ranks("forks", 3, nodes=nodes, context=context) == [[7, [0, 1, 2]]] * 3


def test_collectives_leak_no_memory_or_files(ranks: Any) -> None:
    for files, mappings, threads, kilobytes in ranks("thousands", 3, limit_s=60):
        assert (files, threads) == (0, 0)
        assert mappings < 20
        assert kilobytes < 8_000


def test_contexts_can_be_created_in_sequence(ranks: Any) -> None:
    expected = [[[number, 0], [number, 1], [number, 2]] for number in range(5)]
    assert ranks("two_after_each_other", 3) == [expected] * 3


def test_jobs_of_one_parent_stay_separate(ranks: Any) -> None:
    results = ranks("two_jobs", 6)
    for rank, result in enumerate(results):
        assert result == [[f"job {rank % 2}", index] for index in range(3)]


def test_one_machine_opens_no_network_port(ranks: Any) -> None:
    assert ranks("listens", 2) == [0, 0]


@pytest.mark.parametrize("nodes", [[2], [1, 2]])
def test_horovod_distributes_key_and_port(ranks: Any, nodes: list[int]) -> None:
    results = ranks("horovod", sum(nodes), nodes=nodes)
    if nodes == [2]:
        assert results == [[[0, 1], [0, 1]]] * 2
    else:
        assert results == [[[0, 1, 2], [0]], [[0, 1, 2], [1, 2]], [[0, 1, 2], [1, 2]]]
