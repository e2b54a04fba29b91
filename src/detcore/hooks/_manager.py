"""Manage plugins: all code finds and calls them through `PluginManager`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from detcore.contract.errors import PluginNotFoundError, near_name
from detcore.contract.hook_values import OBSERVER_HOOKS
from detcore.hooks._entry import Observer, PluginEntry, PluginState, is_reserved
from detcore.hooks._problem import PluginProblem, Selection
from detcore.hooks._runtime import Runtime

if TYPE_CHECKING:
    import logging

    import click
    from pluggy import HookCaller

    from detcore.contract.hook_values import (
        FailureActionType,
        LauncherType,
        RendezvousType,
        RoutesType,
        SearcherType,
        StorageType,
        TablesType,
    )
    from detcore.contract.values import Framework
    from detcore.environment import Environment

    Registered: TypeAlias = (
        Framework
        | StorageType
        | LauncherType
        | RendezvousType
        | SearcherType
        | FailureActionType
        | RoutesType
        | TablesType
        | click.Command
    )

__all__ = ["PluginManager"]

_USABLE = (PluginState.READY, PluginState.LOADED)


class PluginManager:
    """Finds plugins, imports each when it is first needed, and calls their hooks.

    One manager is made per run or command and passed to the code that needs plugins. Making it
    does nothing. Failures of plugins are never raised from here: they become `PluginProblem`
    objects. Not thread-safe.

    Args:
        environment: Enabled plugins (``DETCORE_PLUGINS``, ``DETCORE_DISABLE_PLUGINS``).
        disabled: Further plugins to disable.
        allowed: The only plugins to use besides the built-in one; None follows `environment`.
        reserved_commands: Names of commands, each with the distributions whose plugins may
            register it; none: it is built in.
        on_problem: Called once with each problem when it is found; default: log a warning.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        disabled: Iterable[str] = (),
        allowed: Iterable[str] | None = None,
        reserved_commands: Mapping[str, Sequence[str]] | None = None,
        on_problem: Callable[[PluginProblem], None] | None = None,
    ) -> None:
        selection = Selection(
            disabled_by_variable=environment.disabled_plugins,
            disabled_by_caller=frozenset(disabled),
            allowed_by_variable=environment.allowed_plugins,
            allowed_by_caller=None if allowed is None else frozenset(allowed),
        )
        self._selection = selection
        self._reserved = dict(reserved_commands or {})
        self._runtime = Runtime(selection, self._reserved, on_problem or _log_problem)

    # -- installed plugins ------------------------------------------------------------------------

    @property
    def disabled(self) -> frozenset[str]:
        """Names of the disabled plugins."""
        return self._selection.disabled

    @property
    def allowed(self) -> frozenset[str] | None:
        """Names of the only enabled plugins, or None for all."""
        return self._selection.allowed

    def index(self) -> list[PluginEntry]:
        """Return the installed plugins in their current states; imports none of them."""
        return self._runtime.entries()

    def versions(self) -> dict[str, str]:
        """Return the distribution and version of each plugin that is in use, by name."""
        return {
            entry.name: f"{entry.distribution} {entry.version}"
            for entry in self.index()
            if entry.state in _USABLE
        }

    def entry(self, name: str) -> PluginEntry:
        """Return the plugin of that name.

        Raises:
            PluginNotFoundError: If it does not exist.
        """
        entries = {entry.name: entry for entry in reversed(self.index())}
        if name not in entries:
            near = near_name(name, entries)
            hint = f"Did you mean {near!r}?" if near else f"Plugins here: {', '.join(entries)}."
            raise PluginNotFoundError(f"no plugin is called {name!r}.\n{hint}")
        return entries[name]

    def problems(self) -> list[PluginProblem]:
        """Return the problems found so far; `detcore.hooks.diagnose` checks everything."""
        self._runtime.entries()
        return list(self._runtime.problems)

    def add_problem(self, problem: PluginProblem) -> None:
        """Record a problem found elsewhere, unless it is known already."""
        self._runtime.report(problem)

    def hooks_of(self, name: str) -> dict[str, Callable[..., object]]:
        """Return a plugin's hook implementations by name; imports it. Empty if it is not usable."""
        hooks = self._runtime.load(self.entry(name))
        return {} if hooks is None else hooks.functions

    def registrations_of(self, name: str) -> list[tuple[str, Registered]]:
        """Return a plugin's registrations, as pairs such as ``("framework", Framework(...))``."""
        from detcore.hooks._registry import KINDS

        return [
            (noun, registration.item)
            for noun in KINDS
            for registration in self._runtime.registrations(noun).values()
            if registration.entry.name == name
        ]

    # -- registrations ----------------------------------------------------------------------------

    def frameworks(self) -> dict[str, Framework]:
        """Return the registered frameworks by name."""
        return self._runtime.items("framework")

    def provider_of_framework(self, name: str) -> PluginEntry:
        """Return the plugin of a framework from `frameworks`."""
        return self._runtime.provider("framework", name)

    def storage_types(self) -> dict[str, StorageType]:
        """Return the registered storage types by name."""
        return self._runtime.items("storage type")

    def launchers(self) -> dict[str, LauncherType]:
        """Return the registered launchers by name."""
        return self._runtime.items("launcher")

    def rendezvous(self) -> dict[str, RendezvousType]:
        """Return the registered services for workers to find each other, by name."""
        return self._runtime.items("rendezvous")

    def searchers(self) -> dict[str, SearcherType]:
        """Return the registered search methods by name."""
        return self._runtime.items("searcher")

    def failure_actions(self) -> dict[str, FailureActionType]:
        """Return the registered actions for trials that fail, by name."""
        return self._runtime.items("failure action")

    def routes(self) -> dict[str, RoutesType]:
        """Return the registered routes of the server by name."""
        return self._runtime.items("router")

    def provider_of_routes(self, name: str) -> PluginEntry:
        """Return the plugin of routes from `routes`."""
        return self._runtime.provider("router", name)

    def tables(self) -> dict[str, TablesType]:
        """Return the registered tables of plugins by name."""
        return self._runtime.items("set of tables")

    def settings_models(self) -> dict[str, Any]:
        """Return the arguments of `detcore.config.load_config` for plugins' settings.

        Returns:
            For each argument, names with the models of their settings, as ``"module:Class"`` or
            None.
        """
        return {
            "searchers": {name: kind.settings or None for name, kind in self.searchers().items()},
            "storage_types": {name: kind.settings for name, kind in self.storage_types().items()},
            "launchers": {name: kind.settings or None for name, kind in self.launchers().items()},
        }

    def commands(self) -> dict[str, click.Command]:
        """Return the registered commands by name."""
        return self._runtime.items("command")

    def declared_commands(self) -> dict[str, PluginEntry]:
        """Return the commands that usable plugins declare, by name; imports none of them.

        Names that are reserved for others, and names that two plugins declare, are excluded.
        """
        declared: dict[str, PluginEntry] = {}
        claims: Counter[str] = Counter()
        for entry in self._runtime.entries():
            if entry.state in _USABLE:
                for name in entry.commands:
                    if is_reserved(name, entry, self._reserved):
                        continue
                    declared.setdefault(name, entry)
                    claims[name] += declared[name].distribution != entry.distribution
        return {name: entry for name, entry in sorted(declared.items()) if not claims[name]}

    def command(self, name: str) -> click.Command | None:
        """Return a plugin's command, or None if it does not exist.

        If it is declared, only the plugin that declares it is imported, else all are.
        """
        entry = self.declared_commands().get(name)
        if entry is not None:
            command: click.Command | None = self._runtime.items_of(entry, "command").get(name)
            if command is not None:
                return command
        return self.commands().get(name)

    def declaring_plugin(self, distribution: str, name: str) -> PluginEntry | None:
        """Return the plugin of a distribution that declares a command, or None.

        If several do, a usable one is preferred. No plugin is imported.
        """
        found = [
            entry
            for entry in self._runtime.entries()
            if entry.distribution == distribution and name in entry.commands
        ]
        return min(found, key=lambda entry: entry.state not in _USABLE, default=None)

    def command_of(self, distribution: str, name: str) -> click.Command | None:
        """Return the command that a usable plugin of a distribution declares, or None.

        No other plugin is imported.
        """
        entry = self.declaring_plugin(distribution, name)
        if entry is None or entry.state not in _USABLE:
            return None
        command: click.Command | None = self._runtime.items_of(entry, "command").get(name)
        return command

    # -- observers --------------------------------------------------------------------------------

    def observers(self) -> list[Observer]:
        """Return the plugins that have observer hooks, in calling order; imports all plugins."""
        callers: dict[str, dict[str, HookCaller]] = {}
        entries: dict[str, PluginEntry] = {}
        for hook in OBSERVER_HOOKS:
            for entry, caller in self._runtime.callers(hook):
                entries.setdefault(entry.name, entry)
                callers.setdefault(entry.name, {})[hook] = caller
        return [Observer(entry, callers[name]) for name, entry in entries.items()]


def _log_problem(problem: PluginProblem) -> None:
    _logger().warning("plugin %s", problem)


def _logger() -> logging.Logger:
    import logging

    return logging.getLogger("detcore.plugins")
