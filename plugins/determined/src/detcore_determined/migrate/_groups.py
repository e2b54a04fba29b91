"""Plan the change of each imported name, and of the places that use it."""

from __future__ import annotations

import ast
import dataclasses
from collections import defaultdict

from detcore_determined.migrate._lookup import Target, Unknown, look_up
from detcore_determined.migrate._names import REACHABLE
from detcore_determined.migrate._references import Reference
from detcore_determined.migrate._report import Finding
from detcore_determined.migrate._scopes import Binding, ImportNode, Module, Scope
from detcore_determined.migrate._statements import Piece, Plan
from detcore_determined.migrate._text import Edit, Text

_UNUSUAL = Unknown("", "it is written in an unusual way", "change it by hand")


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """A name of one scope: the imports that bind it, and its uses."""

    bindings: list[Binding]
    references: list[Reference]


@dataclasses.dataclass(frozen=True, slots=True)
class _Hit:
    reference: Reference
    target: Target
    length: int


class Rewriter:
    """Collects the changes of a module.

    Args:
        text: The module's text.
        module: The imports and names in it.
    """

    def __init__(self, text: Text, module: Module) -> None:
        self.text = text
        self.module = module
        self.edits: list[Edit] = []
        self.findings: list[Finding] = []
        self.plans: dict[tuple[ImportNode, int], Plan] = defaultdict(lambda: Plan(keep=True))

    def rewrite(self, group: Group) -> None:
        """Plan the change of one name."""
        paths = {binding.path for binding in group.bindings}
        hits = {path: look_up(path) for path in paths}
        has_modules = any(isinstance(hit, Target) and not hit.name for hit in hits.values())
        is_plain = any(_is_plain(binding) for binding in group.bindings)
        if len(paths) > 1 and (has_modules or is_plain):
            for binding in group.bindings:
                self.leave(
                    _alias(binding), ".".join(binding.path),
                    f"{binding.local!r} is imported in several ways", "change it by hand",
                )  # fmt: skip
            return
        for binding in group.bindings:
            hit = hits[binding.path]
            if isinstance(hit, Unknown):
                self.leave(_alias(binding), hit.name, hit.reason, hit.advice)
            elif hit.is_expression:
                self._rewrite_expression(binding, hit, group.references)
            elif hit.name:
                is_kept = self._leave_members(binding, group.references)
                self._plan(binding, *([] if is_kept else [_piece(hit, binding)]), keep=is_kept)
                self.note(_alias(binding), ".".join(binding.path), hit.note)
        if has_modules:
            self._rewrite_module(group, hits[group.bindings[0].path])

    def star(self, node: ast.ImportFrom, scope: Scope, old: str, hit: Target | Unknown) -> None:
        """Plan the change of ``from ... import *``."""
        if isinstance(hit, Target) and not hit.name:
            self.plans[node, 0] = Plan(pieces=[Piece(hit.module, "*")])
            self.note(node.names[0], f"{old}.*", f"{hit.module} may lack names that {old} had")

    def leave(self, node: ast.AST | int, name: str, reason: str, advice: str) -> None:
        """Report a place that is not rewritten."""
        line, column = self._place(node)
        self.findings.append(Finding(line, column, name, reason, advice, "left"))

    def note(self, node: ast.AST | int, name: str, note: str) -> None:
        """Report a place that is rewritten and should be checked; an empty note reports nothing."""
        if note:
            line, column = self._place(node)
            self.findings.append(Finding(line, column, name, note, "", "note"))

    def drop(self, bindings: list[Binding]) -> None:
        """Plan to remove the imports of a name that is no longer used."""
        for binding in bindings:
            is_nested = binding.statement.col_offset > 0
            # A block needs a statement.
            self._plan(binding, *([Piece("detcore")] if is_nested else []))

    def span(self, node: ast.expr | ast.keyword | ast.alias) -> tuple[int, int]:
        """Return the offsets of the start and the end of a node."""
        assert node.end_lineno is not None  # ast gives all these nodes an end
        assert node.end_col_offset is not None
        offset = self.text.offset
        return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)

    def _place(self, node: ast.AST | int) -> tuple[int, int]:
        if not isinstance(node, int):
            # ast gives a position to every node that reaches this line
            node = self.text.offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return self.text.place(node)

    def _plan(self, binding: Binding, *pieces: Piece, keep: bool = False) -> None:
        plan = self.plans[binding.statement, binding.index] = Plan(keep=keep)
        for piece in pieces:
            plan.add(piece)

    def _rewrite_expression(self, binding: Binding, target: Target, uses: list[Reference]) -> None:
        """Write an expression at each use of an imported function."""
        name = ".".join(binding.path)
        is_clear = uses and all(
            use.ends and not self.module.is_taken(target.head, use.scope) for use in uses
        )
        if not is_clear or binding.local in binding.scope.others:
            self.leave(_alias(binding), name, "there is no such function", f"use {target.text}")
            return
        self._plan(binding, Piece(target.module, target.head))
        self.edits += [Edit(use.start, use.ends[0], target.name) for use in uses]

    def _leave_members(self, binding: Binding, uses: list[Reference]) -> bool:
        """Report members of an imported class that are gone; with any, the import stays."""
        gone = [(use, look_up((*binding.path, *use.parts[1:]))) for use in uses]
        for use, found in gone:
            if isinstance(found, Unknown):
                self.leave(use.start, found.name, found.reason, found.advice)
        return any(isinstance(found, Unknown) for _, found in gone)

    def _rewrite_module(self, group: Group, own: Target | Unknown) -> None:
        """Rewrite the uses of a module: ``det.keras.TFKerasTrial``."""
        assert isinstance(own, Target)  # checked by the caller
        hits, unknown = self._look_up_uses(group)
        is_plain = _is_plain(group.bindings[0])
        base = "" if unknown or is_plain else own.module
        needed: dict[str, None] = {}
        is_own_needed = self._is_used_otherwise(group) or not hits
        for hit in hits:
            new = hit.target.text
            if base and _is_reached(base, hit.target.module):
                new = hit.reference.parts[0] + new[len(base) :]
                is_own_needed = True
            else:
                module = hit.target.module
                needed["detcore" if module in REACHABLE else module] = None
            start, end = hit.reference.start, hit.reference.ends[hit.length - 1]
            if "".join(self.text.text[start:end].split()) != new:
                self.edits.append(Edit(start, end, new))
            self.note(start, ".".join(hit.reference.parts[: hit.length]), hit.target.note)
        more = [Piece(module) for module in needed if not self.module.is_imported(module)]
        if is_plain:
            self._plan_plain(group, more, keep=unknown)
            return
        for binding in group.bindings:
            if unknown:
                self._plan(binding, *more, keep=True)
            else:
                pieces = [_piece(own, binding)] if is_own_needed or not more else []
                self._plan(binding, *pieces, *more)

    def _is_used_otherwise(self, group: Group) -> bool:
        """Whether a name is assigned, deleted or exported, and therefore has to stay."""
        local = group.bindings[0].local
        is_bound = any(local in binding.scope.others for binding in group.bindings)
        return is_bound or any(node.value == local for node in self.module.texts)

    def _look_up_uses(self, group: Group) -> tuple[list[_Hit], bool]:
        """Return the new form of each use, and whether any use stays as it is."""
        hits = []
        unknown = False
        path = group.bindings[0].path
        for use in group.references:
            found = look_up((*path, *use.parts[1:]))
            found = self._refusal(use, found) or found
            if isinstance(found, Unknown):
                unknown = True
                name = found.name or ".".join(use.parts)
                self.leave(use.start, name, found.reason, found.advice)
            else:
                hits.append(_Hit(use, found, found.used - len(path) + 1))
        return hits, unknown

    def _refusal(self, use: Reference, found: Target | Unknown) -> Unknown | None:
        """Return why a use cannot be rewritten although its name is known, or None."""
        if isinstance(found, Unknown):
            return None
        if not use.ends:
            return _UNUSUAL
        root = found.module.partition(".")[0]
        if self.module.is_taken(root, use.scope):
            return Unknown(
                ".".join(use.parts), f"it is {found.text} now, and {root!r} is taken here",
                "change it by hand",
            )  # fmt: skip
        return None

    def _plan_plain(self, group: Group, more: list[Piece], *, keep: bool) -> None:
        """Import the modules that uses of a plain ``import determined.keras`` need."""
        own = [look_up(tuple(_alias(binding).name.split("."))) for binding in group.bindings]
        brought = {hit.module for hit in own if isinstance(hit, Target) and hit.module != "detcore"}
        brought |= {module.partition(".")[0] for module in brought}
        more = [piece for piece in more if piece.module not in brought]
        for binding, hit in zip(group.bindings, own, strict=True):
            pieces = more if binding is group.bindings[0] else []
            is_left = isinstance(hit, Unknown)
            if isinstance(hit, Unknown):
                self.leave(_alias(binding), hit.name, hit.reason, hit.advice)
            elif hit.module != "detcore" or not (more or keep or brought):
                pieces = [Piece(hit.module), *pieces]
            elif not pieces and not keep:
                pieces = [Piece(hit.module)]
            self._plan(binding, *pieces, keep=keep or is_left)


def _alias(binding: Binding) -> ast.alias:
    return binding.statement.names[binding.index]


def _is_plain(binding: Binding) -> bool:
    return isinstance(binding.statement, ast.Import) and _alias(binding).asname is None


def _is_reached(base: str, module: str) -> bool:
    """Whether importing one module makes another one available as its attribute."""
    if base == "detcore":
        return module in REACHABLE
    return module == base or module.startswith(f"{base}.")


def _piece(target: Target, binding: Binding) -> Piece:
    """Return the import of a target under the name that the binding uses."""
    module, name = target.module, target.name
    if not name and isinstance(binding.statement, ast.ImportFrom) and "." in module:
        module, _, name = module.rpartition(".")
    return Piece(module, name, "" if binding.local == (name or module) else binding.local)
