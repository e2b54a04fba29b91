"""Find every mistake in a configuration, and explain it in the terms of the experiment file."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from pydantic import BaseModel, ValidationError

from detcore import builtin
from detcore.config.entrypoint_check import entrypoint_mistakes
from detcore.config.experiment_config import RULES_LATER, TAGGED, ExperimentConfig
from detcore.config.field_types import KIND_MARK, UNITS, Models
from detcore.config.hyperparameters import HYPERPARAMETER_TYPES
from detcore.config.notices import find_remarks, format_notices
from detcore.config.problems import (
    describe_value,
    did_you_mean,
    nearest,
    repair_number,
)
from detcore.config.rules import Facts, broken_rules
from detcore.config.source_text import (
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
from detcore.contract.values import JSONValue
from detcore.masking import is_secret_key

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails


# Upper bound on explained mistakes: fuzzy matching is slow.
_MAX_EXPLAINED = 100
_MAX_PASSES = 50
_TAGS = ("name", "type")
_VALID = re.compile(r"\b(an?) valid")
# Of plugins; a class, or "module:Class" to be imported when it is used.
NamedModels = Mapping[str, "type[BaseModel] | str | None"]
SettingsModels = Mapping[str, NamedModels]  # by section


class LoadOptions(TypedDict, total=False):
    """The options of `load_config`, `load_mapping` and `load_text`.

    Attributes:
        overrides: Settings by dotted name, from flags. A string is parsed as YAML, as given to
            ``--set``; other values are used unchanged.
        environment: Variables; those named like ``DETCORE_CONFIG__SEARCHER__MAX_LENGTH__BATCHES``
            are settings, with YAML values (see `detcore.environment`).
        required: Dotted names that must be given although they have defaults, such as
            ``"entrypoint"``.
        models: The names that are valid in the sections ``searcher``, ``checkpoint_storage`` and
            ``launcher``, by section, each with the model of its settings: a class,
            ``"module:Class"`` to be imported when the name is used, or None. Default of a section:
            detcore's own names, and any other name with any settings.
            `PluginManager.settings_models` returns those of all plugins.
        code_dir: Folder of the code, in which the entrypoint is looked up without running it; None
            to skip this.
    """

    overrides: Mapping[str, object]
    environment: Mapping[str, str]
    required: Collection[str]
    models: SettingsModels
    code_dir: Path | None


def check(
    root: Node, options: LoadOptions
) -> tuple[ExperimentConfig | None, list[Diagnostic], list[str]]:
    """Return the configuration, or None, its mistakes, and notices of settings without effect.

    A misspelt name with a clear meaning is reported and then corrected, so that one mistake
    neither hides others nor causes further reports. Of very many, only the first are explained.
    The settings of flags and variables among `options` are in `root` already.
    """
    found: list[Diagnostic] = []
    for _ in range(_MAX_PASSES):
        models = {
            section: _plugin_models(root, section, options.get("models", {}).get(section))
            for section in TAGGED
        }
        explainer = _Explainer(root, models)
        config, errors = _validate(root, models)
        reports = [
            explainer.field(error, place)
            if number < _MAX_EXPLAINED
            else mistake(explainer.key(place), f"{dotted(place)}: {error['msg']}")
            for number, (place, error) in enumerate(errors)
        ]
        mended = [
            report
            for (place, error), report in zip(errors, reports, strict=True)
            if _mend(root, place, error, report.suggestion, explainer)
        ]
        found += mended or reports
        if not mended:
            break
    known = {place for place, _ in errors}
    for name in options.get("required", ()):
        place: Place = (*name.split("."),)
        if find(root, place) is None and place not in known:
            found.append(explainer.missing(place))
    bad = {place for place, error in errors if error["type"] not in ("extra_forbidden", "missing")}
    data = plain(root)
    facts = Facts(data if isinstance(data, dict) else {}, bad)
    broken = broken_rules(facts)
    code_dir = options.get("code_dir")
    if code_dir is not None:
        broken += entrypoint_mistakes(facts.get("entrypoint"), code_dir)
    found += [explainer.problem(problem.context or {}, place) for place, problem in broken]
    notices = format_notices(root, find_remarks(root, explainer.fields_at))
    return (None if found else config), found, notices


def _plugin_models(root: Node, section: str, known: NamedModels | None) -> Models:
    """Return models of settings; one given by name is imported only if the section has that tag."""
    tags = [find(root, (section, *tag)) for tag in (("name",), ("type",), ())]
    used = [tag.value for tag in tags if tag is not None and isinstance(tag.value, str)]
    if known is None:
        known = {**dict.fromkeys(used), **built_in_models()[section]}
    return {
        name: (pkgutil.resolve_name(model) if name in used else None)
        if isinstance(model, str)
        else model
        for name, model in known.items()
    }


def built_in_models() -> SettingsModels:
    """Return the models of the settings of detcore's own plugin, by section."""
    launcher = builtin.detcore_register_launcher()
    searchers, storage = builtin.detcore_register_searcher(), builtin.detcore_register_storage()
    return {
        "searcher": {each.name: each.settings for each in searchers},
        "checkpoint_storage": {each.name: each.settings for each in storage},
        "launcher": {launcher.name: launcher.settings},
    }


