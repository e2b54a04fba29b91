"""Replace arguments that newer releases of Keras refuse or read differently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from detcore_determined.migrate.rewriter import Import, Piece, Rewriter, make_piece

_MODULE = "tensorflow.keras.optimizers."
_DECAY = "TensorFlow 2.15 refuses it, and newer releases ignore it"
_SCHEDULE = "schedules.InverseTimeDecay"
_SETTERS = ("LearningRateScheduler", "ReduceLROnPlateau")
_OPTIMIZER = m.Name(m.MatchRegex(r"\w*(opt|optimizer)"))
_RATE = m.Attribute(
    _OPTIMIZER | m.Attribute(attr=_OPTIMIZER), m.Name("lr") | m.Name("learning_rate")
)


def rewrite_compile(rewriter: Rewriter) -> None:
    """Pass arguments of ``model.compile`` by name, because Keras 3 changed their order."""
    for call in rewriter.find(cst.Call):
        is_compile = m.matches(call.func, m.Attribute(attr=m.Name("compile")))
        if is_compile and not any(argument.star for argument in call.args):
            for argument, name in zip(call.args[2:], ("metrics", "loss_weights"), strict=False):
                if argument.keyword is None:
                    _rename(rewriter, argument, name)


def _rename(rewriter: Rewriter, argument: cst.Arg, name: str) -> None:
    none = cst.SimpleWhitespace("")
    equal = argument.equal if argument.keyword else cst.AssignEqual(none, none)
    rewriter.change(argument, lambda old: old.with_changes(keyword=cst.Name(name), equal=equal))


def rewrite_optimizer(rewriter: Rewriter, call: cst.Call, item: Import, name: str) -> None:
    """Replace ``lr``, and ``decay`` by the schedule that computes the same learning rates.

    Args:
        rewriter: The changes of the module.
        call: A call of an imported object.
        item: The import.
        name: The full public name of the called object.
    """
    if not name.startswith(_MODULE):
        return
    keywords = {argument.keyword.value: argument for argument in call.args if argument.keyword}
    if "lr" in keywords:
        _rename(rewriter, keywords["lr"], "learning_rate")
    imports = [
        imported
        for imported in rewriter.imports
        if any(use.node is call.func for use in imported.uses)
    ]
    paths = [imported.path for imported in imports]
    if "decay" not in keywords or any("legacy" in path for path in (name.split("."), *paths)):
        return
    is_ambiguous = len(imports) > 1 or rewriter.is_assigned(item)
    rate = _find_rate(call)
    obstacle = _find_obstacle(rewriter, rate)
    if obstacle:
        rewriter.leave(
            keywords["decay"], "decay", f"{_DECAY}; a schedule cannot take its place: {obstacle}",
            f"use tf.keras.optimizers.legacy.{name.rpartition('.')[2]}, which keeps it, with "
            '"tensorflow==2.15.*"',
        )  # fmt: skip
    elif rate is None or is_ambiguous or not _replace_decay(rewriter, call, item):
        codes = [
            rewriter.module.code_for_node(argument.value) if argument else "LEARNING_RATE"
            for argument in (rate, keywords["decay"])
        ]
        rewriter.leave(
            keywords["decay"], "decay", _DECAY,
            f"pass learning_rate=tf.keras.optimizers.{_SCHEDULE}({codes[0]}, decay_steps=1, "
            f"decay_rate={codes[1]})",
        )  # fmt: skip


def _find_rate(call: cst.Call) -> cst.Arg | None:
    """Return the argument that is the learning rate."""
    for argument in call.args:
        if argument.keyword and argument.keyword.value in ("lr", "learning_rate"):
            return argument
    first = call.args[0]
    return None if first.keyword or first.star else first


def _find_obstacle(rewriter: Rewriter, rate: cst.Arg | None) -> str:
    """Return why a schedule cannot replace ``decay``; empty if it can."""
    name = get_full_name_for_node(rate.value) if rate is not None else None
    if "schedules" in (name or "").split("."):
        return "the learning rate is a schedule"
    setter = next(_list_setters(rewriter), "")
    return f"{setter} sets the learning rate, which a schedule would overwrite" if setter else ""


def _list_setters(rewriter: Rewriter) -> Iterator[str]:
    """Yield the code that sets the learning rate of an optimizer during training."""
    yield from (item.path[-1] for item in rewriter.imports if item.path[-1] in _SETTERS)
    for node in rewriter.find(cst.Attribute):
        if node.attr.value in _SETTERS:
            yield node.attr.value
        elif m.matches(node, _RATE):
            parent = rewriter.parents[node]
            if isinstance(parent, (cst.AssignTarget, cst.AugAssign)) or (
                m.matches(parent, m.Attribute(attr=m.Name("assign")))
                or m.matches(
                    rewriter.parents[parent], m.Call(m.Attribute(attr=m.Name("set_value")))
                )
            ):
                yield rewriter.module.code_for_node(node)


def _replace_decay(rewriter: Rewriter, call: cst.Call, item: Import) -> bool:
    """Move ``decay`` into a schedule, if the schedule can be imported."""
    if isinstance(call.func, cst.Attribute):
        schedule = f"{rewriter.module.code_for_node(call.func.value)}.{_SCHEDULE}"
        return rewriter.replace(call, lambda call: _move_decay(rewriter, call, schedule))
    pieces = rewriter.plans.get(item.alias) or [make_piece(item.statement, item.alias)]
    schedules = Piece(pieces[0].module, "schedules")
    is_planned = any(schedules in plan for plan in rewriter.plans.values())
    if "schedules" in item.scope or not pieces[0].name:
        return False
    is_replaced = rewriter.replace(call, lambda call: _move_decay(rewriter, call, _SCHEDULE))
    if is_replaced and not is_planned:
        rewriter.plans[item.alias] = [*pieces, schedules]
    return is_replaced


def _move_decay(rewriter: Rewriter, call: cst.Call, schedule: str) -> cst.Call:
    """Return a call whose learning rate is a schedule."""
    rate = _find_rate(call)
    assert rate is not None  # checked by the caller
    decay = next(item for item in call.args if item.keyword and item.keyword.value == "decay")
    codes = [rewriter.module.code_for_node(argument.value) for argument in (rate, decay)]
    value = cst.parse_expression(f"{schedule}({codes[0]}, decay_steps=1, decay_rate={codes[1]})")
    arguments: list[Any] = [*call.args]
    arguments[arguments.index(rate)] = rate.with_changes(value=value)
    arguments.remove(decay)
    if decay is call.args[-1]:
        end = {"comma": decay.comma, "whitespace_after_arg": decay.whitespace_after_arg}
        arguments[-1] = arguments[-1].with_changes(**end)
    return call.with_changes(args=arguments)
