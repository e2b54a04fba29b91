"""Small faults to plant in a source file, found over its syntax tree.

A mutation replaces one stretch of text, so the other lines keep their numbers and comments. It is
identified by where it is in the code (function, text and count), not by its line number, so that
the same mutation is found again after other parts of the file have changed.
"""

from __future__ import annotations

import ast
import collections
import copy
import dataclasses
import warnings
from collections.abc import Iterable, Iterator

__all__ = ["Mutation", "Site", "code_lines", "compiles", "find_sites", "plant", "public_names"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mutation:
    """One small fault.

    Attributes:
        file: Path below the root of the repository.
        scope: Qualified name of the function or class around it; empty at module level.
        operator: Kind of the fault, such as ``boundary`` or ``statement-deleted``.
        before: Text that is replaced.
        after: Text that replaces it.
        nth: Index among the sites of the file that agree in all of the above.
        line: Line number when the mutation was chosen; for readers.
    """

    file: str
    scope: str
    operator: str
    before: str
    after: str
    nth: int
    line: int = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Site:
    """A place for a mutation: a range of the file's bytes, end exclusive."""

    mutation: Mutation
    start: int
    end: int


_FLIPPED: dict[type[ast.cmpop], tuple[tuple[str, type[ast.cmpop]], ...]] = {
    ast.Lt: (("boundary", ast.LtE), ("comparison", ast.GtE)),
    ast.LtE: (("boundary", ast.Lt), ("comparison", ast.Gt)),
    ast.Gt: (("boundary", ast.GtE), ("comparison", ast.LtE)),
    ast.GtE: (("boundary", ast.Gt), ("comparison", ast.Lt)),
    ast.Eq: (("comparison", ast.NotEq),),
    ast.NotEq: (("comparison", ast.Eq),),
    ast.Is: (("comparison", ast.IsNot),),
    ast.IsNot: (("comparison", ast.Is),),
    ast.In: (("comparison", ast.NotIn),),
    ast.NotIn: (("comparison", ast.In),),
}
_SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
# Calls whose arguments are for readers or for type checkers.
_LOG_CALLS = {"critical", "debug", "error", "exception", "info", "log", "warn", "warning"}
_TEXT_CALLS = _LOG_CALLS | {"NewType", "ParamSpec", "TypeVar", "assert_never", "cast", "echo",
                            "print", "secho"}  # fmt: skip
# Keyword arguments that say nothing about the result, or are for readers.
_UNTESTED_KEYWORDS = {"daemon", "description", "encoding", "epilog", "examples", "exc_info", "help",
                      "metavar", "name", "short_help", "stacklevel", "strict", "summary",
                      "title"}  # fmt: skip
_UNTESTED_TEXTS = {"utf-8", "ascii", "utf8"}
_UNTESTED_DECORATORS = {"dataclass", "lru_cache", "cache", "wraps"}
_UNTESTED_FUNCTIONS = {"__repr__", "__rich_repr__"}
_TYPE_FORMS = {"Annotated", "Callable", "Literal", "Optional", "Union"}

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_sites(file: str, text: str) -> list[Site]:
    """Return the places of a module where a fault can be planted, in the order of the text.

    Docstrings, annotations, ``if TYPE_CHECKING`` blocks, assignments to ``__all__`` and similar
    names, messages, log calls and f-strings are left out.

    Args:
        file: Path to record in the mutations.
        text: Source of the module.
    """
    finder = _Finder(file, text)
    finder.visit(ast.parse(text))
    seen: collections.Counter[Mutation] = collections.Counter()
    sites = []
    for site in sorted(finder.sites, key=lambda site: (site.start, site.end)):
        numbered = dataclasses.replace(site.mutation, nth=seen[site.mutation])
        seen[site.mutation] += 1
        sites.append(dataclasses.replace(site, mutation=numbered))
    return sites


def plant(text: str, mutation: Mutation) -> str | None:
    """Return the module with the fault in it, or None if its place is no longer there."""
    for site in find_sites(mutation.file, text):
        if site.mutation == mutation:
            return _replaced(text.encode(), site)
    return None


def compiles(text: str, site: Site) -> bool:
    """Whether a module is still valid Python with the fault in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            compile(_replaced(text.encode(), site), site.mutation.file, "exec", dont_inherit=True)
        except SyntaxError:
            return False
    return True


def code_lines(text: str) -> int:
    """Count the lines on which a statement or a part of one starts, without docstrings."""
    tree = ast.parse(text)
    texts = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return len(
        {
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.stmt | ast.expr)
            and id(node) not in texts
            and not (isinstance(node, ast.Expr) and id(node.value) in texts)
        }
    )


def public_names(text: str) -> list[str]:
    """Return the names that a module lists in ``__all__``."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and "__all__" in map(_last_name, node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def _replaced(encoded: bytes, site: Site) -> str:
    after = site.mutation.after.encode()
    return (encoded[: site.start] + after + encoded[site.end :]).decode()


class _Finder(ast.NodeVisitor):
    """Collects the sites of one module; each ``visit_`` method knows the faults of its node."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.sites: list[Site] = []
        self._encoded = text.encode()
        self._line_starts = [0]
        for line in self._encoded.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))
        self._scopes: list[str] = []

    def visit_Module(self, node: ast.Module) -> None:
        self._visit_all(_without_docstring(node.body))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scopes.append(node.name)
        self._visit_decorators(node.decorator_list)
        self._visit_all(node.keywords)
        self._visit_all(_without_docstring(node.body))
        self._scopes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def visit_If(self, node: ast.If) -> None:
        if _last_name(node.test) == "TYPE_CHECKING":
            self._visit_all(node.orelse)
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
            self.visit(node.test)
        self._visit_all([*node.body, *node.orelse])

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for index, op in enumerate(node.ops):
            for operator, other in _FLIPPED[type(op)]:
                changed = copy.copy(node)
                changed.ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                self._add(operator, node, f"({ast.unparse(changed)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        changed = copy.copy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add("boolean", node, f"({ast.unparse(changed)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add("not-removed", node, f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = any(_is_text(side) for side in (node.left, node.right))
        types = not self._scopes and isinstance(node.op, ast.BitOr)
        if not texts and not types and type(node.op) in _SWAPPED:
            changed = copy.copy(node)
            changed.op = _SWAPPED[type(node.op)]()
            self._add("arithmetic", node, f"({ast.unparse(changed)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add("constant", node, str(not value))
        elif isinstance(value, int | float):
            self._add("constant", node, repr(value + 1))
            self._add("constant", node, f"({value - 1!r})")
        elif isinstance(value, str | bytes) and value and value not in _UNTESTED_TEXTS:
            self._add("constant", node, repr(type(value)()))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave f-strings alone: Python before 3.12 does not know the places of their parts."""

    def visit_Assign(self, node: ast.Assign) -> None:
        names = [_last_name(target) for target in node.targets]
        if any(name.startswith("__") and name.endswith("__") for name in names):
            return
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._delete(node)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._delete(node)
        if type(node.op) in _SWAPPED and not _is_text(node.value):
            changed = copy.copy(node)
            changed.op = _SWAPPED[type(node.op)]()
            self._add("arithmetic", node, ast.unparse(changed))
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and _last_name(node.annotation) != "TypeAlias":
            self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._delete(node)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call):
            if _last_name(call.func) in _LOG_CALLS:
                return
            self._delete(node)
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Delete it; its arguments are the message."""
        self._delete(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave assertions alone: they are not reached in correct code."""

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._add("statement-deleted", node, "pass")
        elif not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add("return-none", node, "return None")
            self.visit(node.value)

    def visit_Break(self, node: ast.Break) -> None:
        self._add("loop", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add("loop", node, "break")

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if isinstance(node.type, ast.Tuple):
            for kept in node.type.elts:
                self._add("handler", node.type, ast.unparse(kept))
        elif node.type is not None:
            self._add("handler", node.type, "()")
        self._visit_all(node.body)

    def visit_Call(self, node: ast.Call) -> None:
        if _last_name(node.func) in _TEXT_CALLS:
            return
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in _UNTESTED_KEYWORDS:
                changed = copy.copy(node)
                changed.keywords = [other for other in node.keywords if other is not keyword]
                self._add("keyword-dropped", node, ast.unparse(changed))
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in _UNTESTED_KEYWORDS:
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if _last_name(node.value) not in _TYPE_FORMS:
            self.generic_visit(node)

    def _visit_function(self, node: _Function) -> None:
        if node.name in _UNTESTED_FUNCTIONS or "overload" in map(_last_name, node.decorator_list):
            return
        self._scopes.append(node.name)
        self._visit_decorators(node.decorator_list)
        self._visit_all([*node.args.defaults, *filter(None, node.args.kw_defaults)])
        self._visit_all(_without_docstring(node.body))
        self._scopes.pop()

    def _visit_decorators(self, decorators: list[ast.expr]) -> None:
        self._visit_all(
            one for one in decorators if _last_name(one) not in _UNTESTED_DECORATORS
        )  # fmt: skip

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _negate(self, test: ast.expr) -> None:
        flipped_otherwise = isinstance(test, ast.Compare) or (
            isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        )
        if not flipped_otherwise:
            self._add("not-added", test, f"(not ({ast.unparse(test)}))")

    def _delete(self, node: ast.stmt) -> None:
        self._add("statement-deleted", node, "pass")

    def _add(self, operator: str, node: ast.expr | ast.stmt, after: str) -> None:
        if node.end_lineno is None or node.end_col_offset is None:
            raise ValueError(f"{self.file}:{node.lineno}: the parser gave no end")
        start = self._line_starts[node.lineno - 1] + node.col_offset
        end = self._line_starts[node.end_lineno - 1] + node.end_col_offset
        before = self._encoded[start:end].decode()
        mutation = Mutation(
            file=self.file, scope=".".join(self._scopes), operator=operator, before=before,
            after=after, nth=0, line=node.lineno,
        )  # fmt: skip
        self.sites.append(Site(mutation, start, end))


def _without_docstring(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    return (
        statement
        for statement in body
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    )


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
