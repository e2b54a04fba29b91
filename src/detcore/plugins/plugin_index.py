"""Find the installed plugins, and decide which of them may be used, without importing any.

`importlib.metadata.entry_points` is not used: one unreadable file, or one line of one, makes it
raise for all distributions. The entry points of each distribution are read on their own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from detcore.plugins.plugin_entry import (
    PluginEntry,
    PluginProblem,
    PluginState,
    Selection,
    find_selection_faults,
    install_command,
    make_plugin_problem,
    uninstall_command,
)

if TYPE_CHECKING:
    from importlib.metadata import Distribution


PLUGINS = "detcore"
COMMANDS = "detcore.commands"
_OBJECT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*(\.[^\W\d]\w*)*)?")


def build_index(selection: Selection) -> tuple[list[PluginEntry], list[PluginProblem]]:
    """Return the installed plugins by name, the built-in plugin first, and the faults."""
    installed, problems = scan_distributions()
    entries: list[PluginEntry] = []
    for distribution in installed:
        for name in distribution.groups[PLUGINS]:
            entry, fault = _examine_plugin(distribution, name, selection)
            entries.append(entry)
            problems += [fault] if fault else []
    entries, conflicts = _resolve_name_conflicts(entries)
    problems += conflicts
    problems += find_selection_faults(selection, {entry.name for entry in entries})
    entries.sort(key=lambda entry: (not entry.is_built_in, entry.name, entry.distribution))
    return entries, problems


def _examine_plugin(
    distribution: Installed, name: str, selection: Selection
) -> tuple[PluginEntry, PluginProblem | None]:
    """Return the entry of a plugin and its fault; a disabled plugin has no fault."""
    declared = distribution.groups[PLUGINS][name]
    value = declared.partition("[")[0].strip()  # without obsolete extras
    entry = PluginEntry(
        name=name,
        value=value,
        distribution=distribution.name,
        version=distribution.version,
        folder=distribution.folder,
        source=distribution.source,
        state=PluginState.READY,
        commands=_find_commands(distribution, value),
    )
    state, fault = PluginState.READY, None
    if _OBJECT.fullmatch(value) is None:
        text = f"its entry point '{name} = {declared}' names neither a module nor 'module:object'"
        state, fault = PluginState.BROKEN, make_plugin_problem("malformed-entry-point", entry, text)
    if not entry.is_built_in and name in selection.disabled:
        state, fault = PluginState.DISABLED, None
    elif not entry.is_built_in and selection.allowed is not None and name not in selection.allowed:
        state, fault = PluginState.NOT_ALLOWED, None
    return dataclasses.replace(entry, state=state), fault


def _find_commands(distribution: Installed, value: str) -> tuple[str, ...]:
    """Return the declared commands in the module of a plugin.

    A command whose module does not belong to a plugin counts for all plugins of its distribution.
    """
    modules = [
        plugin_value.partition(":")[0].strip()
        for plugin_value in distribution.groups[PLUGINS].values()
    ]
    plugin_module, names = value.partition(":")[0], []
    for name, declared in distribution.groups[COMMANDS].items():
        module = declared.partition(":")[0].strip()
        if module == plugin_module or module not in modules:
            names.append(name)
    return tuple(sorted(names))


def _resolve_name_conflicts(
    entries: Iterable[PluginEntry],
) -> tuple[list[PluginEntry], list[PluginProblem]]:
    """Disable all plugins with the same name, because choosing one would be a guess."""
    by_name: dict[str, list[PluginEntry]] = {}
    for entry in entries:
        by_name.setdefault(entry.name, []).append(entry)
    resolved: list[PluginEntry] = []
    problems = []
    off = (PluginState.DISABLED, PluginState.NOT_ALLOWED)
    for name, claimants in by_name.items():
        rejected = [entry for entry in claimants if not entry.is_built_in]
        if len(claimants) == 1 or all(entry.state in off for entry in rejected):
            resolved += claimants
            continue
        resolved += [entry for entry in claimants if entry.is_built_in]
        resolved += [dataclasses.replace(entry, state=PluginState.CONFLICT) for entry in rejected]
        owners = " and ".join(f"{entry.distribution} {entry.version}" for entry in claimants)
        is_built_in_used = len(rejected) < len(claimants)
        consequence = "the built-in plugin is used" if is_built_in_used else "none of them is used"
        first, last = rejected[0].distribution, rejected[-1].distribution
        problems.append(
            PluginProblem(
                kind="duplicate-plugin",
                plugin=name,
                owner=name,
                message=f"{owners} both provide a plugin of this name; {consequence}",
                fix=uninstall_command(last),
                alternative=uninstall_command(first) if len(rejected) > 1 else None,
            )
        )
    return resolved, problems


_OUR_GROUP = re.compile(r"^\s*\[detcore(\.\w+)?\]", re.MULTILINE)


class Installed(NamedTuple):
    """A distribution with entry points for detcore; see `PluginEntry`."""

    name: str
    version: str
    folder: str
    source: tuple[str, ...]
    groups: dict[str, dict[str, str]]


def normalize_name(name: str) -> str:
    """Return the normalized form of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def scan_distributions() -> tuple[list[Installed], list[PluginProblem]]:
    """Return the distributions with plugins, and a problem for each unreadable distribution.

    If a distribution is found twice (as an editable and a regular installation, or because a
    directory is twice on ``sys.path``), only the first counts, which Python imports.
    """
    from importlib.metadata import distributions

    installed: dict[str, Installed] = {}
    problems: list[PluginProblem] = []
    for distribution in distributions():
        try:
            text = distribution.read_text("entry_points.txt")
        except UnicodeDecodeError:
            # Files of other projects may be in any encoding. Plugins of detcore use UTF-8.
            text = None
        if not text or not _OUR_GROUP.search(text):
            continue
        try:
            metadata = distribution.metadata  # parsed at each access
            name, version = (str(metadata[field] or "").strip() for field in ("Name", "Version"))
        except Exception:  # noqa: BLE001  (the error depends on the Python version)
            name = version = ""
        if not name:
            problems.append(_make_metadata_problem(distribution))
        elif normalize_name(name) not in installed and _is_first(distribution, name):
            source = _find_source(distribution, name)
            try:
                groups = _list_entry_points(distribution)
            except Exception as error:  # noqa: BLE001  (the error depends on the Python version)
                problems.append(_make_entry_point_problem(name, version, source, error))
                continue
            installed[normalize_name(name)] = Installed(
                name=name,
                version=version or "?",
                folder=_get_directory(distribution),
                source=source,
                groups=groups,
            )
    return [installed[name] for name in sorted(installed)], problems


