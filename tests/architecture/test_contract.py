"""The contract package: everything that a plugin author reads, independent of other packages."""

from __future__ import annotations

import ast
import doctest
import importlib
from collections.abc import Iterator

import pytest
from source_tree import SOURCE, Import, Module, modules_under

from .test_layers import REACHES_UP, find_cycle, package_of

CONTRACT = "detcore.contract"
MODULES = [
    module for module in modules_under(SOURCE) if f"{module.name}.".startswith(f"{CONTRACT}.")
]
MAX_LINES = 3200
# Documented modules that re-export a whole module of the contract.
REEXPORTED_MODULES = {
    "detcore.errors": "detcore.contract.errors",
    "detcore.types": "detcore.contract.values",
}
# Documented modules that re-export single names of the contract.
REEXPORTED_NAMES = {
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
    " SteppingController SupportsCommit SupportsFinish SupportsLiveState SupportsSnapshot"
    " SupportsStartFrom SupportsStateTensors SupportsTensors Trial TrialContext TrialSetup"
    " ValidationResult",
}


def imports_from_detcore(module: Module) -> Iterator[tuple[Import, str]]:
    """Yield the imports of detcore, each with the imported module."""
    module_names = {source_module.name for source_module in modules_under(SOURCE)}
    for imported in module.imports:
        if package_of(imported.module) is not None:
            submodule = f"{imported.module}.{imported.name}"
            yield imported, submodule if submodule in module_names else imported.module


def test_contract_is_short() -> None:
    lines = {module.name: module.path.read_text(encoding="utf-8").count("\n") for module in MODULES}
    assert len(lines) > 10
    assert sum(lines.values()) <= MAX_LINES, lines


def test_contract_imports_only_listed_packages() -> None:
    outside = {
        (module.name, package_of(imported.module))
        for module in MODULES
        for imported, _ in imports_from_detcore(module)
        if package_of(imported.module) != "contract"
    }
    reaches = {(module, package) for module, package in REACHES_UP if module.startswith(CONTRACT)}
    assert outside == reaches | {(CONTRACT, "lazy")}


def test_contract_imports_other_packages_late() -> None:
    early_imports = [
        module.place(node.lineno)
        for module in MODULES
        for node in module.tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        and package_of(getattr(node, "module", None) or "") not in (None, "contract", "lazy")
    ]
    assert early_imports == []


def test_contract_has_no_import_cycle() -> None:
    edges: dict[str, set[str]] = {}
    for module in MODULES:
        for _, target in imports_from_detcore(module):
            if target.startswith(CONTRACT) and target != module.name:
                edges.setdefault(module.name, set()).add(target)
    assert len(edges) > 5
    assert find_cycle(edges) == []


def test_contract_defines_each_name_once() -> None:
    homes: dict[str, str] = {}
    for module in MODULES:
        for name in module.declared_all() or () if module.name != CONTRACT else ():
            assert homes.setdefault(name, module.name) == module.name, name


def test_documented_modules_export_same_objects() -> None:
    homes = {
        name: module.name
        for module in MODULES
        if module.name != CONTRACT
        for name in module.declared_all() or ()
    }
    homes |= dict.fromkeys(("hookimpl", "hookspec"), f"{CONTRACT}.hooks")  # not hooks
    for place, home in REEXPORTED_MODULES.items():
        documented, defined = importlib.import_module(place), importlib.import_module(home)
        assert documented.__all__ == defined.__all__
        for name in defined.__all__:
            assert getattr(documented, name) is getattr(defined, name)
    for place, names in REEXPORTED_NAMES.items():
        documented = importlib.import_module(place)
        for name in names.split():
            assert name in documented.__all__, f"{place}.{name}"
            assert getattr(documented, name) is getattr(importlib.import_module(homes[name]), name)


@pytest.mark.parametrize("name", ["hooks", "launch", "search_method", "storage", "trial"])
def test_examples_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"{CONTRACT}.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
