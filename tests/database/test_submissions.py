"""Experiments that were handed in: recorded once, with their code, and adopted by one process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from detcore.errors import NotFoundError
from detcore.types import Control, ExperimentState

if TYPE_CHECKING:
    from tests.database.conftest import Store

CONFIG = {"name": "n", "labels": ["x"], "data": {"api_token": "secret-of-mine"}}


def submit(store: Store, user_id: int, name: str) -> tuple[int, bool]:
    return store.database.submit_experiment(
        user_id=user_id,
        submission_id=name,
        test_mode=True,
        config=CONFIG,
        config_text="data: {api_token: secret-of-mine}",
        place=lambda number: f"/code/{number}",
    )


@pytest.fixture
def user_id(store: Store) -> int:
    return store.database.create_user("ada", password_hash=None).id


def test_a_second_try_is_the_same_experiment(store: Store, user_id: int) -> None:
    number, is_new = submit(store, user_id, "one")
    assert (submit(store, user_id, "one"), is_new) == ((number, False), True)
    other = store.database.create_user("bob", password_hash=None).id
    assert submit(store, other, "one")[0] != number  # names are each user's own
    record = store.database.get_experiment(number)
    assert (record.model_dir, record.state) == (f"/code/{number}", ExperimentState.RUNNING)
    assert "secret-of-mine" not in f"{record.config}{record.config_text}"
    known = store.database.get_submission(number)
    assert known is not None
    assert (known.user_name, known.phase, known.test_mode) == ("ada", "QUEUED", True)
    assert store.database.find_submission(user_id, "one") == number
    assert store.database.get_submission(store.experiment_id) is None


def test_tries_at_once_are_one_experiment(store: Store, user_id: int) -> None:
    found: list[tuple[int, bool]] = []
    together = threading.Barrier(4)

    def one() -> None:
        together.wait()
        found.append(submit(store, user_id, "at once"))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({number for number, _ in found}) == 1
    assert sum(is_new for _, is_new in found) == 1


def test_nothing_is_recorded_where_the_code_has_no_place(store: Store, user_id: int) -> None:
    def full(number: int) -> str:
        raise OSError(28, "No space left on device")

    before = store.database.count_experiments()
    with pytest.raises(OSError, match="No space"):
        store.database.submit_experiment(
            user_id=user_id,
            submission_id="one",
            test_mode=False,
            config=CONFIG,
            config_text="",
            place=full,
        )
    assert store.database.count_experiments() == before
    assert store.database.find_submission(user_id, "one") is None


def test_it_goes_back_into_the_queue_and_is_deleted(store: Store, user_id: int) -> None:
    database = store.database
    number, _ = submit(store, user_id, "one")
    database.set_submission_phase(number, "STARTED")
    assert not database.queue_again(number)  # it runs
    for state in (ExperimentState.PAUSED, ExperimentState.ERROR, ExperimentState.CANCELED):
        database.set_experiment_state(number, state, error="e")
        database.set_submission_phase(number, "ENDED")
        assert database.list_submissions(phases=["QUEUED", "STARTED"]) == []
        assert database.queue_again(number)
        (found,) = database.list_submissions(phases=["QUEUED"])
        assert (found.experiment_id, found.state) == (number, ExperimentState.RUNNING)
        assert database.get_experiment(number).error is None
    database.set_experiment_state(number, ExperimentState.COMPLETED)
    assert not database.queue_again(number)
    assert not database.queue_again(store.experiment_id)  # was not handed in
    database.delete_experiment(number)
    assert database.find_submission(user_id, "one") is None


ADOPT = """
import sys
from detcore.database import Database
with Database.open(sys.argv[1]) as database:
    print(int(database.adopt_experiment(int(sys.argv[2]))), flush=True)
    sys.stdin.read()
"""


def test_of_several_processes_one_adopts_what_a_dead_one_leaves(
    store: Store, user_id: int, tmp_path: Path
) -> None:
    number, _ = submit(store, user_id, "one")
    assert store.database.adopt_experiment(number)  # its own
    process = store.database.get_experiment(number).process
    assert process is not None
    gone = {name: getattr(process, name) for name in process.__slots__} | {"started": "1"}
    with store.database._write() as connection:
        connection.execute(
            text("UPDATE experiments SET process = :gone WHERE id = :id"),
            {"gone": json.dumps(gone), "id": number},
        )
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


def test_one_that_goes_on_again_does_not_end(store: Store, user_id: int) -> None:
    """Who saw it paused may be late."""
    number, _ = submit(store, user_id, "again")
    store.database.set_experiment_state(number, ExperimentState.PAUSED)
    assert store.database.queue_again(number)
    store.database.set_submission_phase(number, "ENDED")
    known = store.database.get_submission(number)
    assert known is not None
    assert known.phase == "QUEUED"
    store.database.set_experiment_state(number, ExperimentState.PAUSED)
    store.database.set_submission_phase(number, "ENDED")
    known = store.database.get_submission(number)
    assert known is not None
    assert known.phase == "ENDED"


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
