"""What a migration says of a file."""

from __future__ import annotations

import dataclasses
from typing import Literal

__all__ = ["Finding", "Migrated"]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something to look at.

    Attributes:
        line: From 1.
        column: From 1, in characters.
        name: The name in question, as the file has it or in full.
        problem: What is the matter.
        advice: What to do.
        kind: ``left``: not rewritten; ``note``: rewritten, but there is something to know;
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
        return f"{self.line}:{self.column}: {self.kind}: {subject}{self.problem}{advice}"


@dataclasses.dataclass(frozen=True, slots=True)
class Migrated:
    """A text after its migration.

    Attributes:
        text: The new text, or the old one.
        num_changes: Spans that were replaced.
        findings: What is left to do, with places in the old text, in their order.
        remaining: The same, with places in the new text.
    """

    text: str
    num_changes: int
    findings: tuple[Finding, ...]
    remaining: tuple[Finding, ...]
