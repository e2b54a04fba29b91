"""Report settings that are accepted but have no effect, one line for each."""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from detcore.config._entrypoint import script_of
from detcore.config._experiment import ExperimentConfig
from detcore.config._fields import FOR_CLUSTERS, FROM_EARLIER
from detcore.config._hyperparameters import ranges
from detcore.config._problem import nearest
from detcore.config._sections import STORAGE_TYPES, EnvironmentConfig, Resources
from detcore.config._source import Node, Place, dotted, find, key_span, plain

_CLUSTER = "is for a cluster: accepted, no effect here"
_EARLIER = "is from an earlier version: accepted, no effect"
_INSTEAD = {
    "environment_variables": "set them in the shell that starts detcore",
    "image": "the trial runs in the Python that starts detcore",
}
_Kind = Literal["context", "info", "hparams", "config"]
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# The analysis stops at these limits, because it would take too long.
_MOST_FILES, _MOST_BYTES, _MOST_ROUNDS = 200, 1_000_000, 20
_PARTS: Mapping[tuple[str | None, str], _Kind] = {
    ("context", "info"): "info",
    ("info", "hparams"): "hparams",
    ("info", "config"): "config",
}
_LOOKUPS = ("get", "pop", "setdefault")
# Functions that read no hyperparameter of their argument.
_HARMLESS = ("bool", "isinstance", "len", "type")
# The analysis does not see code that these run, or that opens the trial's file.
_OUT_OF_SIGHT = frozenset(
    {"__import__", "eval", "exec", "importlib", "popen", "read_trial_info", "runpy", "subprocess"}
    | {"system"}
)
_WAYS_AROUND = frozenset({"DETCORE_TRIAL_INFO", "hparams", "hyperparameters"})
# Its value is also read by framework plugins.
_BATCH_SIZE = "global_batch_size"


def notices(root: Node, code_dir: Path | None = None) -> list[str]:
    """Return a line for each field that has no effect, assumed unit, and unread hyperparameter.

    Without the folder of the code, hyperparameters are not looked up in it.
    """
    return _lines(root, [*_remarks(root), *(_unread(root, code_dir) if code_dir else ())])


def code_notices(root: Node, code_dir: Path) -> list[str]:
    """Return the lines of `notices` that are about the code, for a file that others check."""
    return _lines(root, _unread(root, code_dir))


def _lines(root: Node, remarks: Iterable[tuple[Place, str]]) -> list[str]:
    found = []
    for place, words in remarks:
        if span := key_span(root, place):
            where = f"{span.source.name}:{span.line + 1}:{span.column + 1}"
            found.append((span.line, span.column, f"{where}: note: {dotted(place)} {words}"))
    return [line for _, _, line in sorted(found)]


def _remarks(root: Node) -> Iterator[tuple[Place, str]]:
    kind = find(root, ("checkpoint_storage", "type"))
    sections: Mapping[Place, type[BaseModel] | None] = {
        (): ExperimentConfig,
        ("environment",): EnvironmentConfig,
        ("resources",): Resources,
        ("checkpoint_storage",): STORAGE_TYPES.get(str(kind.value)) if kind is not None else None,
    }
    for section, model in sections.items():
        for name, field in model.model_fields.items() if model is not None else ():
            place, about = (*section, name), str(field.description)
            if place in sections or find(root, place) is None:
                continue
            if about.endswith(FROM_EARLIER):
                yield place, _EARLIER
            elif about.endswith(FOR_CLUSTERS) or model is EnvironmentConfig:
                yield place, _CLUSTER + (f" ({_INSTEAD[name]})" if name in _INSTEAD else "")
    place = ("optimizations", "mixed_precision")
    precision = find(root, place)
    if precision is not None and precision.value != "O0":
        words = "was for apex: accepted, no effect; use torch.autocast in a PyTorchTrial, or a "
        yield place, words + "mixed-precision policy in a Keras model"
    yield from _exponents(root)
    place = ("searcher", "max_length")
    length = find(root, place)
    if length is not None and isinstance(length.value, int):
        number = length.value
        words = f"has no unit: {number} is read as batches; write {{batches: {number}}} or "
        yield place, f"{words}{{epochs: {number}}} to be clear"


