"""Find every mistake in a configuration, continuing past each as if it had been corrected."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from detcore.config._entrypoint import entrypoint_mistakes
from detcore.config._experiment import RULES_LATER, ExperimentConfig
from detcore.config._explain import Explainer
from detcore.config._fields import KIND_MARK
from detcore.config._names import Models, valid_names
from detcore.config._rules import Facts, broken_rules
from detcore.config._searchers import SEARCHERS
from detcore.config._source import Diagnostic, Label, Place, Span
from detcore.config._tree import Node, find, plain, rename, replace

__all__ = ["MOST_MISTAKES", "check", "more_mistakes"]

# Upper bound on explained mistakes: fuzzy matching is slow, and longer reports go unread.
MOST_MISTAKES = 100
_MAX_PASSES = 50
_TAGS = ("name", "type")


def check(
    root: Node,
    *,
    required: Collection[str] = (),
    searchers: Mapping[str, type[BaseModel] | str | None] = {},
    storage_types: Mapping[str, type[BaseModel] | str | None] = {},
    launchers: Mapping[str, type[BaseModel] | str | None] = {},
    code_dir: Path | None = None,
    sized_trials: Collection[str] = (),
) -> tuple[ExperimentConfig | None, list[Diagnostic]]:
    """Return the configuration, or None, and its mistakes.

    A misspelt name with a clear meaning is reported and then corrected, so that one mistake
    neither hides others nor causes further reports. Of very many, only the first are explained.

    Args:
        root: The configuration as written.
        required: Dotted names that must be given.
        searchers: Search methods of plugins, and models of their settings.
        storage_types: Storage types of plugins, and models of their settings.
        launchers: All launchers, and models of their settings; empty to accept any name.
        code_dir: Folder of the entrypoint's code; None to skip looking it up.
        sized_trials: Names of trial classes that need ``hyperparameters.global_batch_size``.
    """
    found: list[Diagnostic] = []
    for _ in range(_MAX_PASSES):
        models = {
            "searcher": _models(root, "searcher", "name", searchers),
            "checkpoint_storage": _models(root, "checkpoint_storage", "type", storage_types),
            "launcher": _models(root, "launcher", "name", launchers),
        }
        explainer = Explainer(root, models)
        config, errors = _validate(root, models)
        mended, reports = _mend(root, errors[:MOST_MISTAKES], explainer, models)
        found += reports
        if mended is root:
            break
        root = mended
    found += [explainer.field(error, place) for place, error in errors[:MOST_MISTAKES]]
    if errors[MOST_MISTAKES:]:
        first, _ = errors[MOST_MISTAKES]
        found.append(more_mistakes(explainer.key(first), len(errors) - MOST_MISTAKES))
    missing = _missing(root, required, {place for place, _ in errors})
    found += [explainer.field({"type": "missing"}, place) for place in missing]
    bad = {place for place, error in errors if error["type"] not in ("extra_forbidden", "missing")}
    facts = Facts(_mapping(plain(root)), bad)
    rules = broken_rules(facts)
    if code_dir is not None:
        rules += entrypoint_mistakes(
            facts.get("entrypoint"),
            code_dir,
            hyperparameters=facts.section("hyperparameters"),
            sized_trials=sized_trials,
        )
    found += [explainer.violation(broken) for broken in rules]
    return (None if found else config), found


def more_mistakes(first: Span, number: int) -> Diagnostic:
    """Return a diagnostic for all mistakes that are not shown, the first of them at `first`."""
    return Diagnostic(
        message=f"{number} more mistake{'s' if number != 1 else ''}, such as here",
        primary=Label(first),
        help=(f"only {MOST_MISTAKES} are shown at once",),
        count=number,
    )


def _models(
    root: Node, section: str, key: str, known: Mapping[str, type[BaseModel] | str | None]
) -> dict[str, type[BaseModel] | None]:
    """Return models of settings; one given by name is imported only if the section has that tag."""
    tag = find(root, (section, key)) or find(root, (section,))
    models: dict[str, type[BaseModel] | None] = {}
    for name, model in known.items():
        if isinstance(model, str):
            module, _, attribute = model.partition(":")
            is_used = tag is not None and tag.value == name
            models[name] = getattr(importlib.import_module(module), attribute) if is_used else None
        else:
            models[name] = model
    return models


def _validate(
    root: Node, models: Models
) -> tuple[ExperimentConfig | None, list[tuple[Place, Mapping[str, Any]]]]:
    context = {
        RULES_LATER: True,
        "searcher": {k: v for k, v in models["searcher"].items() if k not in SEARCHERS},
        "storage type": models["checkpoint_storage"],
        "launcher": models["launcher"] or None,
    }
    try:
        return ExperimentConfig.model_validate(plain(root), context=context), []
    except ValidationError as exc:
        return None, [
            (_place(error["loc"]), error)
            for error in exc.errors(include_url=False, include_input=False)
        ]


def _place(loc: tuple[str | int, ...]) -> Place:
    return tuple(
        element
        for element in loc
        if not (isinstance(element, str) and element.startswith(KIND_MARK))
    )


def _mend(
    root: Node,
    errors: list[tuple[Place, Mapping[str, Any]]],
    explainer: Explainer,
    models: Models,
) -> tuple[Node, list[Diagnostic]]:
    """Return `root` with its clear misspellings corrected, and their reports."""
    reports: list[Diagnostic] = []
    mended = root
    for place, error in errors:
        report = explainer.field(error, place)
        after = _mended(mended, place, error, report.suggestion, models)
        if after is not mended:
            reports.append(report)
            mended = after
    return mended, reports


def _mended(
    root: Node,
    place: Place,
    error: Mapping[str, Any],
    suggestion: str | None,
    models: Models,
) -> Node:
    own = error.get("ctx", {}) if error["type"] == "detcore" else {}
    parent = find(root, place[:-1])
    if suggestion is None or parent is None or not isinstance(parent.value, dict):
        return root
    is_unknown = error["type"] == "extra_forbidden" or own.get("text", "").startswith("unknown key")
    is_unknown = is_unknown or own.get("text", "").startswith("unknown unit")
    if is_unknown and place[-1] in parent.value and suggestion not in parent.value:
        valid = valid_names(place[:-1], plain(root), models)
        if not valid or suggestion in valid:
            return rename(root, place, suggestion)
    if place[-1] in _TAGS and suggestion in own.get("choices", ()):
        old = find(root, place)
        if old is not None:
            return replace(root, place, Node(suggestion, old.span))
    return root


def _missing(root: Node, required: Collection[str], known: set[Place]) -> list[Place]:
    places: list[Place] = [tuple(name.split(".")) for name in required]
    return [place for place in places if find(root, place) is None and place not in known]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
