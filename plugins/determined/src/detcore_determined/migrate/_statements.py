"""Rewrite an import statement in as few spans as possible."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Sequence

from detcore_determined.migrate._scopes import ImportNode
from detcore_determined.migrate._text import Edit, Text

_COMMENT = re.compile(r"#[^\r\n]*")
_TRIVIA = r"(?:\s|\\|#[^\r\n]*[\r\n])*"
_COMMA = re.compile(rf"{_TRIVIA},")
# A module may have blanks between its parts: each run of them is read once.
_MODULE = re.compile(rf"from{_TRIVIA}(?P<module>[\w.]+(?:[\s\\]+[\w.]+)*?)[\s\\]*\bimport\b")


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """One imported thing: ``import module``, or ``from module import name``.

    Attributes:
        module: The module.
        name: The name to import from it; empty for the module itself.
        local: The local name, if it differs.
    """

    module: str
    name: str = ""
    local: str = ""

    @property
    def item(self) -> str:
        """The text after ``import``."""
        return f"{self.name or self.module}{f' as {self.local}' if self.local else ''}"


@dataclasses.dataclass(slots=True)
class Plan:
    """Change of one name of an import statement.

    Attributes:
        keep: Whether the name stays.
        pieces: Imports that replace it, or are added.
    """

    keep: bool = False
    pieces: list[Piece] = dataclasses.field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """Add a piece, once."""
        if piece not in self.pieces:
            self.pieces.append(piece)


class _Span:
    def __init__(self, text: Text, node: ast.AST) -> None:
        lines = (node.lineno, node.end_lineno)  # type: ignore[attr-defined]  # a statement or alias
        columns = (node.col_offset, node.end_col_offset)  # type: ignore[attr-defined]  # likewise
        self.start = text.offset(lines[0], columns[0])
        self.end = text.offset(lines[1], columns[1])
        self.source = text.text[self.start : self.end]


def rewrite_statement(text: Text, node: ImportNode, plans: Sequence[Plan]) -> list[Edit]:
    """Return the changes of an import statement.

    Args:
        text: The module's text.
        node: The statement.
        plans: The change of each of its names.
    """
    if all(plan.keep and not plan.pieces for plan in plans):
        return []
    if isinstance(node, ast.Import):
        return _rewrite_import(text, node, plans)
    return _rewrite_from(text, node, plans)


def _rewrite_import(text: Text, node: ast.Import, plans: Sequence[Plan]) -> list[Edit]:
    edits = []
    for alias, plan in zip(node.names, plans, strict=True):
        span = _Span(text, alias)
        items = [piece.item for piece in plan.pieces]
        if plan.keep:
            items.insert(0, span.source)
        if len(node.names) > 1:
            edits.append(Edit(span.start, span.end, ", ".join(items)))
        else:
            edits.append(Edit(span.start, span.end, items[0]))
            more = [f"import {item}" for item in items[1:]]
            edits += _beside(text, _Span(text, node), more)
    return [edit for edit in edits if edit.new != text.text[edit.start : edit.end]]


def _rewrite_from(text: Text, node: ast.ImportFrom, plans: Sequence[Plan]) -> list[Edit]:
    """Keep the statement for the largest group of names, and add statements for the others."""
    statement = _Span(text, node)
    plans = [_with_kept(plan, node, index) for index, plan in enumerate(plans)]
    groups: dict[str, list[Piece]] = {}
    for piece in (piece for plan in plans for piece in plan.pieces):
        group = groups.setdefault(piece.module if piece.name else "", [])
        if piece not in group:
            group.append(piece)
    module = _largest(groups, node.module or "")
    here = groups.pop(module, []) if module else []
    others = [line for name, group in groups.items() for line in _lines(name, group)]
    if not here:
        return _replace(text, statement, others)
    stays = {_first(plans, piece): piece for piece in here}
    edits = _removals(text, node, set(stays))
    found = _MODULE.match(statement.source)
    assert found is not None  # ast parsed it as such a statement
    start, end = found.span("module")
    edits.append(Edit(statement.start + start, statement.start + end, module))
    edits += _items(text, node, stays)
    edits += _beside(text, statement, others)
    return [edit for edit in edits if edit.new != text.text[edit.start : edit.end]]


def _with_kept(plan: Plan, node: ast.ImportFrom, index: int) -> Plan:
    """Return the plan with the name that stays as one more piece."""
    alias = node.names[index]
    kept = [Piece(node.module or "", alias.name, alias.asname or "")] if plan.keep else []
    return Plan(pieces=[*kept, *plan.pieces])


def _largest(groups: dict[str, list[Piece]], old: str) -> str:
    """Return the module that the statement keeps: the old one only without an alternative."""
    modules = [name for name in groups if name and name != old]
    return max(
        modules,
        key=lambda name: (len(groups[name]), name.startswith("detcore")),
        default=old if old in groups else "",
    )


def _first(plans: Sequence[Plan], piece: Piece) -> int:
    """Return the first name of a statement that a piece replaces; later ones are dropped."""
    return next(index for index, plan in enumerate(plans) if piece in plan.pieces)


def _items(text: Text, node: ast.ImportFrom, pieces: dict[int, Piece]) -> list[Edit]:
    edits = []
    for index, piece in pieces.items():
        span = _Span(text, node.names[index])
        edits.append(Edit(span.start, span.end, piece.item))
    return edits


def _lines(module: str, group: list[Piece]) -> list[str]:
    if not module:
        return [f"import {piece.item}" for piece in group]
    return [f"from {module} import {', '.join(piece.item for piece in group)}"]


def _removals(text: Text, node: ast.ImportFrom, stays: set[int]) -> list[Edit]:
    """Remove the names that do not stay, with their commas; comments remain."""
    spans = [_Span(text, alias) for alias in node.names]
    last = max(stays)
    edits = []
    for index, span in enumerate(spans[:last]):
        if index not in stays:
            end = spans[index + 1].start
            if "#" in text.text[span.end : end]:
                edits += _take_out(text, span)
            else:
                edits.append(Edit(span.start, end, ""))
    tail = spans[last + 1 :]
    if tail and "#" not in text.text[spans[last].end : tail[-1].end]:
        edits.append(Edit(spans[last].end, tail[-1].end, ""))
    else:
        for span in tail:
            edits += _take_out(text, span)
    return edits


def _take_out(text: Text, span: _Span) -> list[Edit]:
    """Remove a name and the comma after it, and the line if nothing else is on it."""
    comma = _COMMA.match(text.text, span.end)
    end = comma.end() if comma and "#" not in comma[0] else span.end
    edits = [Edit(comma.end() - 1, comma.end(), "")] if comma and end == span.end else []
    before, after, _ = text.around(span.start, end)
    end += len(after) - len(after.lstrip())
    if not before.strip() and not after.strip():
        rest = text.text[end : end + 2]
        end += 2 if rest == "\r\n" else min(1, len(rest))
        return [Edit(span.start - len(before), end, ""), *edits]
    return [Edit(span.start, end, ""), *edits]


def _replace(text: Text, statement: _Span, lines: list[str]) -> list[Edit]:
    """Replace a statement by others; its comments go above them."""
    before, after, line_end = text.around(statement.start, statement.end)
    comments = _COMMENT.findall(statement.source)
    if _is_alone(before, after):
        new = f"{line_end}{before}".join([*comments, *lines])
    else:
        new = "; ".join(lines)
    return [Edit(statement.start, statement.end, new)]


def _beside(text: Text, statement: _Span, lines: Iterable[str]) -> list[Edit]:
    """Add statements after a statement, or before it if a comment follows it."""
    lines = list(lines)
    if not lines:
        return []
    before, after, line_end = text.around(statement.start, statement.end)
    if not _is_alone(before, after):
        return [Edit(statement.end, statement.end, "".join(f"; {line}" for line in lines))]
    if after.strip():
        new = "".join(f"{line}{line_end}{before}" for line in lines)
        return [Edit(statement.start, statement.start, new)]
    new = "".join(f"{line_end}{before}{line}" for line in lines)
    return [Edit(statement.end, statement.end, new)]


def _is_alone(before: str, after: str) -> bool:
    return not before.strip() and (not after.strip() or after.lstrip().startswith("#"))
