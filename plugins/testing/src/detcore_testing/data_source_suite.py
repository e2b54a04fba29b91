"""The contract of a data source: any position leads back to the very same batches."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from detcore.data import DataSource
from detcore.errors import DataError
from detcore_testing.suite_clauses import Suite, clause, expect_equal, expect_error

_MAX_POSITION_BYTES = 100_000
_Taken = list[tuple[int, list[int], Any]]


class DataSourceSuite(Suite):
    """The contract of `detcore.data.DataSource`, clause by clause.

    A subclass makes the source: small data, more than two batches in an epoch, and random
    augmentations if the source promises to repeat them.

    ```python
    class TestShards(DataSourceSuite):
        num_records = 50
        num_workers = (0, 2)

        def make_source(self, num_workers):
            return ShardSource("shards/", batch_size=8, seed=1, num_workers=num_workers)
    ```

    Attributes:
        num_records: Records in each epoch.
        num_workers: Numbers of loader workers to try. Each one continues what another one left.
        same_batches: Whether batches are the same for all of `num_workers`. If not, only the
            records that are left in the epoch are.
    """

    capabilities: ClassVar[Mapping[str, str]] = {
        "identified-records": "records() returns ids from 0 to num_records - 1, each once an epoch",
        "generators": "loading does not change the process-wide random generators",
    }
    num_records: ClassVar[int]
    num_workers: ClassVar[tuple[int, ...]] = (0,)
    same_batches: ClassVar[bool] = True

    def make_source(self, num_workers: int) -> DataSource[Any]:
        """Return a new source, always with the same settings and the same seed."""
        raise NotImplementedError(f"{type(self).__name__} defines no make_source")

    def values(self, batch: Any) -> Any:
        """Return a batch as plain values that can be compared; override for other types."""
        if isinstance(batch, Mapping):
            return {key: self.values(part) for key, part in batch.items()}
        if isinstance(batch, list | tuple):
            return [self.values(part) for part in batch]
        return np.asarray(batch).tolist()

    @clause(
        "protocol-is-implemented",
        "the source has the methods of DataSource and starts in epoch 0",
    )
    def test_protocol_is_implemented(self) -> None:
        """Look at a new source."""
        source = self._make()
        assert isinstance(source, DataSource), f"{source!r} lacks a method of DataSource"
        expect_equal(source.epoch, 0, "epoch of a new source")

    @clause(
        "position-is-small-json",
        "a position is a small JSON value, and reading it changes nothing",
    )
    def test_position_is_small_json(self) -> None:
        """Ask for positions on the way."""
        source = self._make()
        for stop in range(3):
            position = source.position()
            text = json.dumps(position)
            expect_equal(json.loads(text), position, f"position after {stop} batches, as JSON")
            assert len(text) <= _MAX_POSITION_BYTES, f"a position has {len(text)} bytes"
            expect_equal(source.position(), position, "position asked for again")
            self._take(source, 1)

    @clause("seek-continues-anywhere", "after seek the source continues with the same batches")
    def test_seek_continues_anywhere(self) -> None:
        """Stop after each number of batches, in two epochs."""
        for num_workers in self.num_workers:
            whole = self._take(self._make(num_workers), self._count() * 2 + 2)
            for stop in range(len(whole) - 1):
                first = self._make(num_workers)
                self._take(first, stop)
                again = self._make(num_workers)
                again.seek(_copied(first.position()))
                found = self._take(again, len(whole) - stop)
                expect_equal(found, whole[stop:], f"batches after a stop at {stop}")

    @clause("seek-goes-back", "a source in use can return to one of its earlier positions")
    def test_seek_goes_back(self) -> None:
        """Go back into the first epoch from the second."""
        source = self._make()
        whole = self._take(source, 1)
        position = _copied(source.position())
        whole += self._take(source, self._count() + 1)
        source.seek(position)
        expect_equal(self._take(source, len(whole) - 1), whole[1:], "batches after going back")

    @clause(
        "epoch-has-each-record-once",
        "each of two epochs contains each record once",
        capability="identified-records",
    )
    def test_epoch_has_each_record_once(self) -> None:
        """Count the ids of two epochs."""
        for num_workers in self.num_workers:
            taken = self._take(self._make(num_workers), self._count(num_workers) * 2)
            for epoch in range(2):
                ids = sorted(i for at, batch, _ in taken if at == epoch for i in batch)
                expect_equal(ids, list(range(self.num_records)), f"ids of epoch {epoch}, sorted")

    @clause(
        "num-workers-can-change",
        "the source continues with another number of loader workers, without repeating or skipping "
        "a record",
        capability="identified-records",
    )
    def test_num_workers_can_change(self) -> None:
        """Stop with each number of workers, continue with each other."""
        for before in self.num_workers:
            for after in self.num_workers:
                first, again = self._make(before), self._make(after)
                taken = self._take(first, 2)
                again.seek(_copied(first.position()))
                rest = self._rest_of_epoch(again)
                ids = sorted(i for _, batch, _ in [*taken, *rest] for i in batch)
                expect_equal(ids, list(range(self.num_records)), f"ids, {before} then {after}")
                if self.same_batches:
                    whole = self._take(self._make(self.num_workers[0]), self._count())
                    expect_equal(taken + rest, whole, f"batches, {before} then {after} workers")

    @clause(
        "generators-are-unchanged",
        "loading does not change the state of random and numpy.random",
        capability="generators",
    )
    def test_generators_are_unchanged(self) -> None:
        """Draw before and after loading."""
        drawn = []
        for count in (0, 2):
            random.seed(1)
            np.random.seed(1)
            self._take(self._make(), count)
            drawn.append((random.random(), float(np.random.rand())))
        expect_equal(drawn[1], drawn[0], "numbers drawn after loading")

    @clause("invalid-positions-are-rejected", "an invalid position raises DataError")
    def test_invalid_positions_are_rejected(self) -> None:
        """Seek what no source returned."""
        source = self._make()
        for position in ({}, dict.fromkeys(source.position())):
            with expect_error(DataError, f"seek({position})"):
                source.seek(position)
        with expect_error(DataError, "records() before the first batch"):
            source.records()

    def _make(self, num_workers: int | None = None) -> DataSource[Any]:
        return self.make_source(self.num_workers[0] if num_workers is None else num_workers)

    def _count(self, num_workers: int | None = None) -> int:
        """Return the number of batches in the first epoch."""
        return sum(1 for _ in self._make(num_workers))

    def _take(self, source: DataSource[Any], count: int) -> _Taken:
        found: _Taken = []
        batches = _batches(source)
        while len(found) < count:
            batch = next(batches)
            found.append((source.epoch, self._ids(source), self.values(batch)))
        return found

    def _rest_of_epoch(self, source: DataSource[Any]) -> _Taken:
        return [(source.epoch, self._ids(source), self.values(batch)) for batch in source]

    def _ids(self, source: DataSource[Any]) -> list[int]:
        if "identified-records" in self.declined:
            return []
        return [int(index) for index in source.records()]


def _batches(source: DataSource[Any]) -> Iterator[Any]:
    """Yield the batches of all epochs."""
    while True:
        yield from source


def _copied(position: Any) -> Any:
    return json.loads(json.dumps(position))
