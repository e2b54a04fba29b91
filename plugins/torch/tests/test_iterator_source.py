"""Iterators with a state fulfil the data source contract."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from detcore.errors import DetcoreError
from detcore_testing import DataSourceSuite
from detcore_torch import IteratorSource

NUM_RECORDS = 10


class Batches:
    """Batches of four numbers, whose iterator has a state like Grain's."""

    def __init__(self, first: int = 0, *, as_text: bool = False) -> None:
        self.first = first
        self.as_text = as_text

    def __iter__(self) -> _Iterator:
        return _Iterator(self.first, as_text=self.as_text)


class _Iterator:
    def __init__(self, first: int, *, as_text: bool) -> None:
        self.first = first
        self.as_text = as_text
        self.next: Any = np.int64(0)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.next >= NUM_RECORDS:
            raise StopIteration
        self.next += 4
        ids = np.arange(self.next - 4, min(self.next, NUM_RECORDS))
        return (ids + self.first) % NUM_RECORDS

    def get_state(self) -> Any:
        state = {"parts": [{"next": self.next}]}
        return json.dumps({"next": int(self.next)}).encode() if self.as_text else state

    def set_state(self, state: Any) -> None:
        self.next = json.loads(state)["next"] if self.as_text else state["parts"][0]["next"]


class TestValues(DataSourceSuite):
    num_records = NUM_RECORDS

    def make_source(self, num_workers: int) -> Any:
        return IteratorSource(Batches(), record_ids=lambda batch: batch)


class TestTextOfEachEpoch(DataSourceSuite):
    num_records = NUM_RECORDS

    def make_source(self, num_workers: int) -> Any:
        return IteratorSource(
            lambda epoch: Batches(epoch, as_text=True), record_ids=lambda batch: batch
        )


def test_data_that_cannot_resume_is_rejected() -> None:
    class Holding(_Iterator):
        def get_state(self) -> Any:
            return {"held": np.arange(3)}

    class Held(Batches):
        def __iter__(self) -> _Iterator:
            return Holding(0, as_text=False)

    with pytest.raises(DetcoreError, match="whose iterator has no get_state"):
        IteratorSource([1, 2])
    source = IteratorSource(Held())
    next(iter(source))
    with pytest.raises(
        DetcoreError, match=r"(?s)that JSON cannot represent: .*numpy.ndarray.*pickles"
    ):
        source.position()
    plain = IteratorSource(Batches())
    next(iter(plain))
    with pytest.raises(DetcoreError, match="records of the last batch are not known"):
        plain.records()
    position = plain.position()
    changes: list[tuple[dict[str, Any], str]] = [
        ({**position, "kind": "Other"}, "saved by a Other, and the data has a _Iterator"),
        ({**position, "state": {"values": {"parts": []}}}, "does not fit the data"),
        ({**position, "state": {"values": {"other": 1}}}, "does not fit the data"),
        ({**position, "state": {"text": "x"}}, "does not fit the data"),
        ({**position, "state": None}, "not a position of version 1"),
    ]
    for options, message in changes:
        with pytest.raises(DetcoreError, match=message):
            plain.seek(options)
