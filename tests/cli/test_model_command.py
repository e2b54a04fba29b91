"""Test ``detcore model``, the commands of the registry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from recorded import Records

from detcore.errors import CheckpointStateError, DatabaseError, NotFoundError
from detcore.log.events import CheckpointStarted


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Records]:
    with Records.create(tmp_path_factory.mktemp("models")) as records:
        records.trained()
        yield records


def test_model_from_creation_to_deletion(records: Records) -> None:
    created = records.data(
        "model", "create", "digits", "--description", "reads digits", "--label", "vision",
        "--metadata", "data=v3", "--metadata", "classes=10", "--metadata", "bad=NaN",
    )  # fmt: skip
    assert created["metadata"] == {"data": "v3", "classes": 10, "bad": "NaN"}
    finished = records("model", "register-version", "digits", "abcd", "--comment", "best so far")
    assert finished.stdout == "digits version 1: checkpoint abcd1234-full-uuid\n"
    second = records.data("model", "register-version", "digits", "abcd", "--metadata", "a=[1]")
    assert (second["model"], second["number"], second["metadata"]) == ("digits", 2, {"a": [1]})
    described = records.data("model", "describe", "digits")
    assert [version["number"] for version in described["versions"]] == [2, 1]
    text = records("model", "describe", created["id"]).stdout  # by id
    assert "reads digits" in text
    assert "best so far" in text
    assert [row["number"] for row in records.csv("model", "describe", "digits")] == ["2", "1"]

    assert records("model", "set-description", "digits", "reads zip codes").exit_code == 0
    updated_model = records("model", "set-metadata", "digits", "data=v4", "ok=true")
    assert updated_model.stdout == 'digits: data="v4" classes=10 bad="NaN" ok=true\n'
    output = records("model", "remove-metadata", "digits", "bad", "ok", "never")
    assert output.stdout == 'digits: data="v4" classes=10\n'

    assert records("model", "archive", "digits").exit_code == 0
    assert records.data("model", "list")["models"] == []
    assert "digits (archived)" in records("model", "list", "--all").stdout
    assert isinstance(records("model", "set-metadata", "digits", "a=1").exception, DatabaseError)
    assert records("model", "unarchive", "digits").exit_code == 0

    assert "pass --yes" in records("model", "delete", "digits").stderr
    records("model", "delete", "digits", "--version", "2", "--yes")
    assert len(records.data("model", "describe", "digits")["versions"]) == 1
    assert records("model", "delete", "digits", "--yes").exit_code == 0
    assert isinstance(records("model", "describe", "digits").exception, NotFoundError)


def test_models_are_sorted_and_filtered(records: Records) -> None:
    for name, label in (("b", "x"), ("A", "x"), ("7", "y")):
        assert records("model", "create", name, "--label", label).exit_code == 0

    def names(*options: str) -> list[str]:
        return [row["name"] for row in records.data("model", "list", *options)["models"]]

    assert names() == ["7", "A", "b"]
    assert names("--sort", "created", "--descending", "--limit", "2") == ["7", "A"]
    assert names("--label", "x", "--name", "a") == ["A"]
    assert [row["name"] for row in records.csv("model", "list")] == ["7", "A", "b"]
    # A name that looks like a number is tried as a name first.
    assert records.data("model", "describe", "7")["name"] == "7"
    for name in ("b", "A", "7"):
        assert records("model", "delete", name, "--yes").exit_code == 0
    assert records.csv("model", "list") == []
    assert "detcore model create NAME" in records("model", "list").stderr


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("describe", "nothing"), NotFoundError, "nothing"),
        (("register-version", "m", "ffff"), NotFoundError, "no checkpoint 'ffff'"),
        (("register-version", "m", "active"), CheckpointStateError, "active"),
        (("create", "m"), DatabaseError, "a model named 'm' already exists"),
    ],
)
def test_mistakes_are_reported(
    records: Records, arguments: tuple[str, ...], error: type[Exception], says: str
) -> None:
    names = [model.name for model in records.database.list_models()]
    if "m" not in names:
        records.database.create_model("m")
        records.database.record_checkpoint(
            CheckpointStarted(uuid="active", storage_url="s3://runs", steps_completed=1), trial_id=1
        )
    exception = records("model", *arguments).exception
    assert isinstance(exception, error)
    assert says in str(exception)


def test_metadata_must_be_key_and_value(records: Records) -> None:
    result = records("model", "create", "x", "--metadata", "data")
    assert result.exit_code == 2
    assert "got 'data'" in result.stderr
