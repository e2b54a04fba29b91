"""The table of names: every target exists, every documented name is in it, and so is the page."""

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

PAGE = ROOT / "docs" / "migrating.md"
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
    """Return the names of ``__all__``; of modules that are not ours, all there are."""
    if module in MODULE_SOURCES:
        return set(MODULE_SOURCES[module].declared_all() or ())
    return set(dir(importlib.import_module(module)))


def members_of(module: Module, name: str, depth: int = 0) -> set[str]:
    """Return the members of a class, those it inherits included, wherever it is defined."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            found = {
                item.name
                for item in node.body
                if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))
            }
            for base in node.bases:
                found |= members_of(module, ast.unparse(base).partition("[")[0], depth + 1)
            return found
    for found_import in module.imports:
        if found_import.name == name and found_import.module in MODULE_SOURCES and depth < 20:
            return members_of(MODULE_SOURCES[found_import.module], name, depth + 1)
    return set()


@pytest.mark.parametrize("name", KNOWN)
def test_every_target_exists_and_is_public(name: str) -> None:
    target = target_of(name)
    assert target is not None
    assert target.module in MODULE_SOURCES or target.module in ("logging", "typing")
    if target.name:
        head, _, method = target.name.partition("().")
        assert head in public_names(target.module)
        if method:
            assert method in members_of(MODULE_SOURCES[target.module], head)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_documented_name_is_mapped_and_has_the_member_or_is_reported(name: str) -> None:
    path = tuple(name.split("."))
    found = look_up(path)
    if isinstance(found, Unknown):
        assert any(part.startswith("_") for part in path), found  # a private class
        return
    rest = path[found.used :]
    assert len(rest) <= 1
    if rest:
        assert rest[0] in members_of(MODULE_SOURCES[found.module], found.name)


def test_no_name_is_in_two_tables() -> None:
    same = {f"{module}.{name}" for module, names in SAME.items() for name in names}
    tables = [set(MODULES), same, set(MOVED), set(GONE)]
    for index, table in enumerate(tables):
        for other in tables[index + 1 :]:
            assert not table & other
    assert set(NOTES) <= same | set(MOVED)
    assert set(SAME) <= set(MODULES)
    assert all(new in MODULES for new in STAND_FOR.values())


def test_what_import_detcore_reaches() -> None:
    face = public_names("detcore")
    assert all(module.partition(".")[2] in {"", *face} for module in REACHABLE)


# -- the page -------------------------------------------------------------------------------------


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n### {heading}\n", 1)[1].split("\n#", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_has_every_module_with_its_names() -> None:
    table = {quoted(row[0])[0]: (quoted(row[1])[0], quoted(row[2])) for row in rows("Modules")}
    assert table == {old: (new, [*SAME.get(old, ())]) for old, new in MODULES.items()}


def test_the_page_has_every_name_that_moved() -> None:
    table = {
        quoted(row[0])[0]: quoted(row[1])[0] for row in rows("Names that are called otherwise")
    }
    assert table == {old: new.replace(":", ".") for old, new in MOVED.items()}


def test_the_page_has_every_name_that_is_gone_with_what_to_do() -> None:
    table = {quoted(row[0])[0]: row[1] for row in rows("Names that are gone")}
    assert table == GONE
