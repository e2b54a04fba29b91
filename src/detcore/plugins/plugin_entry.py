"""Describe plugins before their import, and plugin faults with the commands that fix them."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from detcore.contract.errors import closest_match

if TYPE_CHECKING:
    from pluggy import HookCaller


BUILT_IN = "core"
"""Name of the plugin that ships with detcore. It cannot be replaced or switched off."""


class PluginState(str, enum.Enum):
    """State of a plugin."""

    READY = "ready"
    LOADED = "loaded"
    DISABLED = "switched off"
    NOT_ALLOWED = "not in the allow-list"
    CONFLICT = "name conflict"
    BROKEN = "broken"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PluginEntry:
    """An installed plugin.

    Attributes:
        name: The plugin's name, from its entry point.
        value: The module, or ``"module:object"``, that implements the hooks.
        distribution: Name of its distribution.
        version: Version of the distribution.
        folder: The directory of the distribution's metadata.
        source: Arguments for pip to reinstall the distribution.
        state: Its state.
        commands: Names of the commands that its distribution declares for it.
    """

    name: str
    value: str
    distribution: str
    version: str
    folder: str
    source: tuple[str, ...]
    state: PluginState
    commands: tuple[str, ...] = ()

    @property
    def is_built_in(self) -> bool:
        """Whether the plugin ships with detcore."""
        return self.name == BUILT_IN and self.distribution == "detcore"

    @property
    def label(self) -> str:
        """The plugin and its distribution, for messages."""
        return f"{self.name} ({self.distribution} {self.version})"


def is_reserved(name: str, entry: PluginEntry, reserved: Mapping[str, str]) -> bool:
    """Whether a command name is reserved for detcore or for another distribution."""
    return name in reserved and entry.distribution != reserved[name]


class Observer:
    """A plugin with observer hooks.

    `PluginManager.observers` creates it. After that, any single thread may use it.

    Attributes:
        entry: The plugin.
        hooks: Names of the plugin's observer hooks.
    """

    def __init__(self, entry: PluginEntry, callers: Mapping[str, HookCaller]) -> None:
        self.entry = entry
        self._callers = dict(callers)
        self.hooks = frozenset(callers)

    def call(self, hook: str, arguments: Mapping[str, object]) -> None:
        """Call an observer hook of the plugin.

        Raises:
            BaseException: The exception of the hook. `detcore.errors.UnavailableError` requests the
                same call again later.
        """
        self._callers[hook](**arguments)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PluginProblem:
    """A fault of a plugin, or of the settings that enable and disable plugins.

    Attributes:
        kind: The kind of fault, such as ``"missing-dependency"``. docs/writing-a-plugin.md lists
            all kinds.
        plugin: Name of the plugin; empty if the fault does not concern a single plugin.
        owner: The plugin and its distribution, or the variable or option at fault.
        message: Description of the fault with the values, in one line.
        fix: The command that fixes the fault, or the correct form of an option of ``detcore``.
        alternative: A second command that fixes the fault, or None.
    """

    kind: str
    plugin: str
    owner: str
    message: str
    fix: str
    alternative: str | None = None

    def __str__(self) -> str:
        line = f"{self.owner}: {self.message}; fix: {self.fix}"
        return f"{line}  or: {self.alternative}" if self.alternative else line


def make_plugin_problem(
    kind: str, entry: PluginEntry, message: str, *, fix: str | None = None
) -> PluginProblem:
    """Return a problem of one plugin.

    Args:
        kind: Kind of the `PluginProblem`.
        entry: The plugin.
        message: Message of the `PluginProblem`; line breaks are removed.
        fix: The command that fixes the problem; default: upgrade the plugin.
    """
    return PluginProblem(
        kind=kind,
        plugin=entry.name,
        owner=entry.label,
        message=join_lines(message),
        fix=fix or install_command("--upgrade", *entry.source),
    )


def make_command_clash(entry: PluginEntry, name: str, owner: str) -> PluginProblem:
    """Return the problem of a command with a reserved name; the owner "" means detcore."""
    predicate = "has the name of a built-in command; the built-in command is used"
    if owner:
        predicate = f"has the name of the command of {owner}, which is used instead"
    return make_plugin_problem("command-clash", entry, f"its command {name!r} {predicate}")


def join_lines(text: str) -> str:
    """Return `text` without line breaks."""
    return " ".join(text.split())


def install_command(*arguments: str) -> str:
    """Return the command that installs into this environment."""
    return _make_pip_command("install", arguments)


def uninstall_command(distribution: str) -> str:
    """Return the command that removes a distribution from this environment."""
    return _make_pip_command("uninstall", (distribution,))


def _make_pip_command(verb: str, arguments: tuple[str, ...]) -> str:
    """Return a pip command for this environment; a bare ``pip`` may belong to another."""
    import importlib.util
    import shlex
    import shutil

    if importlib.util.find_spec("pip") is None and shutil.which("uv"):
        return shlex.join(["uv", "pip", verb, "--python", sys.executable, *arguments])
    options = ["--yes"] if verb == "uninstall" else []
    return shlex.join([sys.executable, "-m", "pip", verb, *options, *arguments])


def switch_off_command(name: str, already: Iterable[str] = ()) -> str:
    """Return the command that disables a plugin, in addition to disabled ones."""
    return set_variable_command("DETCORE_DISABLE_PLUGINS", {*already, name})


def set_variable_command(variable: str, names: Iterable[str]) -> str:
    """Return the command that sets a variable to a list of names, or unsets it for no names."""
    import shlex

    value = ",".join(sorted(names))
    return f"export {variable}={shlex.quote(value)}" if value else f"unset {variable}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Plugin names in the settings: from variables, and from options or callers."""

    disabled_by_variable: frozenset[str]
    disabled_by_caller: frozenset[str]
    allowed_by_variable: frozenset[str] | None
    allowed_by_caller: frozenset[str] | None

    @property
    def disabled(self) -> frozenset[str]:
        """Names of all disabled plugins."""
        return self.disabled_by_variable | self.disabled_by_caller

    @property
    def allowed(self) -> frozenset[str] | None:
        """The allow-list of the caller or, without it, of the variable. None allows all plugins."""
        has_caller_list = self.allowed_by_caller is not None
        return self.allowed_by_caller if has_caller_list else self.allowed_by_variable


