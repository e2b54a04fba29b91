"""Imports point one way (docs/architecture.md), as read from the source, without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from source_tree import (
    PLUGIN_SOURCES,
    ROOT,
    SOURCE,
    Import,
    Module,
    is_private,
    modules_under,
)

# Layers from the bottom to the top: a package may import its own row and the rows above it here.
LAYERS = (
    (
        "contract",
        "lazy",
        "version",
    ),
    (
        "errors",
        "types",
        "environment",
        "masking",
        "stop_signals",
        "optional_distributions",
        "atomic_files",
    ),
    ("log",),
    (
        "plugins",
        "records",
        "storage",
        "distributed",
        "metrics",
        "data",
        "config",
        "builtin",
    ),
    (
        "checkpoint",
        "record_descriptions",
        "search",
    ),
    ("core",),
    ("trial",),
    ("launch",),
    ("run",),
    ("client",),
    ("experimental",),
    ("cli",),
    ("__main__",),
)
# The contract is at the bottom, but parts of it import higher packages, in functions or only
# for type checkers (`test_contract.py`).
REACHES_UP = {
    ("detcore.contract.controllers", "data"),
    ("detcore.contract.distributed", "distributed"),
    ("detcore.contract.trial", "config"),
    ("detcore.contract.trial", "data"),
    ("detcore.core.context_opening", "run"),
    ("detcore.lazy", "optional_distributions"),
}
LEVEL = {package: level for level, row in enumerate(LAYERS) for package in row}
# The public facade re-exports names of all packages on first use. No inner package uses it.
FACADE = "detcore"

CORE_MODULES = modules_under(SOURCE)
PLUGIN_MODULES = [module for folder in PLUGIN_SOURCES for module in modules_under(folder)]


def package_of(name: str) -> str | None:
    """Return ``"core"`` for ``"detcore.core.core_context"``, and None for other modules."""
    parts = name.split(".")
    return parts[1] if parts[0] == FACADE and len(parts) > 1 else None


def detcore_imports(module: Module) -> Iterator[tuple[Import, str]]:
    """Yield the imports of detcore's packages, with the package, except those of the facade."""
    for imported in module.imports:
        package = package_of(imported.module)
        if imported.module == FACADE and imported.name in LEVEL:
            package = imported.name
        if package is not None:
            yield imported, package


def test_source_tree_is_not_empty() -> None:
    assert {"detcore.contract.hooks", "detcore.cli.main_command"} <= {
        module.name for module in CORE_MODULES
    }


def test_layer_table_lists_every_package() -> None:
    packages = {package_of(module.name) for module in CORE_MODULES} - {None}
    assert packages <= set(LEVEL)


def test_imports_point_one_way() -> None:
    upward = [
        f"{module.place(imported.line)} imports {package}"
        for module in CORE_MODULES
        for imported, package in detcore_imports(module)
        if module.name != FACADE
        and LEVEL[package] > LEVEL[package_of(module.name) or ""]
        and (module.name, package) not in REACHES_UP
    ]
    assert upward == []


def test_inner_packages_do_not_import_facades() -> None:
    used = []
    for module in CORE_MODULES:
        if module.name == FACADE:
            continue
        names = [
            (imported.name, imported.line)
            for imported in module.imports
            if imported.module == FACADE and imported.name is not None
        ]
        names += [
            (node.attr, node.lineno)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == FACADE
        ]
        used += [
            f"{module.place(line)} uses {FACADE}.{name}"
            for name, line in names
            if name not in LEVEL
        ]
    assert used == []


def test_packages_form_no_cycle() -> None:
    edges: dict[str, set[str]] = {}
    for module in CORE_MODULES:
        own_package = package_of(module.name)
        for imported, package in detcore_imports(module):
            is_reach = imported.for_types_only or (module.name, package) in REACHES_UP
            if own_package is not None and package != own_package and not is_reach:
                edges.setdefault(own_package, set()).add(package)
    assert find_cycle(edges) == []


KNOWN_CYCLES = {"detcore_estimator"}


# A standalone script loads its runner in its own process when it starts.
SCRIPT_RUNNER_IMPORT = ("detcore.core.context_opening", "detcore.run")


def test_modules_form_no_cycle() -> None:
    edges: dict[str, dict[str, set[str]]] = {}
    names = {module.name for module in [*CORE_MODULES, *PLUGIN_MODULES]}
    for module in [*CORE_MODULES, *PLUGIN_MODULES]:
        own_package = module.name.partition(".")[0]
        for imported in module.imports:
            inner = f"{imported.module}.{imported.name}"
            target = inner if inner in names else imported.module
            is_runner = (module.name, target) == SCRIPT_RUNNER_IMPORT
            if target.partition(".")[0] == own_package and target != module.name and not is_runner:
                edges.setdefault(own_package, {}).setdefault(module.name, set()).add(target)
    cycles = {own_package: find_cycle(some) for own_package, some in edges.items()}
    assert {
        own_package: cycle
        for own_package, cycle in cycles.items()
        if cycle and own_package not in KNOWN_CYCLES
    } == {}


# Distributions whose modules are being renamed.
KNOWN_DUPLICATES: set[str] = set()


def test_module_names_are_unique() -> None:
    places: dict[tuple[str, str], list[str]] = {}
    for module in [*CORE_MODULES, *PLUGIN_MODULES]:
        own_package, _, inner = module.name.partition(".")
        if own_package not in KNOWN_DUPLICATES:
            places.setdefault((own_package, inner.rpartition(".")[2]), []).append(inner)
    repeated = [
        names
        for (_, name), names in places.items()
        # Only the package of the same name, or its documented module, imports a contract module.
        if len(names) > 1 and sorted(names) != sorted([f"contract.{name}", name])
    ]
    assert repeated == []


