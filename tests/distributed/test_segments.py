"""Shared memory is used again only when nobody sees it any more."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from detcore.distributed import _segments as segments_module
from detcore.distributed._board import SEGMENTS, Board
from detcore.distributed._segments import Segments, Shared
from detcore.distributed._values import pack

Pair = tuple[Segments, Segments]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Return the writer and the reader of one board."""
    board = Board.create(2)
    if board is None:
        pytest.skip("this system has no eventfd")
    yield Segments(board, 0), Segments(board, 1)
    board.close()


def lend(pair: Pair, value: float, count: int = 100_000) -> tuple[int, Any]:
    """Return which memory an array went through, and what the reader got."""
    shared = pair[0].put(pack(np.full(count, value)), [1])
    memory = os.fstat(shared.descriptor).st_ino
    shared_with_reader = Shared(
        pair[1], os.dup(shared.descriptor), shared.size, shared.lease, shared.generation
    )
    got = shared_with_reader.load()
    shared_with_reader.close()
    shared.close()
    assert (got == value).all()
    return memory, got


def test_memory_is_used_again_when_it_was_given_back(pair: Pair) -> None:
    first, got = lend(pair, 1)
    del got
    assert lend(pair, 2)[0] == first


def test_any_part_of_an_array_holds_the_memory(pair: Pair) -> None:
    first, got = lend(pair, 1)
    part = got[5:6]
    del got
    second, got = lend(pair, 2)
    assert second != first
    part[0] = 7  # the reader's alone
    del got, part
    assert {lend(pair, 3)[0], lend(pair, 4)[0]} <= {first, second}


def test_what_is_held_for_long_is_left_to_its_readers(pair: Pair) -> None:
    held = [lend(pair, value) for value in range(3 * SEGMENTS)]
    assert len({memory for memory, _ in held}) == 3 * SEGMENTS
    for value, (_, got) in enumerate(held):
        assert (got == value).all()
    # Late returns of memory that the writer has forgotten are no returns of what it has now.
    newest, got = held.pop()
    held.clear()
    assert lend(pair, -1)[0] != newest
    assert (got == 3 * SEGMENTS - 1).all()


def test_idle_memory_goes_back_to_the_system(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    first, got = lend(pair, 1)
    del got
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    pair[0].trim()
    files = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{fd}")}  # fmt: skip
    assert not any(name.startswith("/memfd:detcore ") for name in files)
    assert lend(pair, 2)[0] != first


def test_too_large_or_too_small_memory_is_not_used(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len({lend(pair, 1, count)[0] for count in (10_000, 100_000, 20_000)}) == 3
    monkeypatch.setattr(segments_module, "_KEPT_BYTES", 1000)
    assert lend(pair, 1)[0] != lend(pair, 2)[0]


def test_a_reader_can_neither_write_nor_shrink_what_others_see(pair: Pair) -> None:
    shared = pair[0].put(pack(np.zeros(100_000)), [1])
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(shared.descriptor, 10)
    with pytest.raises(OSError, match="not permitted"):
        os.pwrite(shared.descriptor, b"x", 0)
    with pytest.raises(OSError, match="not permitted"):
        mmap.mmap(shared.descriptor, shared.size)


@pytest.mark.parametrize(("size", "lease"), [(1 << 40, 0), (1000, 10**6), (1000, -2)])
def test_what_cannot_be_true_is_refused(pair: Pair, size: int, lease: int) -> None:
    shared = pair[0].put(pack(np.zeros(100_000)), [1])
    wrong = Shared(pair[1], os.dup(shared.descriptor), size, lease, 1)
    with pytest.raises(ValueError, match=r"shorter than announced|impossible lease"):
        wrong.load()
