"""Report settings that are accepted but have no effect, one line for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from pydantic.fields import FieldInfo

from detcore.config.entrypoint_check import find_entry_script
from detcore.config.field_types import NO_EFFECT
from detcore.config.hyperparameters import ranges
from detcore.config.problems import find_closest
from detcore.config.source_text import Node, Place, find_node, join_place, key_span, unwrap_node

_MAX_CODE_BYTES = 1_000_000
# Framework plugins read this hyperparameter.
_BATCH_SIZE = "global_batch_size"


def code_notices(root: Node, code_dir: Path) -> list[str]:
    """Return a line for each hyperparameter whose name is probably misspelt.

    The script of the entrypoint and the modules next to it only contain a similar name.
    """
    return format_notices(root, _find_unread_names(root, code_dir))


def format_notices(root: Node, remarks: Iterable[tuple[Place, str]]) -> list[str]:
    """Return a line for each remark on a place, in the order of the file."""
    lines = []
    for place, words in remarks:
        if span := key_span(root, place):
            where = f"{span.source.name}:{span.line + 1}:{span.column + 1}"
            lines.append((span.line, span.column, f"{where}: note: {join_place(place)} {words}"))
    return [line for _, _, line in sorted(lines)]


def find_remarks(
    root: Node, fields_at: Callable[[Place], Mapping[str, FieldInfo]]
) -> Iterator[tuple[Place, str]]:
    """Yield fields that have no effect, assumed units, and exponents that look like values."""
    for section in ((), ("resources",), ("checkpoint_storage",), ("optimizations",)):
        for name, field in fields_at(section).items():
            node, about = find_node(root, (*section, name)), str(field.description)
            if node is not None and NO_EFFECT in about and node.value != field.default:
                yield (*section, name), f"is {about[0].lower()}{about[1:]}"
    yield from _find_exponents(root)
    place = ("searcher", "max_length")
    length = find_node(root, place)
    if length is not None and isinstance(length.value, int):
        number = length.value
        words = f"has no unit: {number} is read as batches; write {{batches: {number}}} or "
        yield place, f"{words}{{epochs: {number}}} to be clear"


def _find_unread_names(root: Node, code_dir: Path) -> Iterator[tuple[Place, str]]:
    entrypoint, section = find_node(root, ("entrypoint",)), find_node(root, ("hyperparameters",))
    script = None if entrypoint is None else find_entry_script(unwrap_node(entrypoint), code_dir)
    if script is None or section is None:
        return
    code = _read_code(script, code_dir)
    words = {*re.findall(r"\w+", code), _BATCH_SIZE}
    keys = {*re.findall(r"""["'](\w+)["']""", code)} - section.entries.keys()
    for name in section.entries.keys() - words:
        if near := find_closest(name, keys):
            remark = f"is not in the code of {script.name}: did you mean '{near}', which is?"
            yield ("hyperparameters", name), remark


def _read_code(script: Path, code_dir: Path) -> str:
    """Return the script and the modules next to it, or an empty string if they are too long."""
    paths = {script}
    for folder in (script.parent, code_dir):
        paths.update(folder.glob("*.py"))
        for package in folder.glob("*/__init__.py"):
            paths.update(package.parent.rglob("*.py"))
    try:
        if sum(path.stat().st_size for path in paths) > _MAX_CODE_BYTES:
            return ""
        return "\n".join(path.read_text(errors="replace") for path in paths)
    except OSError:
        return ""


def _find_exponents(root: Node) -> Iterator[tuple[Place, str]]:
    """Yield ranges whose exponents look like values."""
    section = find_node(root, ("hyperparameters",))
    values = unwrap_node(section) if section is not None else None
    for place, value in ranges(values if isinstance(values, dict) else {}, ("hyperparameters",)):
        if value["type"] == "log" and 0 < value["minval"] < 1 and 0 < value["maxval"] < 1:
            low, high, base = value["minval"], value["maxval"], value.get("base", 10)
            yield (
                place,
                f"has exponents: it is drawn from {base:g}^{low:g} = {base**low:.5g} to "
                f"{base:g}^{high:g} = {base**high:.5g}; for values from {low:g} to {high:g}, write "
                f"{{type: loguniform, minval: {low:g}, maxval: {high:g}}}",
            )
