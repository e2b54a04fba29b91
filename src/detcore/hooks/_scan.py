"""Read the entry points of installed distributions, without importing any of them.

`importlib.metadata.entry_points` is not used: one unreadable file, or one line of one, makes it
raise for all distributions, and it does not say which of two equal ones counts.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from detcore.hooks._problem import PluginProblem, install_command

if TYPE_CHECKING:
    from importlib.metadata import Distribution

__all__ = [
    "API",
    "COMMANDS",
    "GROUPS",
    "PLUGINS",
    "Declaration",
    "Installed",
    "canonical_name",
    "parse_entry_points",
    "scan_distributions",
]

PLUGINS = "detcore"
API = "detcore.api"
COMMANDS = "detcore.commands"
GROUPS = (PLUGINS, API, COMMANDS)

_OUR_GROUP = re.compile(r"^\s*\[detcore(\.\w+)?\]", re.MULTILINE)


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """One line of an ``entry_points.txt``."""

    value: str
    line: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A distribution with entry points for detcore.

    Attributes:
        name: Its name in the metadata, or in the folder's name if they cannot be read.
        version: Its version in the metadata, or ``"?"``.
        folder: The folder of its metadata.
        source: Arguments for pip to reinstall it.
        groups: Group -> name -> declaration; only detcore's groups.
        faults: Invalid lines, with reasons.
    """

    name: str
    version: str
    folder: str
    source: tuple[str, ...]
    groups: dict[str, dict[str, Declaration]]
    faults: tuple[str, ...]


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
        name, version = _read_fields(distribution, "Name", "Version")
        if name is None:
            problems.append(_broken_metadata(distribution))
        elif canonical_name(name) not in found and _is_first(distribution, name):
            found[canonical_name(name)] = _read(distribution, name, version or "?", text)
    return [found[name] for name in sorted(found)], problems


def _read(distribution: Distribution, name: str, version: str, text: str) -> Installed:
    groups, faults = parse_entry_points(text)
    return Installed(
        name=name,
        version=version,
        folder=_folder(distribution),
        source=_source(distribution, name),
        groups=groups,
        faults=tuple(faults),
    )


def parse_entry_points(text: str) -> tuple[dict[str, dict[str, Declaration]], list[str]]:
    """Return the declarations in detcore's groups, and the faults of their lines."""
    groups: dict[str, dict[str, Declaration]] = {group: {} for group in GROUPS}
    faults = []
    current: dict[str, Declaration] | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            current = groups.get(line[1:-1].strip())
            continue
        if current is None:
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not (name and equals and value):
            faults.append(f"line {number} of entry_points.txt, {line!r}, is not 'name = module'")
        elif name in current:
            faults.append(
                f"line {number} of entry_points.txt declares {name!r} again, after "
                f"line {current[name].line}"
            )
        else:
            current[name] = Declaration(value, number)
    return groups, faults


def _read_fields(distribution: Distribution, *fields: str) -> list[str | None]:
    """Return fields of the metadata, each None if it is missing or cannot be read."""
    try:
        metadata = distribution.metadata  # parsed at each access
        values = [metadata[field] for field in fields]
    except Exception:  # noqa: BLE001  (each Python version fails in its own way; None is reported)
        return [None] * len(fields)
    return [value.strip() or None if isinstance(value, str) else None for value in values]


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
        url = urlsplit(origin["url"])
        editable = bool(origin.get("dir_info", {}).get("editable"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return (name,)  # the record of the origin is damaged: use the index
    if url.scheme != "file" or "dir_info" not in origin:
        return (name,)
    path = unquote(url.path)
    return ("-e", path) if editable else (path,)


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
        mend=f"rm -r {shlex.quote(folder)} && {install_command(name)}",
    )
