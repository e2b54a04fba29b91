"""Translate errors of pydantic and of the rules into the terms of the experiment file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from detcore._secrets import is_secret_key
from detcore.config._experiment import ExperimentConfig
from detcore.config._names import Models, field_at, homes, model_at, valid_names
from detcore.config._problem import describe_value
from detcore.config._rules import Mention, Violation
from detcore.config._searchers import SEARCHERS
from detcore.config._source import Diagnostic, Label, Place, Span
from detcore.config._storage import STORAGE_TYPES
from detcore.config._suggest import nearest
from detcore.config._tree import Node, find, key_span, plain

__all__ = ["Explainer", "dotted", "json_schema"]

_LEGACY = {
    "batches_per_step": "since version 0.13 this is called 'scheduling_unit'",
}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def dotted(place: Place) -> str:
    """Return a place in the notation of messages and flags."""
    return ".".join(str(element) for element in place)


class Explainer:
    """Turns mistakes in one configuration into diagnostics.

    Args:
        root: The configuration as written.
        plugins: Models of settings that plugins provide.
    """

    def __init__(self, root: Node, plugins: Models) -> None:
        self._root = root
        self._data = plain(root)
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
        entries = self._root.value
        if isinstance(entries, dict):
            for entry in entries.values():
                if entry.key_span.source is self._root.span.source:
                    span = entry.key_span
                    return Span(span.source, span.line, span.column, span.line, span.column + 1)
        return self._root.span

    def _at(self, mention: Mention) -> Label:
        span = self.key(mention.place) if mention.at == "key" else self.value(mention.place)
        return Label(span, mention.text)

    # -- rules ----------------------------------------------------------------------------------

    def violation(self, broken: Violation) -> Diagnostic:
        """Explain a broken rule between fields."""
        return Diagnostic(
            message=broken.message,
            primary=self._at(broken.primary),
            secondary=tuple(
                self._at(mention)
                for mention in broken.others
                if find(self._root, mention.place) is not None
            ),
            help=broken.help,
            suggestion=broken.suggestion,
        )

    # -- fields ---------------------------------------------------------------------------------

    def field(self, error: Mapping[str, Any], place: Place) -> Diagnostic:
        """Explain one of pydantic's errors."""
        kind = error["type"]
        context = error.get("ctx", {})
        if kind == "detcore":
            return self._own(context, place)
        if kind == "extra_forbidden":
            return self._unknown(place)
        if kind == "missing":
            return self._missing(place)
        node = find(self._root, place)
        value = None if node is None else plain(node)
        if kind == "literal_error":
            return self._choice(re.findall(r"'([^']*)'", context["expected"]), value, place)
        message, label, suggestion = _wrong_value(kind, context, value, error["msg"])
        if is_secret_key(dotted(place)):
            message, suggestion = message.split(", got")[0] + " (value not shown)", None
            label = "" if "quotes" in label else label
        if node is not None and _is_empty(node):
            label = "nothing is written here"
        return Diagnostic(
            message=f"{dotted(place)}: {message}",
            primary=Label(self.value(place), label or _did_you_mean(suggestion)),
            help=self._about(place),
            suggestion=suggestion,
        )

    def _own(self, context: Mapping[str, Any], place: Place) -> Diagnostic:
        at_key = context["at"] == "key"
        suggestion = context["suggestion"]
        text = context["text"]
        valid = f"valid: {', '.join(context['choices'])}" if context["choices"] else ""
        also = tuple(Label(self.key((*place[:-1], name)), words) for name, words in context["also"])
        return Diagnostic(
            message=f"{dotted(place)}: {text}" if text.startswith("expected") else text,
            primary=Label(
                self.key(place) if at_key else self.value(place),
                context["label"] or _did_you_mean(suggestion),
            ),
            secondary=also,
            help=tuple(line for line in (valid, *context["help"]) if line),
            suggestion=suggestion,
        )

    def _unknown(self, place: Place) -> Diagnostic:
        name, parent = str(place[-1]), place[:-1]
        valid = valid_names(parent, self._data, self._plugins)
        given = find(self._root, parent)
        present = given.value if given is not None and isinstance(given.value, dict) else {}
        near = nearest(name, [choice for choice in valid if choice not in present])
        twin = None if near else nearest(name, [choice for choice in valid if choice in present])
        where = self._section(parent)
        message = f"unknown key '{name}'" + (f" in {where}" if where else " at the top level")
        hints: list[str] = [_LEGACY[name]] if name in _LEGACY else []
        elsewhere = None if near else _elsewhere(name, parent)
        also: tuple[Label, ...] = ()
        label = _did_you_mean(near)
        if elsewhere:
            near, words = elsewhere
            label, hints = words, hints
        elif twin:
            near, label = twin, f"did you mean '{twin}'? It is given too"
            also = (Label(self.key((*parent, twin)), "given here"),)
        elif not near:
            label = "no such key"
        if label == "no such key" or (near and self._is_of_plugin(parent)):
            hints.append(f"valid here: {', '.join(valid)}")
        return Diagnostic(
            message=message,
            primary=Label(self.key(place), label),
            secondary=also,
            help=tuple(hints),
            suggestion=near,
        )

    def _is_of_plugin(self, place: Place) -> bool:
        """Tell whether a plugin's model says which keys a section has."""
        known = self._plugins.get(str(place[0]), {}) if len(place) == 1 else {}
        model = model_at(place, self._data, self._plugins)
        return model is not None and model in known.values()

    def _missing(self, place: Place) -> Diagnostic:
        name, parent = str(place[-1]), place[:-1]
        where = self._section(parent) or "the experiment file"
        return Diagnostic(
            message=f"'{name}' is missing in {where}",
            primary=Label(self.key(parent), f"no '{name}' here"),
            help=self._about(place),
        )

    def _choice(self, choices: list[str], value: object, place: Place) -> Diagnostic:
        suggestion = nearest(value, choices) if isinstance(value, str) else None
        listed = " or ".join([", ".join(choices[:-1]), choices[-1]]) if choices[1:] else choices[0]
        return Diagnostic(
            message=f"{dotted(place)}: expected {listed}, got {describe_value(value)}",
            primary=Label(self.value(place), _did_you_mean(suggestion)),
            help=self._about(place),
            suggestion=suggestion,
        )

    def _section(self, place: Place) -> str:
        """Name a section, with its kind if that decides which keys are valid."""
        if not place:
            return ""
        value = find(self._root, place)
        for tag in ("name", "type"):
            entry = value.value.get(tag) if value and isinstance(value.value, dict) else None
            tagged = place in (("searcher",), ("checkpoint_storage",), ("launcher",)) or (
                tag == "type" and place[0] == "hyperparameters"
            )
            if tagged and entry is not None and isinstance(entry.node.value, str):
                return f"{dotted(place)} ({tag}: {entry.node.value})"
        return f"'{dotted(place)}'"

    def _about(self, place: Place) -> tuple[str, ...]:
        info = field_at(place, self._data, self._plugins)
        return () if info is None or not info.description else (f"{place[-1]}: {info.description}",)


