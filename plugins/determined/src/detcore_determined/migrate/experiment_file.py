"""Rewrite an experiment file to detcore's spelling, and check the result."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from detcore.config import ExperimentFileError, load_config
from detcore.environment import read_environment
from detcore.plugins import PluginManager
from detcore_determined.migrate.findings import Finding, Migrated
from detcore_determined.migrate.strings import migrate_entrypoint

_IS_EXPERIMENT = re.compile(r"^[\"']?searcher[\"']?\s*:", re.MULTILINE)
_RENAMED = {"batches_per_step": "scheduling_unit"}
IN_STEPS = {
    "max_steps": "max_length",
    "min_checkpoint_period": "min_checkpoint_period",
    "min_validation_period": "min_validation_period",
    "steps_per_round": "length_per_round",
    "target_trial_steps": "max_length",
}
_PROPERTIES = re.compile(r"(?:[&!][^\s,\[\]{}]*\s+)*")  # an anchor, a tag
_NOTICE = re.compile(r".*?:(?P<line>\d+):(?P<column>\d+): (?:note: )?(?P<text>.*)", re.DOTALL)


class Edit(NamedTuple):
    """A span, counted in characters, and its replacement."""

    start: int
    end: int
    new: str


def migrate_config(source: str) -> Migrated:
    """Return an experiment file in detcore's spelling.

    Findings are the mistakes that ``detcore config check`` reports for the new file, and, as notes,
    the settings that it accepts without effect. A file that is not an experiment file is returned
    unchanged.

    Args:
        source: The file, YAML.
    """
    if not _IS_EXPERIMENT.search(source):
        return Migrated(source, 0, (), ())
    try:
        root = yaml.compose(source, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mistakes = (_unreadable(error),)
        return Migrated(source, 0, mistakes, mistakes)
    if not isinstance(root, yaml.MappingNode) or "searcher" not in _keys(root):
        return Migrated(source, 0, (), ())
    edits = list(_edits(source, root))
    new = source
    for edit in sorted(edits, reverse=True):
        new = new[: edit.start] + edit.new + new[edit.end :]
    findings = tuple(sorted(_find_mistakes(new)))
    return Migrated(new, len(edits), findings, findings)


def _keys(root: yaml.MappingNode) -> dict[str, yaml.Node]:
    return {str(key.value): value for key, value in root.value}


def _edits(source: str, root: yaml.MappingNode) -> Iterator[Edit]:
    keys = _keys(root)
    yield from _convert_steps(keys, root)
    for key, value in root.value:
        start, end = key.start_mark.index, key.end_mark.index
        new = _RENAMED.get(str(key.value))
        if new is not None and new not in keys and source[start:end] == key.value:
            yield Edit(start, end, new)
        if key.value == "entrypoint":
            yield from _rewrite_entrypoint(source, value)
        elif key.value == "searcher" and isinstance(value, yaml.MappingNode):
            yield from _convert_steps(keys, value)


def _convert_steps(keys: dict[str, yaml.Node], node: yaml.MappingNode) -> Iterator[Edit]:
    """Convert lengths in steps, of 0.12, to batches: a step had ``batches_per_step`` of them.

    Args:
        keys: The settings at the top level.
        node: The top level, or the searcher.
    """
    step_length = keys.get("batches_per_step", keys.get("scheduling_unit"))
    per_step = "100" if step_length is None else str(step_length.value)
    if not per_step.isdigit():
        return
    for key, value in node.value:
        new = IN_STEPS.get(str(key.value))
        is_other = new != key.value and new in _keys(node)
        if new is not None and not is_other and str(value.value).isdigit():
            length = f"{{batches: {int(value.value) * int(per_step)}}}"
            if new != key.value:
                yield Edit(key.start_mark.index, key.end_mark.index, new)
            yield Edit(value.start_mark.index, value.end_mark.index, length)


def _rewrite_entrypoint(source: str, node: yaml.Node) -> Iterator[Edit]:
    """Remove Determined's launchers; a list that spans several lines is left to the check."""
    start, end = node.start_mark.index, node.end_mark.index
    text = source[start:end]
    start += _PROPERTIES.match(text).end()  # type: ignore[union-attr]  # it matches nothing, too
    if isinstance(node, yaml.ScalarNode):
        new = migrate_entrypoint(str(node.value))
        if new is not None and new != node.value:
            # The line ends after a block scalar (``>-``) belong to the file.
            line_end = text[len(text.rstrip("\r\n")) :]
            yield Edit(start, end, _scalar(new.strip()) + line_end)
    elif isinstance(node, yaml.SequenceNode) and node.flow_style:
        items = [str(item.value) for item in node.value]
        old = shlex.join(items)
        new = migrate_entrypoint(old)
        if new is not None and new != old:
            yield Edit(start, end, f"[{', '.join(map(_scalar, shlex.split(new)))}]")


def _scalar(value: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z_/.][\w./@=+ -]*(:[\w.]+)*", value) and value == value.strip()
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def _find_mistakes(source: str) -> Iterator[Finding]:
    """Yield the findings of ``detcore config check`` for the new file."""
    with tempfile.TemporaryDirectory(prefix="detcore-migrate-") as folder:
        path = Path(folder, "experiment.yaml")
        path.write_bytes(source.encode())
        try:
            models = PluginManager(read_environment()).settings_models()
            loaded = load_config(path, required=("entrypoint",), models=models)
        except ExperimentFileError as error:
            for diagnostic in error.diagnostics:
                words = [diagnostic.primary.text, *diagnostic.help]
                advice = "; ".join(word for word in words if word)
                yield Finding(
                    diagnostic.line, diagnostic.column, "", diagnostic.message, advice, "left"
                )
            return
    for notice in loaded.notices:
        match = _NOTICE.fullmatch(notice)
        place = (int(match["line"]), int(match["column"])) if match else (1, 1)
        yield Finding(*place, "", match["text"] if match else notice, "", "note")
    yield from _launchers(source)


def _launchers(source: str) -> Iterator[Finding]:
    for number, line in enumerate(source.splitlines(), start=1):
        code = line.partition(" #")[0]
        if code.lstrip().startswith("#"):
            continue
        match = re.search(r"(?<![\w./@-])determined\.\w+\.\w+", code)
        if match:
            yield Finding(
                number, match.start() + 1, match[0], "the module does not exist",
                "'detcore run' starts a worker for each slot; name the trial class or the script",
            )  # fmt: skip


def _unreadable(error: Exception) -> Finding:
    mark = getattr(error, "problem_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return Finding(line, column, "", f"it is not valid YAML: {problem}", "", "error")
