"""Read YAML into values with their positions, and report mistakes exactly.

Scalars follow YAML 1.2: ``1e-3`` is a number, ``yes`` and ``1:30`` are strings.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from typing import Any

import yaml

from detcore.config._source import Diagnostic, Entry, Label, Node, Scalar, Source, Span, mistake

__all__ = ["MAX_DEPTH", "empty_node", "half_a_character", "read_yaml"]

_MAX_VALUES = 50_000  # stops nested aliases from filling the memory
MAX_DEPTH = 100
_MAX_DIGITS = 400  # Python refuses to print integers of more than 4300
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_BASED = re.compile(r"0(o[0-7]+|x[0-9a-fA-F]+)")
_STRANGE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(r"\\U([0-9A-Fa-f]{8})")
_PLAIN = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """PyYAML's parser without YAML 1.1's rules for scalars."""

    yaml_implicit_resolvers = {
        "<": [(_PLAIN + "merge", re.compile("<<"))],
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._num_values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, unless there are too many: a full megabyte takes half a minute."""
        is_key = isinstance(parent, yaml.MappingNode) and index is None
        self._num_values += not is_key
        if self._num_values > _MAX_VALUES:
            raise _TooLargeError
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


class _TooLargeError(Exception):
    """The document has more values than any configuration."""


def empty_node(source: Source) -> Node:
    """Return a mapping without entries at the start of `source`."""
    return Node({}, Span(source, 0, 0, 0, 0))


def half_a_character(text: str, span: Span) -> Diagnostic | None:
    """Return a diagnostic for a text that is not valid Unicode, or None."""
    if not _SURROGATE.search(text):
        return None
    return mistake(
        span,
        "this text has half of a character (a surrogate from U+D800 to U+DFFF)",
        help=["write the character itself, or both halves as one \\U escape"],
    )


def read_yaml(
    text: str, source: Source, *, line: int = 0, column: int = 0
) -> tuple[Node | None, list[Diagnostic]]:
    """Read one YAML document.

    Args:
        text: The document.
        source: The source that contains it.
        line: Line of `source` on which `text` begins, from 0.
        column: Column of that line at which `text` begins, from 0.

    Returns:
        The value (None if there is no value, or it cannot be read) and the mistakes.
    """
    reader = _Reader(source, line, column)
    root: yaml.Node | None = None
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.reader.ReaderError as exc:
        reader.found.append(reader.bad_character(text, exc))
    except yaml.MarkedYAMLError as exc:
        reader.found.append(reader.bad_syntax(text, exc))
    except (RecursionError, _TooLargeError):
        reader.found.append(reader.too_deep())
    except (ValueError, OverflowError) as exc:  # for an escape such as "\\U00110000"
        reader.found.append(reader.bad_escape(text, exc))
    if root is None:
        return None, reader.found
    node = reader.node(root, depth=0)
    return (None if reader.is_too_large else node), reader.found


