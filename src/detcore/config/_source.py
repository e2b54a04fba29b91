"""Where a piece of configuration stands, and what is wrong with it. Pure values."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

__all__ = ["Diagnostic", "Label", "Place", "Source", "SourceKind", "Span"]

SourceKind = Literal["file", "flag", "environment"]
Place: TypeAlias = tuple["str | int", ...]  # keys and list indices from the top of the file


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Source:
    """Text that a user wrote: a file, or the flags or variables of one command.

    Attributes:
        name: How messages call it, such as ``"const.yaml"`` or ``"--set"``.
        kind: What it is.
        lines: Its lines without line ends. Of flags and variables, each is one line.
    """

    name: str
    kind: SourceKind
    lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a source. Lines and columns count from 0; the end is exclusive."""

    source: Source
    line: int
    column: int
    end_line: int
    end_column: int

    @property
    def width(self) -> int:
        """Characters on the first line, at least 1."""
        if self.end_line == self.line:
            return max(1, self.end_column - self.column)
        text = self.source.lines[self.line] if self.line < len(self.source.lines) else ""
        return max(1, len(text.rstrip()) - self.column)


@dataclasses.dataclass(frozen=True, slots=True)
class Label:
    """A place in a source and what to say under it."""

    span: Span
    text: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One mistake.

    Attributes:
        message: What is wrong, with the values.
        primary: The exact place.
        secondary: Other places that have a part in it.
        help: Further lines: what was expected, what to do.
        suggestion: What most likely was meant, or None.
        count: How many mistakes it stands for.
    """

    message: str
    primary: Label
    secondary: tuple[Label, ...] = ()
    help: tuple[str, ...] = ()
    suggestion: str | None = None
    count: int = 1

    @property
    def source_name(self) -> str:
        """Name of the file, or ``--set`` or ``environment``."""
        return self.primary.span.source.name

    @property
    def line(self) -> int:
        """Line of the exact place, from 1."""
        return self.primary.span.line + 1

    @property
    def column(self) -> int:
        """Column of the exact place in characters, from 1."""
        return self.primary.span.column + 1
