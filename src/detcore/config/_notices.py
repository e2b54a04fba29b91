"""Report settings that are accepted but have no effect, one line for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from detcore.config._entrypoint import script_of
from detcore.config._explain import dotted
from detcore.config._hyperparameters import ranges
from detcore.config._script_reads import unread_hyperparameters
from detcore.config._source import Place
from detcore.config._tree import Node, find, key_span, plain

__all__ = ["code_notices", "notices"]

_CLUSTER: tuple[str, ...] = (
    "bind_mounts",
    "environment.image",
    "environment.environment_variables",
    "environment.ports",
    "environment.proxy_ports",
    "environment.force_pull_image",
    "environment.registry_auth",
    "environment.pod_spec",
    "environment.add_capabilities",
    "environment.drop_capabilities",
    "resources.weight",
    "resources.priority",
    "resources.resource_pool",
    "resources.shm_size",
    "resources.devices",
    "security",
    "slurm",
    "pbs",
    "checkpoint_storage.propagation",
)
_INSTEAD = {
    "environment.environment_variables": "set them in the shell that starts detcore",
    "environment.image": "the trial runs in the Python that starts detcore",
}
_LEGACY: tuple[str, ...] = (
    "agent_label",
    "data_layer",
    "internal",
    "tensorboard_storage",
    "resources.agent_label",
    "resources.native_parallel",
)
_LEGACY_STORAGE = ("container_path", "checkpoint_path", "tensorboard_path")


def notices(root: Node, code_dir: Path | None = None) -> list[str]:
    """Return a line for each field that was given but has no effect, and for assumed units.

    Args:
        root: The configuration as written, without mistakes.
        code_dir: Folder of the entrypoint's code; None to skip it.
    """
    remarks = [*_remarks(root), *(() if code_dir is None else _unread(root, code_dir))]
    return _lines(root, remarks)


def code_notices(root: Node, code_dir: Path) -> list[str]:
    """Return the lines of `notices` that are about the code, for a file that others check."""
    return _lines(root, _unread(root, code_dir))


def _lines(root: Node, remarks: Iterable[tuple[Place, str]]) -> list[str]:
    found: list[tuple[int, int, str]] = []
    for place, words in remarks:
        span = key_span(root, place)
        if span is not None:
            where = f"{span.source.name}:{span.line + 1}:{span.column + 1}"
            line = f"{where}: note: {dotted(place)} {words}"
            found.append((span.line, span.column, line))
    return [line for _, _, line in sorted(found)]


def _remarks(root: Node) -> Iterator[tuple[Place, str]]:
    for name in _CLUSTER:
        instead = f" ({_INSTEAD[name]})" if name in _INSTEAD else ""
        yield from _given(root, name, f"is for a cluster: accepted, no effect here{instead}")
    for name in _LEGACY:
        yield from _given(root, name, "is from an earlier version: accepted, no effect")
    kind = find(root, ("checkpoint_storage", "type"))
    if kind is not None and kind.value == "shared_fs":
        for name in _LEGACY_STORAGE:
            yield from _given(
                root,
                f"checkpoint_storage.{name}",
                "is from an earlier version: accepted, no effect",
            )
    precision = find(root, ("optimizations", "mixed_precision"))
    if precision is not None and precision.value != "O0":
        yield (
            ("optimizations", "mixed_precision"),
            "was for apex: accepted, no effect; use torch.autocast in a PyTorchTrial, or a "
            "mixed-precision policy in a Keras model",
        )
    yield from _exponents(root)
    length = find(root, ("searcher", "max_length"))
    if length is not None and isinstance(length.value, int):
        yield (
            ("searcher", "max_length"),
            f"has no unit: {length.value} is read as batches; write "
            f"{{batches: {length.value}}} or {{epochs: {length.value}}} to be clear",
        )


def _unread(root: Node, code_dir: Path) -> Iterator[tuple[Place, str]]:
    """Yield hyperparameters that the script which the entrypoint names never reads."""
    entrypoint, section = find(root, ("entrypoint",)), find(root, ("hyperparameters",))
    names = plain(section) if section is not None else None
    script = None if entrypoint is None else script_of(plain(entrypoint), code_dir)
    if script is None or not isinstance(names, dict):
        return
    folders = [script.parent, code_dir]
    for name, near in unread_hyperparameters(script, folders, list(names)).items():
        hint = f": did you mean '{near}', which it reads?" if near else ""
        yield ("hyperparameters", name), f"is never read by {script.name}{hint}"


def _exponents(root: Node) -> Iterator[tuple[Place, str]]:
    """Yield ranges whose exponents look like values."""
    section = find(root, ("hyperparameters",))
    values = plain(section) if section is not None else None
    for place, value in ranges(values if isinstance(values, dict) else {}, ("hyperparameters",)):
        if value["type"] != "log":
            continue
        low, high = value["minval"], value["maxval"]
        if not (0 < low < 1 and 0 < high < 1):
            continue
        base = value.get("base", 10)
        yield (
            place,
            f"has exponents: it is drawn from {base:g}^{low:g} = {base**low:.5g} to "
            f"{base:g}^{high:g} = {base**high:.5g}; for values from {low:g} to {high:g}, write "
            f"{{type: loguniform, minval: {low:g}, maxval: {high:g}}}",
        )


def _given(root: Node, name: str, words: str) -> Iterator[tuple[Place, str]]:
    place: Place = tuple(name.split("."))
    if find(root, place) is not None:
        yield place, words
