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
from collections.abc import Iterator

from detcore_determined.migrate._groups import Group, Rewriter
from detcore_determined.migrate._lookup import Unknown, look_up
from detcore_determined.migrate._references import Reference, references
from detcore_determined.migrate._report import Finding, Migrated
from detcore_determined.migrate._scopes import Module, examine
from detcore_determined.migrate._statements import rewrite_statement
from detcore_determined.migrate._text import Edit, Text
from detcore_determined.migrate._texts import rewrite_texts

__all__ = ["migrate_python", "needs_old_tensorflow"]

_OLD = '"tensorflow==2.15.*"'
_ESTIMATOR = "EstimatorTrial works without it; premade Estimators need it"
_LAYERS = "tf.keras.layers has layers of the same kind"
_GONE = {
    "tensorflow.estimator": _ESTIMATOR,
    "tensorflow.compat.v1.estimator": _ESTIMATOR,
    "tensorflow.compat.v2.estimator": _ESTIMATOR,
    "tensorflow_estimator": _ESTIMATOR,
    "tensorflow.keras.estimator": "train the Keras model itself, as a TFKerasTrial",
    "tensorflow.compat.v1.layers": _LAYERS,
    "tensorflow.compat.v1.nn.rnn_cell": _LAYERS,
    "tensorflow.keras.layers.experimental": _LAYERS,
    "tensorflow.keras.layers.DenseFeatures": "tf.keras.utils.FeatureSpace takes its place",
    "tensorflow.keras.experimental": "see the release notes of Keras 3",
    "tensorflow.keras.optimizers.experimental": "take the optimizer from tf.keras.optimizers",
    "tensorflow.keras.optimizers.legacy": (
        "take the optimizer of the same name from tf.keras.optimizers, or, on the newest "
        "TensorFlow, pip install tf_keras and set TF_USE_LEGACY_KERAS=1"
    ),
}
"""Names, with advice for code that runs without TensorFlow 2.15."""
_PRIVATE = "tensorflow.python.keras"
_PUBLIC = "tensorflow.keras"
# Modules of TensorFlow's private Keras that the public Keras has under the same name.
_SAME = frozenset(
    {
        "activations", "applications", "backend", "callbacks", "constraints", "datasets",
        "initializers", "layers", "losses", "metrics", "models", "optimizers", "preprocessing",
        "regularizers", "utils",
    }
)  # fmt: skip

_EARLY_KEYS = {
    "batches_per_step": "it is called scheduling_unit",
    "max_steps": "give max_length, such as {'batches': 100 * steps}",
    "steps_per_round": "give length_per_round, such as {'batches': 100 * steps}",
    "target_trial_steps": "give max_length, such as {'batches': 100 * steps}",
}
_EARLY_METHODS = {
    "build_model": "wrap_model",
    "optimizer": "wrap_optimizer",
    "create_lr_scheduler": "wrap_lr_scheduler",
}


