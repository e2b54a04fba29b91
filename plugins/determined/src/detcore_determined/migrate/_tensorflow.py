"""Replace names of Keras that newer releases of TensorFlow lack, and report the others.

A name is replaced only if the record of the public Keras has its replacement.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator

from detcore_determined.migrate._groups import Rewriter
from detcore_determined.migrate._keras_names import (
    find_homes,
    find_missing,
    find_public_name,
    is_module,
)
from detcore_determined.migrate._optimizers import rewrite_compile, rewrite_optimizer
from detcore_determined.migrate._report import Finding
from detcore_determined.migrate._scopes import ImportNode
from detcore_determined.migrate._statements import Piece, Plan, rewrite_statement

_OLD = '"tensorflow==2.15.*"'
_ESTIMATOR = "EstimatorTrial works without it; premade Estimators need it"
_LAYERS = "tf.keras.layers has layers of the same kind"
_GONE = {
    "tensorflow.estimator": _ESTIMATOR,
    "tensorflow.compat.v1.estimator": _ESTIMATOR,
    "tensorflow.compat.v2.estimator": _ESTIMATOR,
    "tensorflow_estimator": _ESTIMATOR,
    "tensorflow.compat.v1.layers": _LAYERS,
    "tensorflow.compat.v1.nn.rnn_cell": _LAYERS,
    "tensorflow.keras.optimizers.legacy": (
        "take the optimizer of the same name from tf.keras.optimizers, or, on the newest "
        "TensorFlow, pip install tf_keras and set TF_USE_LEGACY_KERAS=1"
    ),
}
"""Names that only TensorFlow 2.15 has and no record lists, with advice for the newest."""
_SUBSTITUTES = {
    "backend.get_session": "write tf.compat.v1.keras.backend.get_session",
    "backend.set_session": "write tf.compat.v1.keras.backend.set_session",
    "estimator": "train the Keras model itself, as a TFKerasTrial",
    "layers.experimental": _LAYERS,
    "layers.DenseFeatures": "tf.keras.utils.FeatureSpace takes its place",
    "optimizers.experimental": "take the optimizer from tf.keras.optimizers",
}
"""Names below ``tensorflow.keras`` that a release lacks, with advice."""
_BOOSTED_TREES = "estimator.BoostedTrees"
_NEITHER = "neither TensorFlow 2.15 nor the newest has it"
_PRIVATE = "tensorflow.python.keras"
_PUBLIC = "tensorflow.keras"


@dataclasses.dataclass(frozen=True, slots=True)
class _Use:
    """An imported name with the attributes that follow it.

    Attributes:
        local: The imported name in the module.
        imported: Its full name.
        name: The full name with all attributes.
    """

    local: str
    imported: str
    name: str


def needs_old_tensorflow(finding: Finding) -> bool:
    """Whether a finding is about code that runs on TensorFlow 2.15 but not on the newest."""
    return _OLD in finding.advice


def rewrite_tensorflow(rewriter: Rewriter, tree: ast.Module) -> None:
    """Replace private and former names of Keras, and report names that are gone."""
    full_names = dict(_list_imports(tree))
    uses = dict(_list_uses(tree, full_names))
    assigned = set(_list_assigned(tree))
    is_keras = any(name.partition(".")[0] == "tensorflow" for name in full_names.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) or (
            isinstance(node, ast.ImportFrom) and node.module and not node.level
        ):
            plans = [_plan(rewriter, node, alias, uses, assigned) for alias in node.names]
            rewriter.edits += rewrite_statement(rewriter.text, node, plans)
        elif isinstance(node, ast.Call) and is_keras:
            rewrite_compile(rewriter, node)
        if isinstance(node, ast.Call) and node.func in uses:
            rewrite_optimizer(rewriter, tree, node, _get_public_name(uses[node.func].name))
    for node, use in uses.items():
        if use.local not in assigned:
            _look_at_use(rewriter, node, use)


def _list_imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the local name of each import, and its full name."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                is_top = isinstance(node, ast.Import) and not alias.asname
                top = alias.name.partition(".")[0]
                full = _unify(top) if is_top else _get_full_name(node, alias)
                yield alias.asname or top, full


def _list_uses(tree: ast.Module, full_names: dict[str, str]) -> Iterator[tuple[ast.expr, _Use]]:
    """Yield the node of each use of an imported name, with all attributes that follow it."""
    owners = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Name, ast.Attribute)) or node in owners:
            continue
        parts: list[str] = []
        head: ast.expr = node
        while isinstance(head, ast.Attribute):
            parts.append(head.attr)
            head = head.value
        if isinstance(head, ast.Name) and isinstance(head.ctx, ast.Load) and head.id in full_names:
            imported = full_names[head.id]
            yield node, _Use(head.id, imported, ".".join([imported, *reversed(parts)]))


def _list_assigned(tree: ast.Module) -> Iterator[str]:
    """Yield names that are bound by an assignment or an argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _get_full_name(node: ImportNode, alias: ast.alias) -> str:
    if isinstance(node, ast.Import):
        return _unify(alias.name)
    return _unify(f"{'.' * node.level}{node.module or ''}.{alias.name}")


def _unify(name: str) -> str:
    """Return the name below TensorFlow: the package ``keras`` equals ``tf.keras``."""
    return f"tensorflow.{name}" if f"{name}.".startswith("keras.") else name