def _unread(root: Node, code_dir: Path) -> Iterator[tuple[Place, str]]:
    """Yield hyperparameters that the script which the entrypoint names never reads."""
    entrypoint, section = find(root, ("entrypoint",)), find(root, ("hyperparameters",))
    names = plain(section) if section is not None else None
    script = None if entrypoint is None else script_of(plain(entrypoint), code_dir)
    if script is None or not isinstance(names, dict):
        return
    folders = [script.parent, code_dir]
    for name, near in unread_hyperparameters(script, folders, list(names)).items():
        hint = f": did you mean '{near}', which it reads?" if near else ""
        yield ("hyperparameters", name), f"is never read by {script.name}{hint}"


def _exponents(root: Node) -> Iterator[tuple[Place, str]]:
    """Yield ranges whose exponents look like values."""
    section = find(root, ("hyperparameters",))
    values = plain(section) if section is not None else None
    for place, value in ranges(values if isinstance(values, dict) else {}, ("hyperparameters",)):
        if value["type"] == "log" and 0 < value["minval"] < 1 and 0 < value["maxval"] < 1:
            low, high, base = value["minval"], value["maxval"], value.get("base", 10)
            yield (
                place,
                f"has exponents: it is drawn from {base:g}^{low:g} = {base**low:.5g} to "
                f"{base:g}^{high:g} = {base**high:.5g}; for values from {low:g} to {high:g}, write "
                f"{{type: loguniform, minval: {low:g}, maxval: {high:g}}}",
            )


class _Unclear(Exception):
    """A use of the hyperparameters that cannot be followed."""


