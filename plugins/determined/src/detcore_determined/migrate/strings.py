"""Migrate strings: entrypoints, names of modules to import, environment variables."""

from __future__ import annotations

import re

import libcst as cst
import libcst.matchers as m

from detcore_determined.migrate.lookup import is_root
from detcore_determined.migrate.names import GONE, MODULES
from detcore_determined.migrate.rewriter import Rewriter

_PARTS = {name.split(".")[1] for name in (*MODULES, *GONE) if name.startswith("determined.")}
_MENTION = re.compile(
    rf"(?<![\w./@-])(?:determined|determined_common)\.(?:{'|'.join(sorted(_PARTS))})\b[\w.]*"
)
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

_KEY = m.SimpleString(m.MatchRegex("['\"]entrypoint['\"]"))
_ENTRYPOINT = (
    m.DictElement(_KEY)
    | m.Arg(keyword=m.Name("entrypoint"))
    | m.Assign([m.AssignTarget(m.Subscript(slice=[m.SubscriptElement(m.Index(_KEY))]))])
)
_OWN_VARIABLE = "'DETCORE_...' variables are in docs/command-line.md; detcore does not set this one"
_CLUSTER_VARIABLES = (
    "DET_AGENT_ID", "DET_ALLOCATION_ID", "DET_CLUSTER_ID", "DET_CONTAINER_ID",
    "DET_RESOURCES_ID", "DET_TASK_ID", "DET_TASK_TYPE",
)  # fmt: skip
_MASTER_VARIABLES = (
    "DET_MASTER", "DET_MASTER_ADDR", "DET_MASTER_PORT", "DET_MASTER_CERT_FILE",
    "DET_MASTER_CERT_NAME", "DET_MASTER_HOST", "DET_MASTER_IP", "DET_PASS",
    "DET_SESSION_TOKEN", "DET_USER", "DET_USER_TOKEN", "DET_USE_TLS",
)  # fmt: skip
_VARIABLES = {
    **dict.fromkeys(_CLUSTER_VARIABLES, "it describes the cluster, but detcore has no cluster"),
    **dict.fromkeys(
        _MASTER_VARIABLES,
        "only clients of a server (detcore serve) read it; it is not set for trials",
    ),
    "DET_EXPERIMENT_CONFIG": "use context.info.config",
    "DET_EXPERIMENT_ID": "use context.info.experiment_id",
    "DET_HPARAMS": "use context.info.hparams",
    "DET_LATEST_CHECKPOINT": "use context.info.latest_checkpoint",
    "DET_RENDEZVOUS_INFO": "use context.distributed",
    "DET_SLOT_IDS": "use context.distributed, or query the framework for its devices",
    "DET_SLOT_TYPE": "query the framework for its devices",
    "DET_STEPS_COMPLETED": "save it with the checkpoint, as metadata",
    "DET_TRIAL_ID": "use context.info.trial_id",
    "DET_TRIAL_RUN_ID": "context.info has the ids of experiment and trial",
    "DET_TRIAL_SEED": "use context.info.trial_seed",
    "DET_USE_GPU": "query the framework for its devices",
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


def rewrite_texts(rewriter: Rewriter) -> None:
    """Rewrite the strings whose meaning is known, and report those that name Determined."""
    types = {use.node for item in rewriter.imports for use in item.uses}
    for node in rewriter.find(cst.SimpleString, cst.FormattedStringText):
        is_simple = isinstance(node, cst.SimpleString)
        value = node.evaluated_value if is_simple else node.value
        parent = rewriter.parents[node]
        if not isinstance(value, str) or node in types or isinstance(parent, cst.Expr):
            continue
        if is_simple and m.matches(parent, _ENTRYPOINT):
            _rewrite_entrypoint(rewriter, node, value)
        elif is_root(value):
            advice = "if the package is searched for, search for detcore or the plugin instead"
            rewriter.leave(node, value, "a string contains its name", advice)
        elif value in _VARIABLES:
            rewriter.leave(node, value, _OWN_VARIABLE, _VARIABLES[value])
        elif mention := _MENTION.search(value):
            advice = "check whether something reads the string"
            rewriter.leave(node, mention[0], "a text names it", advice)


def _rewrite_entrypoint(rewriter: Rewriter, node: cst.SimpleString, value: str) -> None:
    new = migrate_entrypoint(value)
    if new is None:
        problem, advice = "no launcher of that kind", "see docs/migrating.md"
    elif new == value or rewriter.replace_string(node, new):
        return
    else:
        problem, advice = "the string is written in an unusual way", f"make it {new!r}"
    match = _MENTION.search(value)
    rewriter.leave(node, match[0] if match else value, problem, advice)
