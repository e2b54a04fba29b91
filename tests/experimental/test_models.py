"""Test the model registry through the client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from client_store import ClientStore

from detcore.client import Determined, Model, ModelOrderBy, ModelSortBy
from detcore.errors import (
    CheckpointStateError,
    DatabaseError,
    InvalidArgumentError,
    NotFoundError,
)


def test_create_and_get(client: Determined, store: ClientStore) -> None:
    model = client.create_model("digits", "Reads digits.", {"data": "v3"}, labels=["vision"])
    assert (model.name, model.description) == ("digits", "Reads digits.")
    assert (model.metadata, model.labels) == ({"data": "v3"}, ["vision"])
    assert model.creation_time is not None
    assert model.creation_time.tzinfo is not None
    assert model.last_updated_time == model.creation_time
    assert (model.archived, model.num_versions) == (False, 0)
    for same in (client.get_model("digits"), client.get_model(int(model.model_id or 0))):
        assert same.to_json() == model.to_json()
    with pytest.raises(NotFoundError, match=r"no model 'letters'[\s\S]*'digits'"):
        client.get_model("letters")


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": ""},
        {"name": 3},
        {"name": "m", "metadata": {"a": object()}},
        {"name": "m", "metadata": [1]},
        {"name": "m", "labels": "vision"},
    ],
)
def test_invalid_model_is_rejected(
    client: Determined, store: ClientStore, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"name is|metadata|labels is"):
        client.create_model(**arguments)
    assert client.get_models() == []


def test_model_accepts_documented_arguments(store: ClientStore) -> None:
    with Determined() as client:
        client.create_model("digits", metadata={"a": 1})
    model = Model("digits", "", None, None, {}, "")
    assert model.get_version() is None
    model.add_metadata({"b": 2})
    assert model.metadata == {"a": 1, "b": 2}
    again = Model.from_json(json.loads(json.dumps(model.to_json())))
    assert again.to_json() == model.to_json()
    model._transport.close()


# -- lists -----------------------------------------------------------------------------------------


def test_models_are_listed(client: Determined, store: ClientStore) -> None:
    for name, labels in (("b", ["odd"]), ("C", []), ("a", ["odd"])):  # more than one page
        client.create_model(name, f"Number {name}", labels=labels)

    def names(**which: Any) -> list[str]:
        return [model.name for model in client.get_models(**which)]

    assert names() == ["a", "b", "C"]
    newest_first = {"sort_by": ModelSortBy.CREATION_TIME, "order_by": ModelOrderBy.DESC}
    assert names(**newest_first) == ["a", "C", "b"]
    assert names(name="c") == names(description="NUMBER C") == ["C"]
    client.get_model("a").archive()
    assert names(archived=True) == ["a"]
    assert names(labels=["odd"], archived=False) == ["b"]
    assert client.get_model_labels() == ["odd"]


def test_enumerations_have_the_documented_names() -> None:
    assert ModelSortBy["NAME"].value == 1
    assert [sort.value for sort in ModelSortBy] == [0, 1, 2, 4, 5]
    assert repr(ModelOrderBy.ASCENDING) == "<ModelOrderBy.ASCENDING: 1>"
    assert [ModelOrderBy[name].value for name in ("ASC", "ASCENDING")] == [1, 1]
    assert [ModelOrderBy[name].value for name in ("DESC", "DESCENDING")] == [2, 2]


# -- versions --------------------------------------------------------------------------------------


def test_versions(client: Determined, store: ClientStore) -> None:
    trial = store.trial(store.experiment())
    uuids = [store.checkpoint(trial, steps) for steps in (10, 20, 30)]
    model = client.create_model("digits")
    assert (model.get_version(), model.get_versions()) == (None, [])
    before: Any = model.last_updated_time
    registered: list[Any] = [model.register_version(uuid) for uuid in uuids]
    assert [
        (version.model_name, version.model_version, version.uuid, version.batch_number)
        for version in registered
    ] == [("digits", number + 1, uuid, 10 * (number + 1)) for number, uuid in enumerate(uuids)]
    assert (model.num_versions, before < model.last_updated_time) == (3, True)
    versions: list[Any] = [model.get_version(number) for number in (2, 0, -1, 3)]
    versions.append(model.get_version())
    assert [version.uuid for version in versions] == [uuids[1], *[uuids[2]] * 4]
    assert model.get_version(4) is None
    assert [version.uuid for version in model.get_versions()] == uuids[::-1]
    oldest_first = model.get_versions(order_by=ModelOrderBy.ASC)
    assert [version.uuid for version in oldest_first] == uuids
    model.delete_version(2)
    assert (model.get_version(2), model.num_versions) == (None, 2)
    for wrong in (-2, "1", None, True):
        with pytest.raises(InvalidArgumentError, match="version is"):
            model.get_version(wrong)  # type: ignore[arg-type]


def test_unreadable_checkpoint_is_not_registered(client: Determined, store: ClientStore) -> None:
    model = client.create_model("digits")
    updated = model.last_updated_time
    with pytest.raises(NotFoundError, match="no checkpoint 'x' is recorded"):
        model.register_version("x")
    uuid = store.one_checkpoint()
    client.get_checkpoint(uuid).delete()
    with pytest.raises(CheckpointStateError, match="is DELETED"):
        model.register_version(uuid)
    with pytest.raises(InvalidArgumentError, match="checkpoint_uuid is None"):
        model.register_version(None)  # type: ignore[arg-type]
    assert (model.num_versions, model.last_updated_time) == (0, updated)
    assert model.get_version() is None


# -- changes ---------------------------------------------------------------------------------------


def test_metadata_is_merged_and_removed(client: Determined, store: ClientStore) -> None:
    model = client.create_model("digits", metadata={"a": {"x": 1}, "b": 2})
    client.get_model("digits").add_metadata({"theirs": 1})
    model.add_metadata({"a": {"y": 2}})
    assert model.metadata == {"a": {"y": 2}, "b": 2, "theirs": 1}
    model.remove_metadata(["a", "never"])
    assert model.metadata == client.get_model("digits").metadata == {"b": 2, "theirs": 1}
    for wrong in ("b", [1], None):
        with pytest.raises(ValueError, match="expected a list of strings"):
            model.remove_metadata(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be stored as JSON"):
        model.add_metadata({"a": {1, 2}})
    assert model.metadata == {"b": 2, "theirs": 1}


def test_description_and_labels(client: Determined, store: ClientStore) -> None:
    model = client.create_model("digits", "old", labels=["a"])
    model.set_description("new")
    model.set_labels(["b", "c"])
    same = client.get_model("digits")
    for model_object in (model, same):
        assert (model_object.description, model_object.labels) == ("new", ["b", "c"])
    with pytest.raises(ValueError, match="labels is 'b'"):
        model.set_labels("b")
    with pytest.raises(ValueError, match="description is None"):
        model.set_description(None)  # type: ignore[arg-type]
    assert (model.description, model.labels) == ("new", ["b", "c"])


def test_archived_model_cannot_be_changed(client: Determined, store: ClientStore) -> None:
    uuid = store.one_checkpoint()
    model = client.create_model("digits", "old", {"a": 1})
    other = client.get_model("digits")
    other.archive()
    assert other.archived
    changes: list[Callable[[], object]] = [
        lambda: model.add_metadata({"b": 2}),
        lambda: model.remove_metadata(["a"]),
        lambda: model.set_description("new"),
        lambda: model.set_labels(["l"]),
        lambda: model.register_version(uuid),
    ]
    before = model.to_json()
    for change in changes:
        with pytest.raises(DatabaseError, match="is archived"):
            change()
    # The rejected calls did not change the object.
    assert (model.to_json(), model.labels, model.num_versions) == (before, [], 0)
    model.unarchive()
    for change in changes:
        change()
    assert (model.metadata, model.description, model.num_versions) == ({"b": 2}, "new", 1)


def test_delete(client: Determined, store: ClientStore) -> None:
    uuid = store.one_checkpoint()
    model = client.create_model("digits")
    model.register_version(uuid)
    model.delete()
    assert client.get_models() == []
    with pytest.raises(NotFoundError, match="is registered"):
        model.add_metadata({"a": 1})
    # A new model with the same name is a different model.
    client.create_model("digits")
    with pytest.raises(NotFoundError, match="is registered"):
        model.set_description("mine")
    client.get_checkpoint(uuid).delete()
