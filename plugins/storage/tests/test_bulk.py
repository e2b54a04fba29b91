"""Many requests at once: all are done, in whatever sizes they come."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
from fsspec.asyn import get_loop

from detcore_storage._bulk import _AT_ONCE, BulkTransfers
from detcore_storage._retries import RetryPolicy

SIZES = [0, 1, *(limit + more for limit, _ in _AT_ONCE for more in (-1, 0, 1))][:-1]


@pytest.fixture
def bulk() -> BulkTransfers:
    return BulkTransfers(SimpleNamespace(loop=get_loop()), RetryPolicy())


def test_files_of_every_size_are_transferred_and_answered_in_order(bulk: BulkTransfers) -> None:
    async def transfer(number: int) -> int:
        return number

    work = [(size, functools.partial(transfer, number)) for number, size in enumerate(SIZES)]
    assert bulk._all(work) == list(range(len(SIZES)))


def test_the_first_failure_ends_the_rest(bulk: BulkTransfers) -> None:
    begun = []

    async def transfer(number: int) -> None:
        begun.append(number)
        raise ConnectionError(f"of {number}")

    work = [(0, functools.partial(transfer, number)) for number in range(1000)]
    with pytest.raises(ConnectionError, match="of 0"):
        bulk._all(work)
    assert len(begun) <= _AT_ONCE[0][1]