def _list_entry_points(distribution: Distribution) -> dict[str, dict[str, str]]:
    """Return the entry points of a distribution for detcore, by group and name."""
    points = distribution.entry_points
    return {
        group: {point.name: point.value for point in points if point.group == group}
        for group in (PLUGINS, COMMANDS)
    }


def _is_first(distribution: Distribution, name: str) -> bool:
    """Whether Python finds this distribution by its name."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import distribution as find

    try:
        return _get_directory(find(name)) == _get_directory(distribution)
    except PackageNotFoundError:
        # The directory name differs from the name in the metadata, so no other can match it.
        return True


def _get_directory(distribution: Distribution) -> str:
    # The directory has no public attribute. `locate_file` starts at its parent.
    return str(getattr(distribution, "_path", None) or distribution.locate_file(""))


def _find_source(distribution: Distribution, name: str) -> tuple[str, ...]:
    """Return pip's arguments to reinstall a distribution: its name, or its source directory."""
    text = distribution.read_text("direct_url.json")
    if not text:
        return (name,)
    import json
    from urllib.parse import unquote, urlsplit

    try:
        origin = json.loads(text)
        url, folder = urlsplit(origin["url"]), origin["dir_info"]
        editable = ["-e"] if folder.get("editable") else []
    except (ValueError, KeyError, TypeError, AttributeError):
        return (name,)  # not installed from a directory, or the record of the origin is damaged
    return (*editable, unquote(url.path)) if url.scheme == "file" else (name,)


def _make_entry_point_problem(
    name: str, version: str, source: tuple[str, ...], error: Exception
) -> PluginProblem:
    return PluginProblem(
        kind="malformed-entry-point",
        plugin="",
        owner=f"{name} {version}",
        message=f"its entry_points.txt cannot be read ({type(error).__name__}: {error})",
        fix=install_command("--upgrade", *source),
        alternative=uninstall_command(name),
    )


def _make_metadata_problem(distribution: Distribution) -> PluginProblem:
    import shlex

    folder = _get_directory(distribution)
    name = re.split(r"[\\/]", folder)[-1].partition("-")[0].replace("_", "-")
    return PluginProblem(
        kind="broken-metadata",
        plugin="",
        owner=name,
        message=f"its METADATA in {folder} is missing or has no Name, so its plugins are not used",
        # pip cannot remove a distribution without a name, so the directory is removed first.
        fix=f"rm -r {shlex.quote(folder)} && {install_command(name)}",
    )
