"""Print the results of both commands on one screen or as JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from detcore.cli import print_line

if TYPE_CHECKING:
    from detcore_replay.diverge.digest_comparison import Difference
    from detcore_replay.diverge.first_difference import CheckedSteps, Divergence
    from detcore_replay.resume_check.check_result import CheckResult


_MAX_SETTINGS = 12
_MAX_CODE_LINES = 16
_MAX_TENSORS = 4
_MAX_WIDTH = 76


def to_document(result: Divergence | CheckedSteps | CheckResult) -> dict[str, Any]:
    """Return a result as JSON values."""
    return {"is_equal": result.is_equal, **dataclasses.asdict(result)}


def print_divergence(result: Divergence) -> None:
    """Print where two runs diverge."""
    first_label, second_label = result.labels
    if result.settings:
        print_line(f"before the first step ({first_label} / {second_label}):")
        for name, first_value, second_value in result.settings[:_MAX_SETTINGS]:
            print_line(f"  {name}: {_shorten(first_value)} / {_shorten(second_value)}")
        _print_remaining(len(result.settings) - _MAX_SETTINGS, "settings")
    else:
        print_line("before the first step: the same settings, packages and machine")
    if result.code:
        print_line("code:")
        for line in result.code[:_MAX_CODE_LINES]:
            print_line(f"  {line}")
        _print_remaining(len(result.code) - _MAX_CODE_LINES, "lines")
    for note in result.notes:
        print_line(f"note: {note}")
    if result.found is None:
        print_line(f"{first_label} and {second_label} are equal up to step {result.compared_to}")
        return
    print_line(f"{first_label} and {second_label} differ: {describe_difference(result.found)}")
    _print_tensors(result.found)


def print_check(result: CheckedSteps) -> None:
    """Print whether a run and its replay are equal."""
    for note in result.notes:
        print_line(f"note: {note}")
    ranges = ", ".join(f"{a}:{b}" if a != b else str(a) for a, b in result.ranges)
    counts = f"{result.num_compared} steps compared, {result.num_states} with the whole state"
    if result.found is None:
        print_line(f"{result.label}, steps {ranges}: equal ({counts})")
        return
    print_line(
        f"{result.label}, steps {ranges}: the replay differs: {describe_difference(result.found)}"
    )
    _print_tensors(result.found)


def describe_difference(difference: Difference) -> str:
    """Return the step, the kind and the first tensor of a difference in words."""
    location = "before step 1" if difference.step == 0 else f"step {difference.step}"
    if not difference.is_exact and difference.step > 0 and difference.step - difference.after > 1:
        location += f" (or an earlier step after {max(difference.after, 0)} without a digest)"
    if difference.kind == "model":
        return f"{location}: different models" + (
            f", {difference.tensor}" if difference.tensor else ""
        )
    return f"{location}, {difference.kind}" + (
        f", {difference.tensor}" if difference.tensor else ""
    )


def _print_tensors(found: Difference) -> None:
    if found.tensors:
        names = ", ".join(found.tensors[:_MAX_TENSORS])
        more = len(found.tensors) - _MAX_TENSORS
        print_line(
            f"  different after this step: {names}{f', and {more} more' if more > 0 else ''}"
        )
    if found.largest is not None:
        name, difference, one, other = found.largest
        print_line(f"  largest difference: {name} {difference:.3g} ({one:.9g} / {other:.9g})")


def _print_remaining(count: int, noun: str) -> None:
    if count > 0:
        print_line(f"  and {count} more {noun}: --json")


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_WIDTH else f"{text[:_MAX_WIDTH]}..."
