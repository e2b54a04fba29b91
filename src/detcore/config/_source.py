"""Represent positions in configuration text, and mistakes at them, as pure values."""

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
        name: Its name in messages, such as ``"const.yaml"`` or ``"--set"``.
        kind: The kind of source.
        lines: Its lines without line ends; each flag or variable is one line.
    """

    name: str
    kind: SourceKind
    lines: tuple[str, ...]

    @classmethod
    def of_file(cls, name: str, text: str) -> tuple[Source, str]:
        """Return the source of a file, and its text with plain line ends."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        return cls(name=name, kind="file", lines=(*text.split("\n"),)), text


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A range of a source. Lines and columns count from 0; the end is exclusive."""

    source: Source
    line: int
    column: int
    end_line: int
    end_column: int

    @property
    def width(self) -> int:
        """Number of characters on the first line, at least 1."""
        if self.end_line == self.line:
            return max(1, self.end_column - self.column)
        text = self.source.lines[self.line] if self.line < len(self.source.lines) else ""
        return max(1, len(text.rstrip()) - self.column)


@dataclasses.dataclass(frozen=True, slots=True)
class Label:
    """A position in a source and the text under it."""

    span: Span
    text: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One mistake.

    Attributes:
        message: The mistake, with the values.
        primary: The exact position.
        secondary: Other positions that are involved.
        help: Further lines: expected values, and how to correct it.
        suggestion: The most likely correction, or None.
        count: Number of mistakes that it represents.
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
        """Line of the exact position, from 1."""
        return self.primary.span.line + 1

    @property
    def column(self) -> int:
        """Column of the exact position in characters, from 1."""
        return self.primary.span.column + 1
