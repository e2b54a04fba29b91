"""Rewrite a Python module from Determined's names to detcore's.

The standard library's `ast` gives the positions, and only those spans are replaced, so the rest
stays identical byte for byte. A tool that preserves a whole concrete syntax tree would add a
compiled dependency to save a few hundred lines.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import warnings
from collections import defaultdict
from collections.abc import Set

from detcore_determined.migrate._early import (
    report_trial_methods,
    rewrite_calls,
    rewrite_settings,
)
from detcore_determined.migrate._groups import Group, Rewriter
from detcore_determined.migrate._lookup import Unknown, look_up
from detcore_determined.migrate._references import Reference, references
from detcore_determined.migrate._report import Finding, Migrated
from detcore_determined.migrate._scopes import Module, examine
from detcore_determined.migrate._statements import rewrite_statement
from detcore_determined.migrate._tensorflow import rewrite_tensorflow
from detcore_determined.migrate._text import Edit, Text
from detcore_determined.migrate._texts import rewrite_texts


def migrate_python(source: str, *, metrics: Set[str] = frozenset()) -> Migrated:
    """Return a module with Determined's names replaced, and a finding for each name that remains.

    All other text stays identical, character by character, and a second call changes nothing. A
    module that is not valid Python is returned unchanged, with one finding of the kind ``error``.

    Args:
        source: The module, with any kind of line ends.
        metrics: Metrics that the code beside the module passes to ``compile``; see
            `migrate_config`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are the module's own business
            old = _rewrite(source, metrics)
            # Positions of the remaining findings come from a second pass over the new text.
            new = _rewrite(old.text.apply(old.edits), metrics) if old.edits else old
    except SyntaxError as error:
        return _refused(source, error.lineno, error.offset, f"it is not valid Python: {error.msg}")
    except (ValueError, RecursionError, MemoryError) as error:
        return _refused(source, 1, 1, f"Python cannot read it: {error or type(error).__name__}")
    notes = (
        _moved(old.text, new.text, old.edits, finding)
        for finding in (old.findings if old is not new else ())
        if finding.kind == "note"
    )
    return Migrated(
        text=new.text.text,
        num_changes=len(set(old.edits)),
        findings=tuple(sorted(set(old.findings))),
        remaining=tuple(sorted({*new.findings, *notes})),
    )


def _rewrite(source: str, metrics: Set[str]) -> Rewriter:
    """Return the changes and findings of a module."""
    text = Text(source)
    tree = ast.parse(source)
    module = examine(tree)
    rewriter = Rewriter(text, module)
    by_group: dict[int, list[Reference]] = defaultdict(list)
    found = list(references(text, module))
    replaced = rewrite_calls(rewriter, tree, found)
    for reference in found:
        uses = by_group[id(module.bindings(reference.parts[0], reference.scope))]
        uses += [reference] if reference not in replaced else []
    for bindings in module.groups:
        is_used = id(bindings) in by_group
        is_gone = all(isinstance(look_up(binding.path), Unknown) for binding in bindings)
        if is_gone and is_used and not by_group[id(bindings)]:  # each use was replaced
            rewriter.drop(bindings)
        else:
            rewriter.rewrite(Group(bindings, by_group[id(bindings)]))
    _stars(rewriter, module)
    for node, _ in module.statements:
        plans = [rewriter.plans[node, index] for index in range(len(node.names))]
        rewriter.edits += rewrite_statement(text, node, plans)
    rewrite_texts(rewriter, module)
    rewrite_tensorflow(rewriter, tree)
    if re.search(r"import[^\n]*\b(?:determined|detcore)|from (?:determined|detcore)", source):
        rewrite_settings(rewriter, tree, metrics)
        report_trial_methods(rewriter, tree)
    return rewriter


def _moved(old: Text, new: Text, edits: list[Edit], finding: Finding) -> Finding:
    """Return a finding with its position in the new text."""
    at = old.offset_of(finding.line, finding.column)
    before = [edit for edit in sorted(set(edits)) if edit.start <= at]
    shift = sum(len(edit.new) - (edit.end - edit.start) for edit in before if edit.end <= at)
    if before and before[-1].end > at:
        at = before[-1].start
    line, column = new.place(at + shift)
    return dataclasses.replace(finding, line=line, column=column)


def _stars(rewriter: Rewriter, module: Module) -> None:
    """Plan ``from determined.keras import *``: the module is known, the names are not."""
    for node, scope in module.statements:
        if not isinstance(node, ast.ImportFrom) or node.names[0].name != "*":
            continue
        old = node.module or ""
        hit = look_up(tuple(old.split(".")))
        rewriter.star(node, scope, old, hit)
        if isinstance(hit, Unknown):
            rewriter.leave(node.names[0], f"{old}.*", hit.reason, hit.advice)


def _refused(source: str, line: int | None, column: int | None, problem: str) -> Migrated:
    finding = Finding(line or 1, max(1, column or 1), "", problem, "", "error")
    return Migrated(source, 0, (finding,), (finding,))
