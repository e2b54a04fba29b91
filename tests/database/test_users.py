"""Users and tokens among the records."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from detcore.database import new_token, token_digest
from detcore.errors import DatabaseError, NotFoundError

if TYPE_CHECKING:
    from tests.database.conftest import Store

HOUR_S = 3600.0


def add_token(
    store: Store, user_id: int, *, expires_in_s: float = HOUR_S, trial_id: int | None = None
) -> str:
    """Note a token; return its digest."""
    digest = token_digest(new_token())
    assert store.database.add_token(
        digest, user_id=user_id, expires_at=time.time() + expires_in_s, trial_id=trial_id
    )
    return digest


def test_a_user_is_found_by_name_and_by_id(store: Store) -> None:
    made = store.database.create_user("Ada", password_hash="kept", is_admin=True)
    assert (made.name, made.is_admin, made.is_active) == ("Ada", True, True)
    assert store.database.get_user("Ada") == store.database.get_user(made.id) == made
    assert "kept" not in repr(made)
    other = store.database.create_user("ada", password_hash=None)
    assert store.database.list_users() == [made, other]
    with pytest.raises(NotFoundError, match=r"no user 'eve' .*\n.*detcore user list"):
        store.database.get_user("eve")


def test_a_name_is_taken_once(store: Store) -> None:
    first = store.database.create_user("ada", password_hash="one")
    with pytest.raises(DatabaseError, match=r"a user 'ada' already"):
        store.database.create_user("ada", password_hash="two")
    assert store.database.list_users() == [first]


def test_a_token_proves_its_user(store: Store) -> None:
    user = store.database.create_user("ada", password_hash="kept", is_admin=True)
    digest = add_token(store, user.id)
    found = store.database.find_token(digest)
    assert found is not None
    assert (found.user_id, found.user_name, found.is_admin, found.trial_id) == (
        user.id, "ada", True, None
    )  # fmt: skip
    assert store.database.find_token(token_digest("another")) is None
    store.database.remove_token(digest)
    store.database.remove_token(digest)
    assert store.database.find_token(digest) is None


def test_an_expired_token_proves_nothing_and_is_forgotten(store: Store) -> None:
    user = store.database.create_user("ada", password_hash="kept")
    old = add_token(store, user.id, expires_in_s=-1)
    assert store.database.find_token(old) is None
    assert store.database.extend_token(old, expires_at=time.time() + HOUR_S)
    assert store.database.find_token(old) is not None
    assert store.database.extend_token(old, expires_at=time.time() - 1)
    add_token(store, user.id)
    assert not store.database.extend_token(old, expires_at=time.time() + HOUR_S)


@pytest.mark.parametrize("change", [{"password_hash": "other"}, {"is_active": False}])
def test_who_has_another_password_or_may_nothing_has_no_token(
    store: Store, change: dict[str, object]
) -> None:
    user = store.database.create_user("ada", password_hash="kept")
    other = store.database.create_user("bob", password_hash="kept")
    mine, others = add_token(store, user.id), add_token(store, other.id)
    store.database.update_user("ada", **change)
    assert store.database.find_token(mine) is None
    assert store.database.find_token(others) is not None
    store.database.update_user("ada", is_active=True)
    assert store.database.find_token(mine) is None


def test_a_user_who_is_not_active_has_no_token_made_meanwhile(store: Store) -> None:
    user = store.database.create_user("ada", password_hash="kept")
    store.database.update_user("ada", is_active=False)
    assert store.database.find_token(add_token(store, user.id)) is None


def test_a_log_in_with_a_password_that_was_just_changed_gets_no_token(store: Store) -> None:
    user = store.database.create_user("ada", password_hash="kept")
    store.database.update_user("ada", password_hash="other")
    digest, expires_at = token_digest(new_token()), time.time() + HOUR_S
    assert not store.database.add_token(
        digest, user_id=user.id, expires_at=expires_at, password_hash=user.password_hash
    )
    assert store.database.find_token(digest) is None
    assert store.database.add_token(
        digest, user_id=user.id, expires_at=expires_at, password_hash="other"
    )
    assert store.database.find_token(digest) is not None


def test_the_tokens_of_a_trial_go_with_it(store: Store) -> None:
    user = store.database.create_user("ada", password_hash="kept")
    second = store.database.create_trial(experiment_id=store.experiment_id, hparams={}, seed=1)
    workers = [add_token(store, user.id, trial_id=store.trial_id) for _ in range(2)]
    others, own = add_token(store, user.id, trial_id=second), add_token(store, user.id)
    found = store.database.find_token(workers[0])
    assert found is not None
    assert found.trial_id == store.trial_id
    store.database.remove_trial_tokens(store.trial_id)
    assert [store.database.find_token(digest) for digest in workers] == [None, None]
    assert store.database.find_token(others) is not None
    store.database.delete_experiment(store.experiment_id)
    assert store.database.find_token(others) is None
    assert store.database.find_token(own) is not None
