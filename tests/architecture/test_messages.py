"""Only one function joins messages, so that the result reads as sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from source_tree import PLUGIN_SOURCES, SOURCE, modules_under

from detcore.errors import in_one_line

MODULES = [module for folder in (SOURCE, *PLUGIN_SOURCES) for module in modules_under(folder)]
# Names of variables with messages of unknown punctuation.
MESSAGE = re.compile(r"\b(away|error|exc|failure|late|problem|reason|why)\b")
NEXT_SENTENCE = re.compile(r" [A-Z][a-z]")


@pytest.mark.parametrize(
    ("messages", "joined"),
    [
        (("connection refused\nIs it running?", "It is.", "Fine"),
         "connection refused. Is it running? It is. Fine"),
        (("  is the address right?\n\n  They are kept",), "is the address right? They are kept"),
        (("choose one:\n  detcore serve", "or wait"), "choose one: detcore serve. or wait"),
        (("alone",), "alone"),
        (("", ValueError("no text"), None), "no text. None"),
        (("",), ""),
        ((), ""),
    ],
)  # fmt: skip
def test_lines_become_sentences(messages: tuple[object, ...], joined: str) -> None:
    assert in_one_line(*messages) == joined


def joined_by_hand(tree: ast.Module) -> Iterator[int]:
    """Yield the lines where a message is followed by a sentence, or loses its line breaks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for part, following in zip(node.values, node.values[1:], strict=False):
                if (
                    isinstance(part, ast.FormattedValue)
                    and MESSAGE.search(ast.unparse(part.value))
                    and isinstance(following, ast.Constant)
                    and NEXT_SENTENCE.match(str(following.value))
                ):
                    yield node.lineno
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func) == "' '.join"
        ):
            text = ast.unparse(node)
            if MESSAGE.search(text) and "split" in text:
                yield node.lineno


def test_messages_are_joined_by_in_one_line() -> None:
    joins = [module.place(line) for module in MODULES for line in joined_by_hand(module.tree)]
    assert joins == []


@pytest.mark.parametrize(
    "line",
    [
        "f'{error.splitlines()[0]} Going on'",
        "f'{why} They are kept'",
        "' '.join(str(error).split())",
        "' '.join(str(away).splitlines()[:2])",
    ],
)
def test_manual_joins_are_detected(line: str) -> None:
    assert list(joined_by_hand(ast.parse(line))) == [1]
