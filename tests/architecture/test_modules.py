"""Rules for every single module."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_tree import PLUGIN_SOURCES, SOURCE, modules_under

MIGRATIONS = ".migrations."
# Alembic runs the migration scripts by their paths. Nothing imports them as modules.
CORE_MODULES = [module for module in modules_under(SOURCE) if MIGRATIONS not in module.name]
PLUGIN_MODULES = [
    module
    for folder in PLUGIN_SOURCES
    for module in modules_under(folder)
    if MIGRATIONS not in module.name
]
ALL_MODULES = CORE_MODULES + PLUGIN_MODULES
PUBLIC_MODULES = [
    module
    for module in ALL_MODULES
    if not module.is_private and not module.name.endswith("__main__")
]
ENVIRONMENT_NAMES = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


@pytest.mark.cold
def test_each_package_imports_without_warnings() -> None:
    """Each package imports without warnings, in any order."""
    groups: dict[str, list[str]] = {}
    public = {module.name for module in PUBLIC_MODULES}
    for module in CORE_MODULES:
        if module.name != "detcore.__main__":
            package = module.name
            while package not in public:
                package = package.rpartition(".")[0]
            groups.setdefault(package, [package]).append(module.name)
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("import_each.py"))],
        input="\n".join(" ".join(names) for names in groups.values()),
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # no threads before the forks
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr
    offenders = json.loads(result.stdout.splitlines()[-1])
    assert not offenders, "\n".join(f"{name}: {text}" for name, text in offenders.items())


def test_lazy_packages_list_their_names() -> None:
    names = [
        module.name
        for module in CORE_MODULES
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.Name)
        and (node.name if isinstance(node, ast.FunctionDef) else node.id) == "__dir__"
    ]
    assert "detcore.trial" in names
    for name in names:
        package = importlib.import_module(name)
        assert dir(package) == sorted(package.__all__)
        assert [one for one in package.__all__ if not hasattr(package, one)] == [], name


def test_only_one_module_reads_the_environment() -> None:
    reads = []
    for module in CORE_MODULES:
        reads += [
            module.place(node.lineno)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Attribute)
            and node.attr in ENVIRONMENT_NAMES
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
        ]
        reads += [
            module.place(offenders.line)
            for offenders in module.imports
            if offenders.module == "os" and offenders.name in ENVIRONMENT_NAMES
        ]
    assert {place.partition(":")[0] for place in reads} == {"src/detcore/environment.py"}, reads


def test_no_global_statement() -> None:
    offenders = [
        module.place(node.lineno)
        for module in ALL_MODULES
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Global)
    ]
    assert offenders == []


# Frames between ranks, after each has proven that it knows the job's key. No file is a pickle.
MAY_PICKLE = {
    "detcore.distributed.rank_group",
    "detcore_keras.data.item_processes",  # items from processes that the loader has forked
}


def test_no_pickle() -> None:
    picklers = {
        "pickle",
        "cPickle",
        "_pickle",
        "cloudpickle",
        "dill",
        "joblib",
        "shelve",
        "marshal",
    }
    offenders = [
        module.place(imported.line)
        for module in ALL_MODULES
        for imported in module.imports
        if imported.module.partition(".")[0] in picklers and module.name not in MAY_PICKLE
    ]
    assert offenders == []


def test_all_lists_public_names() -> None:
    wrong = []
    for module in PUBLIC_MODULES:
        declared = module.declared_all()
        assert declared is not None  # otherwise the module is private
        wrong += [
            f"{module.place(node.lineno)} is not in __all__: {node.name}"
            for node in module.tree.body
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and not node.name.startswith("_")
            and node.name not in declared
        ]
    assert wrong == []


def test_packages_only_reexport_names() -> None:
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.If)
    wrong = []
    for module in ALL_MODULES:
        for node in module.tree.body if module.is_package else ():
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            is_lazy = isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__")
            if not (is_text or is_lazy or isinstance(node, allowed)):
                wrong.append(module.place(node.lineno))
    assert wrong == []


MAX_LINES = 60
MAX_POSITIONAL_PARAMETERS = 8  # with `self`
# Signatures of Determined, TensorFlow and PyTorch.
FOREIGN_SIGNATURES = {
    "detcore.client.client_checkpoint.Checkpoint.__init__",
    "detcore_estimator.specs.estimator_spec.EstimatorSpec.__new__",
    "detcore_torch.data.data_loader.DataLoader.__init__",
    "detcore_torch.trainer.Trainer.fit",
}


def walk_functions(
    node: ast.AST, name: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions in a node with their dotted names, nested functions too."""
    for child in ast.iter_child_nodes(node):
        child_name = name
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            child_name = f"{name}.{child.name}"
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child_name, child
        yield from walk_functions(child, child_name)


def test_functions_are_short() -> None:
    lengths = {
        name: node.end_lineno - node.lineno + 1
        for module in ALL_MODULES
        for name, node in walk_functions(module.tree, module.name)
        if node.end_lineno is not None
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_functions_have_few_positional_parameters() -> None:
    names = {
        name
        for module in ALL_MODULES
        for name, node in walk_functions(module.tree, module.name)
        if len(node.args.posonlyargs) + len(node.args.args) > MAX_POSITIONAL_PARAMETERS
    }
    assert names == FOREIGN_SIGNATURES