class _Reader:
    """Converts PyYAML's nodes to ours and collects the mistakes."""

    def __init__(self, source: Source, line: int, column: int) -> None:
        self.source = source
        self.found: list[Diagnostic] = []
        self._line = line
        self._column = column
        self._open: set[int] = set()
        self._count = 0
        self.is_too_large = False

    # -- places ---------------------------------------------------------------------------------

    def span(self, start: yaml.Mark, end: yaml.Mark) -> Span:
        first, last = self._at(start.line, start.column), self._at(end.line, end.column)
        return Span(self.source, *first, *last)

    def _at(self, line: int, column: int) -> tuple[int, int]:
        return line + self._line, column + (self._column if line == 0 else 0)

    # -- values ---------------------------------------------------------------------------------

    def node(self, node: yaml.Node, *, depth: int) -> Node:
        span = self.span(node.start_mark, node.end_mark)
        self._count += 1
        if id(node) in self._open:
            self.found.append(mistake(span, "this value contains itself through an alias"))
            return Node(None, span)
        if self._count > _MAX_VALUES or depth > MAX_DEPTH:
            if not self.is_too_large:
                self.is_too_large = True
                self.found.append(self.too_deep())
            return Node(None, span)
        if isinstance(node, yaml.ScalarNode):
            return Node(self._scalar(node, span), span)
        if node.tag not in (_PLAIN + "map", _PLAIN + "seq"):
            self.found.append(self._tagged(node, span))
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return Node(self._mapping(node, depth), _trim(span))
            items = node.value if isinstance(node, yaml.SequenceNode) else []
            return Node(tuple(self.node(item, depth=depth + 1) for item in items), _trim(span))
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            key_span = self.span(key_node.start_mark, key_node.end_mark)
            if key_node.tag == _PLAIN + "merge":
                merged = {**self._merge(value_node, depth), **merged}
                continue
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "":
                self.found.append(mistake(key_span, "expected a plain name as the key"))
                continue
            key = key_node.value
            if bad := half_a_character(key, key_span):
                self.found.append(bad)
                continue
            if key in entries:
                self.found.append(
                    mistake(
                        key_span,
                        f"the key '{key}' is given twice",
                        "given again here",
                        also=[Label(entries[key].key_span, "first given here")],
                        help=["keep one of the two"],
                    )
                )
                continue
            entries[key] = Entry(key_span, self.node(value_node, depth=depth + 1))
        return {**merged, **entries}

    def _merge(self, node: yaml.Node, depth: int) -> dict[str, Entry]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Entry] = {}
        for part in parts:
            value = self.node(part, depth=depth + 1)
            if isinstance(value.value, dict):
                merged = {**value.value, **merged}
            else:
                self.found.append(mistake(value.span, "'<<' can only merge a mapping"))
        return merged

    def _tagged(self, node: yaml.Node, span: Span) -> Diagnostic:
        tag = str(node.tag)
        short = "!!" + tag[len(_PLAIN) :] if tag.startswith(_PLAIN) else tag
        return mistake(span, f"the tag '{short}' is not allowed", help=["remove it"])

    def _scalar(self, node: yaml.ScalarNode, span: Span) -> Scalar:
        text = node.value
        if bad := half_a_character(text, span):
            self.found.append(bad)
            return ""
        if node.tag != _PLAIN + "str":
            self.found.append(self._tagged(node, span))
            return str(text)
        if node.style is not None:  # quoted, or a block: always a string
            return str(text)
        return self._plain_scalar(text, span)

    def _plain_scalar(self, text: str, span: Span) -> Scalar:
        if text in ("", "~", "null", "Null", "NULL"):
            return None
        if text.lower() in ("true", "false") and text in (text.lower(), text.title(), text.upper()):
            return text.lower() == "true"
        if _INTEGER.fullmatch(text):
            return self._integer(text, span)
        if _BASED.fullmatch(text):
            return int(text, 0) if len(text) <= _MAX_DIGITS else self._too_many_digits(text, span)
        if _NUMBER.fullmatch(text) and math.isfinite(number := float(text.replace("_", ""))):
            return number
        if _STRANGE.fullmatch(text) or _NUMBER.fullmatch(text):
            hint = "experiment records are JSON, which has no such number"
            self.found.append(mistake(span, f"expected a finite number, got {text}", help=[hint]))
        return text

    def _integer(self, text: str, span: Span) -> int:
        digits = text.lstrip("+-").replace("_", "")
        if len(digits) > _MAX_DIGITS:
            return self._too_many_digits(text, span)
        value = int(text.replace("_", ""))
        if len(digits) > 1 and digits[0] == "0":
            self.found.append(
                mistake(
                    span,
                    f"{text} is ambiguous: some YAML readers take a leading zero for octal",
                    help=(f"write {value}, or '{text}' in quotes for a string",),
                    suggestion=str(value),
                )
            )
        return value

    def _too_many_digits(self, text: str, span: Span) -> int:
        message = f"a number of {len(text)} characters; at most {_MAX_DIGITS} digits are read"
        self.found.append(mistake(span, message, help=["write a string in quotes"]))
        return 0

    # -- text that is not YAML ------------------------------------------------------------------

    def too_deep(self) -> Diagnostic:
        return mistake(
            Span(self.source, self._line, self._column, self._line, self._column),
            f"more than {_MAX_VALUES} values or {MAX_DEPTH} levels",
            help=("a configuration is small: look for aliases (*name) that repeat each other",),
        )

    def bad_character(self, text: str, exc: yaml.reader.ReaderError) -> Diagnostic:
        before = text[: exc.position]
        line = before.count("\n")
        at = self._at(line, len(before) - (before.rfind("\n") + 1))
        code = ord(exc.character) if isinstance(exc.character, str) else int(exc.character)
        return mistake(
            Span(self.source, *at, at[0], at[1] + 1),
            f"the character U+{code:04X} is not allowed in YAML",
            help=("remove it; it is invisible in most editors",),
        )

    def bad_escape(self, text: str, exc: Exception) -> Diagnostic:
        found = next((m for m in _ESCAPE.finditer(text) if int(m[1], 16) > sys.maxunicode), None)
        start = found.start() if found is not None else 0
        at = self._at(text.count("\n", 0, start), start - (text.rfind("\n", 0, start) + 1))
        width = len(found[0]) if found is not None else 1
        return mistake(
            Span(self.source, *at, at[0], at[1] + width),
            "this escape names no character" if found is not None else f"no YAML: {exc}",
            help=(f"the last one is \\U{sys.maxunicode:08X}",),
        )

    def bad_syntax(self, text: str, exc: yaml.MarkedYAMLError) -> Diagnostic:
        problem = exc.problem_mark or exc.context_mark
        lines = text.split("\n")
        line = lines[problem.line] if problem is not None and problem.line < len(lines) else ""
        said = explain_syntax(exc, line)
        span, context = self._mark(problem), self._mark(exc.context_mark)
        if said.at_context and exc.context_mark is not None:
            return mistake(context, said.message, said.label, help=said.help)
        also: tuple[Label, ...] = ()
        if exc.context_mark is not None and context.line != span.line:
            also = (Label(context, "begun here"),)
        return mistake(span, said.message, said.label, also=also, help=said.help)

    def _mark(self, mark: yaml.Mark | None) -> Span:
        line, column = (0, 0) if mark is None else (mark.line, mark.column)
        at = self._at(line, column)
        return Span(self.source, *at, at[0], at[1] + 1)


def _trim(span: Span) -> Span:
    """Return a collection's span without the line ends and comments after its last item."""
    lines = span.source.lines
    line, column = span.end_line, span.end_column
    while line > span.line and (line >= len(lines) or not lines[line][:column].strip()):
        line -= 1
        column = len(lines[line])
    return Span(span.source, span.line, span.column, line, column)


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
