"""Imports point one way (docs/architecture.md), read from the source: nothing is imported here."""

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

# From the bottom to the top: a package may import what is in its own row or in one above it here.
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
# The contract is at the bottom, and yet some of it needs the machinery above: when it is called, or
# for type checkers (`test_contract.py`).
REACHES_UP = {
    ("detcore.contract.distributed", "distributed"),
    ("detcore.contract.trial", "config"),
    ("detcore.contract.trial", "data"),
    ("detcore.core.context_opening", "run"),
    ("detcore.lazy", "optional_distributions"),
}
LEVEL = {package: level for level, row in enumerate(LAYERS) for package in row}
# The public face hands names on from everywhere, on first use; nothing inside uses it.
FACE = "detcore"

CORE_MODULES = modules_under(SOURCE)
PLUGIN_MODULES = [module for folder in PLUGIN_SOURCES for module in modules_under(folder)]


def package_of(name: str) -> str | None:
    """Return ``"core"`` for ``"detcore.core.core_context"``, and None for what is not detcore's."""
    parts = name.split(".")
    return parts[1] if parts[0] == FACE and len(parts) > 1 else None


def detcore_imports(module: Module) -> Iterator[tuple[Import, str]]:
    """Yield the imports of detcore's packages, with the package: all but those from the face."""
    for found in module.imports:
        package = package_of(found.module)
        if found.module == FACE and found.name in LEVEL:
            package = found.name
        if package is not None:
            yield found, package


def test_source_tree_is_not_empty() -> None:
    assert {"detcore.contract.hooks", "detcore.cli.main_command"} <= {
        module.name for module in CORE_MODULES
    }


def test_layer_table_lists_every_package() -> None:
    packages = {package_of(module.name) for module in CORE_MODULES} - {None}
    assert packages <= set(LEVEL)


def test_imports_point_one_way() -> None:
    upward = [
        f"{module.place(found.line)} imports {package}"
        for module in CORE_MODULES
        for found, package in detcore_imports(module)
        if module.name != FACE
        and LEVEL[package] > LEVEL[package_of(module.name) or ""]
        and (module.name, package) not in REACHES_UP
    ]
    assert upward == []


def test_inner_packages_do_not_import_facades() -> None:
    used = []
    for module in CORE_MODULES:
        if module.name == FACE:
            continue
        names = [
            (found.name, found.line)
            for found in module.imports
            if found.module == FACE and found.name is not None
        ]
        names += [
            (node.attr, node.lineno)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == FACE
        ]
        used += [
            f"{module.place(line)} uses {FACE}.{name}" for name, line in names if name not in LEVEL
        ]
    assert used == []


def test_packages_form_no_cycle() -> None:
    edges: dict[str, set[str]] = {}
    for module in CORE_MODULES:
        own = package_of(module.name)
        for found, package in detcore_imports(module):
            is_reach = found.for_types_only or (module.name, package) in REACHES_UP
            if own is not None and package != own and not is_reach:
                edges.setdefault(own, set()).add(package)
    assert find_cycle(edges) == []


CYCLES_LEFT = {"detcore_estimator"}


# A standalone script runs its runner in its own process, which it loads when it begins.
RUNNER_OF_A_SCRIPT = ("detcore.core.context_opening", "detcore.run")


def test_modules_form_no_cycle() -> None:
    edges: dict[str, dict[str, set[str]]] = {}
    names = {module.name for module in [*CORE_MODULES, *PLUGIN_MODULES]}
    for module in [*CORE_MODULES, *PLUGIN_MODULES]:
        own = module.name.partition(".")[0]
        for found in module.imports:
            inner = f"{found.module}.{found.name}"
            meant = inner if inner in names else found.module
            is_runner = (module.name, meant) == RUNNER_OF_A_SCRIPT
            if meant.partition(".")[0] == own and meant != module.name and not is_runner:
                edges.setdefault(own, {}).setdefault(module.name, set()).add(meant)
    cycles = {own: find_cycle(some) for own, some in edges.items()}
    assert {own: cycle for own, cycle in cycles.items() if cycle and own not in CYCLES_LEFT} == {}


# Distributions whose modules are being renamed.
NAMES_LEFT: set[str] = set()


def test_module_names_are_unique() -> None:
    places: dict[tuple[str, str], list[str]] = {}
    for module in [*CORE_MODULES, *PLUGIN_MODULES]:
        own, _, inner = module.name.partition(".")
        if own not in NAMES_LEFT:
            places.setdefault((own, inner.rpartition(".")[2]), []).append(inner)
    repeated = [
        names
        for (_, name), names in places.items()
        # A module of the contract is for the package, or for the documented place, of its name.
        if len(names) > 1 and sorted(names) != sorted([f"contract.{name}", name])
    ]
    assert repeated == []