def _elsewhere(name: str, parent: Place) -> tuple[str, str] | None:
    """Return the place where a key that is invalid here belongs, and a phrase for it."""
    found = homes(name)
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


def _did_you_mean(suggestion: str | None) -> str:
    return f"did you mean '{suggestion}'?" if suggestion else ""


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
    kind: str, context: Mapping[str, Any], value: Any, fallback: str
) -> tuple[str, str, str | None]:
    """Return the message, the text under the place, and the probable intention."""
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = context[name]
        bound = int(bound) if isinstance(bound, float) and bound == int(bound) else bound
        return f"expected {words.format(bound)}, got {value}", "", None
    if kind not in _EXPECTED:
        return fallback.removeprefix("Value error, "), "", None
    repair = _REPAIRS.get(kind)
    label, suggestion = repair(value) if repair is not None else ("", None)
    least = context.get("min_length", 1)
    if kind == "string_too_short" and least > 1:
        return f"expected at least {least} characters, got {describe_value(value)}", "", None
    if kind in ("string_too_short", "too_short"):
        return f"expected {_EXPECTED[kind]}", "this is empty", None
    return f"expected {_EXPECTED[kind]}, got {describe_value(value)}", label, suggestion


def _to_number(value: Any, parse: Callable[[str], float]) -> tuple[str, str | None]:
    if isinstance(value, str):
        try:
            parse(value.strip().replace("_", ""))
        except ValueError:
            return "", None
        text = value.strip()
        return f"remove the quotes: {text}", text
    if isinstance(value, float) and parse is int and value == int(value):
        return f"write {int(value)}", str(int(value))
    return "", None


def _to_bool(value: Any) -> tuple[str, str | None]:
    if isinstance(value, int):
        suggestion = {0: "false", 1: "true"}.get(value)
        return (f"write {suggestion}" if suggestion else ""), suggestion
    if isinstance(value, str):
        suggestion = nearest(value, ["true", "false"])
        return (f"write {suggestion}" if suggestion else ""), suggestion
    return "", None


def _to_string(value: Any) -> tuple[str, str | None]:
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, (str, int, float)):
        return f'put it in quotes: "{value}"', f'"{value}"'
    return "", None


def _to_list(value: Any) -> tuple[str, str | None]:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return f"for a list of one, write [{value}]", f"[{value}]"
    return "", None


_REPAIRS: dict[str, Callable[[Any], tuple[str, str | None]]] = {
    "int_type": lambda value: _to_number(value, int),
    "int_from_float": lambda value: _to_number(value, int),
    "float_type": lambda value: _to_number(value, float),
    "bool_type": _to_bool,
    "string_type": _to_string,
    "list_type": _to_list,
}


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
