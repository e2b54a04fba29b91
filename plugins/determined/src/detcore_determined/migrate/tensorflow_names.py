"""Replace Keras names that newer releases of TensorFlow lack, and report the remaining names.

A name is replaced only if the record of the public Keras has its replacement. The record,
``keras_names.json``, is written by ``tools/record_keras_names.py``, so that neither TensorFlow has
to be installed where code is migrated.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Iterator, Mapping

import libcst as cst

from detcore_determined.migrate.findings import Finding
from detcore_determined.migrate.optimizers import rewrite_compile, rewrite_optimizer
from detcore_determined.migrate.rewriter import Import, Piece, Rewriter, get_module, make_piece

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
_OLDER, _NEWEST = "2.15", "newest"
_WITHOUT_PUBLIC_NAME = {"datasets.cifar.load_batch": "src.datasets.cifar.load_batch"}
"""Functions that no public module has, with the place where both releases have them."""


def needs_old_tensorflow(finding: Finding) -> bool:
    """Whether a finding is about code that runs on TensorFlow 2.15 but not on the newest."""
    return _OLD in finding.advice


def rewrite_tensorflow(rewriter: Rewriter) -> None:
    """Replace private and former Keras names, and report removed names."""
    for item in rewriter.imports:
        imported = _unify(".".join(item.path))
        _rewrite_import(rewriter, item)
        for use in item.uses:
            name = ".".join([imported, *use.parts[1:]])
            call = rewriter.parents[use.node]
            if isinstance(call, cst.Call) and call.func is use.node:
                rewrite_optimizer(rewriter, call, item, _get_public_name(name))
            if not rewriter.is_assigned(item):
                _report_use(rewriter, use.node, imported, name)
    if any(item.path[0] in ("keras", "tensorflow") for item in rewriter.imports):
        rewrite_compile(rewriter)
    for statement in rewriter.find(cst.ImportFrom):
        if isinstance(statement.names, cst.ImportStar):
            _report_import(rewriter, statement.names, f"{_unify(get_module(statement))}.*", [])


def _unify(name: str) -> str:
    """Return the name below TensorFlow: the package ``keras`` equals ``tf.keras``."""
    return f"tensorflow.{name}" if f"{name}.".startswith("keras.") else name


def _get_below(name: str, package: str) -> str | None:
    """Return a dotted name below a package: empty for the package, None for another name."""
    return name[len(package) + 1 :] if f"{name}.".startswith(f"{package}.") else None


def _get_public_name(name: str) -> str:
    """Return the public name of a private or short Keras name; other names do not change."""
    if _get_below(name, "tensorflow.optimizers") is not None:
        return name.replace("tensorflow", _PUBLIC, 1)
    public = _find_public_name(_get_below(name, _PRIVATE) or "")
    return name if public is None else f"{_PUBLIC}.{public}"


def _rewrite_import(rewriter: Rewriter, item: Import) -> None:
    """Replace one imported name of Keras, or report it if it has no replacement."""
    full = _unify(item.alias.evaluated_name if item.is_plain else ".".join(item.path))
    below = _get_below(full, _PRIVATE)
    if below is None:
        below = _get_below(full, _PUBLIC)
        below = below if below and _find_missing(below) else None
    attributes = ["".join(f".{part}" for part in use.parts[1:]) for use in item.uses]
    home = None
    if below is not None and not item.is_plain:
        home = _find_home(below, attributes, is_certain=not rewriter.is_assigned(item))
    if home is None:
        _report_import(rewriter, item.alias, full, [] if item.is_plain else attributes)
        return
    old = make_piece(item.statement, item.alias).module
    package = "keras" if old.startswith("keras") or home.startswith("src.") else _PUBLIC
    public = f"{package}.{home}".rstrip(".")
    if home.startswith("src."):
        note = "it is private to Keras: copy it if a release moves it"
        rewriter.note(item.statement, public, note)
    if isinstance(item.statement, cst.Import):
        rewriter.plan(item, Piece(public, "", item.local))
    else:
        module, _, name = public.rpartition(".")
        rewriter.plan(item, Piece(module, name, "" if name == item.local else item.local))


def _report_import(rewriter: Rewriter, node: cst.CSTNode, full: str, attributes: list[str]) -> None:
    """Report an imported name that has no single replacement, or that TensorFlow has removed."""
    reason = _get_reason(full)
    if not reason:
        _report_gone(rewriter, node, full)
        return
    module = full.removesuffix(".*")
    below = _get_below(module, _PRIVATE) or _get_below(module, _PUBLIC) or ""
    names = sorted({f"{below}{part}".lstrip(".") for part in attributes}) or [below]
    rewriter.leave(node, full, reason, "; ".join(map(_advise, names)))


def _find_home(below: str, attributes: list[str], *, is_certain: bool) -> str | None:
    """Return the public name, below Keras, that has all used attributes of an imported name.

    Args:
        below: The imported name, below Keras.
        attributes: The attributes of each use of it, such as ``.Dense``.
        is_certain: Whether all uses are of the import, not of a variable of its name.
    """
    public = _find_public_name(below) if below else ""
    if public is not None and not _is_module(public):
        return public
    homes = {public} if public is not None else set()
    for attribute in attributes:
        public_name = _find_public_name(f"{below}{attribute}".lstrip(".")) if attribute else public
        if public_name is None or not f".{public_name}".endswith(attribute) or not is_certain:
            return None
        homes.add(f".{public_name}".removesuffix(attribute).lstrip("."))
    return homes.pop() if len(homes) == 1 else None


def _report_use(rewriter: Rewriter, node: cst.CSTNode, imported: str, name: str) -> None:
    """Report a use of a removed name, unless its import has been reported."""
    if _get_reason(imported) or _find_gone(imported):
        return
    reason = _get_reason(name)
    if reason:
        below = _get_below(name, _PRIVATE)
        if below is None:
            below = _find_missing(_get_below(name, _PUBLIC) or "")
        rewriter.leave(node, name, reason, _advise(below))
    else:
        _report_gone(rewriter, node, name)


def _get_reason(name: str) -> str:
    """Return why neither supported TensorFlow has a name for training; empty if one has it."""
    if _get_below(name, _PRIVATE) is not None:
        return "it is private to TensorFlow, and not the Keras that detcore trains"
    below = _get_below(name.removesuffix(".*"), _PUBLIC)
    return _NEITHER if below and _find_missing(below) else ""


def _advise(below: str) -> str:
    """Return the advice for a name below Keras without a single replacement."""
    if below in _SUBSTITUTES:
        return _SUBSTITUTES[below]
    public = _find_public_name(below) if below else ""
    homes = _find_homes(below.rpartition(".")[2]) if public is None else [public]
    if not homes:
        return f"no public module has {below.rpartition('.')[2]!r}: copy the code that you need"
    return f"write {' or '.join(f'{_PUBLIC}.{home}'.rstrip('.') for home in homes)}"


def _report_gone(rewriter: Rewriter, node: cst.CSTNode, name: str) -> None:
    prefix = _find_gone(name)
    if prefix is not None and _BOOSTED_TREES in name:
        advice = "take another premade Estimator, or train a library of decision trees"
        rewriter.leave(node, name, _NEITHER, f"{advice} with the Core API")
    elif prefix is not None:
        rewriter.leave(
            node,
            prefix[0],
            "the newest TensorFlow does not have it",
            f"install {_OLD}; {prefix[1]}",
        )


def _find_gone(name: str) -> tuple[str, str] | None:
    """Return the part of a name that only TensorFlow 2.15 has, with advice for the newest."""
    for prefix, advice in _GONE.items():
        if f"{name}.".startswith(f"{prefix}."):
            return prefix, advice
    missing = _find_missing(_get_below(name, _PUBLIC) or "", "newest")
    if not missing:
        return None
    return f"{_PUBLIC}.{missing}", _SUBSTITUTES.get(missing, "see the release notes of Keras 3")


def _find_public_name(name: str) -> str | None:
    """Return the public form of a name in a private or former module of Keras, or None.

    A name keeps its module if that has it (``layers.Dense``). Otherwise the nearest enclosing
    module counts (``utils.data_utils.Sequence`` is ``utils.Sequence``), and then the only module
    that has it (``optimizer_v2.adam.Adam`` is ``optimizers.Adam``).

    Args:
        name: A dotted name below ``tensorflow.python.keras``; attributes of the object may follow.
    """
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        private = ".".join(parts[:length])
        public = _WITHOUT_PUBLIC_NAME.get(private) or _find_enclosing(private)
        if public is None and length == len(parts):
            homes = _find_homes(parts[-1])
            public = homes[0] if len(homes) == 1 else None
        if public is not None and (length == len(parts) or not _is_module(public)):
            return ".".join([public, *parts[length:]])
    return None


def _find_homes(name: str) -> list[str]:
    """Return the full public names, below ``tensorflow.keras``, that end with a name."""
    homes = [
        f"{module}.{name}".lstrip(".")
        for module, names in _load()[_OLDER].items()
        if name in names and not {"experimental", "legacy"} & set(module.split("."))
    ]
    return [home for home in homes if not _find_missing(home, _NEWEST)] or homes


def _find_missing(name: str, release: str = "") -> str:
    """Return the shortest prefix of a public name that a release does not have, or ``""``.

    Args:
        name: A dotted name below ``tensorflow.keras``; attributes of the object may follow. Empty
            for the package itself.
        release: ``2.15`` or ``newest``; empty for a prefix that neither has.
    """
    missing = [_find_missing_in(_load()[key], name) for key in ([release] if release else _load())]
    return max(missing, key=len) if all(missing) else ""


def _is_module(name: str) -> bool:
    """Whether a name below ``tensorflow.keras`` is a module."""
    return any(name in modules for modules in _load().values())


def _find_enclosing(private: str) -> str | None:
    """Return the name in its module, or in the nearest enclosing module that has it."""
    module, _, name = private.rpartition(".")
    for path in _enclosing(module):
        if name in _load()[_OLDER].get(path, ()):
            return f"{path}.{name}".lstrip(".")
    return None


def _enclosing(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield path


def _find_missing_in(modules: Mapping[str, frozenset[str]], name: str) -> str:
    path = ""
    for part in name.split(".") if name else ():
        if path not in modules or part.startswith("_") or part in ("api", "src"):
            return ""
        names = modules[path]
        path = f"{path}.{part}".lstrip(".")
        if part not in names:
            return path
    return ""


@functools.cache
def _load() -> Mapping[str, Mapping[str, frozenset[str]]]:
    """Return the names of each module of each release."""
    source = importlib.resources.files("detcore_determined.migrate") / "keras_names.json"
    record: dict[str, dict[str, str]] = json.loads(source.read_text(encoding="utf-8"))
    return {
        release: {module: frozenset(names.split()) for module, names in modules.items()}
        for release, modules in record.items()
    }
