"""Find every mistake in a configuration, continuing past each as if it had been corrected."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from pydantic import BaseModel, ValidationError

from detcore.config._entrypoint import entrypoint_mistakes
from detcore.config._experiment import RULES_LATER, ExperimentConfig
from detcore.config._explain import Explainer, Models
from detcore.config._fields import KIND_MARK
from detcore.config._rules import Facts, broken_rules
from detcore.config._searchers import SEARCHERS
from detcore.config._source import Diagnostic, Label, Node, Place, Span, find, plain

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["MOST_MISTAKES", "LoadOptions", "check", "more_mistakes"]

# Upper bound on explained mistakes: fuzzy matching is slow, and longer reports go unread.
MOST_MISTAKES = 100
_MAX_PASSES = 50
_TAGS = ("name", "type")


class LoadOptions(TypedDict, total=False):
    """The options of `load_config`, `load_mapping` and `load_text`.

    Attributes:
        overrides: Settings by dotted name, from flags. A string is parsed as YAML, as given to
            ``--set``; other values are used unchanged.
        environment: Variables; those named like ``DETCORE_CONFIG__SEARCHER__MAX_LENGTH__BATCHES``
            are settings, with YAML values (see `detcore.environment`).
        required: Dotted names that must be given although they have defaults, such as
            ``"entrypoint"``.
        searchers: Search methods of plugins, and the models of their settings: a class,
            ``"module:Class"`` to be imported when the method is used, or None.
        storage_types: Storage types of plugins, and the models of their settings.
        launchers: All launchers, and the models of their settings; empty to accept any name.
        code_dir: Folder of the code, in which the entrypoint is looked up without running it; None
            to skip this.
        sized_trials: Names of the trial classes that need ``hyperparameters.global_batch_size``.
    """

    overrides: Mapping[str, object]
    environment: Mapping[str, str]
    required: Collection[str]
    searchers: Mapping[str, type[BaseModel] | str | None]
    storage_types: Mapping[str, type[BaseModel] | str | None]
    launchers: Mapping[str, type[BaseModel] | str | None]
    code_dir: Path | None
    sized_trials: Collection[str]


def check(root: Node, options: LoadOptions) -> tuple[ExperimentConfig | None, list[Diagnostic]]:
    """Return the configuration, or None, and its mistakes.

    A misspelt name with a clear meaning is reported and then corrected, so that one mistake
    neither hides others nor causes further reports. Of very many, only the first are explained.

    Args:
        root: The configuration as written, with the settings of flags and variables.
        options: Everything but these settings.
    """
    found: list[Diagnostic] = []
    for _ in range(_MAX_PASSES):
        models = {
            "searcher": _models(root, "searcher", options.get("searchers", {})),
            "checkpoint_storage": _models(
                root, "checkpoint_storage", options.get("storage_types", {})
            ),
            "launcher": _models(root, "launcher", options.get("launchers", {})),
        }
        explainer = Explainer(root, models)
        config, errors = _validate(root, models)
        shown = errors[:MOST_MISTAKES]
        reports = [explainer.field(error, place) for place, error in shown]
        mended = [
            report
            for (place, error), report in zip(shown, reports, strict=True)
            if _mend(root, place, error, report.suggestion, explainer)
        ]
        found += mended or reports
        if not mended:
            break
    if errors[MOST_MISTAKES:]:
        first, _ = errors[MOST_MISTAKES]
        found.append(more_mistakes(explainer.key(first), len(errors) - MOST_MISTAKES))
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
        broken += entrypoint_mistakes(
            facts.get("entrypoint"),
            code_dir,
            hyperparameters=facts.section("hyperparameters"),
            sized_trials=options.get("sized_trials", ()),
        )
    found += [explainer.problem(problem.context or {}, place) for place, problem in broken]
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
    root: Node, section: str, known: Mapping[str, type[BaseModel] | str | None]
) -> dict[str, type[BaseModel] | None]:
    """Return models of settings; one given by name is imported only if the section has that tag."""
    tags = [find(root, (section, *tag)) for tag in (("name",), ("type",), ())]
    used = [tag.value for tag in tags if tag is not None]
    return {
        name: (pkgutil.resolve_name(model) if name in used else None)
        if isinstance(model, str)
        else model
        for name, model in known.items()
    }


def _validate(
    root: Node, models: Models
) -> tuple[ExperimentConfig | None, list[tuple[Place, ErrorDetails]]]:
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


def _place(loc: Place) -> Place:
    return tuple(part for part in loc if not (isinstance(part, str) and part[:1] == KIND_MARK))


def _mend(
    root: Node, place: Place, error: ErrorDetails, meant: str | None, explainer: Explainer
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
