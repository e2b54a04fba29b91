"""Read YAML into values with their positions, and report mistakes at exact positions.

Scalars follow YAML 1.2: ``1e-3`` is a number, and ``yes`` and ``1:30`` are strings.
"""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from detcore.config.source_text import (
    Diagnostic,
    Further,
    Label,
    Node,
    Scalar,
    Source,
    Span,
    make_diagnostic,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


_MAX_VALUES = 50_000  # prevents nested aliases from filling the memory
MAX_DEPTH = 100
_MAX_DIGITS = 400  # Python refuses to print integers of more than 4300
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_BASED = re.compile(r"0(o[0-7]+|x[0-9a-fA-F]+)")
_STRANGE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_SURROGATE = re.compile("[\ud800-\udfff]")
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


class _Dumper(yaml.SafeDumper):
    """PyYAML's writer that also quotes a string that YAML 1.2 reads as a number."""


_Dumper.add_implicit_resolver(
    _PLAIN + "float", re.compile(rf"({_NUMBER.pattern}|{_BASED.pattern})$"), [*"-+.0123456789"]
)


def write_yaml(value: object, *, allow_unicode: bool = True) -> str:
    """Return plain values as YAML that `read_yaml` reads as the same values."""
    return str(
        yaml.dump(
            value, Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode, width=math.inf
        )
    )


class _TooLargeError(Exception):
    """Raised when a document has more values than any configuration."""


def check_surrogates(text: str, span: Span) -> Diagnostic | None:
    """Return a diagnostic for a string that is not valid Unicode, or None."""
    if not _SURROGATE.search(text):
        return None
    return make_diagnostic(
        span,
        "this text contains half a character (a surrogate from U+D800 to U+DFFF)",
        help=["write the character, or both halves as one \\U escape"],
    )


def line_and_column(text: str, index: int) -> tuple[int, int]:
    """Return line and column of a character in a string, both from 0."""
    return text.count("\n", 0, index), index - (text.rfind("\n", 0, index) + 1)


def read_yaml(
    text: str, source: Source, *, line: int = 0, column: int = 0
) -> tuple[Node | None, list[Diagnostic]]:
    """Read one YAML document.

    Args:
        text: The document.
        source: The source that contains it.
        line: Line of `source` on which `text` starts, from 0.
        column: Column of this line at which `text` starts, from 0.

    Returns:
        The value, or None if it is missing or cannot be read, and the mistakes.
    """
    reader = _YamlReader(source, line, column)
    node: Node | None = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        node = None if root is None else reader.convert_node(root)
    except yaml.reader.ReaderError as exc:
        reader.bad_character(text, exc)
    except yaml.MarkedYAMLError as exc:
        reader.bad_syntax(exc)
    except (RecursionError, _TooLargeError):
        reader.add_mistake(
            source.make_span(line, column, 0),
            f"more than {_MAX_VALUES} values or {MAX_DEPTH} levels",
            help=["a configuration is small: look for aliases (*name) that repeat each other"],
        )
        return None, reader.mistakes
    except (ValueError, OverflowError):  # for an escape such as "\\U00110000"
        reader.bad_escape(loader.get_mark())
    return node, reader.mistakes


class _YamlReader:
    """Converts PyYAML's nodes to ours and collects the mistakes."""

    def __init__(self, source: Source, line: int, column: int) -> None:
        self.mistakes: list[Diagnostic] = []
        self._source = source
        self._line = line
        self._column = column
        self._open: list[yaml.Node] = []
        self._count = 0

    def add_mistake(
        self, span: Span, message: str, label: str = "", **details: Unpack[Further]
    ) -> None:
        """Add a mistake; see `make_diagnostic`."""
        self.mistakes.append(make_diagnostic(span, message, label, **details))

    def convert_node(self, node: yaml.Node) -> Node:
        """Convert a node.

        Raises:
            _TooLargeError: If there are too many nodes or levels.
        """
        span = self._make_span(node)
        self._count += 1
        if node in self._open:
            self.add_mistake(span, "this value contains itself through an alias")
            return Node(None, span)
        if self._count > _MAX_VALUES or len(self._open) > MAX_DEPTH:
            raise _TooLargeError
        if isinstance(node, yaml.ScalarNode):
            return Node(self._convert_scalar(node, span), span)
        if node.tag not in (_PLAIN + "map", _PLAIN + "seq"):
            self._report_tag(node, span)
        self._open.append(node)
        value: list[Node] | dict[str, Node] = (
            self._convert_mapping(node)
            if isinstance(node, yaml.MappingNode)
            else [self.convert_node(item) for item in node.value]
        )
        self._open.pop()
        return Node(value, _trim(span))

    def _make_span(self, node: yaml.Node) -> Span:
        start, end = node.start_mark, node.end_mark
        return Span(
            self._source,
            *self._shift_position(start.line, start.column),
            *self._shift_position(end.line, end.column),
        )

    def _shift_position(self, line: int, column: int) -> tuple[int, int]:
        return line + self._line, column + (self._column if line == 0 else 0)

    def _convert_mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key, span = key_node.value, self._make_span(key_node)
            if key_node.tag == _PLAIN + "merge":
                merged = {**self._merge_mappings(value_node), **merged}
            elif not isinstance(key_node, yaml.ScalarNode) or key == "":
                self.add_mistake(span, "expected a plain name as the key")
            elif bad := check_surrogates(key, span):
                self.mistakes.append(bad)
            elif key in entries:
                self.add_mistake(
                    span,
                    f"the key '{key}' is given twice",
                    "given again here",
                    also=[Label(entries[key].key or span, "first given here")],
                    help=["keep one of the two"],
                )
            else:
                entries[key] = self.convert_node(value_node)
                entries[key].key = span
        return {**merged, **entries}

    def _merge_mappings(self, node: yaml.Node) -> dict[str, Node]:
        merged: dict[str, Node] = {}
        for part in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            value = self.convert_node(part)
            if not isinstance(value.value, dict):
                self.add_mistake(value.span, "'<<' can only merge a mapping")
            merged = {**value.entries, **merged}
        return merged

    def _report_tag(self, node: yaml.Node, span: Span) -> None:
        tag = str(node.tag).replace(_PLAIN, "!!")
        self.add_mistake(span, f"the tag '{tag}' is not allowed", help=["remove it"])

    def _convert_scalar(self, node: yaml.ScalarNode, span: Span) -> Scalar:
        text = str(node.value)
        if bad := check_surrogates(text, span):
            self.mistakes.append(bad)
            return ""
        if node.tag != _PLAIN + "str":
            self._report_tag(node, span)
            return text
        # A quoted scalar or a block is always a string.
        return text if node.style is not None else self._plain_scalar(text, span)

    def _plain_scalar(self, text: str, span: Span) -> Scalar:
        if text in ("", "~", "null", "Null", "NULL"):
            return None
        if text.lower() in ("true", "false") and text in (text.lower(), text.title(), text.upper()):
            return text.lower() == "true"
        digits = text.lstrip("+-").replace("_", "")
        is_integer = _INTEGER.fullmatch(text)
        if is_integer or _BASED.fullmatch(text):
            if len(digits) > _MAX_DIGITS:
                message = (
                    f"a number of {len(text)} characters; expected at most {_MAX_DIGITS} digits"
                )
                self.add_mistake(span, message, help=["put quotes around a string"])
                return 0
            value = int(text.replace("_", ""), 10 if is_integer else 0)
            if is_integer and len(digits) > 1 and digits[0] == "0":
                self.add_mistake(
                    span,
                    f"{text} is ambiguous: some YAML readers take a leading zero for octal",
                    help=(f"write {value}, or '{text}' in quotes for a string",),
                    suggestion=str(value),
                )
            return value
        is_number = _NUMBER.fullmatch(text)
        if is_number and math.isfinite(number := float(text.replace("_", ""))):
            return number
        if is_number or _STRANGE.fullmatch(text):
            hint = "experiment records are JSON, which does not support this number"
            self.add_mistake(span, f"expected a finite number, got {text}", help=[hint])
        return text

    def bad_character(self, text: str, exc: yaml.reader.ReaderError) -> None:
        code = ord(exc.character) if isinstance(exc.character, str) else int(exc.character)
        self.add_mistake(
            self._source.make_span(*self._shift_position(*line_and_column(text, exc.position))),
            f"the character U+{code:04X} is not allowed in YAML",
            help=["remove it; it is invisible in most editors"],
        )

    def bad_escape(self, mark: yaml.Mark) -> None:
        line, column = self._shift_position(mark.line, mark.column)
        self.add_mistake(
            self._source.make_span(line, column - len("\\U"), len("\\U00110000")),
            "this escape names no character",
            help=[f"the last valid escape is \\U{sys.maxunicode:08X}"],
        )

    def bad_syntax(self, exc: yaml.MarkedYAMLError) -> None:
        problem = explain_syntax(exc)
        mark, start = exc.problem_mark or exc.context_mark, exc.context_mark or exc.problem_mark
        context = self._span_at_mark(start)
        span = context if problem.at_context else self._span_at_mark(mark)
        also = [Label(context, "starts here")] if context.line != span.line else []
        hints = problem.help
        if "mapping values are not allowed" in str(exc.problem):
            hints = (*_explain_indentation(span), *hints)
        self.add_mistake(span, problem.message, problem.label, also=also, help=hints)

    def _span_at_mark(self, mark: yaml.Mark | None) -> Span:
        return self._source.make_span(
            *(self._shift_position(mark.line, mark.column) if mark else self._shift_position(0, 0))
        )


def _explain_indentation(colon: Span) -> tuple[str, ...]:
    """Return a hint if a key is indented further than the key above it, which has a value."""
    lines = colon.source.lines
    key, above = colon.line, colon.line - 1
    while above >= 0 and not lines[above].strip():
        above -= 1
    if above < 0 or ":" in lines[key][: colon.column] or ":" not in lines[above]:
        return ()
    indents = [len(lines[line]) - len(lines[line].lstrip()) for line in (key, above)]
    if indents[0] <= indents[1]:
        return ()
    return (
        f"line {key + 1} is indented further than line {above + 1}; "
        "start keys of the same level in the same column",
    )


def _trim(span: Span) -> Span:
    """Return a collection's span without the line ends and comments after its last item."""
    lines = span.source.lines
    line, column = span.end_line, span.end_column
    while line > span.line and (line >= len(lines) or not lines[line][:column].strip()):
        line -= 1
        # YAML has more kinds of line ends than `Source`.
        column = len(lines[line]) if line < len(lines) else 0
    return Span(span.source, span.line, span.column, line, column)


class SyntaxProblem(NamedTuple):
    """A YAML syntax error. `at_context` means that its position is the start of the construct."""

    message: str
    label: str = ""
    help: tuple[str, ...] = ()
    at_context: bool = False


# Explanations by a pattern of the parser's error, which is its context and its problem.
_SYNTAX = {
    r"'\\t'": SyntaxProblem(
        "a tab where YAML allows only spaces",
        "this is a tab",
        ("replace the tab with spaces (two per level)",),
    ),
    "flow node.*<stream end>": SyntaxProblem(
        "a bracket above is never closed", "the text ends here"
    ),
    "quoted.*end of stream": SyntaxProblem(
        "this quotation is never closed", "opened here", at_context=True
    ),
    "<stream end>|expected ','": SyntaxProblem(
        "this bracket is never closed", "closed nowhere, or a ',' is missing", at_context=True
    ),
    r"found '[\]}]'": SyntaxProblem("a bracket that closes nothing", "no bracket is open"),
    "mapping values are not allowed": SyntaxProblem(
        "a ':' where no new key can start",
        "unexpected ':'",
        (
            "put quotes around a value that contains ': '",
            "write each key on a new line, below a line that is 'key: value' or ends with ':'",
        ),
    ),
    "could not find expected ':'": SyntaxProblem(
        "a key without ':'", "no ':' in this line", ("write 'key: value'",), at_context=True
    ),
    "expected <block end>": SyntaxProblem(
        "this line does not fit the block above it",
        "indented differently, or stands where a key was expected",
        ("indent all keys of a block by the same number of spaces",),
    ),
}


def explain_syntax(exc: yaml.MarkedYAMLError) -> SyntaxProblem:
    """Return an explanation of a parser error."""
    error = f"{exc.context}; {exc.problem}"
    explanations = (text for pattern, text in _SYNTAX.items() if re.search(pattern, error))
    return next(explanations, SyntaxProblem(f"not YAML: {exc.problem or exc.context}"))
