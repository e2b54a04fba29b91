"""Represent configuration text: values with their positions, and mistakes at positions."""

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
        name: Its name in messages, such as ``"const.yaml"`` or ``"--set"``.
        kind: The kind of source.
        lines: Its lines without line ends; each flag or variable is one line.
    """

    name: str
    kind: SourceKind
    lines: tuple[str, ...]

    @classmethod
    def of_file(cls, name: str, text: str) -> Source:
        """Return the source of a file."""
        return cls(name=name, kind="file", lines=tuple(_LINE_END.split(text)))

    @property
    def text(self) -> str:
        """Its text with plain line ends."""
        return "\n".join(self.lines)

    def span(self, line: int = 0, column: int = 0, width: int = 1) -> Span:
        """Return a range of one line; default: the start."""
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
        """Whether it has no character."""
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
        secondary: Other positions that are involved.
        help: Further lines: expected values, and how to correct it.
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


def mistake(span: Span, message: str, label: str = "", **details: Unpack[Further]) -> Diagnostic:
    """Return the diagnostic of one mistake at a position; see `Diagnostic`."""
    return Diagnostic(
        message=message,
        primary=Label(span, label),
        secondary=(*details.get("also", ()),),
        help=(*details.get("help", ()),),
        suggestion=details.get("suggestion"),
    )


def dotted(place: Place) -> str:
    """Return a place in the notation of messages and flags."""
    return ".".join(map(str, place))


@dataclasses.dataclass(eq=False, slots=True)
class Node:
    """One value: a scalar, a list, or a mapping.

    Attributes:
        value: The scalar, or the items or entries.
        span: Its position; of a list or mapping, from its first to its last character.
        key: Position of its key; None for an item of a list, and for the whole.
    """

    value: Scalar | list[Node] | dict[str, Node]
    span: Span
    key: Span | None = None

    @property
    def entries(self) -> dict[str, Node]:
        """The entries of a mapping; of other values, none."""
        return self.value if isinstance(self.value, dict) else {}

    def child(self, element: str | int) -> Node | None:
        """Return an entry or item, or None if it does not exist."""
        if isinstance(self.value, list) and isinstance(element, int):
            return self.value[element] if element < len(self.value) else None
        return self.entries.get(str(element))


def plain(node: Node) -> JSONValue:
    """Return the value without positions."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    return [plain(item) for item in node.value] if isinstance(node.value, list) else node.value


def find(root: Node, place: Place) -> Node | None:
    """Return the value at `place`, or None if it is not in the text."""
    node: Node | None = root
    for element in place:
        node = None if node is None else node.child(element)
    return node


def key_span(root: Node, place: Place) -> Span | None:
    """Return the position of the key at the end of `place`.

    For a list item it is the item; for a place that is not in the text, the innermost key above it;
    None if there is no key above.
    """
    found: Span | None = None
    for element in place:
        child = root.child(element)
        if child is None:
            break
        root, found = child, child.key or child.span
    return found


def put(root: Node, place: Place, node: Node, keys: Sequence[Span]) -> None:
    """Put `node` at `place`, and create missing mappings on the way.

    Args:
        root: The configuration, a mapping.
        place: The path; not empty. List items on the way must exist.
        node: The new value.
        keys: Position of each name of `place`, for new keys.
    """
    last = len(place) - 1
    for depth, (element, key) in enumerate(zip(place, keys, strict=True)):
        child = node if depth == last else root.child(element)
        if child is None or (depth < last and not isinstance(child.value, (dict, list))):
            child = Node({}, key, key)
        if isinstance(root.value, list):
            root.value[int(element)] = child
        elif isinstance(root.value, dict):
            child.key = key if depth == last else child.key
            root.value[str(element)] = child
        root = child
