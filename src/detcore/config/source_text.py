"""Configuration text: values with their positions, and mistakes at positions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from detcore.contract.values import JSONValue

if TYPE_CHECKING:
    from typing_extensions import Unpack


_LINE_END = re.compile("\r\n|\r|\n")
SourceKind = Literal["file", "flag", "environment"]
Place: TypeAlias = tuple["str | int", ...]  # keys and list indices from the top of the file
Scalar: TypeAlias = "str | int | float | bool | None"


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Source:
    """Text that a user wrote: a file, or the flags or variables of one command.

    Attributes:
        name: Name in messages, such as ``"const.yaml"`` or ``"command line"``.
        kind: Kind of source.
        lines: Lines without line ends. Each flag or variable is one line.
    """

    name: str
    kind: SourceKind
    lines: tuple[str, ...]

    @classmethod
    def from_text(cls, name: str, text: str) -> Source:
        """Return the source of a file."""
        return cls(name=name, kind="file", lines=tuple(_LINE_END.split(text)))

    @property
    def text(self) -> str:
        """Text with ``\\n`` as line end."""
        return "\n".join(self.lines)

    def make_span(self, line: int = 0, column: int = 0, width: int = 1) -> Span:
        """Return a range in one line; default: the start of the source."""
        return Span(self, line, column, line, column + width)


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A range of a source. Lines and columns count from 0; the end is exclusive."""

    source: Source
    line: int
    column: int
    end_line: int
    end_column: int

    @property
    def is_empty(self) -> bool:
        """Whether the range contains no characters."""
        return (self.line, self.column) == (self.end_line, self.end_column)

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
        secondary: Related positions.
        help: Further lines, such as expected values and remedies.
        suggestion: The most likely correction, or None.
    """

    message: str
    primary: Label
    secondary: tuple[Label, ...] = ()
    help: tuple[str, ...] = ()
    suggestion: str | None = None

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


class Further(TypedDict, total=False):
    """Details of a mistake; see `Diagnostic`."""

    also: Iterable[Label]
    help: Iterable[str]
    suggestion: str | None


def make_diagnostic(
    span: Span, message: str, label: str = "", **details: Unpack[Further]
) -> Diagnostic:
    """Return the diagnostic of a mistake at a position; see `Diagnostic`."""
    return Diagnostic(
        message=message,
        primary=Label(span, label),
        secondary=(*details.get("also", ()),),
        help=(*details.get("help", ()),),
        suggestion=details.get("suggestion"),
    )


def join_place(place: Place) -> str:
    """Return a place in the notation of messages and flags."""
    return ".".join(map(str, place))


@dataclasses.dataclass(eq=False, slots=True)
class Node:
    """One value: a scalar, a list, or a mapping.

    Attributes:
        value: The scalar, or the items or entries.
        span: Position from the first to the last character.
        key: Position of the key; None for list items and for the root.
    """

    value: Scalar | list[Node] | dict[str, Node]
    span: Span
    key: Span | None = None

    @property
    def entries(self) -> dict[str, Node]:
        """The entries of a mapping. Empty for other values."""
        return self.value if isinstance(self.value, dict) else {}

    def get_child(self, element: str | int) -> Node | None:
        """Return an entry or item, or None if it does not exist."""
        if isinstance(self.value, list) and isinstance(element, int):
            return self.value[element] if element < len(self.value) else None
        return self.entries.get(str(element))


def unwrap_node(node: Node) -> JSONValue:
    """Return the value without positions."""
    if isinstance(node.value, dict):
        return {key: unwrap_node(child) for key, child in node.value.items()}
    return (
        [unwrap_node(item) for item in node.value] if isinstance(node.value, list) else node.value
    )


def find_node(root: Node, place: Place) -> Node | None:
    """Return the node at `place`, or None if it is not in the text."""
    node: Node | None = root
    for element in place:
        node = None if node is None else node.get_child(element)
    return node


def key_span(root: Node, place: Place) -> Span | None:
    """Return the position of the key at the end of `place`.

    For a list item, this is the position of the item. For a place that is not in the text, it is
    the innermost parent key in the text, or None without a parent key.
    """
    span: Span | None = None
    for element in place:
        child = root.get_child(element)
        if child is None:
            break
        root, span = child, child.key or child.span
    return span


def set_node(root: Node, place: Place, node: Node, keys: Sequence[Span]) -> None:
    """Put `node` at `place`, and create missing mappings on the way.

    Args:
        root: The configuration, a mapping.
        place: The path; not empty. List items on the way must exist.
        node: The new value.
        keys: Position of each name of `place`, for new keys.
    """
    last = len(place) - 1
    for depth, (element, key) in enumerate(zip(place, keys, strict=True)):
        child = node if depth == last else root.get_child(element)
        if child is None or (depth < last and not isinstance(child.value, (dict, list))):
            child = Node({}, key, key)
        if isinstance(root.value, list):
            root.value[int(element)] = child
        elif isinstance(root.value, dict):
            child.key = key if depth == last else child.key
            root.value[str(element)] = child
        root = child
