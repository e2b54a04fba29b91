"""Suite for data sources: restoring any position gives exactly the same batches."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from detcore.data import DataSource
from detcore.errors import DataError
from detcore_testing.suite_clauses import Suite, clause, expect_equal, expect_error

_MAX_POSITION_BYTES = 100_000
_Batches = list[tuple[int, list[int], Any]]  # epoch, record ids and values of each batch


class DataSourceSuite(Suite):
    """Tests each clause of the `detcore.data.DataSource` contract.

    A subclass creates the source, with little data, more than two batches per epoch, and random
    augmentations if the source guarantees to repeat them.

    ```python
    class TestShards(DataSourceSuite):
        num_records = 50
        num_workers = (0, 2)

        def make_source(self, num_workers):
            return ShardSource("shards/", batch_size=8, seed=1, num_workers=num_workers)
    ```

    Attributes:
        num_records: Records in each epoch.
        num_workers: Numbers of loader workers to try. Each number continues from each other number.
        same_batches: Whether batches are the same for all of `num_workers`. Otherwise only the
            remaining records of the epoch have to be the same.
    """

    capabilities: ClassVar[Mapping[str, str]] = {
        "identified-records": "records() returns the ids 0 to num_records - 1 once per epoch",
        "generators": "loading does not change the global random generators",
    }
    num_records: ClassVar[int]
    num_workers: ClassVar[tuple[int, ...]] = (0,)
    same_batches: ClassVar[bool] = True

    def make_source(self, num_workers: int) -> DataSource[Any]:
        """Return a new source, always with the same settings and seed."""
        raise NotImplementedError(f"{type(self).__name__} must define make_source")

    def values(self, batch: Any) -> Any:
        """Convert a batch to plain comparable values. Override for other types."""
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
        """Inspect a new source."""
        source = self._make()
        assert isinstance(source, DataSource), f"{source!r} lacks a method of DataSource"
        expect_equal(source.epoch, 0, "epoch of a new source")

    @clause(
        "position-is-small-json",
        "a position is a small JSON value, and reading it changes nothing",
    )
    def test_position_is_small_json(self) -> None:
        """Read positions between batches."""
        source = self._make()
        for stop in range(3):
            position = source.position()
            text = json.dumps(position)
            expect_equal(json.loads(text), position, f"position {stop} after a JSON round trip")
            assert len(text) <= _MAX_POSITION_BYTES, f"the position has {len(text)} bytes"
            expect_equal(source.position(), position, "position read again")
            self._take(source, 1)

    @clause("seek-continues-anywhere", "after seek the source continues with the same batches")
    def test_seek_continues_anywhere(self) -> None:
        """Stop after each number of batches, in two epochs."""
        for num_workers in self.num_workers:
            batches = self._take(self._make(num_workers), self._count() * 2 + 2)
            for stop in range(len(batches) - 1):
                first = self._make(num_workers)
                self._take(first, stop)
                second = self._make(num_workers)
                second.seek(_copy_json(first.position()))
                remaining = self._take(second, len(batches) - stop)
                expect_equal(remaining, batches[stop:], f"batches after a stop at {stop}")

    @clause("seek-goes-back", "a source in use can return to one of its earlier positions")
    def test_seek_goes_back(self) -> None:
        """Go back from the second epoch to the first epoch."""
        source = self._make()
        batches = self._take(source, 1)
        position = _copy_json(source.position())
        batches += self._take(source, self._count() + 1)
        source.seek(position)
        expect_equal(self._take(source, len(batches) - 1), batches[1:], "batches after going back")

    @clause(
        "epoch-has-each-record-once",
        "each of two epochs contains each record once",
        capability="identified-records",
    )
    def test_epoch_has_each_record_once(self) -> None:
        """Collect the ids of two epochs."""
        for num_workers in self.num_workers:
            batches = self._take(self._make(num_workers), self._count(num_workers) * 2)
            for epoch in range(2):
                ids = sorted(i for number, batch, _ in batches if number == epoch for i in batch)
                expect_equal(ids, list(range(self.num_records)), f"ids of epoch {epoch}, sorted")

    @clause(
        "num-workers-can-change",
        "the source continues with another number of loader workers, without repeating or skipping "
        "a record",
        capability="identified-records",
    )
    def test_num_workers_can_change(self) -> None:
        """Stop with each number of workers and continue with each number."""
        for before in self.num_workers:
            for after in self.num_workers:
                first, second = self._make(before), self._make(after)
                batches = self._take(first, 2)
                second.seek(_copy_json(first.position()))
                batches += self._take_epoch(second)
                ids = sorted(i for _, batch, _ in batches for i in batch)
                subject = f"with {before} workers, then {after}"
                expect_equal(ids, list(range(self.num_records)), f"ids {subject}")
                if self.same_batches:
                    expected = self._take(self._make(self.num_workers[0]), self._count())
                    expect_equal(batches, expected, f"batches {subject}")

    @clause(
        "generators-are-unchanged",
        "loading does not change the state of random and numpy.random",
        capability="generators",
    )
    def test_generators_are_unchanged(self) -> None:
        """Draw random numbers with and without loading."""
        numbers = []
        for count in (0, 2):
            random.seed(1)
            np.random.seed(1)
            self._take(self._make(), count)
            numbers.append((random.random(), float(np.random.rand())))
        expect_equal(numbers[1], numbers[0], "random numbers after loading")

    @clause("invalid-positions-are-rejected", "an invalid position raises DataError")
    def test_invalid_positions_are_rejected(self) -> None:
        """Seek to positions that no source returned."""
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

    def _take(self, source: DataSource[Any], count: int) -> _Batches:
        batches = itertools.islice(_iterate_epochs(source), count)
        return [(source.epoch, self._record_ids(source), self.values(batch)) for batch in batches]

    def _take_epoch(self, source: DataSource[Any]) -> _Batches:
        """Take the remaining batches of the epoch."""
        return [(source.epoch, self._record_ids(source), self.values(batch)) for batch in source]

    def _record_ids(self, source: DataSource[Any]) -> list[int]:
        if "identified-records" in self.declined:
            return []
        return [int(index) for index in source.records()]


def _iterate_epochs(source: DataSource[Any]) -> Iterator[Any]:
    """Yield the batches of all epochs."""
    while True:
        yield from source


def _copy_json(position: Any) -> Any:
    return json.loads(json.dumps(position))
