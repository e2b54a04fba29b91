"""Describe a fault of a plugin, with a command that fixes it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.hooks._entry import PluginEntry

__all__ = [
    "PluginProblem",
    "author_problem",
    "install_command",
    "one_line",
    "set_variable_command",
    "switch_off_command",
    "uninstall_command",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PluginProblem:
    """A fault of a plugin, or of the settings that enable and disable plugins.

    Attributes:
        kind: The kind of fault, such as ``"missing-dependency"``; docs/plugins.md lists them.
        plugin: Name of the plugin; empty if the fault concerns no single plugin.
        owner: The plugin and its distribution, or the variable or option at fault.
        message: Description of the fault, with the values; one line.
        mend: The command that fixes it; for an option of ``detcore``, its correct form.
        alternative: Another command that fixes it, or None.
    """

    kind: str
    plugin: str
    owner: str
    message: str
    mend: str
    alternative: str | None = None

    def __str__(self) -> str:
        line = f"{self.owner}: {self.message}; mend: {self.mend}"
        return f"{line}  or: {self.alternative}" if self.alternative else line


def author_problem(kind: str, entry: PluginEntry, message: str) -> PluginProblem:
    """Return a problem that only another version of the plugin can fix."""
    return PluginProblem(
        kind=kind,
        plugin=entry.name,
        owner=entry.label,
        message=one_line(message),
        mend=install_command("--upgrade", *entry.source),
    )


def one_line(text: str) -> str:
    """Return `text` without line breaks."""
    return " ".join(text.split())


def install_command(*arguments: str) -> str:
    """Return the command that installs into this environment."""
    return _installer("install", arguments)


def uninstall_command(distribution: str) -> str:
    """Return the command that removes a distribution from this environment."""
    return _installer("uninstall", (distribution,))


def _installer(verb: str, arguments: tuple[str, ...]) -> str:
    """Return a pip command; a bare ``pip`` might belong to another environment, or be missing."""
    import importlib.util
    import shlex
    import shutil

    if importlib.util.find_spec("pip") is None and shutil.which("uv"):
        return shlex.join(["uv", "pip", verb, "--python", sys.executable, *arguments])
    sure = ["--yes"] if verb == "uninstall" else []
    return shlex.join([sys.executable, "-m", "pip", verb, *sure, *arguments])


def switch_off_command(name: str, already: Iterable[str] = ()) -> str:
    """Return the command that disables a plugin, in addition to disabled ones."""
    return set_variable_command("DETCORE_DISABLE_PLUGINS", {*already, name})


def set_variable_command(variable: str, names: Iterable[str]) -> str:
    """Return the command that sets a variable to a list of names, or unsets it if that is empty."""
    import shlex

    value = ",".join(sorted(names))
    return f"export {variable}={shlex.quote(value)}" if value else f"unset {variable}"
