"""A module that is being rewritten: its imports and their uses, its changes and its findings.

LibCST resolves names by Python's scopes, and keeps the layout of everything that is not changed.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import (
    CodeRange,
    ImportAssignment,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    Scope,
    ScopeProvider,
)

from detcore_determined.migrate.findings import Finding
from detcore_determined.migrate.lookup import Path

ImportStatement: TypeAlias = "cst.Import | cst.ImportFrom"


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """A use of an imported name, with the attributes that follow it.

    Attributes:
        node: The whole chain of attributes, or the string of an annotation that contains it.
        parts: The name and its attributes.
        scope: The scope of the use.
    """

    node: cst.BaseExpression
    parts: Path
    scope: Scope


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Import:
    """A name that an import statement binds.

    Attributes:
        statement: The statement.
        alias: The name in the statement.
        scope: The scope that it binds the name in.
        local: The bound name.
        path: The imported object; its first part is empty for a relative import.
        uses: The uses of the name, in order.
    """

    statement: ImportStatement
    alias: cst.ImportAlias
    scope: Scope
    local: str
    path: Path
    uses: list[Use] = dataclasses.field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether the statement is ``import a.b``, which binds ``a``."""
        return isinstance(self.statement, cst.Import) and self.alias.asname is None


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """One imported object: ``import module``, or ``from module import name``.

    Attributes:
        module: The module.
        name: The name to import from it; empty for the module itself.
        local: The local name, if it differs.
    """

    module: str
    name: str = ""
    local: str = ""

    @property
    def item(self) -> str:
        """The text after ``import``."""
        return f"{self.name or self.module}{f' as {self.local}' if self.local else ''}"


