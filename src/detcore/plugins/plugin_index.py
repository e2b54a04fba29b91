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
    install_command,
    plugin_problem,
    selection_faults,
    uninstall_command,
)

if TYPE_CHECKING:
    from importlib.metadata import Distribution


PLUGINS = "detcore"
COMMANDS = "detcore.commands"
_OBJECT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*(\.[^\W\d]\w*)*)?")


def build_index(selection: Selection) -> tuple[list[PluginEntry], list[PluginProblem]]:
    """Return the installed plugins, by their names with the built-in one first, and the faults."""
    installed, problems = scan_distributions()
    entries: list[PluginEntry] = []
    for distribution in installed:
        for name in distribution.groups[PLUGINS]:
            entry, fault = _examine(distribution, name, selection)
            entries.append(entry)
            problems += [fault] if fault else []
    entries, conflicts = _settle_names(entries)
    problems += conflicts
    problems += selection_faults(selection, {entry.name for entry in entries})
    entries.sort(key=lambda entry: (not entry.is_built_in, entry.name, entry.distribution))
    return entries, problems


def _examine(
    distribution: Installed, name: str, selection: Selection
) -> tuple[PluginEntry, PluginProblem | None]:
    """Return one plugin's entry; a disabled plugin has no fault."""
    declared = distribution.groups[PLUGINS][name]
    value = declared.partition("[")[0].strip()  # extras are obsolete; no tool uses them
    entry = PluginEntry(
        name=name,
        value=value,
        distribution=distribution.name,
        version=distribution.version,
        folder=distribution.folder,
        source=distribution.source,
        state=PluginState.READY,
        commands=_commands(distribution, value),
    )
    state, fault = PluginState.READY, None
    if _OBJECT.fullmatch(value) is None:
        text = f"its entry point '{name} = {declared}' names neither a module nor 'module:object'"
        state, fault = PluginState.BROKEN, plugin_problem("malformed-entry-point", entry, text)
    if not entry.is_built_in and name in selection.disabled:
        state, fault = PluginState.DISABLED, None
    elif not entry.is_built_in and selection.allowed is not None and name not in selection.allowed:
        state, fault = PluginState.NOT_ALLOWED, None
    return dataclasses.replace(entry, state=state), fault


def _commands(distribution: Installed, value: str) -> tuple[str, ...]:
    """Return the declared commands of the plugin at `value`: those in its module.

    A command whose module belongs to no plugin counts for all plugins of its distribution.
    """
    modules = [each.partition(":")[0].strip() for each in distribution.groups[PLUGINS].values()]
    own, names = value.partition(":")[0], []
    for name, declared in distribution.groups[COMMANDS].items():
        module = declared.partition(":")[0].strip()
        if module == own or module not in modules:
            names.append(name)
    return tuple(sorted(names))


def _settle_names(
    entries: Iterable[PluginEntry],
) -> tuple[list[PluginEntry], list[PluginProblem]]:
    """Disable all plugins that share a name: choosing one would be a guess."""
    by_name: dict[str, list[PluginEntry]] = {}
    for entry in entries:
        by_name.setdefault(entry.name, []).append(entry)
    settled: list[PluginEntry] = []
    problems = []
    off = (PluginState.DISABLED, PluginState.NOT_ALLOWED)
    for name, rivals in by_name.items():
        losers = [entry for entry in rivals if not entry.is_built_in]
        if len(rivals) == 1 or all(entry.state in off for entry in losers):
            settled += rivals
            continue
        settled += [entry for entry in rivals if entry.is_built_in]
        settled += [dataclasses.replace(entry, state=PluginState.CONFLICT) for entry in losers]
        owners = " and ".join(f"{entry.distribution} {entry.version}" for entry in rivals)
        used = "none of them" if len(losers) == len(rivals) else "the built-in one"
        first, last = losers[0].distribution, losers[-1].distribution
        problems.append(
            PluginProblem(
                kind="duplicate-plugin",
                plugin=name,
                owner=name,
                message=f"{owners} both bring a plugin of this name; {used} is used",
                fix=uninstall_command(last),
                alternative=uninstall_command(first) if len(losers) > 1 else None,
            )
        )
    return settled, problems


