"""Measure the prose of docstrings and comments: how often constructions occur that readers decode.

``python tests/support/english.py [FOLDER ...]`` prints each place, then the rates by folder.
"""

from __future__ import annotations

import ast
import dataclasses
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["PATTERNS", "Prose", "find", "rates", "read_prose"]

# A sentence, or the description after a label such as ``name:``, begins here.
_START = r"(?:^|[.!?:;]['\")`]*\s+|\n\s*\n\s*)[\"'(]?"
# Up to the end of the sentence: a question may begin with "What".
_NO_QUESTION = r"(?![^.!?]*\?)"
_AFTER_THAT = (
    r"(?:a|an|the|it|they|we|you|there|each|every|one|two|no|nothing|none|all|any|its|their|which|"
    r"who|only|some|what|[A-Z`]\S*)"
)
PATTERNS = {
    "what_as_subject": re.compile(
        rf"{_START}((?:[Ww]hat(?!:)|[Ww]ho|[Ww]hoever|[Ww]hatever)\b|That(?= {_AFTER_THAT}\b))"
        rf"{_NO_QUESTION}"
    ),
    "what_clause": re.compile(
        r"\b(what (?:is|was|are|were|has|had|it|they|the|a|an|this|these|there|one|each|comes))\b"
    ),
    "goes_on": re.compile(r"\b((?:go|goes|going|gone|went) on)\b", re.I),
    "is_told": re.compile(r"\b((?:is|are|was|were|be|been|being) told)\b", re.I),
    "anew": re.compile(r"\b(anew)\b", re.I),
    "of_its_own": re.compile(r"\b(of (?:its|their|one's) own)\b", re.I),
    "nobody": re.compile(r"\b(nobody|somebody|everybody|whoever)\b", re.I),
    "there_is_none": re.compile(r"\b(there (?:is|are|was|were) none)\b", re.I),
}
_WORD = re.compile(r"[A-Za-z][\w'-]*")
_NO_PROSE = re.compile(r"#\s*(?:noqa|type:|fmt:|pragma|!)")
_PER = 10_000


@dataclasses.dataclass(frozen=True)
class Prose:
    """A docstring, or the lines of one comment.

    Attributes:
        path: The file.
        line: The line where the text begins.
        text: The text, without quotes, number signs and examples.
    """

    path: Path
    line: int
    text: str

    @property
    def num_words(self) -> int:
        """Number of words."""
        return len(_WORD.findall(self.text))


def read_prose(paths: Iterable[Path]) -> list[Prose]:
    """Return the docstrings and comments of Python files."""
    found = []
    for path in paths:
        source = path.read_text(encoding="utf-8")
        found += [Prose(path, line, text) for line, text in _docstrings(source)]
        found += [Prose(path, line, text) for line, text in _comments(source)]
    return found


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = body[0] if body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                text = first.value.value
                if isinstance(text, str):
                    yield first.lineno, _without_examples(text)


def _without_examples(text: str) -> str:
    """Blank the lines of doctests; the number of lines stays."""
    return "\n".join(
        "" if line.lstrip().startswith((">>>", "...")) else line for line in text.split("\n")
    )


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments; those on consecutive lines, without code between them, are one text."""
    start, last, lines = 0, 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _NO_PROSE.match(token.string):
            continue
        is_alone = not token.line[: token.start[1]].strip()
        if lines and not (is_alone and token.start[0] == last + 1):
            yield start, "\n".join(lines)
            lines = []
        if not lines:
            start = token.start[0]
        lines.append(token.string.lstrip("# "))
        last = token.start[0]
    if lines:
        yield start, "\n".join(lines)


def find(prose: Iterable[Prose]) -> Iterator[tuple[str, str]]:
    """Yield each construction of `PATTERNS`: its name, and its place with the words around it."""
    for one in prose:
        for name, pattern in PATTERNS.items():
            for match in pattern.finditer(one.text):
                line = one.line + one.text.count("\n", 0, match.start(1))
                around = one.text[max(0, match.start(1) - 30) : match.end(1) + 60]
                yield name, f"{one.path}:{line}: {name}: {' '.join(around.split())}"


def rates(prose: Iterable[Prose]) -> dict[str, float]:
    """Return how often each construction stands in 10,000 words."""
    texts = list(prose)
    num_words = max(1, sum(one.num_words for one in texts))
    counts = dict.fromkeys(PATTERNS, 0)
    for name, _ in find(texts):
        counts[name] += 1
    return {name: count * _PER / num_words for name, count in counts.items()}


def main(folders: list[str]) -> None:
    """Print each place and the rates, by folder."""
    for folder in folders:
        prose = read_prose(sorted(Path(folder).rglob("*.py")))
        for _, place in find(prose):
            print(place)
        found = "  ".join(f"{name} {rate:.1f}" for name, rate in rates(prose).items())
        print(f"{folder}: {sum(one.num_words for one in prose)} words  {found}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["src/detcore", "plugins"])
