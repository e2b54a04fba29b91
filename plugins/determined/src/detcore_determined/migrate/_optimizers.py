"""Replace arguments that newer releases of Keras refuse or read differently."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from detcore_determined.migrate._groups import Rewriter
from detcore_determined.migrate._text import Edit

_MODULE = "tensorflow.keras.optimizers."
_DECAY = "TensorFlow 2.15 refuses it, and newer releases ignore it"
_SCHEDULE = "schedules.InverseTimeDecay"
_IMPORT = ", schedules"
_SETTERS = {"LearningRateScheduler", "ReduceLROnPlateau"}


def rewrite_compile(rewriter: Rewriter, node: ast.Call) -> None:
    """Name the arguments after the loss in ``model.compile``, whose order Keras 3 has changed."""
    is_compile = isinstance(node.func, ast.Attribute) and node.func.attr == "compile"
    if not is_compile or any(isinstance(argument, ast.Starred) for argument in node.args):
        return
    for argument, name in zip(node.args[2:], ("metrics", "loss_weights"), strict=False):
        start, _ = rewriter.span(argument)
        rewriter.edits.append(Edit(start, start, f"{name}="))


def rewrite_optimizer(rewriter: Rewriter, tree: ast.Module, node: ast.Call, name: str) -> None:
    """Replace ``lr``, and ``decay`` by the schedule that computes the same learning rates.

    Args:
        rewriter: The changes of the module.
        tree: The module.
        node: A call.
        name: The full public name of the called optimizer.
    """
    if not name.startswith(_MODULE):
        return
    keywords = {keyword.arg: keyword for keyword in node.keywords}
    lr = keywords.get("lr")
    if lr is not None:
        start = rewriter.text.offset(lr.lineno, lr.col_offset)
        rewriter.edits.append(Edit(start, start + len("lr"), "learning_rate"))
    bound = list(_list_imports(tree, ast.unparse(node.func)))
    modules = [name, *(statement.module or "" for statement, _ in bound)]
    if "decay" not in keywords or any("legacy" in module.split(".") for module in modules):
        return
    rate = keywords.get("learning_rate", lr)
    rate_value = rate.value if rate is not None else next(iter(node.args), None)
    obstacle = _find_obstacle(tree, rate_value)
    if obstacle:
        rewriter.leave(
            keywords["decay"], "decay", f"{_DECAY}; a schedule cannot take its place: {obstacle}",
            f"use tf.keras.optimizers.legacy.{name.rpartition('.')[2]}, which keeps it, with "
            '"tensorflow==2.15.*"',
        )  # fmt: skip
        return
    edits = [] if rate_value is None else list(_replace_decay(rewriter, tree, node, rate_value))
    rewriter.edits += edits
    if not edits:
        rate_text = "LEARNING_RATE" if rate_value is None else ast.unparse(rate_value)
        rewriter.leave(
            keywords["decay"], "decay", _DECAY,
            f"pass learning_rate=tf.keras.optimizers.{_SCHEDULE}({rate_text}, decay_steps=1, "
            f"decay_rate={ast.unparse(keywords['decay'].value)})",
        )  # fmt: skip


def _find_obstacle(tree: ast.Module, rate: ast.expr | None) -> str:
    """Return why a schedule cannot replace ``decay``; empty if it can."""
    if isinstance(rate, ast.Call) and "schedules" in ast.unparse(rate.func).split("."):
        return "the learning rate is a schedule"
    setter = next(_list_setters(tree), "")
    return f"{setter} sets the learning rate, which a schedule would overwrite" if setter else ""


def _list_setters(tree: ast.Module) -> Iterator[str]:
    """Yield what sets the learning rate of an optimizer during training."""
    for node in ast.walk(tree):
        if isinstance(node, ast.alias) and node.name in _SETTERS:
            yield node.name
        elif isinstance(node, ast.Attribute) and node.attr in _SETTERS:
            yield node.attr
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from _list_rates(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "set_value":
                yield from (rate for argument in node.args[:1] for rate in _list_rates(argument))
            elif node.func.attr == "assign":
                yield from _list_rates(node.func.value)


def _list_rates(node: ast.expr) -> Iterator[str]:
    """Yield an expression if it is the learning rate of an optimizer."""
    is_rate = isinstance(node, ast.Attribute) and node.attr in ("lr", "learning_rate")
    if is_rate and ast.unparse(node).rpartition(".")[0].endswith(("optimizer", "opt")):
        yield ast.unparse(node)


def _replace_decay(
    rewriter: Rewriter, tree: ast.Module, node: ast.Call, rate: ast.expr
) -> Iterator[Edit]:
    """Yield the changes that move ``decay`` into a schedule; none if they are not certain."""
    text = rewriter.text
    decay = next(keyword for keyword in node.keywords if keyword.arg == "decay")
    arguments: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
    spans = [rewriter.span(argument) for argument in arguments]
    start, end = rewriter.span(decay)
    before = max((span[1] for span in spans if span[1] <= start), default=None)
    value = text.text[slice(*rewriter.span(decay.value))]
    is_edited = any(edit.start < end and edit.end > start for edit in rewriter.edits)
    if before is None or is_edited or text.text[before:start].strip() != ",":
        return
    if isinstance(node.func, ast.Attribute):
        schedule = f"{ast.unparse(node.func.value)}.{_SCHEDULE}"
        imports: list[Edit] = []
    else:
        schedule = _SCHEDULE
        bound = list(_list_imports(tree, ast.unparse(node.func)))
        names = {inner.id for inner in ast.walk(tree) if isinstance(inner, ast.Name)}
        if len(bound) != 1 or "schedules" in names or list(_list_imports(tree, "schedules")):
            return
        statement, alias = bound[0]
        ends = [rewriter.span(name)[1] for name in statement.names]
        has_import = any(edit.new == _IMPORT and edit.start in ends for edit in rewriter.edits)
        _, import_end = rewriter.span(alias)
        imports = [] if has_import else [Edit(import_end, import_end, _IMPORT)]
    rate_start, rate_end = rewriter.span(rate)
    yield from imports
    yield Edit(rate_start, rate_start, f"{schedule}(")
    yield Edit(rate_end, rate_end, f", decay_steps=1, decay_rate={value})")
    yield Edit(before, end, "")


def _list_imports(tree: ast.Module, local: str) -> Iterator[tuple[ast.ImportFrom, ast.alias]]:
    """Yield the ``from`` imports that bind a local name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == local:
                    yield node, alias
