"""Replace parts of early scripts: hyperparameter ranges, modes, arrays and lengths in steps.

Releases before 0.18 trained scripts with a configuration in a Python dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import libcst as cst
import libcst.matchers as m

from detcore_determined.migrate._config import IN_STEPS, OLD_ACCURACIES
from detcore_determined.migrate._lookup import Unknown, look_up
from detcore_determined.migrate._rewriter import Rewriter

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
_BATCH_SIZE = m.Call(m.Attribute(attr=m.Name("get_per_slot_batch_size")), args=[])
_MODES = ("determined.Mode", "determined.experimental.Mode")
_SETTINGS = {
    "batches_per_step": "it is called scheduling_unit",
    "max_steps": "give max_length, such as {'batches': 100 * steps}",
    "steps_per_round": "give length_per_round, such as {'batches': 100 * steps}",
    "target_trial_steps": "give max_length, such as {'batches': 100 * steps}",
}
_METHODS = {
    "build_model": "wrap_model",
    "optimizer": "wrap_optimizer",
    "create_lr_scheduler": "wrap_lr_scheduler",
}
_Entries = Mapping[str, cst.DictElement]


def rewrite_calls(rewriter: Rewriter) -> set[cst.CSTNode]:
    """Replace calls that have an equivalent expression, and return the uses in them."""
    replaced: set[cst.CSTNode] = set()
    for item in rewriter.imports:
        for use in item.uses:
            found = look_up((*item.path, *use.parts[1:]))
            if use.node in replaced or not isinstance(found, Unknown):
                continue
            call = rewriter.parents[use.node]
            is_called = isinstance(call, cst.Call) and call.func is use.node
            value = call if is_called else use.node
            if (is_called and _replace_call(rewriter, call, found.name)) or (
                found.name in _MODES and _replace_mode(rewriter, value, use.parts[-1])
            ):
                replaced.add(use.node)
    return replaced


def _replace_call(rewriter: Rewriter, call: cst.Call, name: str) -> bool:
    if name in _RANGES:
        kind, keys = _RANGES[name]
        names = _name_arguments(call, [*keys])
        if not names or len(set(names)) < len(names):
            return False
        return rewriter.replace(call, lambda new: _make_range(new, kind, [keys[n] for n in names]))
    parameters = _ARRAYS.get(name)
    if parameters is None or _name_arguments(call, parameters) != parameters:
        return False
    size = call.args[2].value
    sizes = [size]
    if isinstance(size, cst.Name):
        target = m.Assign([m.AssignTarget(m.Name(size.value))])
        sizes = [node.value for node in rewriter.find(cst.Assign) if m.matches(node, target)]
    if not sizes or not all(m.matches(size, _BATCH_SIZE) for size in sizes):
        return False
    is_replaced = rewriter.replace(call, _make_arrays)
    rewriter.note(call, name, _ARRAYS_NOTE if is_replaced else "")
    return is_replaced


def _name_arguments(call: cst.Call, parameters: Sequence[str]) -> list[str] | None:
    """Return the parameter of each argument, as they are written; None if one is not known."""
    generator = m.Arg(m.GeneratorExp(lpar=[]))
    if any(argument.star or m.matches(argument, generator) for argument in call.args):
        return None
    positional = iter(parameters)
    names = [
        argument.keyword.value if argument.keyword else next(positional, "")
        for argument in call.args
    ]
    return names if set(names) <= {*parameters} else None


def _make_range(call: cst.Call, kind: str, keys: Sequence[str]) -> cst.Dict:
    """Return the dictionary that a function for ranges returned."""
    space: Any = call.whitespace_before_args
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" ") if space.empty else space)
    elements = [
        cst.DictElement(cst.SimpleString(f'"{key}"'), argument.value, comma=argument.comma)
        for key, argument in zip(keys, call.args, strict=True)
    ]
    first = cst.DictElement(cst.SimpleString('"type"'), cst.SimpleString(f'"{kind}"'), comma=comma)
    end = cst.RightCurlyBrace(call.args[-1].whitespace_after_arg)
    return cst.Dict([first, *elements], rbrace=end, lpar=call.lpar, rpar=call.rpar)


def _make_arrays(call: cst.Call) -> cst.Tuple:
    """Return the two arrays as a tuple."""
    data, labels, size = call.args
    comma = size.comma
    end = comma.whitespace_after if isinstance(comma, cst.Comma) else size.whitespace_after_arg
    return cst.Tuple(
        [cst.Element(data.value, comma=data.comma), cst.Element(labels.value)],
        lpar=[*call.lpar, cst.LeftParen(call.whitespace_before_args)],
        rpar=[cst.RightParen(end), *call.rpar],
    )


def _replace_mode(rewriter: Rewriter, value: cst.BaseExpression, name: str) -> bool:
    """Write the arguments ``local`` and ``test``; a local mode trained and validated one batch."""
    argument = rewriter.parents[value]
    if not m.matches(argument, m.Arg(keyword=m.Name("mode"))):
        return False
    if isinstance(value, cst.Call):
        if not m.matches(value, m.Call(args=[m.Arg(m.Name() | m.Attribute(), keyword=None)])):
            return False
        mode = rewriter.module.code_for_node(value.args[0].value)
        code = f'f(local={mode} in ("local", "test"), test={mode} in ("local", "test"))'
    elif name.lower() in ("local", "test"):
        code = "f(local=True, test=True)"
    elif name.lower() in ("cluster", "submit"):
        code = "f(local=False)"
    else:
        return False
    call: Any = cst.parse_expression(code)
    *first, last = call.args
    parts = {"keyword": last.keyword, "value": last.value}
    rewriter.change(argument, lambda old: cst.FlattenSentinel([*first, old.with_changes(**parts)]))
    return True


def rewrite_settings(rewriter: Rewriter, metrics: Set[str]) -> None:
    """Rewrite configurations that are dictionaries, and report their other early settings.

    Args:
        rewriter: The changes of the module.
        metrics: Metrics that the code passes to ``compile``; see `migrate_config`.
    """
    dictionaries = [_read_entries(node) for node in rewriter.find(cst.Dict)]
    for config in dictionaries:
        searcher = _get_section(config, "searcher")
        if searcher is None:
            continue
        _replace_steps(rewriter, config, searcher)
        is_renamed = "accuracy" in metrics and "acc" not in metrics
        metric = _get_string(searcher, "metric")
        if is_renamed and metric in OLD_ACCURACIES:
            new = metric.replace("acc", "accuracy")
            rewriter.replace_string(searcher["metric"].value, new)
        hyperparameters = _get_section(config, "hyperparameters") or {}
        size = _get_string(hyperparameters, "global_batch_size")
        if size.isdigit():  # Determined accepted a string of digits
            rewriter.replace_code(hyperparameters["global_batch_size"].value, size)
    for entries in dictionaries:
        for name in _SETTINGS.keys() & entries.keys():
            key = entries[name].key
            if key not in rewriter.changes:
                rewriter.leave(key, name, "no such setting", _SETTINGS[name])


def _read_entries(node: cst.BaseExpression) -> _Entries:
    elements: Any = node.elements if isinstance(node, cst.Dict) else ()
    return {
        str(element.key.evaluated_value): element
        for element in elements
        if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString)
    }


def _get_section(entries: _Entries, name: str) -> _Entries | None:
    value = entries[name].value if name in entries else None
    return _read_entries(value) if isinstance(value, cst.Dict) else None


def _get_string(entries: _Entries, name: str) -> str:
    value = entries[name].value if name in entries else None
    return str(value.evaluated_value) if isinstance(value, cst.SimpleString) else ""


def _replace_steps(rewriter: Rewriter, config: _Entries, searcher: _Entries) -> None:
    """Convert lengths in steps to batches: a step had ``batches_per_step`` of them."""
    batches_per_step = 100
    if "batches_per_step" in config:
        element = config["batches_per_step"]
        if not isinstance(element.value, cst.Integer):
            return
        batches_per_step = element.value.evaluated_value
        rewriter.replace_string(element.key, "scheduling_unit")
    for entries in (config, searcher):
        for name, element in entries.items():
            new = IN_STEPS.get(name)
            is_free = new == name or new not in entries
            if new is None or not is_free or not isinstance(element.value, cst.Integer):
                continue
            if new == name or rewriter.replace_string(element.key, new):
                batches = element.value.evaluated_value * batches_per_step
                rewriter.replace_code(element.value, f'{{"batches": {batches}}}')


def report_trial_methods(rewriter: Rewriter) -> None:
    """Report methods that a PyTorchTrial had before 0.13."""
    trial = m.Name("PyTorchTrial") | m.Attribute(attr=m.Name("PyTorchTrial"))
    for node in rewriter.find(cst.ClassDef):
        if any(m.matches(base.value, trial) for base in node.bases):
            for member in node.body.body:
                if isinstance(member, cst.FunctionDef) and member.name.value in _METHODS:
                    rewriter.leave(
                        member, member.name.value, "a PyTorchTrial makes its parts in __init__",
                        f"pass them to self.context.{_METHODS[member.name.value]}(...) there",
                    )  # fmt: skip
