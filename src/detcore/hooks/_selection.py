"""Determine which plugins are enabled, and by which setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from detcore.errors import near_name
from detcore.hooks._entry import BUILT_IN
from detcore.hooks._problem import PluginProblem, set_variable_command

__all__ = ["Selection", "selection_faults"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The enabled plugins, and the settings that enable them.

    Attributes:
        disabled_by_variable: Names in ``DETCORE_DISABLE_PLUGINS``.
        disabled_by_caller: Names given by ``--no-plugin`` or to the manager.
        allowed_by_variable: Names in ``DETCORE_PLUGINS``, or None.
        allowed_by_caller: Names given by ``--plugins`` or to the manager, or None.
    """

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
        if self.allowed_by_caller is not None:
            return self.allowed_by_caller
        return self.allowed_by_variable


def selection_faults(selection: Selection, known: set[str]) -> list[PluginProblem]:
    """Find names in the settings that belong to no plugin."""
    problems = []
    lists: tuple[tuple[str, frozenset[str] | None, bool], ...] = (
        ("DETCORE_DISABLE_PLUGINS", selection.disabled_by_variable, False),
        ("--no-plugin", selection.disabled_by_caller, False),
        ("DETCORE_PLUGINS", selection.allowed_by_variable, True),
        ("--plugins", selection.allowed_by_caller, True),
    )
    for where, names, is_allow_list in lists:
        for name in sorted(names or ()):
            if name not in known:
                problems.append(_unknown_name(where, name, names or frozenset(), known))
            elif name == BUILT_IN and not is_allow_list:
                problems.append(_always_on(where, names or frozenset()))
    return problems


def _unknown_name(where: str, name: str, names: frozenset[str], known: set[str]) -> PluginProblem:
    near = near_name(name, known - {BUILT_IN})
    meant = f"did you mean {near!r}?" if near else f"plugins here: {', '.join(sorted(known))}"
    corrected = (names - {name}) | ({near} if near else set())
    return PluginProblem(
        kind="unknown-plugin-name",
        plugin="",
        owner=where,
        message=f"no plugin is called {name!r}; {meant}",
        mend=_set_list(where, corrected),
    )


def _always_on(where: str, names: frozenset[str]) -> PluginProblem:
    return PluginProblem(
        kind="built-in-plugin",
        plugin="",
        owner=where,
        message=f"{BUILT_IN!r} is the built-in plugin, which cannot be switched off",
        mend=_set_list(where, names - {BUILT_IN}),
    )


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
