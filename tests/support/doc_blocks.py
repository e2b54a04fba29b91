"""Fenced code blocks of documentation pages, and their directives.

Directives are HTML comments, which readers do not see:

- ``<!-- blocks: env=keras toy -->``, once on a page: environment and plugins.
- ``<!-- block: file=train.py -->`` before a block: write it instead of running it. Other words are
  ``exit=2`` (of the last command), ``plain`` (only parsed), ``skip=REASON`` and ``by=TEST``, and
  before a ``diff`` block ``of='COMMAND'``, which prints it.
- ``<!-- hidden: python``, code, ``-->``: a block that a reader need not see. Other kinds are
  ``sh``, ``file=NAME``, and ``copy=PATH``, which copies from the repository.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from source_tree import ROOT

__all__ = [
    "ENVIRONMENTS",
    "LANGUAGES",
    "SKIP_REASONS",
    "Block",
    "Page",
    "PageError",
    "environment_of",
    "name_of",
    "pages",
    "read_page",
]

# Environment of a page -> the nox session that runs its blocks.
ENVIRONMENTS = {
    "bare": "bare",
    "keras": "tensorflow",
    "estimator": "tensorflow-2.15",
    "estimator-latest": "tensorflow",
    "torch": "torch",
}
LANGUAGES = ("python", "pycon", "yaml", "toml", "json", "console", "sh", "diff", "text")
SKIP_REASONS = {
    "network": "installs from a package index, or needs an account of a cloud",
    "nox": "builds an environment of its own; it is what runs these tests",
    "machines": "needs several machines, a scheduler, or Horovod",
    "forever": "does not end by itself",
    "server": "needs a server that the reader runs",
    "slow": "takes minutes; the test that 'by=' names does the same",
}
_WORDS = {"blocks": {"env", "toy"}, "block": {"file", "exit", "plain", "skip", "by", "of"}}

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<language>[^`\s]*)\s*$")
_COMMENT = re.compile(r"^ *<!-- (?P<kind>blocks?|hidden): (?P<words>.*?)(?P<end> *-->)?$")


class PageError(Exception):
    """Raised when a page breaks the conventions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """A block of a page that runs, or states why it does not run."""

    line: int  # number of the first code line, from 1
    language: str  # "copy" for files taken from the repository
    code: str
    words: dict[str, str]
    hidden: bool = False

    @property
    def file(self) -> str | None:
        """File to write, if the block does not run."""
        return self.words.get("file")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
    """The blocks of a page, in order."""

    path: Path
    words: dict[str, str]
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        """Path of the page in the repository."""
        return name_of(self.path)

    @property
    def environment(self) -> str:
        """Environment of the blocks."""
        return self.words.get("env", "bare")


def pages() -> list[Path]:
    """Return every page that must follow the conventions."""
    paths = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md"), ROOT / "README.md"]
    paths += ROOT.glob("examples/**/README.md")
    return sorted(path for path in paths if not _is_hidden(path.relative_to(ROOT)))


def _is_hidden(path: Path) -> bool:
    """Whether a tool generated the file, such as the README in pytest's cache."""
    return any(part.startswith(".") for part in path.parts)


def name_of(path: Path) -> str:
    """Return a page's path in the repository."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def environment_of(path: Path) -> str:
    """Return the environment of a page, even if the page breaks the conventions."""
    match = re.search(
        r"^<!-- blocks:.*\benv=([\w-]+)", path.read_text(encoding="utf-8"), re.MULTILINE
    )
    return match[1] if match and match[1] in ENVIRONMENTS else "bare"


def read_page(path: Path) -> Page:
    """Read a page. Raises PageError if the page breaks the conventions."""
    words: dict[str, str] = {}
    blocks = []
    for block in _blocks(path.read_text(encoding="utf-8").splitlines(), path):
        if block.language == "page":
            words |= block.words
        else:
            blocks.append(block)
    return Page(path=path, words=words, blocks=tuple(blocks))


def _blocks(lines: list[str], path: Path) -> Iterator[Block]:
    number = 0
    pending: dict[str, str] = {}
    while number < len(lines):
        place = f"{path.name}:{number + 1}"
        fence, comment = _FENCE.match(lines[number]), _COMMENT.match(lines[number])
        if fence is None and lines[number].lstrip(" >").startswith(("```", "~~~")):
            raise PageError(f"{place}: a block begins with three backticks and a language alone")
        if fence is not None:
            error = f"{place}: a block that does not end"
            start, number = number + 1, _end_of(lines, number, fence["ticks"], error)
            if fence["language"] not in LANGUAGES:
                raise PageError(f"{place}: language {fence['language']!r}; valid: {LANGUAGES}")
            code = _dedent(lines[start:number], len(fence["indent"]))
            yield Block(line=start + 1, language=fence["language"], code=code, words=pending)
            pending = {}
        elif pending:
            raise PageError(f"{place}: a comment '<!-- block: ... -->' stands before no block")
        elif comment is not None and comment["kind"] == "hidden":
            start, error = number + 1, f"{place}: a comment that does not end with a line '-->'"
            number = number if comment["end"] else _end_of(lines, number, "-->", error)
            yield _hidden(comment["words"], start + 1, lines[start:number], place)
        elif comment is not None:
            words = _words(comment["kind"], comment["words"], place)
            if comment["kind"] == "block":
                pending = words
            else:
                yield Block(line=number + 1, language="page", code="", words=words)
        number += 1


def _end_of(lines: list[str], number: int, mark: str, error: str) -> int:
    for end in range(number + 1, len(lines)):
        if lines[end].strip() == mark:
            return end
    raise PageError(error)


def _dedent(lines: list[str], indent: int) -> str:
    return "".join(line[indent:] + "\n" for line in lines)


def _words(kind: str, text: str, place: str) -> dict[str, str]:
    words = dict(word.partition("=")[::2] for word in shlex.split(text))
    if not words or not set(words) <= _WORDS[kind]:
        raise PageError(f"{place}: {text!r}; valid words: {sorted(_WORDS[kind])}")
    if words.get("skip", "network") not in SKIP_REASONS:
        raise PageError(f"{place}: skip={words['skip']}; valid reasons: {sorted(SKIP_REASONS)}")
    if words.get("skip") == "slow" and not (ROOT / words.get("by", "-")).is_file():
        raise PageError(f"{place}: skip=slow needs by=PATH of the test that does the same")
    if words.get("env", "bare") not in ENVIRONMENTS:
        raise PageError(f"{place}: env={words['env']}; valid: {sorted(ENVIRONMENTS)}")
    return words


def _hidden(text: str, line: int, lines: list[str], place: str) -> Block:
    kind, _, value = text.strip().partition("=")
    code = _dedent(lines, 0)
    if kind in ("python", "sh") and not value and code:
        return Block(line=line, language=kind, code=code, words={}, hidden=True)
    if kind == "file" and value and code:
        words = {"file": value}
        return Block(line=line, language="text", code=code, words=words, hidden=True)
    if kind == "copy" and (ROOT / value).exists() and not code:
        return Block(line=line, language="copy", code=value, words={}, hidden=True)
    raise PageError(f"{place}: hidden: {text!r}; valid: python, sh, file=NAME, copy=PATH")