def test_no_module_name_starts_with_underscore() -> None:
    names = [
        module.name
        for module in [*CORE_MODULES, *PLUGIN_MODULES]
        if module.name.partition(".")[0] not in NAMES_LEFT and not module.name.endswith("__")
    ]
    assert [name for name in names if "._" in name] == []


def find_cycle(edges: dict[str, set[str]]) -> list[str]:
    done: set[str] = set()

    def visit(package: str, path: list[str]) -> list[str]:
        if package in path:
            return [*path[path.index(package) :], package]
        if package in done:
            return []
        for following in sorted(edges.get(package, ())):
            cycle = visit(following, [*path, package])
            if cycle:
                return cycle
        done.add(package)
        return []

    for start in sorted(edges):
        cycle = visit(start, [])
        if cycle:
            return cycle
    return []


def test_find_cycle_finds_a_cycle() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c", "d"}, "d": {"b"}}) == ["b", "d", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}}) == []


# Plugins that are made of another one, which they require: they use its public names.
BUILT_ON = {
    "detcore_storage": {"detcore_testing"},  # crash points of a storage
    "detcore_testing": {"detcore_replay"},  # checks of ledgers
    "detcore_server": {"detcore_report"},  # the drawings of its page
    "detcore_determined": {"detcore_server"},  # the routes of Determined's client
}


def test_core_imports_no_plugin() -> None:
    plugins = [
        module.place(found.line)
        for module in CORE_MODULES
        for found in module.imports
        if found.module.partition(".")[0].startswith("detcore_")
    ]
    assert plugins == []


def test_plugins_import_only_public_names() -> None:
    wrong = []
    for module in PLUGIN_MODULES:
        own = module.name.partition(".")[0]
        for found in module.imports:
            top = found.module.partition(".")[0]
            is_other = top.startswith("detcore_") and top != own
            if is_other and top not in BUILT_ON.get(own, ()):
                wrong.append(f"{module.place(found.line)}: {found.module} is another plugin's")
            elif top == FACE or is_other:
                wrong += [f"{module.place(found.line)}: {fault}" for fault in _not_public(found)]
    assert wrong == []


def _not_public(found: Import) -> Iterator[str]:
    """Yield what an import names that is private, or that ``__all__`` lacks."""
    modules = {module.name: module for module in [*CORE_MODULES, *PLUGIN_MODULES]}
    dotted = [*found.module.split("."), *([found.name] if found.name else [])]
    module = modules.get(".".join(dotted))
    if any(is_private(part) for part in dotted) or (module is not None and module.is_private):
        yield f"{'.'.join(dotted)} is private"
        return
    source = modules.get(found.module)
    if source is None or found.name is None or module is not None:
        return  # a module, or a package that is not written yet
    if source.is_private:
        yield f"{source.name} is private"
    elif found.name not in (source.declared_all() or ()):
        yield f"{found.module} has no public name {found.name}"


def test_plugins_use_no_private_attributes() -> None:
    """Attributes of names that were imported from detcore: ``core._log`` and the like."""
    private = []
    for module in PLUGIN_MODULES:
        ours = {
            found.name or found.module.partition(".")[0]
            for found in module.imports
            if found.module.partition(".")[0] == FACE
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


def test_plugin_modules_with_hooks_import_no_framework() -> None:
    frameworks = {"tensorflow", "keras", "torch", "jax", "tf_keras"}
    found = [
        module.place(imported.line)
        for module in PLUGIN_MODULES
        if module.name.endswith(".plugin")
        for imported in module.imports
        if imported.module.partition(".")[0] in frameworks and not imported.for_types_only
    ]
    assert found == []
    assert (ROOT / "plugins").is_dir()


# -- the line between a worker and what is around it --

# A worker consists of these; `launch` holds its entry point.
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
# A standalone script is a worker and its runner in one process: these are the runner's part.
SCRIPT_MODULES = {
    "detcore.checkpoint.prune",  # prunes an experiment, by its records
    "detcore.storage.recorded_storage",  # finds the storage of a recorded checkpoint, for commands
    "detcore.trial._instance",
    "detcore.trial.native_start",
}
# Dictionaries that a script gives instead of an experiment file, and the runner of a script.
CROSSINGS = {("detcore.contract.trial", "config"), ("detcore.core.context_opening", "run")}


def test_worker_imports_no_runner_packages() -> None:
    crossing = [
        f"{module.place(found.line)} imports {package}"
        for module in CORE_MODULES
        if (package_of(module.name) in INSIDE or module.name in WORKER_MODULES)
        and module.name not in SCRIPT_MODULES
        for found, package in detcore_imports(module)
        if package not in INSIDE
        and not found.for_types_only
        and (module.name, package) not in CROSSINGS
        and found.module not in WORKER_MODULES
    ]
    assert crossing == []