def test_no_module_name_starts_with_underscore() -> None:
    names = [
        module.name
        for module in [*CORE_MODULES, *PLUGIN_MODULES]
        if module.name.partition(".")[0] not in KNOWN_DUPLICATES and not module.name.endswith("__")
    ]
    assert [name for name in names if "._" in name] == []


def find_cycle(edges: dict[str, set[str]]) -> list[str]:
    visited: set[str] = set()

    def visit(package: str, path: list[str]) -> list[str]:
        if package in path:
            return [*path[path.index(package) :], package]
        if package in visited:
            return []
        for following in sorted(edges.get(package, ())):
            cycle = visit(following, [*path, package])
            if cycle:
                return cycle
        visited.add(package)
        return []

    for start in sorted(edges):
        cycle = visit(start, [])
        if cycle:
            return cycle
    return []


def test_find_cycle_finds_a_cycle() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c", "d"}, "d": {"b"}}) == ["b", "d", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}}) == []


# Plugins that require another plugin and use its public names.
BUILT_ON = {
    "detcore_storage": {"detcore_testing"},  # crash points of a storage
    "detcore_testing": {"detcore_replay"},  # checks of ledgers
    "detcore_server": {"detcore_report"},  # the charts of its page
    "detcore_determined": {"detcore_server"},  # the routes of Determined's client
}


def test_core_imports_no_plugin() -> None:
    plugins = [
        module.place(imported.line)
        for module in CORE_MODULES
        for imported in module.imports
        if imported.module.partition(".")[0].startswith("detcore_")
    ]
    assert plugins == []


def test_plugins_import_only_public_names() -> None:
    wrong = []
    for module in PLUGIN_MODULES:
        own_package = module.name.partition(".")[0]
        for imported in module.imports:
            top = imported.module.partition(".")[0]
            is_other = top.startswith("detcore_") and top != own_package
            if is_other and top not in BUILT_ON.get(own_package, ()):
                wrong.append(
                    f"{module.place(imported.line)}: {imported.module} is another plugin's"
                )
            elif top == FACADE or is_other:
                wrong += [
                    f"{module.place(imported.line)}: {fault}" for fault in _not_public(imported)
                ]
    assert wrong == []


def _not_public(imported: Import) -> Iterator[str]:
    """Yield the private or unlisted names of an import."""
    modules = {module.name: module for module in [*CORE_MODULES, *PLUGIN_MODULES]}
    dotted = [
        *imported.module.split("."),
        *([imported.name] if imported.name else []),
    ]
    module = modules.get(".".join(dotted))
    if any(is_private(part) for part in dotted) or (module is not None and module.is_private):
        yield f"{'.'.join(dotted)} is private"
        return
    source = modules.get(imported.module)
    if source is None or imported.name is None or module is not None:
        return  # a module, or a missing package
    if source.is_private:
        yield f"{source.name} is private"
    elif imported.name not in (source.declared_all() or ()):
        yield f"{imported.module} has no public name {imported.name}"


def test_plugins_use_no_private_attributes() -> None:
    """Private attributes of names imported from detcore, such as ``core._log``."""
    private = []
    for module in PLUGIN_MODULES:
        ours = {
            imported.name or imported.module.partition(".")[0]
            for imported in module.imports
            if imported.module.partition(".")[0] == FACADE
        }
        private += [
            module.place(node.lineno)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Attribute) and is_private(node.attr) and _root(node) in ours
        ]
    assert private == []


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def test_hook_modules_import_no_framework() -> None:
    frameworks = {"tensorflow", "keras", "torch", "jax", "tf_keras"}
    imported = [
        module.place(imported.line)
        for module in PLUGIN_MODULES
        if module.name.endswith(".plugin")
        for imported in module.imports
        if imported.module.partition(".")[0] in frameworks and not imported.for_types_only
    ]
    assert imported == []
    assert (ROOT / "plugins").is_dir()


# -- the boundary between a worker and its runner --

# The packages of a worker. `launch` contains its entry point.
INSIDE = {
    "optional_distributions",
    "atomic_files",
    "log",
    "masking",
    "stop_signals",
    "checkpoint",
    "contract",
    "core",
    "data",
    "distributed",
    "environment",
    "errors",
    "plugins",
    "lazy",
    "metrics",
    "storage",
    "trial",
    "types",
    "version",
}
WORKER_MODULES = {
    "detcore.launch.exit_codes",
    "detcore.launch.user_traceback",
    "detcore.launch.fork_server",
    "detcore.launch.worker",
}
# A standalone script is worker and runner in one process. These modules are the runner's part.
SCRIPT_MODULES = {
    "detcore.checkpoint.prune",  # prunes an experiment, by its records
    "detcore.storage.recorded_storage",  # finds the storage of a recorded checkpoint, for commands
    "detcore.trial._instance",
    "detcore.trial.native_start",
}
# Dictionaries that a script passes in place of an experiment file, and the runner of a script.
CROSSINGS = {("detcore.contract.trial", "config"), ("detcore.core.context_opening", "run")}


def test_worker_imports_no_runner_packages() -> None:
    crossing = [
        f"{module.place(imported.line)} imports {package}"
        for module in CORE_MODULES
        if (package_of(module.name) in INSIDE or module.name in WORKER_MODULES)
        and module.name not in SCRIPT_MODULES
        for imported, package in detcore_imports(module)
        if package not in INSIDE
        and not imported.for_types_only
        and (module.name, package) not in CROSSINGS
        and imported.module not in WORKER_MODULES
    ]
    assert crossing == []
