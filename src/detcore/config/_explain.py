"""Translate errors of pydantic and of the rules into the terms of the experiment file."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from detcore._secrets import is_secret_key
from detcore.config._experiment import ExperimentConfig
from detcore.config._hyperparameters import HYPERPARAMETER_TYPES
from detcore.config._length import UNITS
from detcore.config._problem import (
    Mention,
    describe_value,
    did_you_mean,
    nearest,
    repair_number,
)
from detcore.config._searchers import SEARCHERS, PluginSearcher
from detcore.config._sections import PluginLauncher
from detcore.config._source import (
    Diagnostic,
    Label,
    Node,
    Place,
    Span,
    dotted,
    find,
    key_span,
    mistake,
    plain,
)
from detcore.config._storage import STORAGE_TYPES, PluginStorage
from detcore.contract.values import JSONValue

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["Explainer", "Models", "json_schema"]

# By section ("searcher", "checkpoint_storage", "launcher"), then by name; None: there is no model.
Models = Mapping[str, Mapping[str, "type[BaseModel] | None"]]
# The key that decides, models by its value, the model where the value is not known, and keys that
# are valid beside those of a plugin's model.
_TAGGED: Mapping[
    str,
    tuple[str, Mapping[str, type[BaseModel]], type[BaseModel] | None, Collection[str]],
] = {
    "searcher": ("name", SEARCHERS, None, PluginSearcher.model_fields),
    "checkpoint_storage": ("type", STORAGE_TYPES, None, PluginStorage.model_fields),
    "launcher": ("name", {}, PluginLauncher, PluginLauncher.model_fields),
}
_RENAMED = {"batches_per_step": "since version 0.13 this is called 'scheduling_unit'"}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Explainer:
    """Turns mistakes in one configuration into diagnostics.

    Args:
        root: The configuration as written.
        plugins: Models of settings that plugins provide.
    """

    def __init__(self, root: Node, plugins: Models) -> None:
        self._root = root
        self._plugins = plugins

    # -- places ---------------------------------------------------------------------------------

    def key(self, place: Place) -> Span:
        """Return the position of a key, of the nearest one above it, or of the top of the file."""
        return key_span(self._root, place) or self._top()

    def value(self, place: Place) -> Span:
        """Return the position of a value; if it is empty or missing, of its key."""
        node = find(self._root, place)
        if node is None or _is_empty(node):
            return self.key(place)
        return node.span

    def _top(self) -> Span:
        source = self._root.span.source
        keys = [child.key for child in self._root.entries.values() if child.key]
        first = next((key for key in keys if key.source is source), None)
        return source.span(first.line, first.column) if first else self._root.span

    # -- mistakes -------------------------------------------------------------------------------

    def field(self, error: ErrorDetails, place: Place) -> Diagnostic:
        """Explain one of pydantic's errors."""
        kind, context = error["type"], error.get("ctx", {})
        if kind == "detcore":
            return self.problem(context, place)
        if kind == "extra_forbidden":
            return self._unknown(place)
        if kind == "missing":
            return self.missing(place)
        node = find(self._root, place)
        value = None if node is None else plain(node)
        message, label, suggestion = _wrong_value(kind, context, value, error["msg"])
        if is_secret_key(dotted(place)):
            message, suggestion = message.split(", got")[0] + " (value not shown)", None
            label = "" if "quotes" in label else label
        if node is not None and _is_empty(node):
            label = "nothing is written here"
        return mistake(
            self.value(place),
            f"{dotted(place)}: {message}",
            label or did_you_mean(suggestion),
            help=self._about(place),
            suggestion=suggestion,
        )

    def problem(self, context: Mapping[str, Any], place: Place) -> Diagnostic:
        """Explain an error that `detcore.config._problem.problem` made."""
        text, suggestion = context["text"], context["suggestion"]
        valid = [f"valid: {', '.join(context['choices'])}"] if context["choices"] else []
        beside = [Mention((*place[:-1], name), words, "key") for name, words in context["beside"]]
        return mistake(
            self.key(place) if context["at"] == "key" else self.value(place),
            f"{dotted(place)}: {text}" if text.startswith("expected") else text,
            context["label"] or did_you_mean(suggestion),
            also=[
                Label(self.key(where) if at == "key" else self.value(where), words)
                for where, words, at in (*beside, *context["also"])
                if find(self._root, where) is not None
            ],
            help=[*valid, *context["help"]],
            suggestion=suggestion,
        )

    def missing(self, place: Place) -> Diagnostic:
        """Explain that a key is missing."""
        name, parent = str(place[-1]), place[:-1]
        where = self._section(parent) or "the experiment file"
        message = f"'{name}' is missing in {where}"
        return mistake(self.key(parent), message, f"no '{name}' here", help=self._about(place))

    def _unknown(self, place: Place) -> Diagnostic:
        name, parent = str(place[-1]), place[:-1]
        valid = self.valid_names(parent)
        given = find(self._root, parent)
        present = {} if given is None else given.entries
        near = nearest(name, [choice for choice in valid if choice not in present])
        twin = None if near else nearest(name, [choice for choice in valid if choice in present])
        hints = [_RENAMED[name]] if name in _RENAMED else []
        elsewhere = None if near else _elsewhere(name, parent)
        also: list[Label] = []
        label = did_you_mean(near) or "no such key"
        if elsewhere:
            near, label = elsewhere
        elif twin:
            near, label = twin, f"did you mean '{twin}'? It is given too"
            also = [Label(self.key((*parent, twin)), "given here")]
        if label == "no such key" or (near and self._is_of_plugin(parent)):
            hints.append(f"valid here: {', '.join(valid)}")
        where = f" in {self._section(parent)}" if parent else " at the top level"
        message = f"unknown key '{name}'{where}"
        return mistake(self.key(place), message, label, also=also, help=hints, suggestion=near)

    def _section(self, place: Place) -> str:
        """Name a section, with its kind if that decides which keys are valid."""
        if not place:
            return ""
        for tag in ("name", "type"):
            kind = find(self._root, (*place, tag))
            is_tag = dotted(place) in _TAGGED or (tag == "type" and place[0] == "hyperparameters")
            if is_tag and kind is not None and isinstance(kind.value, str):
                return f"{dotted(place)} ({tag}: {kind.value})"
        return f"'{dotted(place)}'"

    # -- models ---------------------------------------------------------------------------------

    def valid_names(self, place: Place) -> list[str]:
        """Return the names that a mapping at `place` may have; empty if any name is valid."""
        model = self._model(place)
        if model is not None:
            is_ours = model in SEARCHERS.values() or dotted(place) not in _TAGGED
            common = () if is_ours else _TAGGED[dotted(place)][-1]
            return list(dict.fromkeys([*model.model_fields, *common]))
        return list(UNITS) if place and str(place[-1]).endswith(("_period", "_length")) else []

    def _is_of_plugin(self, place: Place) -> bool:
        """Tell whether a plugin's model says which keys a section has."""
        known = self._plugins.get(str(place[0]), {}) if len(place) == 1 else {}
        model = self._model(place)
        return model is not None and model in known.values()

    def _about(self, place: Place) -> list[str]:
        model = self._model(place[:-1]) if place else None
        info = None if model is None else model.model_fields.get(str(place[-1]))
        return [f"{place[-1]}: {info.description}"] if info and info.description else []

    def _model(self, place: Place) -> type[BaseModel] | None:
        """Return the model of the section at `place`; the text selects among several."""
        model: type[BaseModel] | None = ExperimentConfig
        for depth, element in enumerate(place):
            if isinstance(element, int):
                continue  # an item has the same model as its list
            here = place[: depth + 1]
            if place[0] == "hyperparameters" and depth > 0:
                model = HYPERPARAMETER_TYPES.get(self._text((*here, "type")))
            elif depth == 0 and element in _TAGGED:
                tag, known, model, _ = _TAGGED[element]
                if name := self._text((*here, tag)) or self._text(here):
                    model = self._plugins.get(element, {}).get(name) or known.get(name, model)
            else:
                info = None if model is None else model.model_fields.get(element)
                model = None if info is None else next(_models(info.annotation), None)
        return model

    def _text(self, place: Place) -> str:
        node = find(self._root, place)
        return node.value if node is not None and isinstance(node.value, str) else ""


