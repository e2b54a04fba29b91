"""Reading the entry points of what is installed, without importing any of it.

`importlib.metadata.entry_points` is not used: one unreadable file, or one line of one, makes it
raise for all distributions, and it does not tell which of two equal ones counts.
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
        name: As its metadata says, or as its folder is called where they cannot be read.
        version: As its metadata says, or ``"?"``.
        folder: Where its metadata are.
        source: What to tell pip to install it again.
        groups: Group -> name -> declaration; only detcore's groups.
        faults: Lines that are no declarations, and why.
    """

    name: str
    version: str
    folder: str
    source: tuple[str, ...]
    groups: dict[str, dict[str, Declaration]]
    faults: tuple[str, ...]


def canonical_name(name: str) -> str:
    """Return the one spelling under which two names of a distribution compare equal."""
    return re.sub(r"[-_.]+", "-", name).lower()


def scan_distributions() -> tuple[list[Installed], list[PluginProblem]]:
    """Return the distributions that bring plugins, and those that cannot be read.

    Where one is found twice (an editable and a plain installation, a folder that is twice on
    ``sys.path``), only the one that Python imports counts: the first.
    """
    from importlib.metadata import distributions

    found: dict[str, Installed] = {}
    problems: list[PluginProblem] = []
    for distribution in distributions():
        try:
            text = distribution.read_text("entry_points.txt")
        except UnicodeDecodeError:
            # Another project's file is none of our business; ours is written in UTF-8.
            text = None
        if not text or not _OUR_GROUP.search(text):
            continue
        name = _read_field(distribution, "Name")
        if name is None:
            problems.append(_broken_metadata(distribution))
        elif canonical_name(name) not in found and _is_first(distribution, name):
            found[canonical_name(name)] = _read(distribution, name, text)
    return [found[name] for name in sorted(found)], problems


def _read(distribution: Distribution, name: str, text: str) -> Installed:
    groups, faults = parse_entry_points(text)
    return Installed(
        name=name,
        version=_read_field(distribution, "Version") or "?",
        folder=_folder(distribution),
        source=_source(distribution, name),
        groups=groups,
        faults=tuple(faults),
    )


def parse_entry_points(text: str) -> tuple[dict[str, dict[str, Declaration]], list[str]]:
    """Return the declarations in detcore's groups, and what is wrong with their lines."""
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


def _read_field(distribution: Distribution, field: str) -> str | None:
    """Return a field of the metadata, or None if it is missing or they cannot be read."""
    try:
        value = distribution.metadata[field]
    except Exception:  # noqa: BLE001  (each Python version fails in its own way; None is reported)
        return None
    return value.strip() or None if isinstance(value, str) else None


def _is_first(distribution: Distribution, name: str) -> bool:
    """Whether it is the one that Python finds by its name."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import distribution as find

    try:
        return _folder(find(name)) == _folder(distribution)
    except PackageNotFoundError:
        # The folder's name does not match the name inside; nothing else has that name then.
        return True


def _folder(distribution: Distribution) -> str:
    # There is no public name for the folder itself; `locate_file` starts at the one above it.
    return str(getattr(distribution, "_path", None) or distribution.locate_file(""))


def _source(distribution: Distribution, name: str) -> tuple[str, ...]:
    """Return pip's arguments for installing it again: its name, or the folder it came from."""
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
        return (name,)  # a damaged record of the origin: the index has it by name
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
        # pip cannot remove what it cannot name, so the folder goes first.
        mend=f"rm -r {shlex.quote(folder)} && {install_command(name)}",
    )