_OUR_GROUP = re.compile(r"^\s*\[detcore(\.\w+)?\]", re.MULTILINE)


class Installed(NamedTuple):
    """A distribution with entry points for detcore; see `PluginEntry`."""

    name: str
    version: str
    folder: str
    source: tuple[str, ...]
    groups: dict[str, dict[str, str]]


def canonical_name(name: str) -> str:
    """Return the normalized form of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def scan_distributions() -> tuple[list[Installed], list[PluginProblem]]:
    """Return the distributions with plugins, and a problem for each that cannot be read.

    If one is found twice (an editable and a plain installation, a folder that is twice on
    ``sys.path``), only the first counts, which is the one that Python imports.
    """
    from importlib.metadata import distributions

    found: dict[str, Installed] = {}
    problems: list[PluginProblem] = []
    for distribution in distributions():
        try:
            text = distribution.read_text("entry_points.txt")
        except UnicodeDecodeError:
            # Other projects' files may be in any encoding; ours are UTF-8.
            text = None
        if not text or not _OUR_GROUP.search(text):
            continue
        try:
            metadata = distribution.metadata  # parsed at each access
            name, version = (str(metadata[field] or "").strip() for field in ("Name", "Version"))
        except Exception:  # noqa: BLE001  (each Python version fails in its own way; "" is reported)
            name = version = ""
        if not name:
            problems.append(_broken_metadata(distribution))
        elif canonical_name(name) not in found and _is_first(distribution, name):
            source = _source(distribution, name)
            try:
                groups = _list_entry_points(distribution)
            except Exception as error:  # noqa: BLE001  (each Python version fails in its own way)
                problems.append(_malformed_entry_points(name, version, source, error))
                continue
            found[canonical_name(name)] = Installed(
                name=name,
                version=version or "?",
                folder=_folder(distribution),
                source=source,
                groups=groups,
            )
    return [found[name] for name in sorted(found)], problems


def _list_entry_points(distribution: Distribution) -> dict[str, dict[str, str]]:
    """Return the entry points of a distribution for detcore, by group and name."""
    points = distribution.entry_points
    return {
        group: {point.name: point.value for point in points if point.group == group}
        for group in (PLUGINS, COMMANDS)
    }


def _is_first(distribution: Distribution, name: str) -> bool:
    """Whether it is the distribution that Python finds by its name."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import distribution as find

    try:
        return _folder(find(name)) == _folder(distribution)
    except PackageNotFoundError:
        # The folder's name differs from the name in the metadata, so no other one can match it.
        return True


def _folder(distribution: Distribution) -> str:
    # The folder has no public attribute; `locate_file` starts at its parent.
    return str(getattr(distribution, "_path", None) or distribution.locate_file(""))


def _source(distribution: Distribution, name: str) -> tuple[str, ...]:
    """Return pip's arguments to reinstall it: its name, or the folder it was installed from."""
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
        return (name,)  # not from a folder, or the record of the origin is damaged: use the index
    return (*editable, unquote(url.path)) if url.scheme == "file" else (name,)


def _malformed_entry_points(
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


def _broken_metadata(distribution: Distribution) -> PluginProblem:
    import shlex

    folder = _folder(distribution)
    name = re.split(r"[\\/]", folder)[-1].partition("-")[0].replace("_", "-")
    return PluginProblem(
        kind="broken-metadata",
        plugin="",
        owner=name,
        message=f"its METADATA in {folder} is missing or has no Name, so its plugins are not used",
        # pip cannot remove a distribution without a name, so the folder is removed first.
        fix=f"rm -r {shlex.quote(folder)} && {install_command(name)}",
    )
