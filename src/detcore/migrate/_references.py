"""Where names are written: in code, and in annotations that are texts."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator

from detcore.migrate._lookup import Path
from detcore.migrate._scopes import Module, Scope, Use
from detcore.migrate._text import Text

__all__ = ["Reference", "inside_of", "references"]

_CHAIN = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_QUOTES = ('"""', "'''", '"', "'")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A dotted name in the text.

    Attributes:
        parts: The name and its attributes.
        scope: Where it is looked up.
        start: Where it begins.
        ends: Where each of the parts ends; empty if that cannot be told.
    """

    parts: Path
    scope: Scope
    start: int
    ends: tuple[int, ...]


def references(text: Text, module: Module) -> Iterator[Reference]:
    """Yield every name that may be an import of Determined, with its attributes."""
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
    """Return where the content of a plain text literal begins; None if it is not plain."""
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
    """Return where a use is written, if it is written as a plain chain of names.

    Before Python 3.12 the places of names inside of f-strings may be wrong, so they are compared
    with what stands there.
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
