"""Describe the result of a migration."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A place in a file that needs attention.

    Attributes:
        line: Line number, from 1; 0 if the finding concerns the whole file.
        column: Column, from 1, in characters; 0 likewise.
        name: The name in question, as written in the file or in full.
        problem: Description of the problem.
        advice: How to solve it.
        kind: ``left``: not rewritten; ``note``: rewritten, but the user should check it;
            ``error``: the file cannot be read.
    """

    line: int
    column: int
    name: str
    problem: str
    advice: str
    kind: Literal["left", "note", "error"] = "left"

    def __str__(self) -> str:
        subject = f"{self.name}: " if self.name else ""
        advice = f"; {self.advice}" if self.advice else ""
        place = f"{self.line}:{self.column}:" if self.line else ""
        return f"{place} {self.kind}: {subject}{self.problem}{advice}"


@dataclasses.dataclass(frozen=True, slots=True)
class Migrated:
    """A text after its migration.

    Attributes:
        text: The new text, or the old text if nothing changed.
        num_changes: Number of replaced spans.
        findings: Findings with positions in the old text, in order.
        remaining: Findings with positions in the new text.
    """

    text: str
    num_changes: int
    findings: tuple[Finding, ...]
    remaining: tuple[Finding, ...]


def get_place(text: str, offset: int) -> tuple[int, int]:
    """Return line and column of an offset, both from 1, in characters."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