def _validate(
    root: Node, models: Mapping[str, Models]
) -> tuple[ExperimentConfig | None, list[tuple[Place, ErrorDetails]]]:
    context = {RULES_LATER: True, **{TAGGED[name].what: models[name] for name in TAGGED}}
    try:
        return ExperimentConfig.model_validate(plain(root), context=context), []
    except ValidationError as exc:
        return None, [
            (tuple(part for part in error["loc"] if str(part)[:1] != KIND_MARK), error)
            for error in exc.errors(include_url=False, include_input=False)
        ]


def _mend(
    root: Node, place: Place, error: ErrorDetails, meant: str | None, explainer: _Explainer
) -> bool:
    """Correct a clear misspelling in `root`; return whether it was one."""
    own = error.get("ctx", {}) if error["type"] == "detcore" else {}
    parent = find(root, place[:-1])
    old = parent.entries.get(str(place[-1])) if parent is not None and place else None
    if parent is None or old is None or meant is None:
        return False
    is_unknown = error["type"] == "extra_forbidden" or own.get("text", "").startswith(
        ("unknown key", "unknown unit")
    )
    valid = explainer.valid_names(place[:-1])
    if is_unknown and meant not in parent.entries and (not valid or meant in valid):
        parent.value = {meant if key == place[-1] else key: n for key, n in parent.entries.items()}
        return True
    if place[-1] in _TAGS and meant in own.get("choices", ()):
        old.value = meant
        return True
    return False


class _Explainer:
    """Turns mistakes in a configuration into diagnostics, with the models of plugins' settings."""

    def __init__(self, root: Node, plugins: Mapping[str, Models]) -> None:
        self._root = root
        self._plugins = plugins

    def key(self, place: Place) -> Span:
        """Return the position of a key, of the nearest one above it, or of the top of the file."""
        top = self._root.span
        return key_span(self._root, place) or top.source.span(top.line, top.column)

    def value(self, place: Place) -> Span:
        """Return the position of a value; if it is empty or missing, of its key."""
        node = find(self._root, place)
        return self.key(place) if node is None or node.span.is_empty else node.span

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
        is_secret = is_secret_key(dotted(place))
        message, label, suggestion = _wrong_value(error, value, is_secret=is_secret)
        if node is not None and node.span.is_empty:
            label = "nothing is written here"
        message, *advice = message.split("\n")
        return mistake(
            self.value(place),
            f"{dotted(place)}: {message}",
            label or did_you_mean(suggestion),
            help=advice or self._about(place),
            suggestion=suggestion,
        )

    def problem(self, context: Mapping[str, Any], place: Place) -> Diagnostic:
        """Explain an error that `detcore.config.problems.problem` made."""
        text, suggestion = context["text"], context["suggestion"]
        valid = [f"valid: {', '.join(context['choices'])}"] if context["choices"] else []
        return mistake(
            self.key(place) if context["at"] == "key" else self.value(place),
            f"{dotted(place)}: {text}" if text.startswith("expected") else text,
            context["label"] or did_you_mean(suggestion),
            also=[
                Label(self.key(where) if at == "key" else self.value(where), words)
                for where, words, at in context["also"]
                if find(self._root, where) is not None
            ],
            help=[*valid, *context["help"]],
            suggestion=suggestion,
        )

    def missing(self, place: Place) -> Diagnostic:
        """Explain that a key is missing."""
        name, parent = str(place[-1]), place[:-1]
        message = f"'{name}' is missing in {self._section(parent)}"
        return mistake(self.key(parent), message, f"no '{name}' here", help=self._about(place))

    def _unknown(self, place: Place) -> Diagnostic:
        name, parent = str(place[-1]), place[:-1]
        valid = self.valid_names(parent)
        given = find(self._root, parent)
        absent = [each for each in valid if given is None or each not in given.entries]
        near = nearest(name, absent) or self._home_of(name) or nearest(name, valid)
        where = f" in {self._section(parent)}" if parent else " at the top level"
        return mistake(
            self.key(place),
            f"unknown key '{name}'{where}",
            did_you_mean(near) or "no such key",
            help=[] if near else [f"valid here: {', '.join(valid)}"],
            suggestion=near,
        )

    def _section(self, place: Place) -> str:
        """Name a section, with its kind if that decides which keys are valid."""
        if not place:
            return "the experiment file"
        for tag in _TAGS:
            kind = find(self._root, (*place, tag))
            is_tag = dotted(place) in TAGGED or (tag == "type" and place[0] == "hyperparameters")
            if is_tag and kind is not None and isinstance(kind.value, str):
                return f"{dotted(place)} ({tag}: {kind.value})"
        return f"'{dotted(place)}'"

    def valid_names(self, place: Place) -> list[str]:
        """Return the names that a mapping at `place` may have; empty if any name is valid."""
        if fields := self.fields_at(place):
            return list(fields)
        return list(UNITS) if place and str(place[-1]).endswith(("_period", "_length")) else []

    def _about(self, place: Place) -> list[str]:
        info = self.fields_at(place[:-1]).get(str(place[-1])) if place else None
        return [f"{place[-1]}: {info.description}"] if info and info.description else []

    def fields_at(self, place: Place) -> Mapping[str, FieldInfo]:
        """Return the fields of the section at `place`; the text selects among several kinds."""
        if place and place[0] == "hyperparameters":
            kind = HYPERPARAMETER_TYPES.get(self._text((*place, "type")))
            return {} if kind is None else kind.model_fields
        fields: Mapping[str, FieldInfo] = ExperimentConfig.model_fields
        for depth, element in enumerate(place):
            if depth == 0 and (tagged := TAGGED.get(str(element))):
                name = self._text((element, tagged.tag)) or self._text((element,))
                plugin = self._plugins[str(element)].get(name)
                own = {} if plugin is None else plugin.model_fields
                fields = {**own, **tagged.model.model_fields}
            elif isinstance(element, str):  # an item has the same fields as its list
                info = fields.get(element)
                fields = {} if info is None else getattr(info.annotation, "model_fields", {})
        return fields

    def _home_of(self, name: str) -> str | None:
        """Return the place where a key belongs that is invalid where it was found."""
        homes = [
            dotted((*place, name))
            for place in ((), *((section,) for section in ExperimentConfig.model_fields))
            if name in self.fields_at(place)
        ]
        if name == "global_batch_size":
            homes.append(f"hyperparameters.{name}")
        return next(iter(homes), None)

    def _text(self, place: Place) -> str:
        node = find(self._root, place)
        return node.value if node is not None and isinstance(node.value, str) else ""


