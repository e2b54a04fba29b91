"""The data source suite accepts a correct source and names the clauses that wrong sources break."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from suite_clauses import broken_clauses, clauses_of, run_clause

from detcore.data import IndexSampler
from detcore.errors import DataError
from detcore_testing import DataSourceSuite

NUM_RECORDS = 10


class Right:
    """Shuffled numbers with noise, in three batches per epoch."""

    broken = ""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.sampler = IndexSampler(NUM_RECORDS, 4, shuffle=True, seed=2)
        self.place = [0, 0]
        self.latest: Any = None

    @property
    def epoch(self) -> int:
        return self.place[0]

    def __iter__(self) -> Iterator[Any]:
        while self.place[1] < 3:
            number = 3 * self.place[0] + self.place[1]
            self.place[1] += 1
            self.latest = self.sampler.batch(number)
            yield {"x": self.latest + self.noise(number)}
        self.place = [self.place[0] + 1, 0]

    def noise(self, number: int) -> float:
        return random.Random(number).random()

    def position(self) -> Any:
        return {"place": list(self.place)}

    def seek(self, position: Any) -> None:
        if not isinstance(position.get("place"), list):
            raise DataError(f"this is not a position: {position}")
        self.place = list(position["place"])
        self.latest = None

    def records(self) -> Any:
        if self.latest is None:
            raise DataError("no batch was read")
        return self.latest


class CountsFromOne(Right):
    broken = "protocol-is-implemented"

    @property
    def epoch(self) -> int:
        return self.place[0] + 1


class ReturnsTuples(Right):
    broken = "position-is-small-json"

    def position(self) -> Any:
        return {"place": tuple(self.place)}


class Draws(Right):
    """Draws noise from a generator that the position does not include."""

    broken = "seek-continues-anywhere"

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self.random = random.Random(1)

    def noise(self, number: int) -> float:
        return self.random.random()


class GoesOnlyForward(Right):
    broken = "seek-goes-back"

    def seek(self, position: Any) -> None:
        super().seek({"place": max(self.place, list(position["place"] or [0, 0]))})


class Repeats(Right):
    broken = "epoch-has-each-record-once"

    def records(self) -> Any:
        return super().records() % 9


class DependsOnWorkers(Right):
    broken = "num-workers-can-change"

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self.sampler = IndexSampler(NUM_RECORDS, 4, shuffle=True, seed=num_workers)


class RunsAhead(Right):
    """Counts a batch before it is read."""

    broken = "seek-continues-anywhere"

    def position(self) -> Any:
        return {"place": [self.place[0], min(3, self.place[1] + 1)]}


class DrawsFromTraining(Right):
    broken = "generators-are-unchanged"

    def noise(self, number: int) -> float:
        random.random()
        return super().noise(number)


class AcceptsAnything(Right):
    broken = "invalid-positions-are-rejected"

    def seek(self, position: Any) -> None:
        super().seek({"place": position.get("place") or [0, 0]})


WRONG = (
    CountsFromOne,
    ReturnsTuples,
    Draws,
    GoesOnlyForward,
    Repeats,
    DependsOnWorkers,
    RunsAhead,
    DrawsFromTraining,
    AcceptsAnything,
)


def make_suite(source: type[Right]) -> type[DataSourceSuite]:
    class SourceSuite(DataSourceSuite):
        num_records = NUM_RECORDS
        num_workers = (0, 1)

        def make_source(self, num_workers: int) -> Any:
            return source(num_workers)

    return SourceSuite


def test_right_source_passes_all_clauses(tmp_path: Path) -> None:
    assert broken_clauses(make_suite(Right), tmp_path) == []


@pytest.mark.parametrize("source", WRONG, ids=lambda source: source.__name__)
def test_wrong_source_breaks_its_clause(source: type[Right], tmp_path: Path) -> None:
    error = run_clause(make_suite(source), source.broken, tmp_path)
    assert error is not None
    assert error.clause == source.broken


def test_each_clause_has_wrong_source() -> None:
    assert {source.broken for source in WRONG} == set(clauses_of(DataSourceSuite))
