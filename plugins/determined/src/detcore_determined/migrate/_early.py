"""Replace parts of early scripts: hyperparameter ranges, modes, arrays and lengths in steps.

Releases before 0.18 trained scripts with a configuration in a Python dictionary.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set

from detcore_determined.migrate._config import IN_STEPS, OLD_ACCURACIES
from detcore_determined.migrate._groups import Rewriter
from detcore_determined.migrate._lookup import Unknown, look_up
from detcore_determined.migrate._references import Reference, inside_of
from detcore_determined.migrate._text import Edit

_RANGES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "determined.Categorical": ("categorical", {"vals": "vals"}),
    "determined.Constant": ("const", {"value": "val"}),
    "determined.Double": ("double", {"minval": "minval", "maxval": "maxval"}),
    "determined.Integer": ("int", {"minval": "minval", "maxval": "maxval"}),
    "determined.Log": ("log", {"minval": "minval", "maxval": "maxval", "base": "base"}),
}
"""Functions that returned a range as a dictionary: its type, and the key of each parameter."""
_ARRAYS = {
    "determined.keras.InMemorySequence": ["data", "labels", "batch_size"],
    "determined.keras._ArrayLikeAdapter": ["x", "y", "batch_size"],
}
"""Classes that read batches from two arrays, and their first parameters."""
_ARRAYS_NOTE = (
    "the arrays themselves take its place: detcore splits them into batches of "
    "context.get_per_slot_batch_size() records"
)
_BATCH_SIZE = "get_per_slot_batch_size"
_MODES = ("determined.Mode", "determined.experimental.Mode")
_LOCAL_MODES = ("local", "test")
_CLUSTER_MODES = ("cluster", "submit")
_SETTINGS = {
    "batches_per_step": "it is called scheduling_unit",
    "max_steps": "give max_length, such as {'batches': 100 * steps}",
    "steps_per_round": "give length_per_round, such as {'batches': 100 * steps}",
    "target_trial_steps": "give max_length, such as {'batches': 100 * steps}",
}
_SEARCHERS = {
    "adaptive": "adaptive_asha",
    "adaptive_simple": "adaptive_asha",
    "sync_halving": "async_halving",
}
_METHODS = {
    "build_model": "wrap_model",
    "optimizer": "wrap_optimizer",
    "create_lr_scheduler": "wrap_lr_scheduler",
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Use:
    reference: Reference
    name: str


def rewrite_calls(
    rewriter: Rewriter, tree: ast.Module, references: Sequence[Reference]
) -> set[Reference]:
    """Replace calls that have an equivalent expression, and return their references.

    Args:
        rewriter: The changes of the module.
        tree: The module.
        references: All references of the module to Determined.
    """
    uses = {reference.start: use for reference in references for use in _find(rewriter, reference)}
    replaced: set[Reference] = set()
    for node in ast.walk(tree) if uses else ():
        if not isinstance(node, ast.Call):
            continue
        use = _get_use(rewriter, uses, node.func)
        if (
            use is not None
            and _is_plain(rewriter, node)
            and (_replace_range(rewriter, node, use) or _replace_arrays(rewriter, tree, node, use))
        ):
            replaced.add(use.reference)
        for keyword in node.keywords:
            mode = keyword.value
            use = _get_use(rewriter, uses, mode.func if isinstance(mode, ast.Call) else mode)
            if keyword.arg == "mode" and use is not None and _replace_mode(rewriter, keyword, use):
                replaced.add(use.reference)
    return replaced


def _find(rewriter: Rewriter, reference: Reference) -> Iterator[_Use]:
    """Yield the use of a name that is in the tables of this module."""
    bindings = rewriter.module.bindings(reference.parts[0], reference.scope)
    if reference.ends and len({binding.path for binding in bindings}) == 1:
        found = look_up((*bindings[0].path, *reference.parts[1:]))
        if isinstance(found, Unknown) and found.name in (*_RANGES, *_ARRAYS, *_MODES):
            yield _Use(reference, found.name)


def _get_use(rewriter: Rewriter, uses: Mapping[int, _Use], node: ast.expr) -> _Use | None:
    """Return the use whose text is exactly a node."""
    start, end = rewriter.span(node)
    use = uses.get(start)
    return use if use is not None and use.reference.ends[-1] == end else None


def _is_plain(rewriter: Rewriter, call: ast.Call) -> bool:
    """Whether a call has no parentheses around its function or a whole argument."""
    arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    ends = [rewriter.span(call.func)[1], *(rewriter.span(argument)[1] for argument in arguments)]
    starts = [*(rewriter.span(argument)[0] for argument in arguments), rewriter.span(call)[1] - 1]
    gaps = [rewriter.text.text[end:start] for end, start in zip(ends, starts, strict=True)]
    for keyword in call.keywords:
        gaps.append(rewriter.text.text[rewriter.span(keyword)[0] : rewriter.span(keyword.value)[0]])
    has_opening = gaps[0].lstrip().startswith("(")
    return has_opening and sum(gap.count("(") + gap.count(")") for gap in gaps) == 1


def _name_arguments(call: ast.Call, parameters: Sequence[str]) -> list[str] | None:
    """Return the parameter of each argument, as they are written; None if one is not known."""
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    names = [*parameters[: len(call.args)], *(keyword.arg for keyword in call.keywords)]
    is_known = len(names) == len(call.args) + len(call.keywords) and set(names) <= {*parameters}
    return [name for name in names if name is not None] if is_known else None


def _replace_range(rewriter: Rewriter, call: ast.Call, use: _Use) -> bool:
    """Write the dictionary that the function returned."""
    kind, keys = _RANGES.get(use.name, ("", {}))
    names = _name_arguments(call, [*keys]) if kind else None
    if not names or len(set(names)) < len(names):
        return False
    opening = _find_opening(rewriter, call)
    between = "" if rewriter.text.text[opening : opening + 1].isspace() else " "
    rewriter.edits.append(Edit(use.reference.start, opening, f'{{"type": "{kind}",{between}'))
    arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    for name, argument in zip(names, arguments, strict=True):
        start, _ = rewriter.span(argument)
        value = argument.value if isinstance(argument, ast.keyword) else argument
        end = rewriter.span(value)[0] if isinstance(argument, ast.keyword) else start
        rewriter.edits.append(Edit(start, end, f'"{keys[name]}": '))
    _, end = rewriter.span(call)
    rewriter.edits.append(Edit(end - 1, end, "}"))
    return True


def _replace_arrays(rewriter: Rewriter, tree: ast.Module, call: ast.Call, use: _Use) -> bool:
    """Write the two arrays as a tuple."""
    parameters = _ARRAYS.get(use.name)
    if parameters is None or _name_arguments(call, parameters) != parameters:
        return False
    arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    sizes = [arguments[2].value if isinstance(arguments[2], ast.keyword) else arguments[2]]
    if isinstance(sizes[0], ast.Name):
        sizes = list(_find_values(tree, sizes[0].id))
    if not sizes or not all(ast.unparse(size).endswith(f".{_BATCH_SIZE}()") for size in sizes):
        return False
    rewriter.edits.append(Edit(use.reference.start, _find_opening(rewriter, call), "("))
    for argument in arguments[:2]:
        if isinstance(argument, ast.keyword):
            start, _ = rewriter.span(argument)
            rewriter.edits.append(Edit(start, rewriter.span(argument.value)[0], ""))
    rewriter.edits.append(Edit(rewriter.span(arguments[1])[1], rewriter.span(arguments[2])[1], ""))
    rewriter.note(use.reference.start, use.name, _ARRAYS_NOTE)
    return True


def _find_values(tree: ast.Module, name: str) -> Iterator[ast.expr]:
    """Yield all values that a module assigns to a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
            yield node.value