def unread_hyperparameters(
    script: Path, folders: Sequence[Path], names: Collection[str]
) -> Mapping[str, str | None]:
    """Return the hyperparameters that a script never looks up, each with the near name it does.

    Empty where the code may read them otherwise: as a whole (iterated, converted, compared, passed
    on to code that is not there), by computed names, or without ``core.init()``. Modules that the
    script imports are looked for in the folders.
    """
    try:
        found = _Uses(_modules(script, folders)).looked_up()
    except (_Unclear, OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    unread = [name for name in names if name not in found and name != _BATCH_SIZE]
    return {name: nearest(name, sorted(found)) for name in unread}


def _modules(script: Path, folders: Sequence[Path]) -> list[ast.Module]:
    """Return the script and the modules in these folders that it imports.

    Raises:
        _Unclear: If they are too many, or too long.
    """
    trees: dict[Path, ast.Module] = {}
    waiting, size_bytes = [script], 0
    while waiting:
        path = waiting.pop()
        if path in trees:
            continue
        size_bytes += path.stat().st_size
        _require(len(trees) < _MOST_FILES and size_bytes <= _MOST_BYTES)
        trees[path] = ast.parse(path.read_bytes(), str(path))
        for node in ast.walk(trees[path]):
            if isinstance(node, ast.Import):
                waiting += [f for alias in node.names for f in _files(folders, alias.name)]
            elif isinstance(node, ast.ImportFrom):
                bases = [path.parents[node.level - 1]] if node.level else folders
                module = node.module or ""
                waiting += _files(bases, module)
                for alias in node.names:
                    waiting += _files(bases, f"{module}.{alias.name}".lstrip("."))
    return list(trees.values())


def _files(folders: Iterable[Path], module: str) -> Iterator[Path]:
    """Yield the files of a module and of the packages that it is in, as far as they are there."""
    parts = module.split(".") if module else []
    for folder in folders:
        for end in range(len(parts) + 1):
            place = folder.joinpath(*parts[:end])
            candidates = [place / "__init__.py", place.with_suffix(".py")] if end else []
            yield from (path for path in candidates if os.path.isfile(path))


class _Uses:
    """Follows the context, its info and the hyperparameters through names, attributes and calls.

    A name stands for the same thing wherever it occurs: that finds more uses than there are, and
    never fewer.
    """

    def __init__(self, trees: Sequence[ast.Module]) -> None:
        self._nodes = [node for tree in trees for node in ast.walk(tree)]
        self._parents = {
            child: node for node in self._nodes for child in ast.iter_child_nodes(node)
        }
        self._definitions: dict[str, list[_Definition]] = {}
        self._of_detcore: set[str] = set()
        self._inits: set[str] = set()
        self._kinds: dict[str, _Kind] = {}  # of names, and of attributes with a dot before them
        self._found: set[str] = set()
        self._has_init = False
        for node in self._nodes:
            self._note(node)

    def looked_up(self) -> set[str]:
        """Return the names that are looked up.

        Raises:
            _Unclear: If there may be others.
        """
        rounds, known = 0, -1
        while known != len(self._kinds):
            rounds, known = rounds + 1, len(self._kinds)
            _require(rounds <= _MOST_ROUNDS)
            for node in self._nodes:
                is_read = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
                if is_read and isinstance(node, ast.expr) and (kind := self._kind(node)):
                    self._follow(node, kind)
        for node in self._nodes:
            if isinstance(node, ast.Attribute) and node.attr == "hparams":
                _require(isinstance(node.ctx, ast.Store) or self._kind(node) is not None)
        _require(self._has_init)
        return self._found

    def _note(self, node: ast.AST) -> None:
        """Note definitions and imports, and give up at code that cannot be followed."""
        if isinstance(node, _Definition):
            self._definitions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            for alias in node.names:
                _require(alias.name.partition(".")[0] not in _OUT_OF_SIGHT)
                name, full = alias.asname or alias.name, f"{module or ''}.{alias.name}".lstrip(".")
                if full.startswith("detcore"):
                    self._of_detcore.add(name.partition(".")[0])
                ends = ("", ".init", ".core.init")
                self._inits |= {name + end for end in ends if full + end == "detcore.core.init"}
        elif isinstance(node, ast.Constant):
            _require(node.value not in _WAYS_AROUND)
        elif isinstance(node, ast.Name | ast.Attribute):
            _require((node.id if isinstance(node, ast.Name) else node.attr) not in _OUT_OF_SIGHT)

    def _kind(self, node: ast.AST) -> _Kind | None:
        """Return which of the things that are followed an expression is, if any."""
        if isinstance(node, ast.Name):
            return self._kinds.get(node.id)
        if isinstance(node, ast.Attribute):
            of = self._kind(node.value)
            return _PARTS.get((of, node.attr)) if of else self._kinds.get(f".{node.attr}")
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute) and function.attr == "start":
                return "context" if self._kind(function.value) == "context" else None
            return "context" if _dotted(function) in self._inits else None
        if isinstance(node, ast.BoolOp):
            return next(filter(None, map(self._kind, node.values)), None)
        if isinstance(node, ast.IfExp):
            return self._kind(node.body) or self._kind(node.orelse)
        return self._kind(node.value) if isinstance(node, ast.NamedExpr) else None

    def _follow(self, node: ast.expr, kind: _Kind) -> None:
        """Follow the use of an expression.

        Raises:
            _Unclear: If it may be read as a whole.
        """
        self._has_init |= isinstance(node, ast.Call)
        parent = self._parents[node]
        if isinstance(parent, ast.Attribute):
            if kind in ("hparams", "config"):
                call = self._parents[parent]
                if not isinstance(call, ast.Call) or parent.attr not in _LOOKUPS or not call.args:
                    raise _Unclear
                self._look_up(call.args[0], kind)
        elif isinstance(parent, ast.Subscript) and parent.value is node:
            self._look_up(parent.slice, kind)
        elif isinstance(parent, ast.Compare):
            if not all(isinstance(each, ast.Is | ast.IsNot) for each in parent.ops):
                is_lookup = [type(each) for each in parent.ops] in ([ast.In], [ast.NotIn])
                _require(is_lookup and parent.left is not node)
                self._look_up(parent.left, kind)
        elif isinstance(parent, ast.Assign):
            self._assign(parent.targets, kind)
        elif isinstance(parent, ast.AnnAssign | ast.NamedExpr):
            self._assign([parent.target], kind)
        elif isinstance(parent, ast.withitem):
            self._assign(filter(None, [parent.optional_vars]), kind)
        elif isinstance(parent, ast.Call | ast.keyword):
            self._pass_on(parent, node, kind)
        else:
            tests = ast.If | ast.While | ast.Assert | ast.UnaryOp | ast.Expr
            _require(isinstance(parent, tests | ast.BoolOp | ast.IfExp))

    def _look_up(self, key: ast.expr, kind: _Kind) -> None:
        _require(isinstance(key, ast.Constant) and kind in ("hparams", "config"))
        if kind == "hparams" and isinstance(key, ast.Constant):
            self._found.add(str(key.value))

    def _assign(self, targets: Iterable[ast.expr], kind: _Kind) -> None:
        for target in targets:
            if not isinstance(target, ast.Name | ast.Attribute):
                raise _Unclear
            self._set(target.id if isinstance(target, ast.Name) else f".{target.attr}", kind)

    def _set(self, name: str, kind: _Kind) -> None:
        _require(self._kinds.setdefault(name, kind) == kind)

    def _pass_on(self, parent: ast.Call | ast.keyword, node: ast.expr, kind: _Kind) -> None:
        """Follow an argument into a function that is defined here."""
        call = self._parents[parent] if isinstance(parent, ast.keyword) else parent
        if not isinstance(call, ast.Call) or call.func is node:
            raise _Unclear
        words = _dotted(call.func).split(".")
        if kind in ("context", "info") and words[0] in self._of_detcore:
            return
        if words[-1] in _HARMLESS:
            return
        parameters = self._parameters(words)
        if isinstance(parent, ast.keyword):
            _require(parent.arg in parameters)
            self._set(str(parent.arg), kind)
        else:
            place = call.args.index(node)
            is_certain = not any(isinstance(each, ast.Starred) for each in call.args[:place])
            _require(is_certain and place < len(parameters))
            self._set(parameters[place], kind)

    def _parameters(self, words: Sequence[str]) -> list[str]:
        """Return the parameters of the one function, or class, of a name.

        Raises:
            _Unclear: If it is not here, or it is not certain which one is meant.
        """
        name, first = words[-1], self._definitions.get(words[0], [])
        found = self._definitions.get(name, [])
        _require(words == [name] or not any(isinstance(each, ast.ClassDef) for each in first))
        _require(len(found) == 1 and name != "__init__")
        if isinstance(found[0], ast.ClassDef):
            inits = self._definitions.get("__init__", [])
            found = [each for each in inits if self._parents[each] is found[0]]
        if len(found) != 1 or isinstance(function := found[0], ast.ClassDef):
            raise _Unclear
        marks, arguments = list(map(_dotted, function.decorator_list)), function.args
        _require(set(marks) <= {"classmethod", "staticmethod"} and arguments.vararg is None)
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        is_method = isinstance(self._parents[function], ast.ClassDef)
        if is_method and marks != ["staticmethod"]:
            names = names[1:]
        return [*names, *(each.arg for each in arguments.kwonlyargs)]


def _dotted(node: ast.expr) -> str:
    """Return names and attributes as they are written; of other expressions, nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return ""


def _require(condition: bool) -> None:
    if not condition:
        raise _Unclear
