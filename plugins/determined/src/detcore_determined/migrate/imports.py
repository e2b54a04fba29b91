"""Rewrite the imports of Determined, the places that use them, and import statements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import Assignment, GlobalScope, Scope

from detcore_determined.migrate.lookup import Path, Target, Unknown, is_root, look_up
from detcore_determined.migrate.names import REACHABLE
from detcore_determined.migrate.rewriter import (
    Import,
    ImportStatement,
    Piece,
    Rewriter,
    Use,
    get_module,
    make_piece,
)

_UNUSUAL = Unknown("", "it is written in an unusual way", "change it by hand")


def rewrite_imports(rewriter: Rewriter, replaced: Set[cst.CSTNode]) -> None:
    """Rewrite each name that is imported from Determined, and its uses.

    Args:
        rewriter: The changes of the module.
        replaced: Uses that other changes replace.
    """
    groups: dict[tuple[Scope, str], list[Import]] = defaultdict(list)
    for item in rewriter.imports:
        if is_root(item.path[0]):
            groups[item.scope, item.local].append(item)
    for group in groups.values():
        uses = [*dict.fromkeys(use for item in group for use in item.uses)]
        remaining = [use for use in uses if use.node not in replaced]
        is_gone = all(isinstance(look_up(item.path), Unknown) for item in group)
        if uses and not remaining and is_gone:
            for item in group:
                rewriter.plan(item)
        else:
            _rewrite_group(rewriter, group, remaining)
    for statement in rewriter.find(cst.ImportFrom):
        if isinstance(statement.names, cst.ImportStar):
            _report_star(rewriter, statement)


def _rewrite_group(rewriter: Rewriter, group: list[Import], uses: list[Use]) -> None:
    """Plan the change of one name of a scope."""
    targets = {item.path: look_up(item.path) for item in group}
    has_modules = any(isinstance(hit, Target) and not hit.name for hit in targets.values())
    if len(targets) > 1 and (has_modules or any(item.is_plain for item in group)):
        for item in group:
            rewriter.leave(
                item.alias, ".".join(item.path),
                f"{item.local!r} is imported in several ways", "change it by hand",
            )  # fmt: skip
        return
    for item in group:
        target = targets[item.path]
        if isinstance(target, Unknown):
            rewriter.leave(item.alias, target.name, target.reason, target.advice)
        elif target.is_expression:
            _rewrite_expression(rewriter, item, target, uses)
        elif target.name:
            is_kept = _leave_members(rewriter, item.path, uses)
            rewriter.plan(item, *([] if is_kept else [_make_piece(target, item)]), keep=is_kept)
            rewriter.note(item.statement, ".".join(item.path), target.note)
        else:
            _rewrite_module(rewriter, group, target, uses)
            return


def _report_star(rewriter: Rewriter, statement: cst.ImportFrom) -> None:
    """Report ``from determined.keras import *``, whose names are unknown."""
    module = get_module(statement)
    if is_root(module.partition(".")[0]):
        node: Any = statement.names
        rewriter.leave(node, f"{module}.*", "its names are not known", "import them by name")


def _rewrite_expression(rewriter: Rewriter, item: Import, target: Target, uses: list[Use]) -> None:
    """Write an expression at each use of an imported function."""
    is_clear = uses and not any(_is_taken(target.head, use.scope) for use in uses)
    if not is_clear or rewriter.is_assigned(item):
        name = ".".join(item.path)
        rewriter.leave(item.alias, name, "the function does not exist", f"use {target.text}")
        return
    rewriter.plan(item, Piece(target.module, target.head))
    for use in uses:
        rewriter.replace_use(use, 1, target.name)


def _leave_members(rewriter: Rewriter, path: Path, uses: list[Use]) -> bool:
    """Report members of an imported class that detcore lacks. In that case the import stays."""
    hits = [(use, look_up((*path, *use.parts[1:]))) for use in uses]
    for use, hit in hits:
        if isinstance(hit, Unknown):
            rewriter.leave(use.node, hit.name, hit.reason, hit.advice)
    return any(isinstance(hit, Unknown) for _, hit in hits)


def _rewrite_module(rewriter: Rewriter, group: list[Import], own: Target, uses: list[Use]) -> None:
    """Rewrite the uses of a module: ``det.keras.TFKerasTrial``."""
    path, is_plain = group[0].path, group[0].is_plain
    hits = [(use, _look_up_use(rewriter, path, use)) for use in uses]
    is_kept = any(isinstance(hit, Unknown) for _, hit in hits)
    base = "" if is_kept or is_plain else own.module
    modules: dict[str, None] = {}
    is_own_used = not hits or rewriter.is_assigned(group[0]) or _is_exported(rewriter, group[0])
    for use, hit in hits:
        if isinstance(hit, Unknown):
            rewriter.leave(use.node, hit.name or ".".join(use.parts), hit.reason, hit.advice)
            continue
        new, length = hit.text, hit.used - len(path) + 1
        if base and _is_reached(base, hit.module):
            new = use.parts[0] + new[len(base) :]
            is_own_used = True
        else:
            modules[_get_imported(hit.module)] = None
        old = ".".join(use.parts[:length])
        if new != old:
            rewriter.replace_use(use, length, new)
        rewriter.note(use.node, old, hit.note)
    if is_plain:
        _plan_plain(rewriter, group, modules, is_kept=is_kept)
        return
    missing_pieces = [Piece(module) for module in modules if not _is_imported(rewriter, module)]
    for item in group:
        pieces = (
            [_make_piece(own, item)] if not is_kept and (is_own_used or not missing_pieces) else []
        )
        rewriter.plan(item, *pieces, *missing_pieces, keep=is_kept)


def _plan_plain(
    rewriter: Rewriter, group: list[Import], modules: Mapping[str, None], *, is_kept: bool
) -> None:
    """Import the modules that uses of a plain ``import determined.keras`` need."""
    targets = [look_up(tuple(item.alias.evaluated_name.split("."))) for item in group]
    imported = {_get_imported(target.module) for target in targets if isinstance(target, Target)}
    missing_pieces = [
        Piece(module)
        for module in modules
        if module not in imported and not _is_imported(rewriter, module)
    ]
    for item, target in zip(group, targets, strict=True):
        pieces = missing_pieces if item is group[0] else []
        if isinstance(target, Unknown):
            rewriter.leave(item.alias, target.name, target.reason, target.advice)
        elif _get_imported(target.module) in modules or not (modules or is_kept):
            pieces = [Piece(target.module), *pieces]
        rewriter.plan(item, *pieces, keep=is_kept or isinstance(target, Unknown))


def _look_up_use(rewriter: Rewriter, path: Path, use: Use) -> Target | Unknown:
    """Return the replacement of a use, or the reason for the lack of a replacement."""
    hit = look_up((*path, *use.parts[1:]))
    if isinstance(hit, Unknown):
        return hit
    root = hit.module.partition(".")[0]
    if _is_taken(root, use.scope):
        reason = f"it is {hit.text} now, and {root!r} is taken here"
        return Unknown(".".join(use.parts), reason, "change it by hand")
    return _UNUSUAL if "#" in rewriter.module.code_for_node(use.node) else hit


def _is_taken(name: str, scope: Scope) -> bool:
    """Whether a scope or an enclosing scope binds a name, other than by its own import."""
    assignments = [item for item in scope[name] if isinstance(item, Assignment)]
    return any(not isinstance(item.node, cst.Import) for item in assignments)


def _is_imported(rewriter: Rewriter, module: str) -> bool:
    """Whether a plain ``import`` at the top of the module imports a module."""
    return any(
        item.is_plain and isinstance(item.scope, GlobalScope)
        and item.alias.evaluated_name == module
        for item in rewriter.imports
    )  # fmt: skip


def _is_exported(rewriter: Rewriter, item: Import) -> bool:
    strings = rewriter.find(cst.SimpleString)
    return any(string.evaluated_value == item.local for string in strings)


def _get_imported(module: str) -> str:
    """Return the module to import to reach a module."""
    return "detcore" if module in REACHABLE else module


def _is_reached(base: str, module: str) -> bool:
    """Whether importing a module makes another module available as its attribute."""
    if base == "detcore":
        return module in REACHABLE
    return module == base or module.startswith(f"{base}.")


def _make_piece(target: Target, item: Import) -> Piece:
    """Return the import of a target under the name that an import binds."""
    module, name = target.module, target.name
    if not name and isinstance(item.statement, cst.ImportFrom) and "." in module:
        module, _, name = module.rpartition(".")
    return Piece(module, name, "" if item.local == (name or module) else item.local)


def rewrite_statements(rewriter: Rewriter) -> None:
    """Register the planned changes of import statements."""
    news: dict[cst.CSTNode, dict[cst.CSTNode, list[Any]]] = defaultdict(dict)
    for item in rewriter.imports:
        plan = rewriter.plans.get(item.alias)
        if plan not in (None, [make_piece(item.statement, item.alias)]):
            line = rewriter.parents[item.statement]
            news[line][item.statement] = _split_statement(item.statement, rewriter.plans)
    for line, statements in news.items():
        rewriter.change(line, _LineChange(line, statements))


class _LineChange:
    """Writes the statements that take the place of the imports in a line."""

    def __init__(self, line: Any, news: Mapping[cst.CSTNode, list[Any]]) -> None:
        self._old = line.body
        self._news = news

    def __call__(self, line: Any) -> Any:
        if len(self._old) > 1 or isinstance(line, cst.SimpleStatementSuite):
            pairs = zip(self._old, line.body, strict=True)
            body = [new for old, same in pairs for new in self._news.get(old, [same])]
            return line.with_changes(body=body)
        first, *following = self._news[self._old[0]]
        first_comments = m.findall(first, m.Comment())
        old: Any = m.findall(self._old[0], m.Comment())
        comments = [cst.EmptyLine(comment=node) for node in old if node not in first_comments]
        line = line.with_changes(body=[first], leading_lines=[*line.leading_lines, *comments])
        return cst.FlattenSentinel([line, *(cst.SimpleStatementLine([new]) for new in following)])


def _split_statement(
    statement: ImportStatement, plans: Mapping[cst.CSTNode, list[Piece]]
) -> list[Any]:
    """Return the statements that take the place of one; one from a single module keeps its layout.

    The comments of the others are moved above them.
    """
    aliases: Any = statement.names
    rows = [plans.get(alias, [make_piece(statement, alias)]) for alias in aliases]
    pieces = [piece for row in rows for piece in row]
    homes = {piece.module if piece.name else "" for piece in pieces}
    is_plain = isinstance(statement, cst.Import)
    is_same_form = len(homes) == 1 and ("" in homes) == is_plain
    if is_same_form and all(len(row) == 1 for row in rows) and len({*pieces}) == len(pieces):
        names = [
            alias if piece == make_piece(statement, alias) else _rename(alias, piece)
            for alias, piece in zip(aliases, pieces, strict=True)
        ]
        new: Any = statement.with_changes(names=names)
        if not is_plain and get_module(new) not in homes:
            new = new.with_changes(module=cst.parse_expression(homes.pop()))
        return [new]
    items: dict[str, list[str]] = defaultdict(list)
    for piece in dict.fromkeys(pieces):
        if piece.name:
            items[piece.module].append(piece.item)
    lines = [f"from {module} import {', '.join(names)}" for module, names in sorted(items.items())]
    lines += [f"import {piece.item}" for piece in dict.fromkeys(pieces) if not piece.name]
    # A block needs a statement.
    trees: list[Any] = [cst.parse_statement(line) for line in lines or ["import detcore"]]
    return [tree.body[0] for tree in trees]


def _rename(alias: cst.ImportAlias, piece: Piece) -> cst.ImportAlias:
    name: Any = cst.parse_expression(piece.name or piece.module)
    if piece.local != (alias.evaluated_alias or ""):
        asname = cst.AsName(cst.Name(piece.local)) if piece.local else None
        alias = alias.with_changes(asname=asname)
    return alias.with_changes(name=name)