def _find_opening(rewriter: Rewriter, call: ast.Call) -> int:
    """Return the offset behind the parenthesis that opens a call."""
    return rewriter.text.text.index("(", rewriter.span(call.func)[1]) + 1


def _replace_mode(rewriter: Rewriter, keyword: ast.keyword, use: _Use) -> bool:
    """Write the arguments ``local`` and ``test``; a local mode trained and validated one batch."""
    value = keyword.value
    if isinstance(value, ast.Call):
        argument = ast.unparse(value.args[0]) if len(value.args) == 1 else ""
        if value.keywords or not all(part.isidentifier() for part in argument.split(".")):
            return False
        names = ", ".join(f'"{name}"' for name in _LOCAL_MODES)
        choice = f"{argument} in ({names})"
        new = f"local={choice}, test={choice}"
    elif use.reference.parts[-1].lower() in _LOCAL_MODES:
        new = "local=True, test=True"
    elif use.reference.parts[-1].lower() in _CLUSTER_MODES:
        new = "local=False"
    else:
        return False
    rewriter.edits.append(Edit(*rewriter.span(keyword), new))
    return True


def rewrite_settings(rewriter: Rewriter, tree: ast.Module, metrics: Set[str]) -> None:
    """Rewrite configurations that are dictionaries, and report their other early settings.

    Args:
        rewriter: The changes of the module.
        tree: The module.
        metrics: Metrics that the code passes to ``compile``; see `migrate_config`.
    """
    replaced: set[ast.expr] = set()
    dictionaries = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    for node in dictionaries:
        config = _read_entries(node)
        _, searcher = config.get("searcher", (None, None))
        if isinstance(searcher, ast.Dict):
            entries = _read_entries(searcher)
            replaced |= _replace_steps(rewriter, config, entries)
            _replace_accuracy(rewriter, entries, metrics)
            _report_searcher(rewriter, entries)
            _, hyperparameters = config.get("hyperparameters", (None, None))
            if isinstance(hyperparameters, ast.Dict):
                _replace_batch_size(rewriter, _read_entries(hyperparameters))
    for node in dictionaries:
        for name, (key, _) in _read_entries(node).items():
            if name in _SETTINGS and key not in replaced:
                rewriter.leave(key, name, "no such setting", _SETTINGS[name])


