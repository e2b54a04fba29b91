"""The table of names: every target exists, and every documented name is included."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
from source_tree import PLUGIN_SOURCES, ROOT, SOURCE, Module, modules_under

from detcore_determined.migrate.lookup import Unknown, look_up, target_of
from detcore_determined.migrate.names import (
    GONE,
    MODULES,
    MOVED,
    NOTES,
    REACHABLE,
    SAME,
    STAND_FOR,
)

DOCUMENTED = Path(__file__).with_name("documented_names.txt").read_text(encoding="utf-8").split()
EXAMPLES = sorted(ROOT.glob("examples/plugins/*/src"))
MODULE_SOURCES = {
    module.name: module
    for folder in (SOURCE, *PLUGIN_SOURCES, *EXAMPLES)
    for module in modules_under(folder)
}
KNOWN = sorted({
    *MODULES, *MOVED, *(f"{module}.{name}" for module, names in SAME.items() for name in names),
})  # fmt: skip


def public_names(module: str) -> set[str]:
    """Return the names of ``__all__``, or all names of other packages' modules."""
    if module in MODULE_SOURCES:
        return set(MODULE_SOURCES[module].declared_all() or ())
    return set(dir(importlib.import_module(module)))


def members_of(module: Module, name: str, depth: int = 0) -> set[str]:
    """Return the members of a class, including inherited members."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            result = {
                item.name
                for item in node.body
                if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))
            }
            for base in node.bases:
                result |= members_of(module, ast.unparse(base).partition("[")[0], depth + 1)
            return result
        # Another name of a class.
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return members_of(module, ast.unparse(node.value), depth + 1)
    for found_import in module.imports:
        if found_import.name == name and found_import.module in MODULE_SOURCES and depth < 20:
            return members_of(MODULE_SOURCES[found_import.module], name, depth + 1)
    return set()


@pytest.mark.parametrize("name", KNOWN)
def test_targets_exist_and_are_public(name: str) -> None:
    target = target_of(name)
    assert target is not None
    assert target.module in MODULE_SOURCES or target.module in ("logging", "typing")
    if target.name:
        head, _, method = target.name.partition("().")
        assert head in public_names(target.module)
        if method:
            assert method in members_of(MODULE_SOURCES[target.module], head)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_names_are_mapped_or_reported(name: str) -> None:
    path = tuple(name.split("."))
    result = look_up(path)
    if isinstance(result, Unknown):
        is_private = any(part.startswith("_") for part in path)
        assert is_private or result.name in GONE, result
        return
    remaining = path[result.used :]
    assert len(remaining) <= 1
    if remaining:
        assert remaining[0] in members_of(MODULE_SOURCES[result.module], result.name)


def test_no_name_is_in_two_tables() -> None:
    same = {f"{module}.{name}" for module, names in SAME.items() for name in names}
    tables = [set(MODULES), same, set(MOVED), set(GONE)]
    for index, table in enumerate(tables):
        for other in tables[index + 1 :]:
            assert not table & other
    assert set(NOTES) <= same | set(MOVED)
    assert set(SAME) <= set(MODULES)
    assert all(new in MODULES for new in STAND_FOR.values())


def test_import_detcore_reaches_packages() -> None:
    face = public_names("detcore")
    assert all(module.partition(".")[2] in {"", *face} for module in REACHABLE)


def test_guide_lists_all_names_of_pytorch() -> None:
    guide = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    section = guide.partition("## Names of determined.pytorch")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`(?:[\w.]*\.)?(\w+)", section))
    names = [
        name
        for name in DOCUMENTED
        if name.startswith(("determined.pytorch.", "determined.transformers.",
                            "determined.lightning.", "determined.tensorboard.metric"))
        and not name.startswith(("determined.pytorch.deepspeed.", "determined.pytorch.dsat."))
    ]  # fmt: skip
    assert len(names) > 120
    assert [name for name in names if name.rpartition(".")[2] not in listed] == []