def _wrong_value(
    error: ErrorDetails, value: JSONValue, *, is_secret: bool
) -> tuple[str, str, str | None]:
    """Return the message, the text under the place, and the probable intention."""
    if error["type"] in ("string_too_short", "too_short") and not value:
        return "expected a value that is not empty", "this is empty", None
    message = error["msg"].removeprefix("Value error, ")
    _, is_expectation, words = message.partition("Input should be ")
    if not is_expectation:
        if is_secret:  # a plugin's message may end with the value
            message = f"{message.partition(', got')[0]} (value not shown)"
        return message, "", None
    words = _VALID.sub(r"\1", words.partition(", got")[0].partition(" or instance")[0])
    words = words.replace("a integer", "an integer").replace("dictionary", "mapping")
    if words.startswith(("greater", "less")):
        words = f"a value {words}"
    if is_secret:
        return f"expected {words} (value not shown)", "", None
    label, suggestion = _repair(error, value)
    return f"expected {words}, got {describe_value(value)}", label, suggestion


def _repair(error: ErrorDetails, value: JSONValue) -> tuple[str, str | None]:
    """Return the text under a value of the wrong type, and the probable intention."""
    kind, is_text, is_bool = error["type"], isinstance(value, str), isinstance(value, bool)
    if kind in ("int_type", "int_from_float", "float_type"):
        return repair_number(value, float if kind == "float_type" else int)
    if kind == "literal_error" and is_text:
        return "", nearest(str(value), re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    if kind == "bool_type" and isinstance(value, (str, int)):
        meant = nearest(value, ["true", "false"]) if isinstance(value, str) else None
        meant = {0: "false", 1: "true"}.get(value, meant) if isinstance(value, int) else meant
        return (f"write {meant}" if meant else ""), meant
    if kind == "string_type" and isinstance(value, (int, float)):
        quoted = f'"{str(value).lower() if is_bool else value}"'
        return f"put it in quotes: {quoted}", quoted
    if kind == "list_type" and isinstance(value, (str, int, float)) and not is_bool:
        return f"for a list of one, write [{value}]", f"[{value}]"
    return "", None
