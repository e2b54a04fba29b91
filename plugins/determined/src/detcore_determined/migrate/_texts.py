"""Migrate strings: entrypoints, names of modules to import, environment variables."""

from __future__ import annotations

import ast
import re

from detcore_determined.migrate._groups import Rewriter
from detcore_determined.migrate._lookup import Target, Unknown, look_up
from detcore_determined.migrate._names import GONE, MODULES, ROOTS
from detcore_determined.migrate._references import inside_of
from detcore_determined.migrate._scopes import Module
from detcore_determined.migrate._text import Edit

_PARTS = {name.split(".")[1] for name in (*MODULES, *GONE) if name.startswith("determined.")}
_MENTION = re.compile(
    rf"(?<![\w./@-])(?:determined|determined_common)\.(?:{'|'.join(sorted(_PARTS))})\b[\w.]*"
)
HUB = re.compile(r"(?<![\w./@-])model_hub\.\w+")
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)+")
_LAUNCHER = re.compile(
    r"(?:(?:python3?|\S*/python3?)\s+-m\s+)?determined\.launch\.(?P<kind>\w+)(?P<rest>(?:\s.*)?)",
    re.DOTALL,
)
_START = re.compile(r"\A(?:\s|\\\n)*(?:--autohorovod(?:\s|\\\n)+(?!-))?")
_HARNESS = re.compile(r"(?:python3?\s+-m\s+)?determined\.exec\.harness\s+", re.DOTALL)
_TRIAL = re.compile(r"(?:--trial\s+)?(?P<trial>[\w./]+:[\w.]+)")
_TRIAL_OPTION = re.compile(r"(?:^|\s)--trial(?:=|\s+)(?P<trial>[\w./]+:[\w.]+)")
# A launch layer that starts one process per slot; 'detcore run' does that without it.
_LAYERS = {"autohorovod", "horovod", "torch_distributed", "tensorflow", "tensorflow_distributed"}
_OWN_VARIABLE = "'DETCORE_...' variables are in docs/command-line.md; detcore does not set this one"
_MASTER = "only clients of a server (detcore serve) read it; it is not set for trials"
_CLUSTER = "it describes the cluster, and detcore has none"
_VARIABLES = {
    "DET_AGENT_ID": _CLUSTER,
    "DET_ALLOCATION_ID": _CLUSTER,
    "DET_CLUSTER_ID": _CLUSTER,
    "DET_CONTAINER_ID": _CLUSTER,
    "DET_EXPERIMENT_CONFIG": "use context.info.config",
    "DET_EXPERIMENT_ID": "use context.info.experiment_id",
    "DET_HPARAMS": "use context.info.hparams",
    "DET_LATEST_CHECKPOINT": "use context.info.latest_checkpoint",
    "DET_MASTER": _MASTER,
    "DET_MASTER_ADDR": _MASTER,
    "DET_MASTER_PORT": _MASTER,
    "DET_MASTER_CERT_FILE": _MASTER,
    "DET_MASTER_CERT_NAME": _MASTER,
    "DET_MASTER_HOST": _MASTER,
    "DET_MASTER_IP": _MASTER,
    "DET_PASS": _MASTER,
    "DET_RENDEZVOUS_INFO": "use context.distributed",
    "DET_RESOURCES_ID": _CLUSTER,
    "DET_SESSION_TOKEN": _MASTER,
    "DET_SLOT_IDS": "ask context.distributed, or the framework for its devices",
    "DET_SLOT_TYPE": "ask the framework for its devices",
    "DET_STEPS_COMPLETED": "save it with the checkpoint, as metadata",
    "DET_TASK_ID": _CLUSTER,
    "DET_TASK_TYPE": _CLUSTER,
    "DET_TRIAL_ID": "use context.info.trial_id",
    "DET_TRIAL_RUN_ID": "context.info has the ids of experiment and trial",
    "DET_TRIAL_SEED": "use context.info.trial_seed",
    "DET_USER": _MASTER,
    "DET_USER_TOKEN": _MASTER,
    "DET_USE_GPU": "ask the framework for its devices",
    "DET_USE_TLS": _MASTER,
}


def migrate_entrypoint(command: str) -> str | None:
    """Return an entrypoint without Determined's launchers.

    ``detcore run`` starts a worker per slot itself, so a launch layer is replaced by the command
    that it would start.

    Args:
        command: The entrypoint, as one string.

    Returns:
        The new entrypoint, unchanged without a launcher; None if it cannot be determined.
    """
    stripped = command.strip()
    launcher = _LAUNCHER.fullmatch(stripped)
    if launcher is not None:
        if launcher["kind"] not in _LAYERS:
            return None
        stripped = _START.sub("", launcher["rest"])
        option = _TRIAL_OPTION.search(stripped) if stripped.startswith("-") else None
        if option is not None:
            stripped = option["trial"]
        elif stripped.startswith("-"):
            stripped = f" {stripped}".partition(" -- ")[2].strip()
    stripped = _HARNESS.sub("", stripped)
    trial = _TRIAL.fullmatch(stripped)
    if trial is not None:
        stripped = trial["trial"]
    if not stripped or _MENTION.search(stripped):
        return None
    return command if stripped == command.strip() else stripped


def rewrite_texts(rewriter: Rewriter, module: Module) -> None:
    """Rewrite the strings whose meaning is known, and report those that name Determined."""
    for node in module.entrypoints:
        new = migrate_entrypoint(str(node.value))
        if new is None:
            _leave(rewriter, node, "no launcher of that kind", "see docs/migrating.md")
        else:
            _set(rewriter, node, new)
        if HUB.match(new or ""):
            rewriter.leave(node, "model_hub", "there is no such module", GONE["model_hub"])
    for node in module.imported:
        if node.value in ROOTS:
            _leave(rewriter, node, "it is imported at run time", "import detcore's modules instead")
        if _DOTTED.fullmatch(str(node.value)) and _MENTION.match(str(node.value)):
            hit = look_up(tuple(str(node.value).split(".")))
            if isinstance(hit, Unknown) or hit.is_expression:
                _leave(rewriter, node, *_reason(hit))
            else:
                rest = str(node.value).split(".")[hit.used :]
                _set(rewriter, node, ".".join([hit.text, *rest]))
    for node in module.named:
        _leave(
            rewriter, node, "the package is looked for", "look for detcore or the plugin instead"
        )
    for node in module.texts:
        value = str(node.value)
        if value in _VARIABLES:
            rewriter.leave(node, value, _OWN_VARIABLE, _VARIABLES[value])
        elif _MENTION.search(value):
            _leave(rewriter, node, "a text names it", "look whether something reads the text")


def _reason(hit: Target | Unknown) -> tuple[str, str]:
    if isinstance(hit, Unknown):
        return hit.reason, hit.advice
    return "there is no such function", f"use {hit.text}"


def _leave(rewriter: Rewriter, node: ast.Constant, reason: str, advice: str) -> None:
    match = _MENTION.search(str(node.value))
    rewriter.leave(node, match[0] if match else str(node.value), reason, advice)


def _set(rewriter: Rewriter, node: ast.Constant, new: str) -> None:
    old = str(node.value)
    if new == old:
        return
    start = inside_of(rewriter.text, node)
    if start is None:
        _leave(rewriter, node, "the text is written in an unusual way", f"make it {new!r}")
    else:
        rewriter.edits.append(Edit(start, start + len(old), new))
