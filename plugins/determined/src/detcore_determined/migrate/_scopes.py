"""Resolve names in a module: imports of Determined, and the uses of the imported names.

Nothing is executed. The tree is walked with an explicit stack rather than by recursion, so that a
sum of ten thousand strings does not exceed the recursion limit.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from typing import TypeAlias

from detcore_determined.migrate._lookup import Path, is_root

ImportNode: TypeAlias = "ast.Import | ast.ImportFrom"
_Function = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_Comprehension = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_IMPORTERS = {"import_module", "__import__", "patch", "importorskip", "find_spec"}
_NAMERS = {"version", "distribution", "get_distribution", "getLogger"}
_GENERICS = {
    "Callable", "Dict", "Iterable", "Iterator", "List", "Optional", "Sequence", "Tuple", "Type",
    "Union", "dict", "list", "tuple", "type",
}  # fmt: skip


@dataclasses.dataclass(eq=False)
class Scope:
    """A module, class, function or comprehension, and the names that are bound in it."""

    parent: Scope | None
    kind: str
    imports: dict[str, list[Binding]] = dataclasses.field(default_factory=dict)
    others: set[str] = dataclasses.field(default_factory=set)
    plain: set[str] = dataclasses.field(default_factory=set)
    outer: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(eq=False)
class Binding:
    """A name that an import of Determined binds.

    Attributes:
        statement: The import.
        index: Position of the name in the statement.
        scope: The scope that it binds the name in.
        local: The local name.
        path: The dotted name in Determined.
    """

    statement: ImportNode
    index: int
    scope: Scope
    local: str
    path: Path


@dataclasses.dataclass(eq=False)
class Use:
    """A name and the attributes after it: ``det.keras.TFKerasTrial``.

    Attributes:
        nodes: The name, then each attribute.
        scope: The scope of the use.
    """

    nodes: list[ast.Name | ast.Attribute]
    scope: Scope

    @property
    def parts(self) -> Path:
        """The name and the attributes."""
        return tuple(node.id if isinstance(node, ast.Name) else node.attr for node in self.nodes)


@dataclasses.dataclass(eq=False)
class Module:
    """Result of `examine`.

    Attributes:
        scope: The module's scope.
        statements: Imports of Determined.
        groups: For each name of a scope, its bindings.
        uses: Every name that is read, with its attributes.
        entrypoints: Strings that are assigned to an ``entrypoint``.
        imported: Strings that name a module to import.
        named: Strings that name a package to look up: ``sys.modules[...]``.
        annotations: Annotations that are strings, with their scopes.
        texts: All other strings except docstrings.
    """

    scope: Scope
    statements: list[tuple[ImportNode, Scope]] = dataclasses.field(default_factory=list)
    groups: list[list[Binding]] = dataclasses.field(default_factory=list)
    uses: list[Use] = dataclasses.field(default_factory=list)
    entrypoints: list[ast.Constant] = dataclasses.field(default_factory=list)
    imported: list[ast.Constant] = dataclasses.field(default_factory=list)
    named: list[ast.Constant] = dataclasses.field(default_factory=list)
    annotations: list[tuple[ast.Constant, Scope]] = dataclasses.field(default_factory=list)
    texts: list[ast.Constant] = dataclasses.field(default_factory=list)

    def bindings(self, name: str, scope: Scope) -> list[Binding]:
        """Return the imports of Determined that a name may refer to in a scope; empty if none."""
        at: Scope | None = scope
        while at is not None:
            is_hidden = at.kind == "class" and at is not scope
            if not is_hidden and (name not in at.outer or at.parent is None):
                if name in at.imports:
                    return at.imports[name]
                if name in at.others:
                    return []
            at = at.parent
        return []

    def is_taken(self, name: str, scope: Scope) -> bool:
        """Whether a name is bound by the module itself, in a scope or around it."""
        at: Scope | None = scope
        while at is not None:
            if name in at.others and name not in at.plain:
                return True
            at = at.parent
        return False

    def is_imported(self, module: str) -> bool:
        """Whether a plain ``import`` at the top of the module imports a module."""
        return module in self.scope.plain


def examine(tree: ast.Module) -> Module:
    """Return the imports of Determined in a module, and all uses of names."""
    walker = _Walker(Module(Scope(None, "module")))
    walker.walk(tree)
    return walker.found


class _Walker:
    def __init__(self, found: Module) -> None:
        self.found = found
        self._left: list[tuple[ast.AST, Scope, bool]] = []
        self._seen: set[int] = set()
        self._marks: dict[int, bool] = {}  # annotations that are recognized by other means

    def walk(self, tree: ast.Module) -> None:
        self._push(tree.body, self.found.scope)
        self._skip_docstring(tree)
        while self._left:
            node, scope, is_annotation = self._left.pop()
            is_annotation = self._marks.get(id(node), is_annotation)
            if not self._own_scope(node, scope) and not self._leaf(node, scope, is_annotation):
                self._binds(node, scope)
                self._texts_of(node)
                self._types_of(node)
                self._push_children(node, scope, is_annotation)

    def _push(self, nodes: object, scope: Scope, *, is_annotation: bool = False) -> None:
        """Walk these nodes next, the first one first."""
        for node in reversed(nodes if isinstance(nodes, list) else [nodes]):
            if isinstance(node, ast.AST):
                self._left.append((node, scope, is_annotation))

    def _push_children(self, node: ast.AST, scope: Scope, is_annotation: bool) -> None:
        for field, value in reversed(list(ast.iter_fields(node))):
            here = is_annotation or field in ("annotation", "returns")
            self._push(value, scope, is_annotation=here)

    def _own_scope(self, node: ast.AST, scope: Scope) -> bool:
        """Walk a node that opens a scope: each part in the scope that evaluates it."""
        if isinstance(node, _Function):
            inner = Scope(scope, "function")
            arguments = node.args
            self._push([*arguments.defaults, *filter(None, arguments.kw_defaults)], scope)
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            for arg in filter(None, [*every, arguments.vararg, arguments.kwarg]):
                inner.others.add(arg.arg)
                self._push(arg.annotation, scope, is_annotation=True)
            if not isinstance(node, ast.Lambda):
                scope.others.add(node.name)
                self._push(node.decorator_list, scope)
                self._push(node.returns, scope, is_annotation=True)
                self._skip_docstring(node)
            self._push(getattr(node, "type_params", []), inner)
            self._push(node.body, inner)
            return True
        if isinstance(node, ast.ClassDef):
            scope.others.add(node.name)
            self._push([*node.decorator_list, *node.bases, *node.keywords], scope)
            self._skip_docstring(node)
            self._push([*getattr(node, "type_params", []), *node.body], Scope(scope, "class"))
            return True
        if isinstance(node, _Comprehension):
            inner = Scope(scope, "comprehension")
            first = node.generators[0]
            self._push(first.iter, scope)
            self._push([first.target, *first.ifs, *node.generators[1:]], inner)
            values = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
            self._push([*values], inner)
            return True
        return False

    def _leaf(self, node: ast.AST, scope: Scope, is_annotation: bool) -> bool:
        """Record a name, a chain of attributes, an import or a string."""
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node, scope)
        elif isinstance(node, ast.Attribute):
            self._chain(node, scope)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self.found.uses.append(Use([node], scope))
            else:
                scope.others.add(node.id)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in self._seen:
                if is_annotation:
                    self.found.annotations.append((node, scope))
                else:
                    self.found.texts.append(node)
        else:
            return isinstance(node, ast.JoinedStr) and self._joined(node, scope)
        return True

    def _joined(self, node: ast.JoinedStr, scope: Scope) -> bool:
        self._push(node.values, scope)
        return True

    def _chain(self, node: ast.Attribute, scope: Scope) -> None:
        nodes: list[ast.Name | ast.Attribute] = [node]
        inner = node.value
        while isinstance(inner, ast.Attribute):
            nodes.append(inner)
            inner = inner.value
        if isinstance(inner, ast.Name):
            self.found.uses.append(Use([inner, *reversed(nodes)], scope))
        else:
            self._push(inner, scope)

    def _binds(self, node: ast.AST, scope: Scope) -> None:
        """Record other statements that bind names."""
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            scope.outer.update(node.names)
        elif isinstance(node, ast.NamedExpr):
            while scope.kind == "comprehension" and scope.parent is not None:
                scope = scope.parent
            scope.others.add(node.target.id)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            if node.name is not None:
                scope.others.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest is not None:
            scope.others.add(node.rest)

    def _import(self, node: ImportNode, scope: Scope) -> None:
        is_ours = False
        for index, alias in enumerate(node.names):
            local = alias.asname or alias.name.partition(".")[0]
            path = _imported_path(node, alias)
            if path is None:
                scope.others.add(local)
                if isinstance(node, ast.Import) and alias.asname in (None, alias.name):
                    scope.plain.update((local, alias.name))
                continue
            is_ours = True
            if alias.name != "*":
                home = _home(local, scope)
                if local not in home.imports:
                    home.imports[local] = []
                    self.found.groups.append(home.imports[local])
                home.imports[local].append(Binding(node, index, home, local, path))
        if is_ours:
            self.found.statements.append((node, scope))

    def _texts_of(self, node: ast.AST) -> None:
        """Record strings whose meaning follows from their context."""
        for value in _entrypoints(node):
            self._take(value, self.found.entrypoints)
        if isinstance(node, ast.Call) and node.args and _last_name(node.func) in _IMPORTERS:
            self._take(node.args[0], self.found.imported)
        for value in _package_names(node):
            if isinstance(value, ast.Constant) and is_root(str(value.value)):
                self._take(value, self.found.named)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            self._seen.add(id(node.value))  # a string that is not used

    def _types_of(self, node: ast.AST) -> None:
        """Record strings that are types outside annotations, or are not types inside them."""
        if isinstance(node, ast.Subscript):
            name = _last_name(node.value)
            if name in _GENERICS or name == "Literal":
                self._marks[id(node.slice)] = name != "Literal"
            elif name == "Annotated" and isinstance(node.slice, ast.Tuple):
                self._marks |= {id(value): False for value in node.slice.elts[1:]}
        elif isinstance(node, ast.Call):
            name = _last_name(node.func)
            types = {"cast": node.args[:1], "TypeVar": node.args[1:]}.get(name, [])
            bounds = (word.value for word in node.keywords if word.arg == "bound")
            types = [*types, *(bounds if name == "TypeVar" else ())]
            self._marks |= {id(value): True for value in types}

    def _take(self, value: ast.AST, into: list[ast.Constant]) -> None:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            self._seen.add(id(value))
            into.append(value)

    def _skip_docstring(self, node: ast.AST) -> None:
        first = next(iter(getattr(node, "body", ())), None)
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            self._seen.add(id(first.value))


def _imported_path(node: ImportNode, alias: ast.alias) -> Path | None:
    """Return the path that an import of Determined binds; None for other imports."""
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        if node.level or not is_root(module.partition(".")[0]):
            return None
        return (*module.split("."), alias.name)
    path = tuple(alias.name.split("."))
    if not is_root(path[0]):
        return None
    return path if alias.asname else path[:1]


def _home(name: str, scope: Scope) -> Scope:
    """Return the scope in which an assignment binds a name."""
    while name in scope.outer and scope.parent is not None:
        scope = scope.parent
    return scope


def _last_name(node: ast.AST) -> str:
    """Return ``c`` for ``a.b.c``; empty for other nodes."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _package_names(node: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes that are looked up as the name of a package."""
    if isinstance(node, ast.Call) and node.args:
        called = node.func
        is_lookup = isinstance(called, ast.Attribute) and _last_name(called.value) == "modules"
        if is_lookup or _last_name(called) in _NAMERS:
            yield node.args[0]
    elif isinstance(node, ast.Subscript) and _last_name(node.value) == "modules":
        yield node.slice
    elif isinstance(node, ast.Compare) and _last_name(node.comparators[0]) == "modules":
        yield node.left


def _entrypoints(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if _is_entrypoint(key):
                yield value
    elif isinstance(node, ast.keyword) and node.arg == "entrypoint":
        yield node.value
    elif isinstance(node, ast.Assign):
        targets = (target for target in node.targets if isinstance(target, ast.Subscript))
        if any(_is_entrypoint(target.slice) for target in targets):
            yield node.value


def _is_entrypoint(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == "entrypoint"
