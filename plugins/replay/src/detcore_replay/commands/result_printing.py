"""Print the results of both commands on one screen, or as JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from detcore.cli import print_line

if TYPE_CHECKING:
    from detcore_replay.diverge.digest_comparison import Difference
    from detcore_replay.diverge.first_difference import CheckedSteps, Divergence


_SHOWN_SETTINGS = 12
_SHOWN_CODE = 16
_SHOWN_TENSORS = 4
_WIDTH = 76


def to_document(result: Divergence | CheckedSteps) -> dict[str, Any]:
    """Return a result as JSON values."""
    return {"is_equal": result.is_equal, **dataclasses.asdict(result)}


def print_divergence(result: Divergence) -> None:
    """Print where two runs part."""
    one, other = result.labels
    if result.settings:
        print_line(f"before the first step ({one} / {other}):")
        for name, mine, others in result.settings[:_SHOWN_SETTINGS]:
            print_line(f"  {name}: {_short(mine)} / {_short(others)}")
        _print_rest(len(result.settings) - _SHOWN_SETTINGS, "settings")
    else:
        print_line("before the first step: the same settings, packages and machine")
    if result.code:
        print_line("code:")
        for line in result.code[:_SHOWN_CODE]:
            print_line(f"  {line}")
        _print_rest(len(result.code) - _SHOWN_CODE, "lines")
    for note in result.notes:
        print_line(f"note: {note}")
    if result.found is None:
        print_line(f"{one} and {other} are equal up to step {result.compared_to}")
        return
    print_line(f"{one} and {other} differ: {describe_difference(result.found)}")
    _print_tensors(result.found)


def print_check(result: CheckedSteps) -> None:
    """Print whether a run and its replay are equal."""
    for note in result.notes:
        print_line(f"note: {note}")
    ranges = ", ".join(f"{a}:{b}" if a != b else str(a) for a, b in result.ranges)
    counts = f"{result.num_compared} steps compared, the whole state after {result.num_states}"
    if result.found is None:
        print_line(f"{result.label}, steps {ranges}: equal ({counts})")
        return
    print_line(
        f"{result.label}, steps {ranges}: the replay differs: {describe_difference(result.found)}"
    )
    _print_tensors(result.found)


def describe_difference(found: Difference) -> str:
    """Return the step, the kind and the first tensor in words."""
    where = "before step 1" if found.step == 0 else f"step {found.step}"
    if not found.is_exact and found.step > 0 and found.step - found.after > 1:
        where += f" (or a step after {max(found.after, 0)} that no digest shows)"
    if found.kind == "model":
        return f"{where}: different models" + (f", {found.tensor}" if found.tensor else "")
    return f"{where}, {found.kind}" + (f", {found.tensor}" if found.tensor else "")


def _print_tensors(found: Difference) -> None:
    if found.tensors:
        names = ", ".join(found.tensors[:_SHOWN_TENSORS])
        more = len(found.tensors) - _SHOWN_TENSORS
        print_line(f"  differ after it: {names}{f', and {more} more' if more > 0 else ''}")
    if found.largest is not None:
        name, difference, one, other = found.largest
        print_line(f"  largest difference: {name} {difference:.3g} ({one:.9g} / {other:.9g})")


def _print_rest(count: int, what: str) -> None:
    if count > 0:
        print_line(f"  and {count} more {what}: --json")


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."
