"""Which scope each name of a Python file belongs to."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator

__all__ = ["Scope", "Scopes"]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# A use of a name: the node, and the line and column from which the name is found.
Use = tuple[ast.AST, int, int]


@dataclasses.dataclass(eq=False)
class Scope:
    """A module, class, function, lambda or comprehension.

    Attributes:
        parent: The scope around it; None for the module.
        is_class: Whether it is a class, whose names are not seen by the functions inside.
        bound: Names that it binds.
        defined: Those of them that are no imports.
        outer: Names that ``global`` or ``nonlocal`` declares.
        imports: Its import statements.
    """

    parent: Scope | None
    is_class: bool = False
    bound: set[str] = dataclasses.field(default_factory=set)
    defined: set[str] = dataclasses.field(default_factory=set)
    outer: dict[str, bool] = dataclasses.field(default_factory=dict)
    imports: list[ast.Import | ast.ImportFrom] = dataclasses.field(default_factory=list)


class Scopes:
    """The scopes of a module, and which one each use of a name belongs to.

    Attributes:
        all: All scopes, the module's first.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.all = [Scope(None)]
        self._found: list[tuple[str, Use, Scope]] = []
        self._of_node: dict[int, tuple[str, Scope]] = {}
        for statement in tree.body:
            self._visit(statement, self.all[0])

    def scope_of(self, node: ast.Name) -> Scope | None:
        """Return the scope that a name belongs to; None for builtins and unknown names."""
        name, scope = self._of_node[id(node)]
        return self._resolve(name, scope)

    def uses(self, scope: Scope, name: str) -> Iterator[Use]:
        """Yield the places where a name of a scope is defined, declared or used, but imports."""
        for found, use, inside in self._found:
            if found == name and self._resolve(name, inside) is scope:
                yield use

    def can_rename(self, scope: Scope, old: str, new: str) -> bool:
        """Whether no other name gets mixed up when a name of a scope is renamed."""
        places = [inside for name, _, inside in self._found if name == old]
        inside_of = [place for place in places if self._resolve(old, place) is scope]
        taken = new in scope.bound or any(self._shadows(new, one, scope) for one in inside_of)
        return not taken and not any(
            name == new and self._resolve(new, inside) is None and self._is_within(inside, scope)
            for name, _, inside in self._found
        )

    def _shadows(self, name: str, inner: Scope | None, outer: Scope) -> bool:
        while inner is not None and inner is not outer:
            if name in inner.bound:
                return True
            inner = inner.parent
        return False

    def _is_within(self, inner: Scope | None, outer: Scope) -> bool:
        while inner is not None and inner is not outer:
            inner = inner.parent
        return inner is outer

    def _resolve(self, name: str, scope: Scope) -> Scope | None:
        """Return the scope whose name this is, as Python looks it up."""
        at: Scope | None = scope
        is_first = True
        while at is not None:
            if at.outer.get(name):
                return self.all[0]
            if name in at.bound and name not in at.outer and (is_first or not at.is_class):
                return at
            at, is_first = at.parent, False
        return None

    # -- reading the tree ---------------------------------------------------------------------

    def _bind(self, name: str, scope: Scope, *, is_import: bool = False) -> None:
        scope.bound.add(name)
        if not is_import:
            scope.defined.add(name)

    def _use(self, name: str, node: ast.AST, scope: Scope) -> None:
        line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        self._found.append((name, (node, line, column), scope))
        self._of_node[id(node)] = (name, scope)

    def _inner(self, scope: Scope, *, is_class: bool = False) -> Scope:
        inner = Scope(scope, is_class)
        self.all.append(inner)
        return inner

    def _visit(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            scope.imports.append(node)
            for alias in node.names:
                bound = alias.asname or alias.name
                if isinstance(node, ast.Import):
                    bound = alias.asname or alias.name.partition(".")[0]
                self._bind(bound, scope, is_import=True)
        elif isinstance(node, _FUNCTIONS):
            self._visit_function(node, scope)
        elif isinstance(node, ast.ClassDef):
            self._bind(node.name, scope)
            self._use(node.name, node, scope)
            self._visit_each([*node.decorator_list, *node.bases, *node.keywords], scope)
            self._visit_each(node.body, self._inner(scope, is_class=True))
        elif isinstance(node, _COMPREHENSIONS):
            self._visit_comprehension(node, scope)
        else:
            self._visit_other(node, scope)

    def _visit_each(self, nodes: list[ast.AST] | list[ast.stmt], scope: Scope) -> None:
        for node in nodes:
            self._visit(node, scope)

    def _visit_function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope
    ) -> None:
        inner = self._inner(scope)
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
        for argument in every:
            self._bind(argument.arg, inner)
            if argument.annotation is not None:
                self._visit(argument.annotation, scope)
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            if default is not None:
                self._visit(default, scope)
        if isinstance(node, ast.Lambda):
            self._visit(node.body, inner)
            return
        self._bind(node.name, scope)
        self._use(node.name, node, scope)
        for outer in [*node.decorator_list, *([node.returns] if node.returns else [])]:
            self._visit(outer, scope)
        self._visit_each(node.body, inner)

    def _visit_comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, scope: Scope
    ) -> None:
        inner = self._inner(scope)
        for index, generator in enumerate(node.generators):
            self._visit(generator.iter, inner if index else scope)
            self._visit(generator.target, inner)
            for test in generator.ifs:
                self._visit(test, inner)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for part in parts:
            self._visit(part, inner)

    def _visit_other(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                self._bind(node.id, scope)
            self._use(node.id, node, scope)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            for name in node.names:
                scope.outer[name] = isinstance(node, ast.Global)
                self._found.append((name, (node, node.lineno, node.col_offset), scope))
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            self._bind(node.name, scope)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            self._bind(node.rest, scope)
        for child in ast.iter_child_nodes(node):
            self._visit(child, scope)
