"""The contract: all that a plugin author reads, in one room, which needs nothing of the others."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator

from source_tree import SOURCE, Import, Module, modules_under

from .test_layers import REACHES_UP, find_cycle, package_of

ROOM = "detcore.contract"
MODULES = [module for module in modules_under(SOURCE) if f"{module.name}.".startswith(f"{ROOM}.")]
LINES_FOR_ONE_SITTING = 3200
# Modules that are documented places of a whole module of the room.
WHOLE = {
    "detcore.errors": "detcore.contract.errors",
    "detcore.types": "detcore.contract.values",
}
# Documented places of single names, which have other names, too.
DOCUMENTED = {
    "detcore": "DetcoreError InvalidHP Trial TrialContext hookimpl",
    "detcore.core": "DistributedContext",
    "detcore.data": "DataSource IdKind",
    "detcore.distributed": "DistributedContext",
    "detcore.plugins": "CheckpointSaved EventInfo LauncherType"
    " OBSERVER_HOOKS RendezvousType RoutesType SearcherType StorageType"
    " hookimpl hookspec",
    "detcore.launch": "Launcher OutputSink SupportsCheck WorkerEvent WorkerGroup",
    "detcore.launch.nodes": "Line RankPlace Rendezvous RendezvousService RendezvousStore Sink",
    "detcore.metrics": "MetricReducer",
    "detcore.search": "Answer ExitReason NewTrial SearchMethod SearchSetup TrainTo",
    "detcore.storage": "Capabilities Entry FileDigest Pair Progress StorageBackend",
    "detcore.trial": "PollingClock Clock Decision LoopingController PrepareOptions SavesState Step"
    " SteppingController SupportsFinish SupportsSnapshot SupportsStartFrom SupportsStateTensors"
    " SupportsTensors Trial TrialContext TrialSetup ValidationResult",
}


def imports_from_detcore(module: Module) -> Iterator[tuple[Import, str]]:
    """Yield the imports of detcore with the module that each means."""
    names = {one.name for one in modules_under(SOURCE)}
    for found in module.imports:
        if package_of(found.module) is not None:
            inner = f"{found.module}.{found.name}"
            yield found, inner if inner in names else found.module


def test_the_room_is_read_in_one_sitting() -> None:
    lines = {one.name: one.path.read_text(encoding="utf-8").count("\n") for one in MODULES}
    assert len(lines) > 10
    assert sum(lines.values()) <= LINES_FOR_ONE_SITTING, lines


def test_the_room_imports_nothing_of_the_core_but_what_is_named() -> None:
    outside = {
        (module.name, package_of(found.module))
        for module in MODULES
        for found, _ in imports_from_detcore(module)
        if package_of(found.module) != "contract"
    }
    reaches = {(module, package) for module, package in REACHES_UP if module.startswith(ROOM)}
    assert outside == reaches | {(ROOM, "lazy")}


def test_the_room_imports_nothing_of_the_core_when_it_is_imported() -> None:
    early = [
        module.place(node.lineno)
        for module in MODULES
        for node in module.tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        and package_of(getattr(node, "module", None) or "") not in (None, "contract", "lazy")
    ]
    assert early == []


def test_the_room_has_no_cycle_even_for_types() -> None:
    edges: dict[str, set[str]] = {}
    for module in MODULES:
        for _, meant in imports_from_detcore(module):
            if meant.startswith(ROOM) and meant != module.name:
                edges.setdefault(module.name, set()).add(meant)
    assert len(edges) > 5
    assert find_cycle(edges) == []


def test_a_name_has_one_home_in_the_room() -> None:
    homes: dict[str, str] = {}
    for module in MODULES:
        for name in module.declared_all() or () if module.name != ROOM else ():
            assert homes.setdefault(name, module.name) == module.name, name


def test_documented_places_hand_on_the_very_same_objects() -> None:
    homes = {
        name: module.name
        for module in MODULES
        if module.name != ROOM
        for name in module.declared_all() or ()
    }
    homes |= dict.fromkeys(("hookimpl", "hookspec"), f"{ROOM}.hooks")  # no hooks themselves
    for place, home in WHOLE.items():
        handed, defined = importlib.import_module(place), importlib.import_module(home)
        assert handed.__all__ == defined.__all__
        for name in defined.__all__:
            assert getattr(handed, name) is getattr(defined, name)
    for place, names in DOCUMENTED.items():
        handed = importlib.import_module(place)
        for name in names.split():
            assert name in handed.__all__, f"{place}.{name}"
            assert getattr(handed, name) is getattr(importlib.import_module(homes[name]), name)