class Rewriter:
    """Collects the changes of a module.

    Args:
        source: The module.

    Raises:
        ValueError: If LibCST cannot reproduce the module exactly.
    """

    def __init__(self, source: str) -> None:
        self.module = cst.parse_module(source)
        if self.module.code != source:
            raise ValueError("LibCST does not support its line ends or form feeds")
        wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
        providers = (PositionProvider, ParentNodeProvider, ScopeProvider)
        metadata: Mapping[Any, Any] = wrapper.resolve_many(providers)
        self.positions, self.parents, self.scopes = (metadata[provider] for provider in providers)
        self.imports = sorted(self._list_imports(), key=lambda item: self.place(item.alias))
        self.plans: dict[cst.CSTNode, list[Piece]] = {}
        self.changes: dict[cst.CSTNode, list[Callable[[Any], Any]]] = defaultdict(list)
        self.findings: list[Finding] = []
        self.notes: list[tuple[cst.CSTNode, Finding]] = []

    def find(self, *kinds: type[cst.CSTNode]) -> list[Any]:
        """Return all nodes of some types."""
        return [node for node in self.positions if isinstance(node, kinds)]

    def place(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return line and column of a node, both from 1, in characters."""
        return _get_place(self.positions[node])

    def leave(self, node: cst.CSTNode, name: str, reason: str, advice: str) -> None:
        """Report a place that is not rewritten."""
        self.findings.append(Finding(*self.place(node), name, reason, advice, "left"))

    def note(self, node: cst.CSTNode, name: str, note: str) -> None:
        """Report a place that is rewritten and should be checked; an empty note reports nothing."""
        if isinstance(node, (cst.Import, cst.ImportFrom)):
            node = self.parents[node]
        if note:
            self.notes.append((node, Finding(*self.place(node), name, note, "", "note")))

    def plan(self, item: Import, *pieces: Piece, keep: bool = False) -> None:
        """Plan the imports that take the place of a name, or are added to it."""
        retained = [make_piece(item.statement, item.alias)] if keep else []
        self.plans[item.alias] = [*dict.fromkeys([*retained, *pieces])]

    def change(self, node: cst.CSTNode, change: Callable[[Any], Any]) -> None:
        """Register a change of a node; it receives the node with its children changed."""
        self.changes[node].append(change)

    def replace(self, node: cst.CSTNode, build: Callable[[Any], cst.CSTNode]) -> bool:
        """Register the replacement of a node, unless it would lose a comment."""
        codes = [self.module.code_for_node(tree) for tree in (node, build(node))]
        is_whole = codes[0].count("#") <= codes[1].count("#")
        if is_whole:
            self.change(node, build)
        return is_whole

    def replace_code(self, node: Any, code: str) -> None:
        """Replace an expression; its parentheses stay."""
        new: Any = cst.parse_expression(code)
        self.change(node, lambda old: new.with_changes(lpar=old.lpar, rpar=old.rpar))

    def replace_use(self, use: Use, length: int, new: str) -> None:
        """Replace the first parts of a use."""
        node: Any = use.node
        if isinstance(node, cst.SimpleString):
            old = re.escape(".".join(use.parts[:length]))
            pattern = re.compile(rf"(?<![\w.]){old}(?!\w)")
            self.change(node, lambda text: text.with_changes(value=pattern.sub(new, text.value)))
            return
        for _ in use.parts[length:]:
            node = node.value
        self.replace_code(node, new)

    def replace_string(self, node: cst.CSTNode, new: str) -> bool:
        """Replace the content of a string literal, unless it is written in an unusual way."""
        if not isinstance(node, cst.SimpleString) or node.raw_value != node.evaluated_value:
            return False
        literal = f"{node.prefix}{node.quote}{new}{node.quote}"
        return self.replace(node, lambda text: text.with_changes(value=literal))

    def is_assigned(self, item: Import) -> bool:
        """Whether anything but an import binds the same name in the same scope."""
        return any(
            not isinstance(assignment, ImportAssignment)
            for assignment in item.scope.assignments[item.local]
        )

    def apply(self) -> tuple[str, list[Finding]]:
        """Return the changed text, and the notes with their positions in it."""
        changer = _Changer(self.changes)
        module = self.module.visit(changer)
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        positions = wrapper.resolve(PositionProvider) if self.notes else {}
        notes = []
        for node, note in self.notes:
            new = changer.nodes[node]
            new = next(iter(new)) if isinstance(new, cst.FlattenSentinel) else new
            line, column = _get_place(positions[new]) if new in positions else self.place(node)
            notes.append(dataclasses.replace(note, line=line, column=column))
        return module.code, notes

    def _list_imports(self) -> list[Import]:
        imports: dict[cst.CSTNode, Import] = {}
        for scope in dict.fromkeys(filter(None, self.scopes.values())):
            for assignment in scope.assignments:
                if not isinstance(assignment, ImportAssignment):
                    continue
                alias = self.parents[assignment.as_name]
                alias = self.parents[alias] if isinstance(alias, cst.AsName) else alias
                if alias not in imports:
                    local = assignment.name.partition(".")[0]
                    path = _get_path(assignment, alias)
                    statement: Any = assignment.node
                    imports[alias] = Import(statement, alias, scope, local, path)
                imports[alias].uses.extend(self._list_uses(assignment, imports[alias].local))
        for item in imports.values():
            item.uses.sort(key=lambda use: (self.place(use.node), use.parts))
        return [*imports.values()]

    def _list_uses(self, assignment: ImportAssignment, local: str) -> Iterator[Use]:
        for access in assignment.references:
            node: Any = access.node
            if isinstance(node, cst.SimpleString):
                pattern = rf"(?<![\w.]){local}\b(?:\.[^\W\d]\w*)*"
                for chain in re.findall(pattern, node.raw_value):
                    yield Use(node, tuple(chain.split(".")), access.scope)
            elif not isinstance(node, cst.ConcatenatedString):
                while isinstance(self.parents[node], cst.Attribute):
                    node = self.parents[node]
                yield Use(
                    node, tuple((get_full_name_for_node(node) or "").split(".")), access.scope
                )


class _Changer(cst.CSTTransformer):
    def __init__(self, changes: dict[cst.CSTNode, list[Callable[[Any], Any]]]) -> None:
        super().__init__()
        self.changes = changes
        self.nodes: dict[cst.CSTNode, Any] = {}

    def on_leave(self, original_node: cst.CSTNode, updated_node: Any) -> Any:
        for change in self.changes.get(original_node, ()):
            updated_node = change(updated_node)
        self.nodes[original_node] = updated_node
        return updated_node


def get_module(statement: cst.ImportFrom) -> str:
    """Return the module of a ``from`` import, with the dots of a relative one."""
    module = get_full_name_for_node(statement.module) if statement.module else ""
    return f"{'.' * len(statement.relative)}{module}"


def make_piece(statement: ImportStatement, alias: cst.ImportAlias) -> Piece:
    """Return the module or object that a name of a statement stands for."""
    name, local = alias.evaluated_name, alias.evaluated_alias or ""
    if isinstance(statement, cst.ImportFrom):
        return Piece(get_module(statement), name, local)
    return Piece(name, "", local)


def _get_path(assignment: ImportAssignment, alias: cst.ImportAlias) -> Path:
    if isinstance(assignment.node, cst.ImportFrom):
        return (*get_module(assignment.node).split("."), alias.evaluated_name)
    path = tuple(alias.evaluated_name.split("."))
    return path if alias.asname else path[:1]


def _get_place(position: CodeRange) -> tuple[int, int]:
    return position.start.line, position.start.column + 1
