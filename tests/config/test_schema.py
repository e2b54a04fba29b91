"""Test the JSON Schema for editors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from detcore.config import ExperimentConfig, json_schema
from detcore.environment import read_environment
from detcore.plugins import PluginManager

SCHEMA = json_schema(PluginManager(read_environment({"DETCORE_HOME": "/h"})).settings_models())


def objects(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        yield path, node
        for key, child in node.items():
            yield from objects(child, f"{path}/{key}")
    elif isinstance(node, list):
        for index, child in enumerate(node):
            yield from objects(child, f"{path}/{index}")


def resolve(node: dict[str, Any]) -> dict[str, Any]:
    target: Any = node
    while "$ref" in target:
        target = {**SCHEMA["$defs"][target["$ref"].rsplit("/", 1)[1]]}
    return dict(target)


def test_schema_fields_have_descriptions() -> None:
    count = 0
    for path, node in objects(SCHEMA):
        for name, field in node.get("properties", {}).items() if "properties" in node else ():
            count += 1
            assert field.get("description") or resolve(field)["description"], f"{path}/{name}"
            assert "title" not in field, f"{path}/{name}"
    assert count > 100


def test_schema_rejects_unknown_names() -> None:
    open_ended = {"Pbs", "PluginLauncher", "RegistryAuth", "Slurm"}
    for name, node in SCHEMA["$defs"].items():
        if "properties" in node:
            assert node["additionalProperties"] is (name in open_ended), name
    assert SCHEMA["additionalProperties"] is False


def test_schema_has_enums_and_defaults() -> None:
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    fields = SCHEMA["properties"]
    assert set(fields) == set(ExperimentConfig.model_fields)
    assert fields["checkpoint_policy"]["enum"] == ["best", "all", "none"]
    assert fields["max_restarts"]["default"] == 5
    assert fields["min_validation_period"]["default"] == {"batches": 0}
    ways = fields["min_validation_period"]["oneOf"]
    assert [way.get("required") for way in ways] == [["batches"], ["records"], ["epochs"]]
    assert SCHEMA["required"] == ["searcher"]
    assert "discriminator" not in json.dumps(SCHEMA)


@pytest.mark.parametrize("name", ["complete.yaml", "constant.yaml"])
def test_the_schema_accepts_the_examples(name: str) -> None:
    config = yaml.safe_load((Path(__file__).parent / name).read_text())
    config["hyperparameters"].pop("decay", None)
    jsonschema.validate(config, SCHEMA)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("max_restarts",), "3"),
        (("banana",), 1),
        (("checkpoint_policy",), "bst"),
        (("searcher", "name"), "adaptive_ahsa"),
        (("searcher", "max_trails"), 1),
        (("searcher", "max_length"), {"epochs": 0}),
        (("searcher", "max_length"), {"epochs": 1, "batches": 1}),
        (("min_validation_period",), 100),
        (("checkpoint_storage", "type"), "s4"),
        (("checkpoint_storage", "bukcet"), "b"),
        (("resources", "slots_per_trial"), -1),
        (("hyperparameters", "dense", "type"), "integer"),
        (("hyperparameters", "dense", "minvalue"), 1),
    ],
)
def test_the_schema_refuses(place: tuple[str, ...], value: object) -> None:
    config = yaml.safe_load((Path(__file__).parent / "complete.yaml").read_text())
    section = config
    for name in place[:-1]:
        section = section[name]
    section[place[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config, SCHEMA)