def _read_entries(node: ast.Dict) -> dict[str, tuple[ast.Constant, ast.expr]]:
    return {
        key.value: (key, value)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def _replace_steps(
    rewriter: Rewriter,
    config: Mapping[str, tuple[ast.Constant, ast.expr]],
    searcher: Mapping[str, tuple[ast.Constant, ast.expr]],
) -> set[ast.expr]:
    """Convert lengths in steps to batches, and return the keys that were replaced."""
    replaced: set[ast.expr] = set()
    key, per_step = config.get("batches_per_step", (None, ast.Constant(100)))
    batches_per_step = _read_count(per_step)
    if batches_per_step is None:
        return replaced
    if key is not None and _replace_string(rewriter, key, "scheduling_unit"):
        replaced.add(key)
    for entries in (config, searcher):
        for name, (key, value) in entries.items():
            new = IN_STEPS.get(name, name)
            is_free = new == name or new not in entries
            steps = _read_count(value)
            if name not in IN_STEPS or not is_free or steps is None:
                continue
            if new == name or _replace_string(rewriter, key, new):
                length = f'{{"batches": {steps * batches_per_step}}}'
                rewriter.edits.append(Edit(*rewriter.span(value), length))
                replaced.add(key)
    return replaced


def _replace_accuracy(
    rewriter: Rewriter, searcher: Mapping[str, tuple[ast.Constant, ast.expr]], metrics: Set[str]
) -> None:
    """Name the accuracy as Keras has done since TensorFlow 2.0."""
    _, metric = searcher.get("metric", (None, None))
    is_new = "accuracy" in metrics and "acc" not in metrics
    if is_new and isinstance(metric, ast.Constant) and metric.value in OLD_ACCURACIES:
        _replace_string(rewriter, metric, metric.value.replace("acc", "accuracy"))


def _replace_batch_size(
    rewriter: Rewriter, hyperparameters: Mapping[str, tuple[ast.Constant, ast.expr]]
) -> None:
    """Write an integer for a string of digits, which Determined accepted."""
    _, size = hyperparameters.get("global_batch_size", (None, None))
    if isinstance(size, ast.Constant) and isinstance(size.value, str) and size.value.isdigit():
        rewriter.edits.append(Edit(*rewriter.span(size), size.value))


def _report_searcher(
    rewriter: Rewriter, searcher: Mapping[str, tuple[ast.Constant, ast.expr]]
) -> None:
    _, name = searcher.get("name", (None, None))
    if isinstance(name, ast.Constant) and name.value in _SEARCHERS:
        rewriter.leave(
            name, str(name.value), "the searcher is no longer available",
            f"use {_SEARCHERS[name.value]}",
        )  # fmt: skip


def _read_count(node: ast.expr) -> int | None:
    """Return the integer that a literal stands for; None for other expressions."""
    is_count = isinstance(node, ast.Constant) and type(node.value) is int
    return int(ast.literal_eval(node)) if is_count else None


def _replace_string(rewriter: Rewriter, node: ast.Constant, new: str) -> bool:
    """Replace the content of a string literal, unless it is written in an unusual way."""
    start = inside_of(rewriter.text, node)
    if start is None:
        return False
    rewriter.edits.append(Edit(start, start + len(str(node.value)), new))
    return True


def report_trial_methods(rewriter: Rewriter, tree: ast.Module) -> None:
    """Report methods that a PyTorchTrial had before 0.13."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for member in node.body if "PyTorchTrial" in bases else ():
            if isinstance(member, ast.FunctionDef) and member.name in _METHODS:
                rewriter.leave(
                    member, member.name, "a PyTorchTrial makes its parts in __init__",
                    f"pass them to self.context.{_METHODS[member.name]}(...) there",
                )  # fmt: skip
