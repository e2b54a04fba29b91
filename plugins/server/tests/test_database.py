"""Tests of users, tokens and submissions in the record store."""

from __future__ import annotations

import threading
import time

import pytest

from detcore.errors import DatabaseError, NotFoundError
from detcore.types import ExperimentState
from detcore_server.server_database import ServerDatabase, new_token, token_digest

HOUR_S = 3600.0


def add_token(database: ServerDatabase, user_id: int, *, expires_in_s: float = HOUR_S) -> str:
    """Store a token and return its digest."""
    digest = token_digest(new_token())
    assert database.add_token(digest, user_id=user_id, expires_at=time.time() + expires_in_s)
    return digest


def test_find_user_by_name_and_id(database: ServerDatabase) -> None:
    user = database.create_user("Ada", password_hash="kept", is_admin=True)
    assert (user.name, user.is_admin, user.is_active) == ("Ada", True, True)
    assert database.get_user("Ada") == database.get_user(user.id) == user
    assert "kept" not in repr(user)
    other = database.create_user("ada", password_hash=None)
    assert database.list_users() == [user, other]
    with pytest.raises(NotFoundError, match=r"no user 'eve' .*\n.*detcore user list"):
        database.get_user("eve")


def test_user_name_is_unique(database: ServerDatabase) -> None:
    first = database.create_user("ada", password_hash="one")
    with pytest.raises(DatabaseError, match=r"the user 'ada' already exists"):
        database.create_user("ada", password_hash="two")
    assert database.list_users() == [first]


def test_find_token_returns_user(database: ServerDatabase) -> None:
    user = database.create_user("ada", password_hash="kept", is_admin=True)
    digest = add_token(database, user.id)
    token = database.find_token(digest)
    assert token is not None
    assert (token.user_id, token.user_name, token.is_admin) == (user.id, "ada", True)
    assert database.find_token(token_digest("another")) is None
    database.remove_token(digest)
    database.remove_token(digest)
    assert database.find_token(digest) is None


def test_expired_token_is_removed(database: ServerDatabase) -> None:
    user = database.create_user("ada", password_hash="kept")
    old = add_token(database, user.id, expires_in_s=-1)
    assert database.find_token(old) is None
    add_token(database, user.id)
    with database.transaction(write=False) as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM tokens").scalar() == 1


@pytest.mark.parametrize("change", [{"password_hash": "other"}, {"is_active": False}])
def test_password_change_and_deactivation_remove_tokens(
    database: ServerDatabase, change: dict[str, object]
) -> None:
    user = database.create_user("ada", password_hash="kept")
    other = database.create_user("bob", password_hash="kept")
    tokens, other_tokens = add_token(database, user.id), add_token(database, other.id)
    database.update_user("ada", **change)
    assert database.find_token(tokens) is None
    assert database.find_token(other_tokens) is not None
    database.update_user("ada", is_active=True)
    assert database.find_token(tokens) is None


def test_inactive_user_gets_no_token(database: ServerDatabase) -> None:
    user = database.create_user("ada", password_hash="kept")
    database.update_user("ada", is_active=False)
    assert database.find_token(add_token(database, user.id)) is None


def test_login_with_just_changed_password_fails(
    database: ServerDatabase,
) -> None:
    user = database.create_user("ada", password_hash="kept")
    database.update_user("ada", password_hash="other")
    digest, expires_at = token_digest(new_token()), time.time() + HOUR_S
    assert not database.add_token(
        digest, user_id=user.id, expires_at=expires_at, password_hash=user.password_hash
    )
    assert database.find_token(digest) is None
    assert database.add_token(digest, user_id=user.id, expires_at=expires_at, password_hash="other")
    assert database.find_token(digest) is not None


CONFIG = {"name": "n", "labels": ["x"], "data": {"api_token": "secret-of-mine"}}


def submit(database: ServerDatabase, user_id: int, name: str) -> int:
    return database.submit_experiment(
        user_id=user_id,
        submission_id=name,
        test_mode=True,
        config=CONFIG,
        config_text="data: {api_token: secret-of-mine}",
        place=lambda number: f"/code/{number}",
    )


