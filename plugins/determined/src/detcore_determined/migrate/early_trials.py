"""Rewrite trial classes of Determined 0.12 and 0.13 that train one model with one optimizer.

The class returned its model and optimizer, and received the model in each method. It becomes a
class that wraps them in ``__init__``. Its subclasses in the same module are rewritten as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import libcst as cst
import libcst.matchers as m

from detcore_determined.migrate.lookup import Target, look_up
from detcore_determined.migrate.rewriter import Rewriter

_NOTE = (
    "it had one model and one optimizer; __init__ now wraps them, and train_batch calls the old "
    "train_batch, which is named compute_loss, and updates the model"
)
_ADVICE = (
    "wrap the model and the optimizer in __init__(self, context), and call context.backward and "
    "context.step_optimizer in train_batch(self, batch, epoch_idx, batch_idx)"
)
_TRAIN_BATCH = """\
def train_batch(self, batch, epoch_idx, batch_idx):
    context = self.wrapping_context
    metrics = self.compute_loss(
        batch=batch, model=context.get_model(), epoch_idx=epoch_idx, batch_idx=batch_idx
    )
    loss = metrics["loss"] if isinstance(metrics, dict) else metrics
    context.backward(loss)
    context.step_optimizer(context.get_optimizer())
    return metrics
"""
_WRAPPING = """\
self.wrapping_context = {context}
model = {context}.wrap_model(self.build_model())
optimizer = {context}.wrap_optimizer(self.optimizer(model))
"""
_SCHEDULER = """\
lr_scheduler = self.create_lr_scheduler(optimizer)
if lr_scheduler is not None:
    {context}.wrap_lr_scheduler(lr_scheduler.scheduler, lr_scheduler.step_mode)
"""
_BASE_CALL = m.Attribute(m.Call(m.Name("super")), m.Name("train_batch"))
_Methods = Mapping[str, cst.FunctionDef]


def rewrite_early_trials(rewriter: Rewriter) -> None:
    """Rewrite the PyTorch trial classes of a module whose ``train_batch`` receives the model."""
    trial_bases = {
        use.node
        for item in rewriter.imports
        for use in item.uses
        if _is_pytorch_trial(look_up((*item.path, *use.parts[1:])))
    }
    rewritten: set[str] = set()
    for definition in sorted(rewriter.find(cst.ClassDef), key=rewriter.place):
        methods = {
            item.name.value: item
            for item in definition.body.body
            if isinstance(item, cst.FunctionDef)
        }
        bases = [base.value for base in definition.bases]
        if any(isinstance(base, cst.Name) and base.value in rewritten for base in bases):
            _rewrite_methods(rewriter, methods)
        elif "train_batch" in methods and "model" in _list_names(methods["train_batch"]):
            is_direct = any(base in trial_bases for base in bases)
            if not is_direct or not _rewrite_class(rewriter, definition, methods):
                rewriter.leave(
                    definition, definition.name.value, "it has the form of Determined 0.12", _ADVICE
                )
                continue
        else:
            continue
        rewritten.add(definition.name.value)


def _is_pytorch_trial(target: object) -> bool:
    return isinstance(target, Target) and target.text == "detcore_torch.PyTorchTrial"


def _list_names(method: cst.FunctionDef | None) -> list[str]:
    return [] if method is None else [item.name.value for item in method.params.params]


def _rewrite_class(rewriter: Rewriter, definition: cst.ClassDef, methods: _Methods) -> bool:
    """Rewrite a class, or return False if its form is unusual."""
    init = methods.get("__init__")
    names = _list_names(init)
    is_usual = {"build_model", "optimizer"} <= methods.keys() and len(names) in (0, 2)
    if not is_usual or "compute_loss" in methods or (init and m.findall(init, m.Return())):
        return False
    rewriter.note(definition, definition.name.value, _NOTE)
    code = _WRAPPING + (_SCHEDULER if "create_lr_scheduler" in methods else "")
    if init is None:
        code = "self.context = {context}\n" + code
    lines = _parse(code.format(context=names[1] if names else "context"))
    _rewrite_methods(rewriter, methods)
    if init is not None:
        rewriter.change(init, lambda old: _extend(old, [], lines))
    rewriter.change(definition, lambda new: _add_methods(new, [] if init else lines))
    return True


def _rewrite_methods(rewriter: Rewriter, methods: _Methods) -> None:
    """Rename ``train_batch``, and read the model from the context in evaluations."""
    if "model" in _list_names(methods.get("train_batch")):
        calls: list[Any] = [*m.findall(methods["train_batch"], _BASE_CALL)]
        for name in [methods["train_batch"].name, *(call.attr for call in calls)]:
            rewriter.change(name, lambda old: old.with_changes(value="compute_loss"))
    for name in ("evaluate_batch", "evaluate_full_dataset"):
        if "model" in _list_names(methods.get(name)):
            rewriter.change(methods[name], _drop_model)


def _parse(code: str) -> list[Any]:
    return [*cst.parse_module(code).body]


def _drop_model(method: cst.FunctionDef) -> cst.FunctionDef:
    """Read the model from the trial, not from a parameter."""
    others = [item for item in method.params.params if item.name.value != "model"]
    others[-1] = others[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    params = method.params.with_changes(params=others)
    lines = _parse("model = self.wrapping_context.get_model()\n")
    return _extend(method.with_changes(params=params), lines, [])


def _extend(method: cst.FunctionDef, first: list[Any], last: list[Any]) -> cst.FunctionDef:
    """Add statements after the docstring, and at the end."""
    body = [*method.body.body]
    if not isinstance(method.body, cst.IndentedBlock):  # def f(): pass
        body = [cst.SimpleStatementLine([*method.body.body])]
    has_docstring = m.matches(body[0], m.SimpleStatementLine([m.Expr(m.SimpleString())]))
    start = int(has_docstring)
    statements = [*body[:start], *first, *body[start:], *last]
    if isinstance(method.body, cst.IndentedBlock):
        return method.with_changes(body=method.body.with_changes(body=statements))
    return method.with_changes(body=cst.IndentedBlock(statements))


def _add_methods(definition: cst.ClassDef, init: list[Any]) -> cst.ClassDef:
    """Add ``train_batch``, and ``__init__`` with these statements if there are any."""
    methods = [*definition.body.body]
    if init:
        method: Any = cst.parse_statement("def __init__(self, context):\n    pass\n")
        body = method.body.with_changes(body=init)
        has_docstring = m.matches(methods[0], m.SimpleStatementLine([m.Expr(m.SimpleString())]))
        methods.insert(int(has_docstring), method.with_changes(body=body))
    train_batch: Any = cst.parse_statement(_TRAIN_BATCH)
    methods.append(train_batch.with_changes(leading_lines=[cst.EmptyLine(indent=False)]))
    return definition.with_changes(body=definition.body.with_changes(body=methods))
