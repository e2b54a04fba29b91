"""The suite of data sources accepts one that keeps the contract, and names what others break."""

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
    """Shuffled numbers with noise, in three batches an epoch."""

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
            raise DataError("no batch was taken")
        return self.latest


class CountsFromOne(Right):
    broken = "protocol-is-implemented"

    @property
    def epoch(self) -> int:
        return self.place[0] + 1


class TellsTuples(Right):
    broken = "position-is-small-json"

    def position(self) -> Any:
        return {"place": tuple(self.place)}


class Draws(Right):
    """Noise from a generator that a position does not hold."""

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
    """Counts a batch that its reader did not take yet."""

    broken = "seek-continues-anywhere"

    def position(self) -> Any:
        return {"place": [self.place[0], min(3, self.place[1] + 1)]}


class DrawsFromTraining(Right):
    broken = "generators-are-unchanged"

    def noise(self, number: int) -> float:
        random.random()
        return super().noise(number)


class TakesAnything(Right):
    broken = "invalid-positions-are-rejected"

    def seek(self, position: Any) -> None:
        super().seek({"place": position.get("place") or [0, 0]})


WRONG = (
    CountsFromOne,
    TellsTuples,
    Draws,
    GoesOnlyForward,
    Repeats,
    DependsOnWorkers,
    RunsAhead,
    DrawsFromTraining,
    TakesAnything,
)


def suite_of(made: type[Right]) -> type[DataSourceSuite]:
    class Shown(DataSourceSuite):
        num_records = NUM_RECORDS
        num_workers = (0, 1)

        def make_source(self, num_workers: int) -> Any:
            return made(num_workers)

    return Shown


def test_a_right_source_keeps_all_clauses(tmp_path: Path) -> None:
    assert broken_clauses(suite_of(Right), tmp_path) == []


@pytest.mark.parametrize("made", WRONG, ids=lambda made: made.__name__)
def test_a_wrong_source_is_rejected_and_the_clause_named(made: type[Right], tmp_path: Path) -> None:
    error = run_clause(suite_of(made), made.broken, tmp_path)
    assert error is not None
    assert error.clause == made.broken


def test_every_clause_has_a_source_that_breaks_it() -> None:
    assert {made.broken for made in WRONG} == set(clauses_of(DataSourceSuite))