def _get_below(name: str, package: str) -> str | None:
    """Return a dotted name below a package: empty for the package, None for another name."""
    return name[len(package) + 1 :] if f"{name}.".startswith(f"{package}.") else None


def _get_public_name(name: str) -> str:
    """Return the public name of a private one of Keras, or of a short one; other names stay."""
    if _get_below(name, "tensorflow.optimizers") is not None:
        return name.replace("tensorflow", _PUBLIC, 1)
    public = find_public_name(_get_below(name, _PRIVATE) or "")
    return name if public is None else f"{_PUBLIC}.{public}"


def _plan(
    rewriter: Rewriter,
    node: ImportNode,
    alias: ast.alias,
    uses: dict[ast.expr, _Use],
    assigned: set[str],
) -> Plan:
    """Plan the change of one imported name of Keras; report it if it has no replacement."""
    full = _get_full_name(node, alias)
    below = _get_below(full.removesuffix(".*"), _PRIVATE)
    if below is None:
        below = _get_below(full.removesuffix(".*"), _PUBLIC)
        if not below or not find_missing(below):
            _report_gone(rewriter, alias, full)
            return Plan(keep=True)
    local = alias.asname or alias.name
    own = [use.name.removeprefix(full) for use in uses.values() if use.local == local]
    is_plain = isinstance(node, ast.Import) and not alias.asname
    home = None
    if alias.name != "*" and not is_plain:
        home = _find_home(below, own, is_certain=local not in assigned)
    if home is None:
        names = sorted({f"{below}{attributes}".lstrip(".") for attributes in own}) or [below]
        rewriter.leave(alias, full, _get_reason(full), "; ".join(map(_advise, names)))
        return Plan(keep=True)
    old = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
    package = "keras" if old.startswith("keras") or home.startswith("src.") else _PUBLIC
    public = f"{package}.{home}".rstrip(".")
    if home.startswith("src."):
        rewriter.note(alias, public, "it is private to Keras: copy it if a release moves it")
    if isinstance(node, ast.Import):
        return Plan(pieces=[Piece(public, "", local)])
    module, _, name = public.rpartition(".")
    return Plan(pieces=[Piece(module, name, "" if name == local else local)])


def _find_home(below: str, attributes: list[str], *, is_certain: bool) -> str | None:
    """Return the public name, below Keras, that has everything used of an imported name.

    Args:
        below: The imported name, below Keras.
        attributes: The attributes of each use of it, such as ``.Dense``.
        is_certain: Whether all uses are of the import, not of a variable of its name.
    """
    public = find_public_name(below) if below else ""
    if public is not None and not is_module(public):
        return public
    homes = {public} if public is not None else set()
    for attribute in attributes:
        found = find_public_name(f"{below}{attribute}".lstrip(".")) if attribute else public
        if found is None or not f".{found}".endswith(attribute) or not is_certain:
            return None
        homes.add(f".{found}".removesuffix(attribute).lstrip("."))
    return homes.pop() if len(homes) == 1 else None


def _look_at_use(rewriter: Rewriter, node: ast.expr, use: _Use) -> None:
    """Report a use of a name that is gone, unless its import has been reported."""
    if _get_reason(use.imported) or _find_gone(use.imported):
        return
    reason = _get_reason(use.name)
    if reason:
        below = _get_below(use.name, _PRIVATE)
        if below is None:
            below = find_missing(_get_below(use.name, _PUBLIC) or "")
        rewriter.leave(node, use.name, reason, _advise(below))
    else:
        _report_gone(rewriter, node, use.name)


def _get_reason(name: str) -> str:
    """Return why neither supported TensorFlow has a name for training; empty if one has it."""
    if _get_below(name, _PRIVATE) is not None:
        return "it is private to TensorFlow, and not the Keras that detcore trains"
    below = _get_below(name.removesuffix(".*"), _PUBLIC)
    return _NEITHER if below and find_missing(below) else ""


def _advise(below: str) -> str:
    """Return what to write for a name below Keras that has no single replacement."""
    if below in _SUBSTITUTES:
        return _SUBSTITUTES[below]
    public = find_public_name(below) if below else ""
    homes = find_homes(below.rpartition(".")[2]) if public is None else [public]
    if not homes:
        return f"no public module has {below.rpartition('.')[2]!r}: copy the code that you need"
    return f"write {' or '.join(f'{_PUBLIC}.{home}'.rstrip('.') for home in homes)}"


def _report_gone(rewriter: Rewriter, node: ast.AST, name: str) -> None:
    gone = _find_gone(name)
    if gone is not None and _BOOSTED_TREES in name:
        advice = "take another premade Estimator, or train a library of decision trees"
        rewriter.leave(node, name, _NEITHER, f"{advice} with the Core API")
    elif gone is not None:
        rewriter.leave(
            node, gone[0], "the newest TensorFlow does not have it", f"install {_OLD}; {gone[1]}"
        )


def _find_gone(name: str) -> tuple[str, str] | None:
    """Return the part of a name that only TensorFlow 2.15 has, with advice for the newest."""
    for gone, advice in _GONE.items():
        if f"{name}.".startswith(f"{gone}."):
            return gone, advice
    missing = find_missing(_get_below(name, _PUBLIC) or "", "newest")
    if not missing:
        return None
    return f"{_PUBLIC}.{missing}", _SUBSTITUTES.get(missing, "see the release notes of Keras 3")
