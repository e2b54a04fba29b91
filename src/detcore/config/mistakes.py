"""Find all mistakes in a configuration, and explain them in terms of the experiment file."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from pydantic import BaseModel, ValidationError

from detcore import builtin
from detcore.config.entrypoint_check import find_entrypoint_mistakes
from detcore.config.experiment_config import RULES_LATER, TAGGED, ExperimentConfig
from detcore.config.field_types import KIND_MARK, UNITS, Models
from detcore.config.hyperparameters import HYPERPARAMETER_TYPES
from detcore.config.notices import find_remarks, format_notices
from detcore.config.problems import (
    describe_value,
    did_you_mean,
    find_closest,
    repair_number,
)
from detcore.config.rules import Facts, find_broken_rules
from detcore.config.source_text import (
    Diagnostic,
    Label,
    Node,
    Place,
    Span,
    find_node,
    join_place,
    key_span,
    make_diagnostic,
    unwrap_node,
)
from detcore.contract.values import JSONValue
from detcore.masking import is_secret_key

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails


# Maximum number of explained mistakes, because fuzzy matching is slow.
_MAX_EXPLAINED = 100
_MAX_PASSES = 50
_TAGS = ("name", "type")
_VALID = re.compile(r"\b(an?) valid")
# Models of plugins' settings by name: a class, or "module:Class", which is imported on use.
NamedModels = Mapping[str, "type[BaseModel] | str | None"]
SettingsModels = Mapping[str, NamedModels]  # by section


class LoadOptions(TypedDict, total=False):
    """The options of `load_config`, `load_mapping` and `load_text`.

    Attributes:
        overrides: Settings from flags, by dotted name. A string is parsed as YAML, as for
            ``--set``. Other values are used unchanged.
        environment: Environment variables. Variables such as
            ``DETCORE_CONFIG__SEARCHER__MAX_LENGTH__BATCHES`` are settings with YAML values (see
            `detcore.environment`).
        required: Dotted names that are required although they have defaults, such as
            ``"entrypoint"``.
        models: Valid names by section (``searcher``, ``checkpoint_storage`` and ``launcher``), with
            the model of their settings: a class, ``"module:Class"``, which is imported on use, or
            None. By default, built-in names are checked, and other names may have any settings.
            `PluginManager.settings_models` returns the models of all plugins.
        code_dir: Directory of the code, in which the entrypoint is looked up without running it;
            None to skip this.
    """

    overrides: Mapping[str, object]
    environment: Mapping[str, str]
    required: Collection[str]
    models: SettingsModels
    code_dir: Path | None


def check_config(
    root: Node, options: LoadOptions
) -> tuple[ExperimentConfig | None, list[Diagnostic], list[str]]:
    """Return the configuration, or None, its mistakes, and notices of settings without effect.

    A misspelt name with a clear meaning is reported and then corrected, so that it neither hides
    other mistakes nor causes further reports. Only the first mistakes are explained. `root` already
    contains the settings of flags and variables in `options`.
    """
    mistakes: list[Diagnostic] = []
    for _ in range(_MAX_PASSES):
        models = {
            section: _plugin_models(root, section, options.get("models", {}).get(section))
            for section in TAGGED
        }
        explainer = _Explainer(root, models)
        config, errors = _validate_config(root, models)
        reports = [
            explainer.explain_field_error(error, place)
            if number < _MAX_EXPLAINED
            else make_diagnostic(
                explainer.locate_key(place), f"{join_place(place)}: {error['msg']}"
            )
            for number, (place, error) in enumerate(errors)
        ]
        corrected = [
            report
            for (place, error), report in zip(errors, reports, strict=True)
            if _fix_misspelling(root, place, error, report.suggestion, explainer)
        ]
        mistakes += corrected or reports
        if not corrected:
            break
    reported = {place for place, _ in errors}
    for name in options.get("required", ()):
        place: Place = (*name.split("."),)
        if find_node(root, place) is None and place not in reported:
            mistakes.append(explainer.explain_missing(place))
    bad = {place for place, error in errors if error["type"] not in ("extra_forbidden", "missing")}
    data = unwrap_node(root)
    facts = Facts(data if isinstance(data, dict) else {}, bad)
    broken = find_broken_rules(facts)
    code_dir = options.get("code_dir")
    if code_dir is not None:
        broken += find_entrypoint_mistakes(facts.get("entrypoint"), code_dir)
    mistakes += [
        explainer.explain_problem(problem.context or {}, place) for place, problem in broken
    ]
    notices = format_notices(root, find_remarks(root, explainer.fields_at))
    return (None if mistakes else config), mistakes, notices


def _plugin_models(root: Node, section: str, named: NamedModels | None) -> Models:
    """Return models of settings. A ``"module:Class"`` is imported only if the section uses it."""
    tags = [find_node(root, (section, *tag)) for tag in (("name",), ("type",), ())]
    used = [tag.value for tag in tags if tag is not None and isinstance(tag.value, str)]
    if named is None:
        named = {**dict.fromkeys(used), **built_in_models()[section]}
    return {
        name: (pkgutil.resolve_name(model) if name in used else None)
        if isinstance(model, str)
        else model
        for name, model in named.items()
    }


def built_in_models() -> SettingsModels:
    """Return the models of the settings of the built-in plugin, by section."""
    launcher = builtin.detcore_register_launcher()
    searchers, storage = builtin.detcore_register_searcher(), builtin.detcore_register_storage()
    return {
        "searcher": {item.name: item.settings for item in searchers},
        "checkpoint_storage": {item.name: item.settings for item in storage},
        "launcher": {launcher.name: launcher.settings},
    }


def _validate_config(
    root: Node, models: Mapping[str, Models]
) -> tuple[ExperimentConfig | None, list[tuple[Place, ErrorDetails]]]:
    context = {RULES_LATER: True, **{TAGGED[name].what: models[name] for name in TAGGED}}
    try:
        return ExperimentConfig.model_validate(unwrap_node(root), context=context), []
    except ValidationError as exc:
        return None, [
            (tuple(part for part in error["loc"] if str(part)[:1] != KIND_MARK), error)
            for error in exc.errors(include_url=False, include_input=False)
        ]


def _fix_misspelling(
    root: Node, place: Place, error: ErrorDetails, correction: str | None, explainer: _Explainer
) -> bool:
    """Correct a clear misspelling in `root`, and return whether it was a misspelling."""
    context = error.get("ctx", {}) if error["type"] == "detcore" else {}
    parent = find_node(root, place[:-1])
    old = parent.entries.get(str(place[-1])) if parent is not None and place else None
    if parent is None or old is None or correction is None:
        return False
    is_unknown = error["type"] == "extra_forbidden" or context.get("text", "").startswith(
        ("unknown key", "unknown unit")
    )
    valid = explainer.valid_names(place[:-1])
    if is_unknown and correction not in parent.entries and (not valid or correction in valid):
        parent.value = {
            correction if key == place[-1] else key: n for key, n in parent.entries.items()
        }
        return True
    if place[-1] in _TAGS and correction in context.get("choices", ()):
        old.value = correction
        return True
    return False


class _Explainer:
    """Converts mistakes in a configuration to diagnostics."""

    def __init__(self, root: Node, plugins: Mapping[str, Models]) -> None:
        self._root = root
        self._plugins = plugins

    def locate_key(self, place: Place) -> Span:
        """Return the position of a key, of its nearest parent, or of the top of the file."""
        top = self._root.span
        return key_span(self._root, place) or top.source.make_span(top.line, top.column)

    def locate_value(self, place: Place) -> Span:
        """Return the position of a value, or of its key if the value is empty or missing."""
        node = find_node(self._root, place)
        return self.locate_key(place) if node is None or node.span.is_empty else node.span

    def explain_field_error(self, error: ErrorDetails, place: Place) -> Diagnostic:
        """Explain an error of pydantic."""
        kind, context = error["type"], error.get("ctx", {})
        if kind == "detcore":
            return self.explain_problem(context, place)
        if kind == "extra_forbidden":
            return self._explain_unknown(place)
        if kind == "missing":
            return self.explain_missing(place)
        node = find_node(self._root, place)
        value = None if node is None else unwrap_node(node)
        is_secret = is_secret_key(join_place(place))
        message, label, suggestion = _wrong_value(error, value, is_secret=is_secret)
        if node is not None and node.span.is_empty:
            label = "no value here"
        message, *advice = message.split("\n")
        return make_diagnostic(
            self.locate_value(place),
            f"{join_place(place)}: {message}",
            label or did_you_mean(suggestion),
            help=advice or self._describe_field(place),
            suggestion=suggestion,
        )

    def explain_problem(self, context: Mapping[str, Any], place: Place) -> Diagnostic:
        """Explain an error that `detcore.config.problems.problem` made."""
        text, suggestion = context["text"], context["suggestion"]
        valid = [f"valid: {', '.join(context['choices'])}"] if context["choices"] else []
        return make_diagnostic(
            self.locate_key(place) if context["at"] == "key" else self.locate_value(place),
            f"{join_place(place)}: {text}" if text.startswith("expected") else text,
            context["label"] or did_you_mean(suggestion),
            also=[
                Label(self.locate_key(where) if at == "key" else self.locate_value(where), words)
                for where, words, at in context["also"]
                if find_node(self._root, where) is not None
            ],
            help=[*valid, *context["help"]],
            suggestion=suggestion,
        )

    def explain_missing(self, place: Place) -> Diagnostic:
        """Explain that a key is missing."""
        name, parent = str(place[-1]), place[:-1]
        message = f"'{name}' is missing in {self._describe_section(parent)}"
        return make_diagnostic(
            self.locate_key(parent), message, f"no '{name}' here", help=self._describe_field(place)
        )

    def _explain_unknown(self, place: Place) -> Diagnostic:
        name, parent = str(place[-1]), place[:-1]
        valid = self.valid_names(parent)
        near = find_closest(name, valid) or self._find_home(name)
        where = f" in {self._describe_section(parent)}" if parent else " at the top level"
        return make_diagnostic(
            self.locate_key(place),
            f"unknown key '{name}'{where}",
            did_you_mean(near) or "no such key",
            help=[] if near else [f"valid here: {', '.join(valid)}"],
            suggestion=near,
        )

    def _describe_section(self, place: Place) -> str:
        """Describe a section, with its kind if the kind determines the valid keys."""
        if not place:
            return "the experiment file"
        for tag in _TAGS:
            kind = find_node(self._root, (*place, tag))
            is_tag = join_place(place) in TAGGED or (
                tag == "type" and place[0] == "hyperparameters"
            )
            if is_tag and kind is not None and isinstance(kind.value, str):
                return f"{join_place(place)} ({tag}: {kind.value})"
        return f"'{join_place(place)}'"

    def valid_names(self, place: Place) -> list[str]:
        """Return the valid names in a mapping at `place`, or an empty list if all are valid."""
        if fields := self.fields_at(place):
            return list(fields)
        return list(UNITS) if place and str(place[-1]).endswith(("_period", "_length")) else []

    def _describe_field(self, place: Place) -> list[str]:
        info = self.fields_at(place[:-1]).get(str(place[-1])) if place else None
        return [f"{place[-1]}: {info.description}"] if info and info.description else []

    def fields_at(self, place: Place) -> Mapping[str, FieldInfo]:
        """Return the fields of the section at `place`, which may depend on the configuration."""
        if place and place[0] == "hyperparameters":
            kind = HYPERPARAMETER_TYPES.get(self._read_string((*place, "type")))
            return {} if kind is None else kind.model_fields
        fields: Mapping[str, FieldInfo] = ExperimentConfig.model_fields
        for depth, element in enumerate(place):
            if depth == 0 and (tagged := TAGGED.get(str(element))):
                name = self._read_string((element, tagged.tag)) or self._read_string((element,))
                plugin = self._plugins[str(element)].get(name)
                plugin_fields = {} if plugin is None else plugin.model_fields
                fields = {**plugin_fields, **tagged.model.model_fields}
            elif isinstance(element, str):  # an item has the same fields as its list
                info = fields.get(element)
                fields = {} if info is None else getattr(info.annotation, "model_fields", {})
        return fields

    def _find_home(self, name: str) -> str | None:
        """Return the place where an invalid key would be valid."""
        homes = [
            join_place((*place, name))
            for place in ((), *((section,) for section in ExperimentConfig.model_fields))
            if name in self.fields_at(place)
        ]
        if name == "global_batch_size":
            homes.append(f"hyperparameters.{name}")
        return next(iter(homes), None)

    def _read_string(self, place: Place) -> str:
        node = find_node(self._root, place)
        return node.value if node is not None and isinstance(node.value, str) else ""


def _wrong_value(
    error: ErrorDetails, value: JSONValue, *, is_secret: bool
) -> tuple[str, str, str | None]:
    """Return the message, the label, and the suggestion for a wrong value."""
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
    label, suggestion = _suggest_repair(error, value)
    return f"expected {words}, got {describe_value(value)}", label, suggestion


def _suggest_repair(error: ErrorDetails, value: JSONValue) -> tuple[str, str | None]:
    """Return the label and the suggestion for a value of the wrong type."""
    kind, is_text, is_bool = error["type"], isinstance(value, str), isinstance(value, bool)
    if kind in ("int_type", "int_from_float", "float_type"):
        return repair_number(value, float if kind == "float_type" else int)
    if kind == "literal_error" and is_text:
        return "", find_closest(str(value), re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    if kind == "bool_type" and isinstance(value, (str, int)):
        boolean = find_closest(value, ["true", "false"]) if isinstance(value, str) else None
        boolean = {0: "false", 1: "true"}.get(value) if isinstance(value, int) else boolean
        return (f"write {boolean}" if boolean else ""), boolean
    if kind == "string_type" and isinstance(value, (int, float)):
        quoted = f'"{str(value).lower() if is_bool else value}"'
        return f"put it in quotes: {quoted}", quoted
    if kind == "list_type" and isinstance(value, (str, int, float)) and not is_bool:
        return f"for a list with one element, write [{value}]", f"[{value}]"
    return "", None
