"""Compare the settings, the code and the machines of two runs, before their first step."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.record_descriptions import flatten, visible_config
from detcore.trial import list_code

if TYPE_CHECKING:
    from detcore_replay.digest_file import DigestedRun
    from detcore_replay.recorded_runs import Run


# Where and under which name a run is kept, and how often it is tried again.
_NO_INFLUENCE = (
    "name", "description", "labels", "project", "workspace", "checkpoint_storage", "max_restarts",
    "reproducibility.step_digests", "data_ledger",
)  # fmt: skip
_ABSENT = "-"


def compare_settings(
    one: Run, other: Run, facts: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]
) -> list[tuple[str, str, str]]:
    """Return the name of each setting that differs, and its value in each run.

    Args:
        one: A run.
        other: The other.
        facts: The facts about each that its digests have, or those of its replay; None: not known.
    """
    pairs: list[tuple[str, Any, Any]] = [
        ("framework", one.framework, other.framework),
        ("seed", one.info.trial_seed, other.info.trial_seed),
    ]
    pairs += _differences("hyperparameters.", one.info.hparams, other.info.hparams)
    pairs += [
        pair
        for pair in _differences("", _settings(one), _settings(other))
        if not pair[0].startswith("hyperparameters.")
    ]
    if facts[0] is not None and facts[1] is not None:
        for key, prefix in (
            ("versions", "package "),
            ("plugins", "plugin "),
            ("variables", "environment variable "),
            ("machine", "machine "),
        ):
            if key in facts[0] and key in facts[1]:
                pairs += _differences(prefix, facts[0][key], facts[1][key])
        pairs += [(key, facts[0].get(key), facts[1].get(key)) for key in ("threads", "gpu")]
        pairs += [("workers", facts[0].get("world_size"), facts[1].get("world_size"))]
    return [(name, _shown(mine), _shown(others)) for name, mine, others in pairs if mine != others]


def compare_code(one: Path | None, other: Path | None, labels: tuple[str, str]) -> list[str]:
    """Return the difference of two folders of code as lines of a unified diff."""
    if one is None or other is None:
        return []
    files = [{name: folder / name for name in list_code(folder)} for folder in (one, other)]
    lines: list[str] = []
    for name in sorted(files[0].keys() | files[1].keys()):
        if name.endswith((".yaml", ".yml")):
            continue  # settings are compared by their values
        mine, others = (_read(table.get(name)) for table in files)
        if mine != others:
            places = f"{labels[0]}: {name}", f"{labels[1]}: {name}"
            lines += difflib.unified_diff(mine, others, *places, lineterm="", n=1)
    return lines


def version_notes(label: str, original: DigestedRun | None, mine: DigestedRun | None) -> list[str]:
    """Name the packages and the variables that differ from those of the run.

    A package that only one of them imported was not needed, or its import is the failure.
    """
    if original is None or mine is None:
        return []
    differing = []
    for key, what in (("versions", ""), ("variables", "environment variable ")):
        one: dict[str, Any] = original.facts.get(key, {})
        other: dict[str, Any] = mine.facts.get(key, {})
        differing += [
            f"{what}{name} {one.get(name, '-')} (here {other.get(name, '-')})"
            for name in sorted(one)
            if one.get(name) != other.get(name) and (key == "variables" or name in other)
        ]
    return [f"{label} had {', '.join(differing)}"] if differing else []


def _read(path: Path | None) -> list[str]:
    return [] if path is None else path.read_text(encoding="utf-8", errors="replace").splitlines()


def _settings(run: Run) -> dict[str, Any]:
    return {
        name: value
        for name, value in flatten(visible_config(run.info.config)).items()
        if not any(name == known or name.startswith(f"{known}.") for known in _NO_INFLUENCE)
    }


def _differences(
    prefix: str, one: Mapping[str, Any], other: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    mine, others = flatten(one, prefix), flatten(other, prefix)
    return [
        (name, mine.get(name), others.get(name))
        for name in dict.fromkeys([*mine, *others])
        if mine.get(name) != others.get(name)
    ]


def _shown(value: Any) -> str:
    return _ABSENT if value is None else str(value)
