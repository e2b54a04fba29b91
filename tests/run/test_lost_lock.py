"""A runner whose experiment another process took or ended while the records were unreachable."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcore.errors import RunError
from detcore.records import Database, RunnerLock
from detcore.run.interrupts import Requests
from detcore.types import Control, ExperimentState


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'detcore.db'}") as database:
        yield database


@pytest.fixture
def lock(database: Database, tmp_path: Path) -> Iterator[RunnerLock]:
    number = database.create_experiment(config={}, config_text=None, name="n")
    with contextlib.closing(database.open_lock(number, tmp_path)) as lock:
        assert lock.acquire()
        yield lock


def test_runner_stops_when_experiment_was_ended(database: Database, lock: RunnerLock) -> None:
    database.request_control(1, Control.PAUSE)
    assert len(Requests(database, 1, lock).observe_requests()) == 1
    database.set_experiment_state(1, ExperimentState.CANCELED)
    with pytest.raises(RunError, match="another process adopted or ended experiment"):
        Requests(database, 1, lock).observe_requests()
    database.set_experiment_state(1, ExperimentState.RUNNING)  # as another runner does
    assert lock.is_lost
    assert not lock.is_held()
    with pytest.raises(RunError, match="adopted or ended"):
        Requests(database, 1, lock).observe_requests()
