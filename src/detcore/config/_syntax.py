"""Explain errors of the YAML parser in the terms of YAML's users."""

from __future__ import annotations

import dataclasses
import re

import yaml

__all__ = ["SyntaxProblem", "explain_syntax"]


@dataclasses.dataclass(frozen=True, slots=True)
class SyntaxProblem:
    """A mistake in the YAML itself.

    Attributes:
        message: The mistake.
        label: Text under the position.
        help: How to correct it.
        at_context: Whether the position is the start of the construct, not where the parser failed.
    """

    message: str
    label: str = ""
    help: tuple[str, ...] = ()
    at_context: bool = False


_TAB = SyntaxProblem(
    "a tab is used to indent; YAML allows only spaces",
    "this is a tab",
    ("replace the tab by spaces (two per level)",),
)
_NO_KEY = SyntaxProblem(
    "a key where the line above has not ended",
    "unexpected ':'",
    (
        "the line above is a key without ':', or has a value and keys below it; "
        "the keys of one block have the same indentation",
    ),
)
_KNOWN = (
    (
        "mapping values are not allowed",
        SyntaxProblem(
            "a ':' where no new key can begin",
            "unexpected ':'",
            ("put quotes around a value that contains ': ', and begin each key on its own line",),
        ),
    ),
    (
        "could not find expected ':'",
        SyntaxProblem(
            "a key without ':'", "no ':' in this line", ("write 'key: value'",), at_context=True
        ),
    ),
    (
        "expected <block end>",
        SyntaxProblem(
            "this line does not fit the block above it",
            "indented differently, or stands where a key was expected",
            ("give the keys of one block the same indentation",),
        ),
    ),
    (
        "undefined alias",
        SyntaxProblem(
            "an alias without an anchor",
            "no anchor of this name above",
            ("put quotes around a value that begins with '*'",),
        ),
    ),
    (
        "but found another document",
        SyntaxProblem("a second document begins here", "expected one document", ("remove it",)),
    ),
)


def explain_syntax(exc: yaml.MarkedYAMLError, line: str) -> SyntaxProblem:
    """Return an explanation of a parser error.

    Args:
        exc: The parser's error.
        line: The line at which the parser failed.
    """
    problem = str(exc.problem or exc.context or "unreadable")
    mark = exc.problem_mark
    here = line[mark.column : mark.column + 1] if mark is not None else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return _TAB
    if "'\\t'" in problem:
        return SyntaxProblem("a tab where YAML allows only spaces", "this is a tab")
    if "end of stream" in problem or "<stream end>" in problem:
        what = "quotation" if "quoted" in str(exc.context) else "bracket"
        return SyntaxProblem(f"this {what} is never closed", "opened here", at_context=True)
    if here and here in "]}":
        return SyntaxProblem(f"a '{here}' that closes nothing", f"unexpected '{here}'")
    if unfit := re.search(r"found character '(.+)' that cannot start", problem):
        char = unfit.group(1)
        return SyntaxProblem(
            f"a plain value cannot begin with {char}", "", ("put the value in quotes",)
        )
    if mark and "mapping values" in problem and re.fullmatch(r"\s*[\w.-]+", line[: mark.column]):
        return _NO_KEY
    for words, known in _KNOWN:
        if words in problem or words in str(exc.context):
            return known
    if expected := re.match(r"expected ',' or '(.)'", problem):
        close = expected.group(1)
        what = "list" if close == "]" else "mapping"
        begun = exc.context_mark
        if mark is not None and begun is not None and mark.line > begun.line and here == ":":
            return SyntaxProblem(
                "this bracket is never closed", f"no '{close}' to it", at_context=True
            )
        return SyntaxProblem(
            f"expected ',' or '{close}' here, to continue or end the {what}",
            "unexpected",
        )
    return SyntaxProblem(f"not YAML: {problem}")
