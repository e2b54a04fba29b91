"""Test the model registry, its checks, and concurrent registrations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from detcore.errors import CheckpointStateError, DatabaseError, NotFoundError
from detcore.log.events import (
    CheckpointDamaged,
    CheckpointDeleted,
    CheckpointDeleting,
)
from detcore.types import ModelOrderBy, ModelSortBy

if TYPE_CHECKING:
    from tests.records.conftest import Crowd, Store


def test_model_names_are_unique(store: Store) -> None:
    store.database.create_model("m")
    store.database.create_model("n")
    with pytest.raises(DatabaseError, match="a model named 'm' already exists"):
        store.database.update_model("n", name="m")
    with pytest.raises(
        NotFoundError, match=r"no model 'o' is registered\.\nRegistered models: 'n', 'm'"
    ):
        store.database.get_model("o")


def test_version_numbers_are_not_reused(store: Store) -> None:
    store.database.create_model("m")
    first = store.database.register_version("m", store.save("c1"), comment="first")
    second = store.database.register_version("m", store.save("c2"), name="best", notes="long")
    assert store.database.get_version("m") == second
    updated = store.database.update_version("m", 2, notes="longer", metadata={})
    assert (updated.name, updated.notes, updated.metadata) == ("best", "longer", {})
    with pytest.raises(NotFoundError, match="has no version 9; versions: 1, 2"):
        store.database.update_version("m", 9, notes="x")
    store.database.delete_version("m", 2)
    assert store.database.get_version("m") == first
    assert store.database.register_version("m", "c2").number == 3


@pytest.mark.parametrize("state", ["ACTIVE", "DAMAGED", "PARTIALLY_DELETED", "DELETING", "DELETED"])
def test_only_complete_checkpoint_is_registered(store: Store, state: str) -> None:
    database = store.database
    database.create_model("m")
    store.begin("c") if state == "ACTIVE" else store.save("c")
    if state == "DAMAGED":
        database.record_checkpoint(CheckpointDamaged(uuid="c"))
    elif state == "PARTIALLY_DELETED":
        database.record_checkpoint(CheckpointDeleted(uuid="c", resources={"a": 5}))
    elif state == "DELETING":
        database.record_checkpoint(CheckpointDeleting(uuid="c"))
    elif state == "DELETED":
        database.record_checkpoint(CheckpointDeleted(uuid="c", resources={}))
    with pytest.raises(CheckpointStateError, match=f"checkpoint c is {state}; only"):
        database.register_version("m", "c")
    with pytest.raises(NotFoundError, match="no checkpoint 'd' is recorded"):
        database.register_version("m", "d")
    assert database.list_versions("m") == []
    store.save("e")
    assert database.register_version("m", "e").number == 1  # rejected calls used no number


def test_registered_checkpoint_cannot_be_deleted(store: Store) -> None:
    database = store.database
    database.create_model("m")
    database.create_model("n")
    store.save("c")
    for model in ("m", "m", "n"):
        database.register_version(model, "c")
    message = "in the model registry: m version 1, m version 2, n version 1"
    with pytest.raises(CheckpointStateError, match=message):
        database.record_checkpoint(CheckpointDeleting(uuid="c"))
    with pytest.raises(CheckpointStateError, match=message):
        database.record_checkpoint(CheckpointDeleted(uuid="c", resources={"a": 5}))
    assert database.get_checkpoint("c").state == "COMPLETED"
    assert list(database.list_registered_checkpoints()) == ["c"]
    database.delete_model("m")
    database.delete_version("n", 1)
    database.record_checkpoint(CheckpointDeleting(uuid="c"))
    assert database.list_registered_checkpoints() == {}


def test_force_deletes_registered_checkpoint(store: Store) -> None:
    store.database.create_model("m")
    store.database.register_version("m", store.save("c"))
    store.database.record_checkpoint(CheckpointDeleted(uuid="c", resources={"a": 5}), force=True)
    store.database.record_checkpoint(CheckpointDeleting(uuid="c"), force=True)
    assert store.database.get_checkpoint("c").state == "DELETING"


def test_models_are_filtered_and_sorted(store: Store) -> None:
    database = store.database
    database.create_model("beta", description="Z", labels=["x", "y"])
    database.create_model("Ärger", description="a thing", labels=["x"])
    database.create_model("alpha_1%", description="B")
    database.add_model_metadata("beta", {"changed": "last"})
    database.set_model_archived("alpha_1%", True)

    def names(**options: object) -> list[str]:
        return [model.name for model in database.list_models(**options)]  # type: ignore[arg-type]

    assert names() == ["alpha_1%", "beta", "Ärger"]
    assert names(order_by=ModelOrderBy.DESC) == ["Ärger", "beta", "alpha_1%"]
    assert names(sort_by=ModelSortBy.DESCRIPTION) == ["Ärger", "alpha_1%", "beta"]
    assert names(sort_by=ModelSortBy.CREATION_TIME) == ["beta", "Ärger", "alpha_1%"]
    assert names(sort_by=ModelSortBy.LAST_UPDATED_TIME) == ["Ärger", "beta", "alpha_1%"]
    assert names(name="BET") == ["beta"]
    assert names(name="ä") == ["Ärger"]
    assert names(name="_1%") == ["alpha_1%"]
    assert names(name="%") == ["alpha_1%"]
    assert names(description="A T") == ["Ärger"]
    assert names(labels=["x"]) == ["beta", "Ärger"]
    assert names(labels=["x", "y"]) == ["beta"]
    assert names(archived=True) == ["alpha_1%"]
    assert names(archived=False) == ["beta", "Ärger"]


def test_concurrent_versions_get_distinct_numbers(store: Store, crowd: Crowd) -> None:
    store.database.create_model("shared")
    store.save("c")
    count, num_versions = 8, 8
    answers = crowd.do(store.url, "register", count=count, checkpoint="c", each=num_versions)
    numbers = [number for text in answers for number in json.loads(text)]
    assert sorted(numbers) == list(range(1, count * num_versions + 1))
    model = store.database.get_model("shared")
    assert model.num_versions == count * num_versions
    assert set(model.metadata) == {f"version-{number}" for number in numbers}  # no update was lost
    latest = store.database.get_version("shared")
    assert latest is not None
    assert latest.number == count * num_versions
