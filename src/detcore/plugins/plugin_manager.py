"""Find, load and call plugins. All code does this through `PluginManager`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from detcore.contract.errors import PluginNotFoundError, closest_match
from detcore.contract.hook_values import OBSERVER_HOOKS
from detcore.plugins.plugin_entry import (
    Observer,
    PluginEntry,
    PluginProblem,
    PluginState,
    Selection,
    is_reserved,
    make_command_clash,
    switch_off_command,
)

if TYPE_CHECKING:
    import click
    import pluggy

    from detcore.contract.hook_values import (
        LauncherType,
        RendezvousType,
        RoutesType,
        SearcherType,
        StorageType,
    )
    from detcore.contract.values import Framework
    from detcore.environment import Environment
    from detcore.plugins.plugin_loading import Hooks, Registration

    Caller: TypeAlias = tuple[PluginEntry, pluggy.HookCaller]
    Registered: TypeAlias = (
        Framework
        | StorageType
        | LauncherType
        | RendezvousType
        | SearcherType
        | RoutesType
        | click.Command
    )


_USABLE = (PluginState.READY, PluginState.LOADED)


class PluginManager:
    """Finds plugins, imports each when it is first needed, and calls their hooks.

    Create one per run or command and pass it to the code that needs plugins. The constructor does
    no I/O. Plugin failures are not raised. They are recorded as `PluginProblem` objects. Not
    thread-safe.

    Args:
        environment: Enabled plugins (``DETCORE_PLUGINS``, ``DETCORE_DISABLE_PLUGINS``).
        disabled: Further plugins to disable.
        allowed: The only plugins to use besides the built-in plugin; None follows `environment`.
        reserved_commands: Command names that only one distribution may register, with the name of
            that distribution. An empty string marks a built-in command.
        on_problem: Called once with each problem; default: log a warning.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        disabled: Iterable[str] = (),
        allowed: Iterable[str] | None = None,
        reserved_commands: Mapping[str, str] | None = None,
        on_problem: Callable[[PluginProblem], None] | None = None,
    ) -> None:
        self._selection = Selection(
            disabled_by_variable=environment.disabled_plugins,
            disabled_by_caller=frozenset(disabled),
            allowed_by_variable=environment.allowed_plugins,
            allowed_by_caller=None if allowed is None else frozenset(allowed),
        )
        self._reserved = dict(reserved_commands or {})
        self._on_problem = on_problem or _log_problem
        self._problems: list[PluginProblem] = []
        self._entries: list[PluginEntry] | None = None
        self._hooks: dict[str, Hooks | None] = {}
        self._pluggy: pluggy.PluginManager | None = None
        self._callers_by_hook: dict[str, list[Caller]] = {}
        self._registrations: dict[str, dict[str, Registration]] = {}

    @property
    def disabled(self) -> frozenset[str]:
        """Names of the disabled plugins."""
        return self._selection.disabled

    @property
    def allowed(self) -> frozenset[str] | None:
        """Names of the only enabled plugins, or None for all."""
        return self._selection.allowed

    def index(self) -> list[PluginEntry]:
        """Return the installed plugins in their current states, without importing them."""
        if self._entries is None:
            from detcore.plugins.plugin_index import build_index

            self._entries, problems = build_index(self._selection)
            problems += [
                make_command_clash(entry, name, self._reserved[name])
                for entry in self._entries
                if entry.state is PluginState.READY
                for name in sorted(set(entry.commands))
                if is_reserved(name, entry, self._reserved)
            ]
            for problem in problems:
                self.add_problem(problem)
        return list(self._entries)

    def versions(self) -> dict[str, str]:
        """Return the distribution and version of each enabled, working plugin, by name."""
        return {
            entry.name: f"{entry.distribution} {entry.version}"
            for entry in self.index()
            if entry.state in _USABLE
        }

    def entry(self, name: str) -> PluginEntry:
        """Return the plugin with a name.

        Raises:
            PluginNotFoundError: If no plugin has the name.
        """
        entries = {entry.name: entry for entry in reversed(self.index())}
        if name not in entries:
            similar = closest_match(name, entries)
            hint = (
                f"Did you mean {similar!r}?" if similar else f"Plugins here: {', '.join(entries)}."
            )
            raise PluginNotFoundError(f"no plugin is called {name!r}.\n{hint}")
        return entries[name]

    def problems(self) -> list[PluginProblem]:
        """Return the problems found so far; `detcore.plugins.diagnose` checks everything."""
        self.index()
        return list(self._problems)

    def add_problem(self, problem: PluginProblem) -> None:
        """Record a problem, unless it is recorded already."""
        if problem.plugin and problem.alternative is None and problem.kind != "duplicate-plugin":
            command = switch_off_command(problem.plugin, self._selection.disabled_by_variable)
            if command != problem.fix:
                problem = dataclasses.replace(problem, alternative=command)
        if problem not in self._problems:
            self._problems.append(problem)
            self._on_problem(problem)

    def find_hook_functions(self, name: str) -> dict[str, Callable[..., object]]:
        """Import a plugin, and return its hook implementations by name; empty if it is unusable."""
        hooks = self._load_hooks(self.entry(name))
        return {} if hooks is None else hooks.functions

    def list_registrations(self, name: str) -> list[tuple[str, Registered]]:
        """Return a plugin's registrations, as pairs such as ``("framework", Framework(...))``."""
        from detcore.plugins.plugin_loading import KINDS

        return [
            (noun, registration.item)
            for noun in KINDS
            for registration in self._find_registrations(noun).values()
            if registration.entry.name == name
        ]

    def frameworks(self) -> dict[str, Framework]:
        """Return the registered frameworks by name."""
        return self._list_items("framework")

    def find_framework_provider(self, name: str) -> PluginEntry:
        """Return the plugin of a framework from `frameworks`."""
        return self._find_registrations("framework")[name].entry

    def storage_types(self) -> dict[str, StorageType]:
        """Return the registered storage types by name."""
        return self._list_items("storage type")

    def launchers(self) -> dict[str, LauncherType]:
        """Return the registered launchers by name."""
        return self._list_items("launcher")

    def rendezvous(self) -> dict[str, RendezvousType]:
        """Return the registered rendezvous services by name."""
        return self._list_items("rendezvous")

    def searchers(self) -> dict[str, SearcherType]:
        """Return the registered search methods by name."""
        return self._list_items("searcher")

    def routes(self) -> dict[str, RoutesType]:
        """Return the registered server routes by name."""
        return self._list_items("router")

    def find_routes_provider(self, name: str) -> PluginEntry:
        """Return the plugin of routes from `routes`."""
        return self._find_registrations("router")[name].entry

    def settings_models(self) -> dict[str, dict[str, str | None]]:
        """Return `models` of `detcore.config.LoadOptions` for the installed plugins."""
        sections: dict[str, Mapping[str, Any]] = {
            "searcher": self.searchers(),
            "checkpoint_storage": self.storage_types(),
            "launcher": self.launchers(),
        }
        return {
            section: {name: kind.settings or None for name, kind in kinds.items()}
            for section, kinds in sections.items()
        }

    def commands(self) -> dict[str, click.Command]:
        """Return the registered commands by name."""
        return self._list_items("command")

    def declared_commands(self) -> dict[str, PluginEntry]:
        """Return the commands that usable plugins declare, by name, without importing the plugins.

        Excludes reserved names of other distributions, and names that two distributions declare.
        """
        owners: dict[str, list[PluginEntry]] = {}
        for entry in self.index():
            for name in entry.commands if entry.state in _USABLE else ():
                if not is_reserved(name, entry, self._reserved):
                    owners.setdefault(name, []).append(entry)
        return {
            name: claimants[0]
            for name, claimants in sorted(owners.items())
            if len({entry.distribution for entry in claimants}) == 1
        }

    def command(self, name: str) -> click.Command | None:
        """Return a plugin's command, or None if no plugin provides it.

        If a plugin declares the command, only this plugin is imported. Otherwise all plugins are
        imported.
        """
        declared = self._load_command(self.declared_commands().get(name), name)
        return declared or self.commands().get(name)

    def declaring_plugin(self, distribution: str, name: str) -> PluginEntry | None:
        """Return the plugin of a distribution that declares a command, or None.

        A usable plugin is preferred. No plugin is imported.
        """
        candidates = [
            entry
            for entry in self.index()
            if entry.distribution == distribution and name in entry.commands
        ]
        return min(candidates, key=lambda entry: entry.state not in _USABLE, default=None)

    def get_distribution_command(self, distribution: str, name: str) -> click.Command | None:
        """Return the command that a usable plugin of a distribution declares, or None.

        No other plugin is imported.
        """
        return self._load_command(self.declaring_plugin(distribution, name), name)

    def _load_command(self, entry: PluginEntry | None, name: str) -> click.Command | None:
        if entry is None or entry.state not in _USABLE:
            return None
        from detcore.plugins.plugin_loading import KINDS, find_callers, make_pluggy

        hooks = self._load_hooks(entry)
        manager = make_pluggy({} if hooks is None else {entry: hooks})
        callers = find_callers(manager, KINDS["command"].hook, [entry])
        registration = self._collect_registrations("command", callers).get(name)
        return None if registration is None else registration.item

    def observers(self) -> list[Observer]:
        """Return the plugins that have observer hooks, in calling order; imports all plugins."""
        callers: dict[PluginEntry, dict[str, pluggy.HookCaller]] = {}
        for hook in OBSERVER_HOOKS:
            for entry, caller in self._find_callers(hook):
                callers.setdefault(entry, {})[hook] = caller
        return [Observer(entry, hooks) for entry, hooks in callers.items()]

    def _load_hooks(self, entry: PluginEntry) -> Hooks | None:
        """Return a plugin's hooks, or None if it is unusable. The first call imports the plugin."""
        if entry.state in _USABLE and entry.name not in self._hooks:
            from detcore.plugins.plugin_loading import load_plugin

            hooks, problems = load_plugin(entry)
            self._hooks[entry.name] = hooks
            state = PluginState.BROKEN if hooks is None else PluginState.LOADED
            self._entries = [
                dataclasses.replace(listed, state=state) if listed == entry else listed
                for listed in self.index()
            ]
            for problem in problems:
                self.add_problem(problem)
        return self._hooks.get(entry.name) if entry.state in _USABLE else None

    def _find_callers(self, hook: str) -> list[Caller]:
        """Return each plugin that implements a hook, with a function to call it, in order."""
        if hook not in self._callers_by_hook:
            from detcore.plugins.plugin_loading import find_callers, make_pluggy

            if self._pluggy is None:
                for entry in self.index():
                    self._load_hooks(entry)
                hooks = {entry: self._load_hooks(entry) for entry in self.index()}
                self._pluggy = make_pluggy({e: h for e, h in hooks.items() if h is not None})
            self._callers_by_hook[hook] = find_callers(self._pluggy, hook, self.index())
        return self._callers_by_hook[hook]

    def _list_items(self, noun: str) -> dict[str, Any]:
        """Return the registrations of all plugins of one kind, by name."""
        return {
            name: registration.item for name, registration in self._find_registrations(noun).items()
        }

    def _find_registrations(self, noun: str) -> dict[str, Registration]:
        from detcore.plugins.plugin_loading import KINDS

        if noun not in self._registrations:
            self._registrations[noun] = self._collect_registrations(
                noun, self._find_callers(KINDS[noun].hook)
            )
        return self._registrations[noun]

    def _collect_registrations(
        self, noun: str, callers: Iterable[Caller]
    ) -> dict[str, Registration]:
        from detcore.plugins.plugin_loading import KINDS, collect_registrations

        reserved = self._reserved if noun == "command" else {}
        accepted, problems = collect_registrations(KINDS[noun], callers, reserved)
        for problem in problems:
            self.add_problem(problem)
        return accepted


def _log_problem(problem: PluginProblem) -> None:
    import logging

    logging.getLogger("detcore.plugins").warning("plugin %s", problem)