def _sections() -> Iterator[tuple[Place, type[BaseModel]]]:
    yield (), ExperimentConfig
    for searcher in SEARCHERS.values():
        yield ("searcher",), searcher
    for storage in STORAGE_TYPES.values():
        yield ("checkpoint_storage",), storage
    for name, info in ExperimentConfig.model_fields.items():
        if name not in ("searcher", "checkpoint_storage"):
            yield from (((name,), model) for model in _models(info.annotation))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation such as ``list[Device] | None``."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    for argument in typing.get_args(annotation):
        yield from _models(argument)


def _elsewhere(name: str, parent: Place) -> tuple[str, str] | None:
    """Return the place where a key that is invalid here belongs, and a phrase for it."""
    found: list[Place] = [
        (*place, name) for place, kind in _sections() if name in kind.model_fields
    ]
    if name == "global_batch_size":
        found.append(("hyperparameters", name))
    if (*parent, name) in found:
        models = SEARCHERS if parent == ("searcher",) else STORAGE_TYPES
        kinds = [kind for kind, model in models.items() if name in model.model_fields]
        return name, f"valid only for: {', '.join(kinds)}"
    if found:
        home = dotted(found[0])
        return home, f"did you mean '{home}'?"
    return None


def _is_empty(node: Node) -> bool:
    span = node.span
    return node.value is None and (span.line, span.column) == (span.end_line, span.end_column)