def migrate_python(source: str) -> Migrated:
    """Return a module with Determined's names replaced, and a finding for each name that remains.

    All other text stays identical, character by character, and a second call changes nothing. A
    module that is not valid Python is returned unchanged, with one finding of the kind ``error``.

    Args:
        source: The module, with any kind of line ends.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are the module's own business
            old = _rewrite(source)
            # Positions of the remaining findings come from a second pass over the new text.
            new = _rewrite(old.text.apply(old.edits)) if old.edits else old
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


def _rewrite(source: str) -> Rewriter:
    """Return the changes and findings of a module."""
    text = Text(source)
    tree = ast.parse(source)
    module = examine(tree)
    rewriter = Rewriter(text, module)
    by_group: dict[int, list[Reference]] = defaultdict(list)
    for reference in references(text, module):
        by_group[id(module.bindings(reference.parts[0], reference.scope))].append(reference)
    for bindings in module.groups:
        rewriter.rewrite(Group(bindings, by_group[id(bindings)]))
    _stars(rewriter, module)
    for node, _ in module.statements:
        plans = [rewriter.plans[node, index] for index in range(len(node.names))]
        rewriter.edits += rewrite_statement(text, node, plans)
    rewrite_texts(rewriter, module)
    rewrite_tensorflow(rewriter, tree)
    if re.search(r"import[^\n]*\b(?:determined|detcore)|from (?:determined|detcore)", source):
        _early_releases(rewriter, tree)
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


def needs_old_tensorflow(finding: Finding) -> bool:
    """Whether a finding is about code that runs on TensorFlow 2.15 but not on the newest."""
    return _OLD in finding.advice


def rewrite_tensorflow(rewriter: Rewriter, tree: ast.Module) -> None:
    """Replace imports of TensorFlow's private Keras, and report names that are gone."""
    names = dict(_imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                _look_at(rewriter, node, f"{_full(node.module)}.{alias.name}")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                _look_at(rewriter, node, _full(alias.name))
        elif isinstance(node, ast.Attribute):
            _look_at(rewriter, node, _dotted(node, names))
        elif isinstance(node, ast.Call):
            _look_at_optimizer(rewriter, node, _dotted(node.func, names))


def _look_at_optimizer(rewriter: Rewriter, node: ast.Call, name: str) -> None:
    """Replace the old keyword of Keras's optimizers, which the newest refuse."""
    if not name.startswith(("tensorflow.keras.optimizers.", f"{_PRIVATE}.optimizers.")):
        return
    for keyword in node.keywords:
        start = rewriter.text.offset(keyword.lineno, keyword.col_offset)
        if keyword.arg == "lr":
            rewriter.edits.append(Edit(start, start + len("lr"), "learning_rate"))
        elif keyword.arg == "decay" and ".legacy." not in name:
            rewriter.leave(
                start, "decay", "the optimizers of TensorFlow 2.11 and later do not take it",
                "pass learning_rate=tf.keras.optimizers.schedules.InverseTimeDecay(...)",
            )  # fmt: skip


def _early_releases(rewriter: Rewriter, tree: ast.Module) -> None:
    """Report what only releases before 0.13 took: settings in dictionaries, and trial methods."""
    for node in ast.walk(tree):
        keys = node.keys if isinstance(node, ast.Dict) else []
        for key in keys:
            if isinstance(key, ast.Constant) and key.value in _EARLY_KEYS:
                name = str(key.value)
                rewriter.leave(key, name, "no such setting", _EARLY_KEYS[name])
        if not isinstance(node, ast.ClassDef):
            continue
        bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for member in node.body if "PyTorchTrial" in bases else ():
            if isinstance(member, ast.FunctionDef) and member.name in _EARLY_METHODS:
                rewriter.leave(
                    member, member.name, "a PyTorchTrial makes its parts in __init__",
                    f"pass them to self.context.{_EARLY_METHODS[member.name]}(...) there",
                )  # fmt: skip


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the local names of modules, with their full names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                full = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or full, _full(full)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{_full(node.module)}.{alias.name}"
                yield alias.asname or alias.name, full


def _full(name: str) -> str:
    """Return the full name below TensorFlow: the package ``keras`` equals ``tf.keras``."""
    return f"tensorflow.{name}" if f"{name}.".startswith("keras.") else name


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([names[node.id], *reversed(parts)])


def _look_at(rewriter: Rewriter, node: ast.stmt | ast.expr, name: str) -> None:
    is_import = isinstance(node, ast.stmt)
    for gone, advice in _GONE.items():
        # Longer attributes are visited separately, so an exact match reports the name once.
        if name == gone or (is_import and name.startswith(f"{gone}.")):
            rewriter.leave(
                node, gone, "the newest TensorFlow does not have it", f"install {_OLD}; {advice}"
            )
    if not (is_import and (name == _PRIVATE or name.startswith(f"{_PRIVATE}."))):
        return
    below = name.removeprefix(_PRIVATE).lstrip(".").split(".")
    if below[0] in _SAME and isinstance(node, ast.ImportFrom):
        rewriter.edits += [edit for edit in _edits(rewriter, node) if edit not in rewriter.edits]
    else:
        rewriter.leave(
            node, name, "it is private to TensorFlow, and not the Keras that detcore trains",
            "take the public name, below tensorflow.keras",
        )  # fmt: skip


def _edits(rewriter: Rewriter, node: ast.stmt) -> Iterator[Edit]:
    assert node.end_lineno is not None  # ast gives all statements an end
    assert node.end_col_offset is not None
    start = rewriter.text.offset(node.lineno, node.col_offset)
    end = rewriter.text.offset(node.end_lineno, node.end_col_offset)
    for found in re.compile(r"\btensorflow\.python\.keras\b").finditer(
        rewriter.text.text, start, end
    ):
        yield Edit(*found.span(), _PUBLIC)
