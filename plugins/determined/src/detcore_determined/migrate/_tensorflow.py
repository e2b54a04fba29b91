"""Handle names that old trials import and the newest TensorFlow lacks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from detcore_determined.migrate._groups import Rewriter
from detcore_determined.migrate._report import Finding
from detcore_determined.migrate._text import Edit

__all__ = ["needs_old_tensorflow", "rewrite_tensorflow"]

_OLD = '"tensorflow==2.15.*"'
_GONE = {
    "tensorflow.estimator": "EstimatorTrial works without it; premade Estimators need it",
    "tensorflow.compat.v1.estimator": "EstimatorTrial works without it; premade Estimators need it",
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
