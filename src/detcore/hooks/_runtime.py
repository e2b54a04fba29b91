"""Load each plugin and call its register hooks, once; used through `PluginManager`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from detcore.hooks._entry import PluginEntry, PluginState, is_reserved
from detcore.hooks._problem import PluginProblem, Selection, plugin_problem, switch_off_command

if TYPE_CHECKING:
    import pluggy

    from detcore.hooks._load import Hooks
    from detcore.hooks._registry import Kind, Registration

__all__ = ["Runtime"]

Caller: TypeAlias = "tuple[PluginEntry, pluggy.HookCaller]"


class Runtime:
    """State of one manager: entries, hooks, registrations, problems.

    Args:
        selection: The enabled plugins.
        reserved_commands: Names of commands, each with the distributions whose plugins may
            register it; none: it is built in.
        on_problem: Called once with each problem.
    """

    def __init__(
        self,
        selection: Selection,
        reserved_commands: Mapping[str, Sequence[str]],
        on_problem: Callable[[PluginProblem], None],
    ) -> None:
        self.problems: list[PluginProblem] = []
        self._selection = selection
        self._reserved = reserved_commands
        self._on_problem = on_problem
        self._entries: list[PluginEntry] | None = None
        self._hooks: dict[str, Hooks | None] = {}
        self._specs: pluggy.PluginManager | None = None
        self._everything: pluggy.PluginManager | None = None
        self._callers: dict[str, list[Caller]] = {}
        self._settled: dict[str, dict[str, Registration]] = {}

    def entries(self) -> list[PluginEntry]:
        """Return all plugins in their current states; the first call scans the distributions."""
        if self._entries is None:
            from detcore.hooks._index import build_index

            index = build_index(self._selection)
            self._entries = list(index.entries)
            for problem in index.problems:
                self.report(problem)
            self._check_declared_commands()
        return list(self._entries)

    def report(self, problem: PluginProblem) -> None:
        """Keep a problem, and pass it on; known problems are dropped."""
        if problem.plugin and problem.alternative is None and problem.kind != "duplicate-plugin":
            off = switch_off_command(problem.plugin, self._selection.disabled_by_variable)
            if off != problem.mend:
                problem = dataclasses.replace(problem, alternative=off)
        if problem not in self.problems:
            self.problems.append(problem)
            self._on_problem(problem)

    def load(self, entry: PluginEntry) -> Hooks | None:
        """Return a plugin's hooks; the first call imports it. None if it cannot be used."""
        if entry.state not in (PluginState.READY, PluginState.LOADED):
            return None
        if entry.name not in self._hooks:
            from detcore.hooks._load import load_plugin

            if self._specs is None:
                self._specs = self._make_pluggy(())
            hooks, problems = load_plugin(entry, self._specs)
            self._hooks[entry.name] = hooks
            self._set_state(entry, PluginState.BROKEN if hooks is None else PluginState.LOADED)
            for problem in problems:
                self.report(problem)
        return self._hooks[entry.name]

    def callers(self, hook: str) -> list[Caller]:
        """Return each plugin that implements a hook with a function to call it, in order."""
        if hook not in self._callers:
            if self._everything is None:
                for entry in self.entries():
                    self.load(entry)
                self._everything = self._make_pluggy(self.entries())
            self._callers[hook] = _split(self._everything, hook, self.entries())
        return self._callers[hook]

    def items(self, noun: str) -> dict[str, Any]:
        """Return the registrations of all plugins of one kind, by name."""
        return {name: found.item for name, found in self.registrations(noun).items()}

    def provider(self, noun: str, name: str) -> PluginEntry:
        """Return the plugin that registered a value from `items`."""
        return self.registrations(noun)[name].entry

    def items_of(self, entry: PluginEntry, noun: str) -> dict[str, Any]:
        """Return the registrations of one plugin of one kind, by name; calls no other plugin."""
        from detcore.hooks._registry import KINDS

        self.load(entry)
        callers = _split(self._make_pluggy([entry]), KINDS[noun].hook, [entry])
        return {name: found.item for name, found in self._collect(noun, callers).items()}

    def registrations(self, noun: str) -> dict[str, Registration]:
        """Return the registrations of all plugins of one kind, by name, with their plugins."""
        from detcore.hooks._registry import KINDS

        if noun not in self._settled:
            self._settled[noun] = self._collect(noun, self.callers(KINDS[noun].hook))
        return self._settled[noun]

    def _collect(self, noun: str, callers: Iterable[Caller]) -> dict[str, Registration]:
        from detcore.hooks._registry import KINDS, settle

        registrations = [one for caller in callers for one in self._ask(KINDS[noun], caller)]
        reserved = self._reserved if noun == "command" else {}
        settled, problems = settle(KINDS[noun], registrations, reserved)
        for problem in problems:
            self.report(problem)
        return settled

    def _ask(self, kind: Kind, caller: Caller) -> list[Registration]:
        """Call one plugin's register hook and check its result."""
        from detcore.hooks._load import defined_at, describe_error
        from detcore.hooks._registry import check_items

        entry, hook = caller
        try:
            returned = hook()
        except (Exception, SystemExit) as error:  # noqa: BLE001  (isolated, and reported)
            self.report(
                plugin_problem("hook-failed", entry, f"{kind.hook} fails: {describe_error(error)}")
            )
            return []
        place = defined_at(hook.get_hookimpls()[0].function)
        registrations, problems = check_items(kind, entry, returned, place)
        for problem in problems:
            self.report(problem)
        return registrations

    def _make_pluggy(self, entries: Iterable[PluginEntry]) -> pluggy.PluginManager:
        """Return a pluggy manager with the specifications and the loaded plugins."""
        import pluggy

        from detcore.contract import hooks as specs
        from detcore.contract.hooks import PROJECT

        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(specs)
        for entry in reversed(list(entries)):  # pluggy calls in reverse order of registration
            hooks = self._hooks.get(entry.name)
            if hooks is not None and entry.state in (PluginState.READY, PluginState.LOADED):
                manager.register(hooks, name=entry.name)
        return manager

    def _set_state(self, entry: PluginEntry, state: PluginState) -> None:
        assert self._entries is not None  # `entry` came from there
        self._entries = [
            dataclasses.replace(known, state=state) if known == entry else known
            for known in self._entries
        ]

    def _check_declared_commands(self) -> None:
        clashes = [
            (entry, name)
            for entry in self._entries or ()
            if entry.state is PluginState.READY
            for name in sorted(set(entry.commands))
            if is_reserved(name, entry, self._reserved)
        ]
        for entry, name in clashes:
            from detcore.hooks._registry import command_clash

            self.report(command_clash(entry, name, self._reserved[name]))


def _split(manager: pluggy.PluginManager, hook: str, entries: list[PluginEntry]) -> list[Caller]:
    """Return one caller per plugin, so that a failing plugin does not stop the others."""
    by_name = {entry.name: entry for entry in reversed(entries)}
    implementations = getattr(manager.hook, hook).get_hookimpls()
    plugins = list({impl.plugin_name: impl.plugin for impl in reversed(implementations)}.items())
    return [
        (
            by_name[name],
            manager.subset_hook_caller(
                hook, [other for _, other in plugins if other is not plugin]
            ),
        )
        for name, plugin in plugins
    ]