def find_selection_faults(selection: Selection, known: set[str]) -> list[PluginProblem]:
    """Return a problem for each name in the settings that does not belong to a plugin."""
    problems = []
    for where, names, is_allow_list in (
        ("DETCORE_DISABLE_PLUGINS", selection.disabled_by_variable, False),
        ("--no-plugin", selection.disabled_by_caller, False),
        ("DETCORE_PLUGINS", selection.allowed_by_variable or frozenset(), True),
        ("--plugins", selection.allowed_by_caller or frozenset(), True),
    ):
        for name in sorted(names):
            kind, corrected = "unknown-plugin-name", names - {name}
            if name not in known:
                similar = closest_match(name, known - {BUILT_IN})
                corrected |= {similar} if similar else frozenset()
                listed = f"plugins here: {', '.join(sorted(known))}"
                fault = f"no plugin is called {name!r}; "
                fault += f"did you mean {similar!r}?" if similar else listed
            elif name == BUILT_IN and not is_allow_list:
                kind = "built-in-plugin"
                fault = f"{BUILT_IN!r} is the built-in plugin, which cannot be switched off"
            else:
                continue
            fix = _describe_setting(where, corrected)
            problems.append(
                PluginProblem(kind=kind, plugin="", owner=where, message=fault, fix=fix)
            )
    return problems


def _describe_setting(where: str, names: Iterable[str]) -> str:
    """Return the setting with these names, as a command if possible."""
    ordered = sorted(names)
    if where.startswith("--") and not ordered:
        return f"leave {where} out"
    if where == "--plugins":
        return f"detcore --plugins {','.join(ordered)} ..."
    if where == "--no-plugin":
        return " ".join(["detcore", *(f"--no-plugin {name}" for name in ordered), "..."])
    return set_variable_command(where, ordered)
