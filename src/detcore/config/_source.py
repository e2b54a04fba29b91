"""Represent configuration text: values with their positions, and mistakes at positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from detcore.contract.values import JSONValue

__all__ = [
    "Diagnostic",
    "Entry",
    "Label",
    "Node",
    "Place",
    "Scalar",
    "Source",
    "Span",
    "dotted",
    "find",
    "key_span",
    "mistake",
    "plain",
    "put",
    "rename",
    "replace",
    "walk",
]

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
    def of_file(cls, name: str, text: str) -> tuple[Source, str]:
        """Return the source of a file, and its text with plain line ends."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        return cls(name=name, kind="file", lines=(*text.split("\n"),)), text


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A range of a source. Lines and columns count from 0; the end is exclusive."""

    source: Source
    line: int
    column: int
    end_line: int
    end_column: int

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
        count: Number of mistakes that it represents.
    """

    message: str
    primary: Label
    secondary: tuple[Label, ...] = ()
    help: tuple[str, ...] = ()
    suggestion: str | None = None
    count: int = 1

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


def mistake(
    span: Span,
    message: str,
    label: str = "",
    *,
    also: Iterable[Label] = (),
    help: Iterable[str] = (),
    suggestion: str | None = None,
) -> Diagnostic:
    """Return the diagnostic of one mistake at a position; see `Diagnostic`."""
    return Diagnostic(
        message=message,
        primary=Label(span, label),
        secondary=(*also,),
        help=(*help,),
        suggestion=suggestion,
    )


def dotted(place: Place) -> str:
    """Return a place in the notation of messages and flags."""
    return ".".join(map(str, place))


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One value: a scalar, a list, or a mapping.

    Attributes:
        value: The scalar, or the items or entries.
        span: Its position; of a list or mapping, from its first to its last character.
    """

    value: Scalar | tuple[Node, ...] | dict[str, Entry]
    span: Span


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """The position of a mapping's key, and its value."""

    key_span: Span
    node: Node


def plain(node: Node) -> JSONValue:
    """Return the value without positions."""
    if isinstance(node.value, dict):
        return {key: plain(entry.node) for key, entry in node.value.items()}
    if isinstance(node.value, tuple):
        return [plain(item) for item in node.value]
    return node.value


def find(root: Node, place: Place) -> Node | None:
    """Return the value at `place`, or None if it is not in the text."""
    node = root
    for element in place:
        child = _child(node, element)
        if child is None:
            return None
        node = child
    return node


def key_span(root: Node, place: Place) -> Span | None:
    """Return the position of the key at the end of `place`.

    For a list item it is the item; for a place that is not in the text, the innermost key above it;
    None if there is no key above.
    """
    found: Span | None = None
    node = root
    for element in place:
        child = _child(node, element)
        if child is None:
            break
        entries = node.value if isinstance(node.value, dict) else {}
        found = entries[str(element)].key_span if entries else child.span
        node = child
    return found


def put(root: Node, place: Place, node: Node, keys: Sequence[Span]) -> Node:
    """Return a copy of `root` with `node` at `place`; missing mappings on the way are created.

    Args:
        root: The configuration.
        place: The path; not empty. List items on the way must exist.
        node: The new value.
        keys: Position of each name of `place`, for new keys.
    """
    head, rest = place[0], place[1:]
    if isinstance(root.value, tuple) and isinstance(head, int):
        items = list(root.value)
        items[head] = put(items[head], rest, node, keys[1:]) if rest else node
        return Node(tuple(items), root.span)
    entries = dict(root.value) if isinstance(root.value, dict) else {}
    name = str(head)
    if not rest:
        entries[name] = Entry(keys[0], node)
        return Node(entries, root.span)
    below = entries.get(name)
    if below is None or not isinstance(below.node.value, (dict, tuple)):
        below = Entry(keys[0], Node({}, keys[0]))
    entries[name] = Entry(below.key_span, put(below.node, rest, node, keys[1:]))
    return Node(entries, root.span)


def rename(root: Node, place: Place, new_name: str) -> Node:
    """Return a copy of `root` in which the key at the end of `place` is named `new_name`."""
    parent = find(root, place[:-1])
    if parent is None or not isinstance(parent.value, dict):
        return root
    renamed = {new_name if key == place[-1] else key: entry for key, entry in parent.value.items()}
    return replace(root, place[:-1], Node(renamed, parent.span))


def replace(root: Node, place: Place, node: Node) -> Node:
    """Return a copy of `root` with the existing value at `place` replaced; keys stay."""
    if not place:
        return node
    keys = [key_span(root, place[: depth + 1]) or root.span for depth in range(len(place))]
    return put(root, place, node, keys)


def walk(node: Node, place: Place = ()) -> Iterator[tuple[Place, Node]]:
    """Yield every value with its place, parents first."""
    yield place, node
    if isinstance(node.value, dict):
        for key, entry in node.value.items():
            yield from walk(entry.node, (*place, key))
    elif isinstance(node.value, tuple):
        for index, item in enumerate(node.value):
            yield from walk(item, (*place, index))


def _child(node: Node, element: str | int) -> Node | None:
    if isinstance(node.value, dict):
        entry = node.value.get(str(element))
        return None if entry is None else entry.node
    if isinstance(node.value, tuple) and isinstance(element, int) and element < len(node.value):
        return node.value[element]
    return None
