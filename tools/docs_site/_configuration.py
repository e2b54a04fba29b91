"""The experiment file's fields, from the JSON Schema that the models give."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from detcore.config import json_schema
from detcore.environment import read_environment
from detcore.plugins import PluginManager
from docs_site._markdown import cell, code

__all__ = ["SCHEMA", "configuration_page"]

_ABOUT = """\
# Fields of the experiment file

Made from the models that check the file. [The experiment file](../configuration.md) explains how
values are read, where they come from, and which fields have no effect here. `null` stands for the
default everywhere.

A *length* is a mapping with one unit: `{batches: 100}`, `{records: 6400}` or `{epochs: 5}`.
"""
_UNITS = {"batches", "records", "epochs"}
# How the sections are called in the file: models that are chosen by a field, and nested ones.
_PLACES = {
    "Searcher": ("searcher", "name"),
    "Storage": ("checkpoint_storage", "type"),
    "Launcher": ("launcher", "name"),
    "Hyperparameter": ("hyperparameters.NAME", "type"),
}
# With the settings of all plugins that are installed.
SCHEMA = json_schema(PluginManager(read_environment({})).settings_models())


def configuration_page() -> str:
    """Return the page: the top level, then every section that a field can hold."""
    schema = SCHEMA
    models = dict(schema["$defs"])
    for choice in schema["properties"]["hyperparameters"]["additionalProperties"]["anyOf"]:
        if "properties" in choice:
            models[choice["title"]] = choice
    parts = [_ABOUT, "## Top level\n", _table(schema)]
    sections = []
    for name, model in models.items():
        if model.get("properties"):
            text = f"{model.get('description', '')}\n\n{_table(model)}"
            sections.append((_heading(name, model), text))
    sections.sort(key=lambda section: _order(section[0], list(schema["properties"])))
    return "\n".join([*parts, *(f"## {heading}\n\n{text}" for heading, text in sections)])


def _order(heading: str, fields: list[str]) -> int:
    """Return the place of a section: that of its field at the top level."""
    return fields.index(re.findall(r"\w+", heading)[0])


def _heading(name: str, model: dict[str, Any]) -> str:
    for ending, (place, tag) in _PLACES.items():
        if name.endswith(ending):
            return f"`{place}`: `{tag}: {model['properties'][tag]['const']}`"
    return f"`{_FIELDS[name]}`"


def _find_fields() -> Iterator[tuple[str, str]]:
    schema = SCHEMA
    for model in (schema, *schema["$defs"].values()):
        for field, about in model.get("properties", {}).items():
            for name in _references(about):
                yield name, field


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].rpartition("/")[2]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


_FIELDS = dict(_find_fields())


def _table(model: dict[str, Any]) -> str:
    lines = ["| field | kind | default | meaning |", "| --- | --- | --- | --- |"]
    required = set(model.get("required", ()))
    for name, field in model["properties"].items():
        default = "**required**" if name in required else _default(field)
        about = cell(field.get("description", "") or _model(field).get("description", ""))
        lines.append(f"| `{name}` | {cell(kind(field))} | {default} | {about} |")
    return "\n".join(lines) + "\n"


def _model(field: dict[str, Any]) -> dict[str, Any]:
    """Return the model of a field that is a section."""
    models: dict[str, dict[str, Any]] = SCHEMA["$defs"]
    return models.get(field.get("$ref", "").rpartition("/")[2], {})


def _default(field: dict[str, Any]) -> str:
    if "default" not in field:
        return "below" if "$ref" in field else "drawn"
    value = field["default"]
    if isinstance(value, dict) and len(value) > 1:
        return "below"
    return code(value)


def kind(field: dict[str, Any]) -> str:
    """Describe the valid values of a field in a few words."""
    choices = field.get("oneOf") or field.get("anyOf")
    if choices:
        titles = {choice.get("title") for choice in choices}
        if titles >= _UNITS:
            kinds = [kind(choice) for choice in choices if choice.get("title") not in _UNITS]
            return " or ".join(["length", *kinds])
        return " or ".join(dict.fromkeys(kind(choice) for choice in choices))
    if "$ref" in field:
        return _reference(field["$ref"].rpartition("/")[2])
    if "const" in field:
        return code(field["const"])
    if "enum" in field:
        return ", ".join(code(value) for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {kind(field['items'])}" if field.get("items") else "list"
    return _plain(field)


def _reference(name: str) -> str:
    for ending, (_, tag) in _PLACES.items():
        if name.endswith(ending):
            return f"mapping with `{tag}`"
    return "mapping"


def _plain(field: dict[str, Any]) -> str:
    names = {"object": "mapping", None: "anything"}
    words = [names.get(field.get("type"), str(field.get("type")))]
    for key, sign in _BOUNDS.items():
        if key in field:
            words.append(f"{sign} {field[key]}")
    return " ".join(words)


_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
