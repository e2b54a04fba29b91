"""Write a trial class from notebook cells as a module that other processes can import."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import symtable
import types
from collections.abc import Iterator, Mapping, Sequence

from detcore.errors import InvalidExperimentError

# Cell magics that run their text as a cell of the session.
_RUN_MAGICS = frozenset({"capture", "prun", "time"})
_IPYTHON = "get_ipython"
_END = 1 << 62
_EAGER_TABLES = frozenset({"lambda", "genexpr", "listcomp", "setcomp", "dictcomp"})


@dataclasses.dataclass(frozen=True, slots=True)
class CellModule:
    """A module that consists of statements of a session.

    Attributes:
        name: Name derived from the source.
        text: Source of the module.
    """

    name: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Statement:
    """One statement of the session.

    Attributes:
        binds: Names that it assigns.
        changes: Names whose values it may change in place.
        eager: Names that it reads when it runs.
        deferred: Names that its functions read when they are called.
        is_partial: Whether the names that it assigns may keep earlier values.
    """

    text: str
    binds: frozenset[str]
    changes: frozenset[str]
    eager: frozenset[str]
    deferred: frozenset[str]
    is_partial: bool
    is_star: bool
    is_future: bool


def module_from_cells(
    cells: Sequence[str], class_name: str, *, namespace: Mapping[str, object] | None = None
) -> CellModule:
    """Return a module with a class of a session and the statements that the class needs.

    The module contains the last definition of the class and, recursively, the statements that
    assign the names it uses, in the session's order. All other code of the session is omitted.

    Args:
        cells: The executed cells, in order. Cells that are not Python source are omitted.
        class_name: Name of the class.
        namespace: The session's variables. Modules in it may be used even if no cell imports them.

    Raises:
        InvalidExperimentError: If no cell defines the class, or if the class needs features of the
            session (``!command``, ``%magic``).
    """
    statements = [statement for cell in cells for statement in _parse_cell(cell)]
    slicer = _Slicer(statements, namespace or {})
    if not any(class_name in statement.binds for statement in statements):
        raise InvalidExperimentError(
            f"no cell of this session defines the class {class_name!r}, so its source cannot be "
            "passed to the training processes.\n"
            "Run the cell with the class again, or put the class into a file and import it."
        )
    slicer.add_name(class_name, _END)
    lines = [statement.text for statement in statements if statement.is_future]
    lines += slicer.imports
    lines += [
        statement.text
        for index, statement in enumerate(statements)
        # A star import may define any name.
        if not statement.is_future and (index in slicer.chosen or statement.is_star)
    ]
    head = f'"""Cells required by {class_name}, written by detcore.client.create."""'
    text = "\n\n".join([head, *dict.fromkeys(lines)]) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return CellModule(f"detcore_cells_{digest}", text)


class _Slicer:
    """Finds the statements that assign the required names.

    Attributes:
        chosen: Indices of the required statements.
        imports: Imports of modules that no cell imports.
    """

    def __init__(self, statements: Sequence[_Statement], namespace: Mapping[str, object]) -> None:
        self._statements = statements
        self._namespace = namespace
        self._seen: set[tuple[str, int]] = set()
        self.chosen: set[int] = set()
        self.imports: list[str] = []

    def add_name(self, name: str, before: int) -> None:
        """Select the statements that define `name` before the statement with an index."""
        pending = [(name, before)]
        while pending:
            request = pending.pop()
            if request not in self._seen:
                self._seen.add(request)
                pending.extend(self._follow_name(*request))

    def _follow_name(self, name: str, before: int) -> Iterator[tuple[str, int]]:
        self._check_portable(name)
        last = min(before, len(self._statements))
        for index in range(last - 1, -1, -1):
            statement = self._statements[index]
            if name in statement.binds or name in statement.changes:
                self.chosen.add(index)
                yield from ((read, index) for read in statement.eager)
                yield from ((read, before) for read in statement.deferred)
                if name in statement.binds and not statement.is_partial:
                    return
        if not any(name in statement.binds for statement in self._statements[:last]):
            self._import_module(name)

    def _import_module(self, name: str) -> None:
        value = self._namespace.get(name)
        if isinstance(value, types.ModuleType) and value.__name__ != "__main__":
            line = f"import {value.__name__} as {name}"
            self.imports.append(f"import {name}" if value.__name__ == name else line)

    def _check_portable(self, name: str) -> None:
        if name == _IPYTHON:
            raise InvalidExperimentError(
                "the trial class needs the result of a %magic or a !command, which only this "
                "session can run.\n"
                "Write it in Python (subprocess.run for commands), or put it into a file."
            )


def _parse_cell(cell: str) -> Iterator[_Statement]:
    try:
        body = ast.parse(cell).body
    except SyntaxError:
        return  # the cell could not run either
    for node in body:
        inner = _find_inner_cell(node)
        if inner is not None:
            yield from _parse_cell(inner)
            continue
        yield _make_statement(node, _read_source(node, cell))


def _find_inner_cell(node: ast.stmt) -> str | None:
    """Return the cell below a magic such as ``%%time``, or None."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    values = [part.value for part in call.args if isinstance(part, ast.Constant)]
    if call.func.attr != "run_cell_magic" or len(values) != 3 or values[0] not in _RUN_MAGICS:
        return None
    return str(values[2])


def _read_source(node: ast.stmt, cell: str) -> str:
    """Return the source of a statement."""
    text = ast.get_source_segment(cell, node) or ast.unparse(node)
    decorators = getattr(node, "decorator_list", [])
    return "".join(f"@{ast.unparse(decorator)}\n" for decorator in decorators) + text


def _make_statement(node: ast.stmt, text: str) -> _Statement:
    table = symtable.symtable(ast.unparse(node), "<cell>", "exec")
    eager = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    binds = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()}
    binds |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_imported()}
    deferred: set[str] = set()
    for child in table.get_children():
        _read_table(child, eager, deferred, is_eager=True)
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        eager.add(node.target.id)
    return _Statement(
        text=text,
        binds=frozenset(binds),
        changes=frozenset(_list_changed_names(node)),
        eager=frozenset(eager),
        deferred=frozenset(deferred),
        is_partial=isinstance(node, ast.If | ast.For | ast.While | ast.Try | ast.With),
        is_star=isinstance(node, ast.ImportFrom) and node.names[0].name == "*",
        is_future=isinstance(node, ast.ImportFrom) and node.module == "__future__",
    )


def _read_table(
    table: symtable.SymbolTable, eager: set[str], deferred: set[str], *, is_eager: bool
) -> None:
    """Add the session's names that a class, a function or an inner scope reads."""
    is_eager = is_eager and (table.get_type() != "function" or table.get_name() in _EAGER_TABLES)
    names = {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
    (eager if is_eager else deferred).update(names)
    for child in table.get_children():
        _read_table(child, eager, deferred, is_eager=is_eager)


def _list_changed_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names whose values a statement changes: ``x[0] = 1``, ``x.y = 1``, ``x.add(1)``."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        targets = [node.value.func]
    for target in targets:
        part = target
        while isinstance(part, ast.Attribute | ast.Subscript):
            part = part.value
        if isinstance(part, ast.Name) and part is not target:
            yield part.id
