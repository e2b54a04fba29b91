"""Replace parts of early scripts: hyperparameter ranges, modes, arrays and lengths in steps.

Releases before 0.18 trained scripts with a configuration in a Python dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import libcst as cst
import libcst.matchers as m

from detcore_determined.migrate.experiment_file import IN_STEPS
from detcore_determined.migrate.lookup import Unknown, look_up
from detcore_determined.migrate.rewriter import Rewriter

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
    "use the arrays themselves: detcore splits them into batches of "
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
_Entries = Mapping[str, cst.DictElement]


def rewrite_calls(rewriter: Rewriter) -> set[cst.CSTNode]:
    """Replace calls that have an equivalent expression, and return the uses in them."""
    replaced: set[cst.CSTNode] = set()
    for item in rewriter.imports:
        for use in item.uses:
            target = look_up((*item.path, *use.parts[1:]))
            if use.node in replaced or not isinstance(target, Unknown):
                continue
            call = rewriter.parents[use.node]
            is_called = isinstance(call, cst.Call) and call.func is use.node
            replace = _replace_mode if target.name in _MODES else _replace_call
            if is_called and replace(rewriter, call, target.name):
                replaced.add(use.node)
    return replaced


def _replace_call(rewriter: Rewriter, call: cst.Call, name: str) -> bool:
    if name in _RANGES:
        kind, keys = _RANGES[name]
        names = _name_arguments(call, [*keys])
        if not names or len(set(names)) < len(names):
            return False
        types = [keys[name] for name in names]
        return rewriter.replace(call, lambda new: _make_range(rewriter, new, kind, types))
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
    is_replaced = rewriter.replace(call, lambda new: _make_arrays(rewriter, new))
    rewriter.note(call, name, _ARRAYS_NOTE if is_replaced else "")
    return is_replaced


def _name_arguments(call: cst.Call, parameters: Sequence[str]) -> list[str] | None:
    """Return the parameter of each argument in source order, or None if a parameter is unknown."""
    generator = m.Arg(m.GeneratorExp(lpar=[]))
    if any(argument.star or m.matches(argument, generator) for argument in call.args):
        return None
    positional = iter(parameters)
    names = [
        argument.keyword.value if argument.keyword else next(positional, "")
        for argument in call.args
    ]
    return names if set(names) <= {*parameters} else None


def _make_range(rewriter: Rewriter, call: cst.Call, kind: str, keys: Sequence[str]) -> Any:
    """Return the dictionary that a function for ranges returned."""
    values = [rewriter.module.code_for_node(argument.value) for argument in call.args]
    items = ", ".join(f'"{key}": {value}' for key, value in zip(keys, values, strict=True))
    return cst.parse_expression(f'{{"type": "{kind}", {items}}}')


def _make_arrays(rewriter: Rewriter, call: cst.Call) -> Any:
    """Return the two arrays as a tuple."""
    arrays = [rewriter.module.code_for_node(argument.value) for argument in call.args[:2]]
    return cst.parse_expression(f"({', '.join(arrays)})")


def _replace_mode(rewriter: Rewriter, call: cst.Call, _: str) -> bool:
    """Write the arguments ``local`` and ``test``; a local mode trained and validated one batch."""
    argument = rewriter.parents[call]
    mode = m.Call(args=[m.Arg(m.Name() | m.Attribute(), keyword=None)])
    if not m.matches(argument, m.Arg(mode, keyword=m.Name("mode"))):
        return False
    code = f'{rewriter.module.code_for_node(call.args[0].value)} in ("local", "test")'
    test: Any = cst.parse_expression(f"f(local={code}, test={code})")
    local, last = test.args
    parts = {"keyword": last.keyword, "value": last.value}
    rewriter.change(argument, lambda old: cst.FlattenSentinel([local, old.with_changes(**parts)]))
    return True


def rewrite_settings(rewriter: Rewriter) -> None:
    """Rewrite configurations that are dictionaries, and report their other early settings."""
    dictionaries = [_read_entries(node) for node in rewriter.find(cst.Dict)]
    for config in dictionaries:
        searcher = config["searcher"].value if "searcher" in config else None
        if isinstance(searcher, cst.Dict):
            _replace_steps(rewriter, config, _read_entries(searcher))
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
