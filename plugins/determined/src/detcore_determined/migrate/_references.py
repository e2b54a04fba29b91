"""Locate names in code and in annotations that are strings."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator

from detcore_determined.migrate._lookup import Path
from detcore_determined.migrate._scopes import Module, Scope, Use
from detcore_determined.migrate._text import Text

_CHAIN = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_QUOTES = ('"""', "'''", '"', "'")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A dotted name in the text.

    Attributes:
        parts: The name and its attributes.
        scope: The scope that looks it up.
        start: Offset of its first character.
        ends: Offset of the end of each part; empty if the positions are unknown.
    """

    parts: Path
    scope: Scope
    start: int
    ends: tuple[int, ...]


def references(text: Text, module: Module) -> Iterator[Reference]:
    """Yield every name that may refer to an import of Determined, with its attributes."""
    for use in module.uses:
        if module.bindings(use.parts[0], use.scope):
            yield _of_use(text, use)
    for node, scope in module.annotations:
        start = inside_of(text, node)
        for match in _CHAIN.finditer(str(node.value)):
            parts = tuple(match[0].split("."))
            if start is not None and module.bindings(parts[0], scope):
                begin = start + match.start()
                lengths = [len(".".join(parts[: n + 1])) for n in range(len(parts))]
                yield Reference(parts, scope, begin, tuple(begin + n for n in lengths))


def inside_of(text: Text, node: ast.Constant) -> int | None:
    """Return the offset of the content of a plain string literal; None if it is not plain."""
    assert node.end_lineno is not None  # the parser fills it in
    assert node.end_col_offset is not None
    try:
        start = text.offset(node.lineno, node.col_offset)
        source = text.text[start : text.offset(node.end_lineno, node.end_col_offset)]
    except IndexError:
        return None
    value = str(node.value)
    for quotes in _QUOTES:
        if source == f"{quotes}{value}{quotes}":
            return start + len(quotes)
    return None


def _of_use(text: Text, use: Use) -> Reference:
    """Return the position of a use, if it is written as a plain chain of names.

    Before Python 3.12, positions of names inside f-strings may be wrong, so they are compared with
    the text.
    """
    parts = use.parts
    first = use.nodes[0]
    start = text.offset(first.lineno, first.col_offset)
    ends = []
    for length, node in enumerate(use.nodes, start=1):
        assert node.end_lineno is not None  # the parser fills it in
        assert node.end_col_offset is not None
        end = text.offset(node.end_lineno, node.end_col_offset)
        if "".join(text.text[start:end].split()) != ".".join(parts[:length]):
            return Reference(parts, use.scope, start, ())
        ends.append(end)
    return Reference(parts, use.scope, start, tuple(ends))
