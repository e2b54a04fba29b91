"""Describe a plugin before it is imported, and its faults, with commands that fix them."""

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
"""Name of the plugin that ships with detcore; it can be neither replaced nor switched off."""


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
        folder: The folder of the distribution's metadata.
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
        """Whether it ships with detcore."""
        return self.name == BUILT_IN and self.distribution == "detcore"

    @property
    def label(self) -> str:
        """The plugin and its distribution, for messages."""
        return f"{self.name} ({self.distribution} {self.version})"


def is_reserved(name: str, entry: PluginEntry, reserved: Mapping[str, str]) -> bool:
    """Whether a plugin may not register a command: it is built in, or another distribution's."""
    return name in reserved and entry.distribution != reserved[name]


class Observer:
    """A plugin with observer hooks.

    Made by `PluginManager.observers`; from then on, any single thread may use it.

    Attributes:
        entry: The plugin.
        hooks: Names of its observer hooks.
    """

    def __init__(self, entry: PluginEntry, callers: Mapping[str, HookCaller]) -> None:
        self.entry = entry
        self._callers = dict(callers)
        self.hooks = frozenset(callers)

    def call(self, hook: str, arguments: Mapping[str, object]) -> None:
        """Call one of its hooks.

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
        plugin: Name of the plugin; empty if the fault concerns no single plugin.
        owner: The plugin and its distribution, or the variable or option at fault.
        message: Description of the fault, with the values; one line.
        fix: The command that fixes it; for an option of ``detcore``, its correct form.
        alternative: Another command that fixes it, or None.
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


def plugin_problem(
    kind: str, entry: PluginEntry, message: str, *, fix: str | None = None
) -> PluginProblem:
    """Return a problem of one plugin.

    Args:
        kind: As for `PluginProblem`.
        entry: The plugin.
        message: As for `PluginProblem`; line breaks are removed.
        fix: The command that fixes it; default: only another version of the plugin can.
    """
    return PluginProblem(
        kind=kind,
        plugin=entry.name,
        owner=entry.label,
        message=one_line(message),
        fix=fix or install_command("--upgrade", *entry.source),
    )


def command_clash(entry: PluginEntry, name: str, owner: str) -> PluginProblem:
    """Return the problem of a command whose name is reserved; the owner "" is detcore itself."""
    told = "has the name of a built-in command; the built-in one is used"
    if owner:
        told = f"has the name of the command of {owner}, which is used instead"
    return plugin_problem("command-clash", entry, f"its command {name!r} {told}")


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The names in the settings that enable plugins: of variables, and of options or callers."""

    disabled_by_variable: frozenset[str]
    disabled_by_caller: frozenset[str]
    allowed_by_variable: frozenset[str] | None
    allowed_by_caller: frozenset[str] | None

    @property
    def disabled(self) -> frozenset[str]:
        """All names that are disabled."""
        return self.disabled_by_variable | self.disabled_by_caller

    @property
    def allowed(self) -> frozenset[str] | None:
        """The allow-list: the caller's, else the variable's, else None (all)."""
        is_given = self.allowed_by_caller is not None
        return self.allowed_by_caller if is_given else self.allowed_by_variable


def selection_faults(selection: Selection, known: set[str]) -> list[PluginProblem]:
    """Find names in the settings that belong to no plugin."""
    problems = []
    for where, names, is_allow_list in (
        ("DETCORE_DISABLE_PLUGINS", selection.disabled_by_variable, False),
        ("--no-plugin", selection.disabled_by_caller, False),
        ("DETCORE_PLUGINS", selection.allowed_by_variable or frozenset(), True),
        ("--plugins", selection.allowed_by_caller or frozenset(), True),
    ):
        for name in sorted(names):
            kind, right = "unknown-plugin-name", names - {name}
            if name not in known:
                near = closest_match(name, known - {BUILT_IN})
                right |= {near} if near else frozenset()
                listed = f"plugins here: {', '.join(sorted(known))}"
                fault = f"no plugin is called {name!r}; "
                fault += f"did you mean {near!r}?" if near else listed
            elif name == BUILT_IN and not is_allow_list:
                kind = "built-in-plugin"
                fault = f"{BUILT_IN!r} is the built-in plugin, which cannot be switched off"
            else:
                continue
            fix = _set_list(where, right)
            problems.append(
                PluginProblem(kind=kind, plugin="", owner=where, message=fault, fix=fix)
            )
    return problems


def _set_list(where: str, names: Iterable[str]) -> str:
    """Return how to write `names` in the setting in question; a command if there is one."""
    ordered = sorted(names)
    if where.startswith("--") and not ordered:
        return f"leave {where} out"
    if where == "--plugins":
        return f"detcore --plugins {','.join(ordered)} ..."
    if where == "--no-plugin":
        return " ".join(["detcore", *(f"--no-plugin {name}" for name in ordered), "..."])
    return set_variable_command(where, ordered)