def add_local(database: ServerDatabase) -> int:
    """Record an experiment that was not submitted."""
    return database.create_experiment(config={}, config_text=None, model_dir="/m", name="n")


@pytest.fixture
def user_id(database: ServerDatabase) -> int:
    return database.create_user("ada", password_hash=None).id


def test_repeated_submission_is_same_experiment(database: ServerDatabase, user_id: int) -> None:
    number = submit(database, user_id, "one")
    assert submit(database, user_id, "one") == number
    other = database.create_user("bob", password_hash=None).id
    assert submit(database, other, "one") != number  # each user has separate names
    record = database.get_experiment(number)
    assert (record.model_dir, record.state) == (f"/code/{number}", ExperimentState.RUNNING)
    assert "secret-of-mine" not in f"{record.config}{record.config_text}"
    submission = database.get_submission(number)
    assert submission is not None
    assert (submission.user_name, submission.phase, submission.test_mode) == ("ada", "QUEUED", True)
    assert database.find_submission(user_id, "one") == number
    other = add_local(database)
    assert database.get_submission(other) is None
    assert [row.id for row in database.list_experiments(where=database.submitted_by("ada"))] == [
        number
    ]
    assert database.submitters([number, other]) == {number: "ada"}


def test_concurrent_submissions_are_one_experiment(database: ServerDatabase, user_id: int) -> None:
    numbers: list[int] = []
    together = threading.Barrier(4)

    def one() -> None:
        together.wait()
        numbers.append(submit(database, user_id, "at once"))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers == [numbers[0]] * 4
    assert database.count_experiments() == 1


def test_full_disk_records_nothing(database: ServerDatabase, user_id: int) -> None:
    def full(number: int) -> str:
        raise OSError(28, "No space left on device")

    before = database.count_experiments()
    with pytest.raises(OSError, match="No space"):
        database.submit_experiment(
            user_id=user_id,
            submission_id="one",
            test_mode=False,
            config=CONFIG,
            config_text="",
            place=full,
        )
    assert database.count_experiments() == before
    assert database.find_submission(user_id, "one") is None


def test_submission_is_requeued_and_deleted(database: ServerDatabase, user_id: int) -> None:
    number = submit(database, user_id, "one")
    database.set_submission_phase(number, "STARTED")
    assert not database.queue_again(number)  # it is running
    for state in (ExperimentState.PAUSED, ExperimentState.ERROR, ExperimentState.CANCELED):
        database.set_experiment_state(number, state, error="e")
        database.set_submission_phase(number, "ENDED")
        assert database.list_submissions(phases=["QUEUED", "STARTED"]) == []
        assert database.queue_again(number)
        (submission,) = database.list_submissions(phases=["QUEUED"])
        assert (submission.experiment_id, submission.state) == (number, ExperimentState.RUNNING)
        assert database.get_experiment(number).error is None
    database.set_experiment_state(number, ExperimentState.COMPLETED)
    assert not database.queue_again(number)
    other = add_local(database)
    database.set_experiment_state(other, ExperimentState.PAUSED)
    assert not database.queue_again(other)  # it was not submitted
    database.delete_experiment(number)
    assert database.find_submission(user_id, "one") is None


def test_resumed_experiment_does_not_end(database: ServerDatabase, user_id: int) -> None:
    """A client may act on an old paused state."""
    number = submit(database, user_id, "again")
    database.set_experiment_state(number, ExperimentState.PAUSED)
    assert database.queue_again(number)
    database.set_submission_phase(number, "ENDED")
    submission = database.get_submission(number)
    assert submission is not None
    assert submission.phase == "QUEUED"
    database.set_experiment_state(number, ExperimentState.PAUSED)
    database.set_submission_phase(number, "ENDED")
    submission = database.get_submission(number)
    assert submission is not None
    assert submission.phase == "ENDED"
