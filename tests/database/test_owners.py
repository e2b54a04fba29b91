"""The process that an experiment belongs to."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import update

from detcore.errors import NotFoundError
from detcore.records.schema import experiments
from detcore.types import Control, ExperimentState

if TYPE_CHECKING:
    from tests.database.conftest import Store

ADOPT = """
import sys
from detcore.records import Database
with Database.open(sys.argv[1]) as database:
    print(int(database.adopt_experiment(int(sys.argv[2]))), flush=True)
    sys.stdin.read()
"""


def test_of_several_processes_one_adopts_what_a_dead_one_leaves(
    store: Store,
) -> None:
    number = store.experiment_id
    assert store.database.adopt_experiment(number)  # its own
    process = store.database.get_experiment(number).process
    assert process is not None
    gone = dataclasses.replace(process, started="1")
    with store.database.transaction(write=True) as connection:
        connection.execute(update(experiments).values(process=gone))
    command = [sys.executable, "-c", ADOPT, store.url, str(number)]
    others = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.stdout.readline().strip() for process in others if process.stdout]
    assert sorted(said) == ["0", "0", "1"]
    assert not store.database.adopt_experiment(number)  # that one lives
    for other in others:
        other.communicate()
    assert store.database.adopt_experiment(number)
    store.database.set_experiment_state(number, ExperimentState.PAUSED)
    assert not store.database.adopt_experiment(number)


def test_an_end_is_recorded_unless_something_else_is_asked_for_by_then(store: Store) -> None:
    database, number = store.database, store.experiment_id
    database.request_control(number, Control.PAUSE)
    for asked in (None, Control.KILL):
        assert not database.conclude_experiment(number, ExperimentState.PAUSED, asked=asked)
        assert database.get_experiment(number).state is ExperimentState.RUNNING
    assert database.conclude_experiment(number, ExperimentState.PAUSED, asked=Control.PAUSE)
    record = database.get_experiment(number)
    assert (record.state, record.control) == (ExperimentState.PAUSED, None)
    assert record.ended_at is not None
    assert database.conclude_experiment(number, ExperimentState.ERROR, asked=None, error="e")
    assert database.get_experiment(number).error == "e"
    with pytest.raises(NotFoundError):
        database.conclude_experiment(number + 1, ExperimentState.PAUSED, asked=None)
