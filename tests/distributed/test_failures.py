"""Errors on the remaining ranks when a rank dies, hangs or diverges."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

ACROSS = {"chief_ip": "127.0.0.1", "key": "k"}
# On a busy machine, processes stand still for seconds. The first deadline is long enough for all
# collectives before the fault, and the second limit is far below any other timeout.
TIMEOUT_S = 3.0
SOON_S = 10.0
HERE = __file__.replace("test_failures", "scenarios")

with open(HERE, encoding="utf-8") as _file:
    LINES = {
        text.partition("# ")[2].strip(): number
        for number, text in enumerate(_file, 1)
        if text.rstrip().endswith(" line")
    }


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("how", ["killed", "exits", "closes", "raises"])
def test_lost_rank_is_named(ranks: Any, victim: int, how: str) -> None:
    results = ranks("one_goes", 3, victim=victim, how=how)
    words = {"closes": "closed its context", "raises": r"raised KeyError('no such column')"}
    for rank in {0, 1, 2} - {victim}:
        errors = results[rank]
        assert errors["error"] == "PeerLostError"
        assert errors["rank"] == victim
        assert f"rank {victim} {words.get(how, 'died or lost its connection')}" in errors["text"]
        assert "scenarios.py:" in errors["text"]
        assert errors["again"] == errors["text"]
        assert errors["seconds"] < SOON_S


@pytest.mark.parametrize("nodes", [[3], [1, 1, 1]], ids=["unix", "tcp"])
@pytest.mark.parametrize(("victim", "after_s"), [(0, 0.3), (2, 0.35), (2, 0.4)])
def test_rank_killed_during_transfer_is_named(
    ranks: Any, free_port: int, victim: int, after_s: float, nodes: list[int]
) -> None:
    context = {**ACROSS, "pub_port": free_port}
    options = {"victim": victim, "after_s": after_s, "nodes": nodes, "context": context}
    results = ranks("killed_within", 3, **options)
    assert results[victim] is None
    for rank in {0, 1, 2} - {victim}:
        assert (results[rank]["error"], results[rank]["rank"]) == ("PeerLostError", victim)
        assert results[rank]["seconds"] < SOON_S


@pytest.mark.soak
@pytest.mark.parametrize("victim", [0, 1])
def test_child_does_not_hide_dead_rank(ranks: Any, victim: int) -> None:
    results = ranks("one_goes", 2, victim=victim, how="killed with a child")
    errors = results[1 - victim]
    assert (errors["error"], errors["rank"]) == ("PeerLostError", victim)
    assert errors["seconds"] < SOON_S


def test_dead_rank_is_reported_while_hub_is_busy(ranks: Any) -> None:
    results = ranks("one_goes", 4, victim=3, how="killed", busy=0)
    for errors in results[1:3]:
        assert (errors["error"], errors["rank"]) == ("PeerLostError", 3)
        assert errors["seconds"] < SOON_S
    assert results[0] == "was busy"


@pytest.mark.parametrize(
    ("victim", "nodes"),
    [
        pytest.param(0, [3], marks=pytest.mark.soak, id="first"),
        pytest.param(1, [3], marks=pytest.mark.soak, id="unix"),
        pytest.param(1, [1, 1, 1], id="tcp"),
    ],
)
def test_stopped_rank_is_named_at_deadline(
    ranks: Any, free_port: int, victim: int, nodes: list[int]
) -> None:
    context = {"timeout_s": TIMEOUT_S, **ACROSS, "pub_port": free_port}
    options = {"victim": victim, "how": "stops", "nodes": nodes, "context": context}
    results = ranks("one_goes", 3, **options, limit_s=15)
    for rank in {0, 1, 2} - {victim}:
        errors = results[rank]
        assert (errors["error"], errors["ranks"]) == ("CollectiveTimeoutError", [victim])
        assert errors["seconds"] < SOON_S
        assert victim == 0 or "now silent: stopped" in errors["text"]


def _cases() -> list[tuple[str, int, int]]:
    generator = random.Random(20)
    hows = ["hang"] * 8 + ["barrier"] * 12
    return [(how, generator.randrange(4), generator.randrange(3)) for how in hows]


@pytest.mark.soak
def test_seeded_hangs_and_mismatches_are_named(ranks: Any) -> None:
    with ThreadPoolExecutor(4) as pool:  # the threads mostly wait
        list(pool.map(lambda case: check_case(ranks, *case), _cases()))


def check_case(ranks: Any, how: str, victim: int, before: int) -> None:
    context = {"timeout_s": TIMEOUT_S}
    results = ranks("astray", 4, how=how, victim=victim, before=before, context=context)
    other_ranks = [results[rank] for rank in range(4) if rank != victim]
    usual = f"scenarios.py:{LINES['the usual line']} in astray"
    astray = {"hang": "the hanging line"}.get(how, "the diverging line")
    for errors in other_ranks:
        assert errors["ranks"] == [victim]
        assert errors["seconds"] < SOON_S
        for rank in range(4):
            (line,) = [line for line in errors["text"].splitlines() if f"  rank {rank}: " in line]
            if rank != victim:
                assert f"allgather() #{before + 1} at " in line
                assert usual in line
            elif how == "hang":
                assert f"; now at {HERE}:{LINES[astray]} in astray" in line
            else:
                assert f"scenarios.py:{LINES[astray]} in astray" in line
    kind = "CollectiveTimeoutError" if how == "hang" else "CollectiveMismatchError"
    assert {errors["error"] for errors in other_ranks} == {kind}


@pytest.mark.soak
@pytest.mark.parametrize(("nodes", "victim"), [([1, 1, 2], 1), ([2, 2], 3)])
def test_hang_on_other_node_names_the_line(
    ranks: Any, free_port: int, nodes: list[int], victim: int
) -> None:
    context = {"timeout_s": TIMEOUT_S, **ACROSS, "pub_port": free_port}
    options = {"nodes": nodes, "how": "hang", "victim": victim, "before": 2, "context": context}
    results = ranks("astray", 4, **options)
    for rank in set(range(4)) - {victim}:
        assert (results[rank]["error"], results[rank]["ranks"]) == (
            "CollectiveTimeoutError",
            [victim],
        )
        assert results[rank]["seconds"] < SOON_S
        now = f"; now at {HERE}:{LINES['the hanging line']} in astray"
        assert f"  rank {victim}: allgather() #3 at " in results[rank]["text"]
        assert now in results[rank]["text"]


@pytest.mark.soak
@pytest.mark.parametrize("waits", [0, 1])
def test_close_ends_collective_in_other_thread(ranks: Any, waits: int) -> None:
    results = ranks("close_while_waiting", 2, waits=waits)
    assert "closed" in results[waits]["text"]
    assert 0.3 < results[waits]["seconds"] < SOON_S
