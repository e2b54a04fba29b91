"""Rewrite a Python module from Determined's names to detcore's."""

from __future__ import annotations

import ast
import re
import warnings

import libcst as cst

from detcore_determined.migrate.early_scripts import rewrite_calls, rewrite_settings
from detcore_determined.migrate.early_trials import rewrite_early_trials
from detcore_determined.migrate.findings import Finding, Migrated
from detcore_determined.migrate.imports import rewrite_imports, rewrite_statements
from detcore_determined.migrate.rewriter import Rewriter
from detcore_determined.migrate.strings import rewrite_texts
from detcore_determined.migrate.tensorflow_names import rewrite_tensorflow

_MAX_SIZE = 1_000_000
"""Longest module, in characters: LibCST takes about a minute for it."""
_SUBJECTS = re.compile(r"determined|detcore|model_hub|keras|tensorflow|DET_")


def migrate_python(source: str) -> Migrated:
    """Return a module with Determined's names replaced, and a finding for each name that remains.

    All other text stays identical, character by character, and a second call changes nothing. A
    module that Python or LibCST cannot read is returned unchanged, with one finding of the kind
    ``error``.

    Args:
        source: The module, with any kind of line ends.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are the module's own business
            ast.parse(source)  # LibCST may crash on code that is nested more deeply
        if not _SUBJECTS.search(source):
            return Migrated(source, 0, (), ())
        if len(source) > _MAX_SIZE:
            raise ValueError(f"it has more than {_MAX_SIZE:,} characters")
        old = _rewrite(source)
        text, notes = old.apply() if old.changes else (source, [])
        # Positions of the remaining findings come from a second pass over the new text.
        remaining = _rewrite(text).findings if text != source else old.findings
    except SyntaxError as error:
        return _refuse(source, error.lineno, error.offset, f"it is not valid Python: {error.msg}")
    except RecursionError:
        return _refuse(source, 1, 1, "Python cannot read it: it is nested too deeply")
    except (ValueError, MemoryError, NotImplementedError, cst.ParserSyntaxError) as error:
        problem = str(error).partition("\n")[0] or type(error).__name__
        return _refuse(source, 1, 1, f"Python cannot read it: {problem}")
    findings = {*old.findings, *(note for _, note in old.notes)}
    return Migrated(
        text=text,
        num_changes=len(old.changes),
        findings=tuple(sorted(findings)),
        remaining=tuple(sorted({*remaining, *notes})),
    )


def _rewrite(source: str) -> Rewriter:
    """Return the changes and findings of a module."""
    rewriter = Rewriter(source)
    replaced = rewrite_calls(rewriter)
    rewrite_imports(rewriter, replaced)
    rewrite_texts(rewriter)
    rewrite_tensorflow(rewriter)
    rewrite_early_trials(rewriter)
    if re.search(r"import[^\n]*\b(?:determined|detcore)|from (?:determined|detcore)", source):
        rewrite_settings(rewriter)
    rewrite_statements(rewriter)
    return rewriter


def _refuse(source: str, line: int | None, column: int | None, problem: str) -> Migrated:
    finding = Finding(line or 1, max(1, column or 1), "", problem, "", "error")
    return Migrated(source, 0, (finding,), (finding,))
