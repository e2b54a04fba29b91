"""Compare the settings, code and machines of two runs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.record_descriptions import flatten, visible_config
from detcore.trial import list_code

if TYPE_CHECKING:
    from detcore.data import DigestedRun
    from detcore_replay.recorded_runs import Run


# Settings about the name, storage and retries of a run.
_NO_INFLUENCE = (
    "name", "description", "labels", "project", "workspace", "checkpoint_storage", "max_restarts",
    "reproducibility.step_digests", "data_ledger",
)  # fmt: skip
_ABSENT = "-"


def compare_settings(
    one: Run, other: Run, facts: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]
) -> list[tuple[str, str, str]]:
    """Return the name of each different setting, and its value in each run.

    Args:
        one: The first run.
        other: The second run.
        facts: Facts about each run, from its digests or its replay; None if unknown.
    """
    pairs: list[tuple[str, Any, Any]] = [
        ("framework", one.framework, other.framework),
        ("seed", one.info.trial_seed, other.info.trial_seed),
    ]
    pairs += _list_differences("hyperparameters.", one.info.hparams, other.info.hparams)
    pairs += [
        pair
        for pair in _list_differences("", _flatten_settings(one), _flatten_settings(other))
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
                pairs += _list_differences(prefix, facts[0][key], facts[1][key])
        pairs += [(key, facts[0].get(key), facts[1].get(key)) for key in ("threads", "gpu")]
        pairs += [("workers", facts[0].get("world_size"), facts[1].get("world_size"))]
    return [
        (name, _format_value(first_value), _format_value(second_value))
        for name, first_value, second_value in pairs
        if first_value != second_value
    ]


def compare_code(one: Path | None, other: Path | None, labels: tuple[str, str]) -> list[str]:
    """Return the difference of two code directories as lines of a unified diff."""
    if one is None or other is None:
        return []
    files = [{name: folder / name for name in list_code(folder)} for folder in (one, other)]
    lines: list[str] = []
    for name in sorted(files[0].keys() | files[1].keys()):
        if name.endswith((".yaml", ".yml")):
            continue  # settings are compared by their values
        first_lines, second_lines = (_read_lines(table.get(name)) for table in files)
        if first_lines != second_lines:
            places = f"{labels[0]}: {name}", f"{labels[1]}: {name}"
            lines += difflib.unified_diff(first_lines, second_lines, *places, lineterm="", n=1)
    return lines


def compare_versions(
    label: str, original: DigestedRun | None, mine: DigestedRun | None
) -> list[str]:
    """Describe packages and environment variables that differ from the run.

    Packages that only one process imported are ignored: they were not needed, or their import
    failed.
    """
    if original is None or mine is None:
        return []
    differing = []
    for key, prefix in (("versions", ""), ("variables", "environment variable ")):
        one: dict[str, Any] = original.facts.get(key, {})
        other: dict[str, Any] = mine.facts.get(key, {})
        differing += [
            f"{prefix}{name} {one.get(name, '-')} (here {other.get(name, '-')})"
            for name in sorted(one)
            if one.get(name) != other.get(name) and (key == "variables" or name in other)
        ]
    return [f"{label} had {', '.join(differing)}"] if differing else []


def _read_lines(path: Path | None) -> list[str]:
    return [] if path is None else path.read_text(encoding="utf-8", errors="replace").splitlines()


def _flatten_settings(run: Run) -> dict[str, Any]:
    return {
        name: value
        for name, value in flatten(visible_config(run.info.config)).items()
        if not any(name == ignored or name.startswith(f"{ignored}.") for ignored in _NO_INFLUENCE)
    }


def _list_differences(
    prefix: str, one: Mapping[str, Any], other: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    first_values, second_values = flatten(one, prefix), flatten(other, prefix)
    return [
        (name, first_values.get(name), second_values.get(name))
        for name in dict.fromkeys([*first_values, *second_values])
        if first_values.get(name) != second_values.get(name)
    ]


def _format_value(value: Any) -> str:
    return _ABSENT if value is None else str(value)