# -- wrong values -------------------------------------------------------------------------------
_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "string_too_short": "a string that is not empty",
    "too_short": "at least one item",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("gt", "more than {}"),
    "greater_than_equal": ("ge", "{} or more"),
    "less_than": ("lt", "less than {}"),
    "less_than_equal": ("le", "at most {}"),
}


def _wrong_value(
    kind: str, context: Mapping[str, Any], value: JSONValue, fallback: str
) -> tuple[str, str, str | None]:
    """Return the message, the text under the place, and the probable intention."""
    got = describe_value(value)
    if kind == "literal_error":
        *others, last = re.findall(r"'([^']*)'", context["expected"])
        suggestion = nearest(value, [*others, last]) if isinstance(value, str) else None
        listed = f"{', '.join(others)} or {last}" if others else last
        return f"expected {listed}, got {got}", "", suggestion
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = context[name]
        bound = int(bound) if isinstance(bound, float) and bound == int(bound) else bound
        return f"expected {words.format(bound)}, got {value}", "", None
    if kind not in _EXPECTED:
        return fallback.removeprefix("Value error, "), "", None
    least = context.get("min_length", 1)
    if kind == "string_too_short" and least > 1:
        return f"expected at least {least} characters, got {got}", "", None
    if kind in ("string_too_short", "too_short"):
        return f"expected {_EXPECTED[kind]}", "this is empty", None
    return f"expected {_EXPECTED[kind]}, got {got}", *_repair(kind, value)


def _repair(kind: str, value: JSONValue) -> tuple[str, str | None]:
    """Return the text under a value of the wrong type, and the probable intention."""
    if kind in ("int_type", "int_from_float", "float_type"):
        return repair_number(value, float if kind == "float_type" else int)
    if kind == "bool_type":
        meant = nearest(value, ["true", "false"]) if isinstance(value, str) else None
        if isinstance(value, int):
            meant = {0: "false", 1: "true"}.get(value)
        return (f"write {meant}" if meant else ""), meant
    if kind == "string_type" and isinstance(value, (str, int, float)):
        quoted = f'"{str(value).lower() if isinstance(value, bool) else value}"'
        return f"put it in quotes: {quoted}", quoted
    is_bool = isinstance(value, bool)
    if kind == "list_type" and isinstance(value, (str, int, float)) and not is_bool:
        return f"for a list of one, write [{value}]", f"[{value}]"
    return "", None


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the experiment file.

    Editors use it to complete and check the file: every field has a description, closed sets are
    enums, unknown names are rejected. Rules between fields are not included.
    """
    schema = ExperimentConfig.model_json_schema()
    _tidy(schema)
    return {"$schema": _DIALECT, **schema, "title": "detcore experiment", "description": _ABOUT}


_ABOUT = (
    "An experiment file of detcore; 'detcore config check FILE' also checks rules between fields."
)


def _tidy(schema: Any) -> None:
    """Remove titles that pydantic derives from field names, and keywords specific to OpenAPI."""
    if isinstance(schema, list):
        for item in schema:
            _tidy(item)
    elif isinstance(schema, dict):
        schema.pop("discriminator", None)
        for field in schema.get("properties", {}).values():
            field.pop("title", None)
        for word in ("properties", "$defs"):
            for part in schema.get(word, {}).values():
                _tidy(part)
        for word in ("allOf", "anyOf", "oneOf", "items", "additionalProperties"):
            _tidy(schema.get(word))
