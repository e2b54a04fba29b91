"""Rewrite trial classes of Determined 0.12 and 0.13 that train one model with one optimizer.

The class returned its model and optimizer, and received the model in each method. It becomes a
class that wraps them in ``__init__``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import libcst as cst
import libcst.matchers as m

from detcore_determined.migrate.lookup import Target, look_up
from detcore_determined.migrate.rewriter import Rewriter

_NOTE = (
    "it had one model and one optimizer; __init__ now wraps them, and train_batch calls the old "
    "train_batch, which is named compute_loss, and updates the model"
)
_GETTERS = {
    "get_lr_scheduler": "lr_scheduler",
    "get_model": "model",
    "get_optimizer": "optimizer",
}
"""Methods of the context, and the attribute of the trial that has the same object."""
_CONTEXT = m.Attribute(attr=m.Name("context")) | m.Name("context")
_GETTER = m.Call(m.Attribute(_CONTEXT, m.Name(m.MatchRegex("|".join(_GETTERS)))), args=[])
_RENAMED = {"optimizer": "build_optimizer", "train_batch": "compute_loss"}
_TRAIN_BATCH = """\
def train_batch(self, batch, epoch_idx, batch_idx):
    metrics = self.compute_loss(batch, self.model, epoch_idx, batch_idx)
    loss = metrics["loss"] if isinstance(metrics, dict) else metrics
    self.context.backward(loss)
    self.context.step_optimizer(self.optimizer)
    return metrics
"""
_WRAPPING = """\
self.model = {context}.wrap_model(self.build_model())
self.optimizer = {context}.wrap_optimizer(self.build_optimizer(self.model))
"""
_SCHEDULER = """\
self.lr_scheduler = self.create_lr_scheduler(self.optimizer)
if self.lr_scheduler is not None:
    {context}.wrap_lr_scheduler(self.lr_scheduler.scheduler, self.lr_scheduler.step_mode)
"""


def rewrite_early_trials(rewriter: Rewriter) -> None:
    """Rewrite the PyTorch trial classes of a module that define ``build_model``."""
    trial_bases = {
        use.node
        for item in rewriter.imports
        for use in item.uses
        if _is_pytorch_trial(look_up((*item.path, *use.parts[1:])))
    }
    for definition in rewriter.find(cst.ClassDef):
        methods = {
            item.name.value: item
            for item in definition.body.body
            if isinstance(item, cst.FunctionDef)
        }
        is_trial = any(base.value in trial_bases for base in definition.bases)
        if is_trial and "build_model" in methods and "optimizer" in methods:
            _rewrite_class(rewriter, definition, methods)


def _is_pytorch_trial(target: object) -> bool:
    return isinstance(target, Target) and target.text == "detcore_torch.PyTorchTrial"


def _rewrite_class(
    rewriter: Rewriter, definition: cst.ClassDef, methods: Mapping[str, cst.FunctionDef]
) -> None:
    name = definition.name.value
    parameters = [item.name.value for item in _list_parameters(methods.get("__init__"))]
    if "train_batch" not in methods or len(parameters) not in (0, 2):
        rewriter.leave(
            definition, name, "it has the form of Determined 0.12",
            "wrap the model and the optimizer in __init__(self, context), and call "
            "context.backward and context.step_optimizer in train_batch",
        )  # fmt: skip
        return
    rewriter.note(definition, name, _NOTE)
    context = parameters[1] if parameters else "context"
    code = _WRAPPING + (_SCHEDULER if "create_lr_scheduler" in methods else "")
    if parameters and "self.context =" in rewriter.module.code_for_node(methods["__init__"]):
        lines = _parse(code.format(context=context))
    else:
        lines = _parse(f"self.context = {context}\n" + code.format(context=context))
    for old, new in _RENAMED.items():
        rewriter.change(methods[old], _rename_to(new))
    for method in ("evaluate_batch", "evaluate_full_dataset"):
        if method in methods:
            rewriter.change(methods[method], _drop_model)
    if parameters:
        rewriter.change(methods["__init__"], lambda init: _extend(init, [], lines))
    rewriter.change(definition, lambda new: _add_methods(new, [] if parameters else lines))
    for call in m.findall(definition, _GETTER):
        getter: Any = call
        rewriter.replace_code(getter, f"self.{_GETTERS[getter.func.attr.value]}")


def _list_parameters(method: cst.FunctionDef | None) -> Sequence[cst.Param]:
    return () if method is None else method.params.params


def _parse(code: str) -> list[Any]:
    return [*cst.parse_module(code).body]


def _rename_to(name: str) -> Any:
    return lambda method: method.with_changes(name=cst.Name(name))


def _drop_model(method: cst.FunctionDef) -> cst.FunctionDef:
    """Read the model from the trial, not from a parameter."""
    rest = [item for item in method.params.params if item.name.value != "model"]
    if len(rest) == len(method.params.params):
        return method
    rest[-1] = rest[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    params = method.params.with_changes(params=rest)
    return _extend(method.with_changes(params=params), _parse("model = self.model\n"), [])


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
