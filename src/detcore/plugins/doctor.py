"""Check all plugins for faults, including faults that a run would not notice."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

from detcore.plugins.plugin_entry import (
    BUILT_IN,
    PluginEntry,
    PluginProblem,
    PluginState,
    install_command,
    make_plugin_problem,
)
from detcore.version import __version__

if TYPE_CHECKING:
    from detcore.plugins.plugin_manager import PluginManager


def diagnose(manager: PluginManager) -> list[PluginProblem]:
    """Import every enabled plugin, collect its registrations, and return all faults.

    No framework is imported, but the packages of registered classes are.

    Args:
        manager: The plugins. Faults are also reported to its ``on_problem``.

    Returns:
        The faults, sorted by plugin name.
    """
    manager.list_registrations(BUILT_IN)  # imports all plugins, and calls all register hooks
    for entry in manager.index():
        if entry.state is PluginState.LOADED:
            for problem in _version_faults(entry):
                manager.add_problem(problem)
            for noun, item in manager.list_registrations(entry.name):
                for problem in _registration_faults(entry, noun, item):
                    manager.add_problem(problem)
    return sorted(manager.problems(), key=lambda problem: (problem.plugin, problem.kind))


def _version_faults(entry: PluginEntry) -> Iterator[PluginProblem]:
    """Compare the version of detcore with the distribution's requirements."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    # A distribution whose directory has a different name is not found by its name.
    with contextlib.suppress(PackageNotFoundError):
        for line in requires(entry.distribution) or ():
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            specifier = requirement.specifier
            is_ours = (
                canonicalize_name(requirement.name) == "detcore" and requirement.marker is None
            )
            if is_ours and not specifier.contains(__version__, prereleases=True):
                fault = f"it requires detcore{specifier}, but detcore {__version__} is installed"
                fix = install_command("--upgrade", *entry.source, f"detcore{specifier}")
                yield make_plugin_problem("detcore-version", entry, fault, fix=fix)


def _registration_faults(entry: PluginEntry, noun: str, item: object) -> Iterator[PluginProblem]:
    from detcore.contract.values import Framework
    from detcore.plugins.plugin_loading import list_targets

    for field, target in list_targets(noun, item):
        module = target.partition(":")[0]
        if not _module_exists(module):
            fault = f"it registers a {noun} whose {field} is {target!r}, but the module {module!r} "
            yield make_plugin_problem("missing-target", entry, f"{fault}does not exist")
    if isinstance(item, Framework):
        for module in item.requires:
            if not _module_exists(module):
                fault = f"its framework {item.name!r} needs the module {module!r}, which is not "
                fix = item.install_hint or install_command(module.partition(".")[0])
                yield make_plugin_problem("missing-framework", entry, f"{fault}installed", fix=fix)


def _module_exists(module: str) -> bool:
    """Whether a module can be imported; imports its parent packages."""
    try:
        return importlib.util.find_spec(module) is not None
    except Exception:  # noqa: BLE001  (a package that cannot be imported has no modules)
        return False
