"""Tests that the functions named in docs/architecture.md exist."""

from __future__ import annotations

import ast
import re

from source_tree import ROOT

WALKED = re.compile(r"`((?:\w+/)+\w+\.py)`((?:[^`]{0,9}`[A-Za-z_][\w.]*`)*)")


def list_names(path: str) -> set[str]:
    """Return a module's classes, functions and methods (``Class.method``)."""
    file = ROOT / path if path.startswith("plugins/") else ROOT / "src/detcore" / path
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if hasattr(part, "name")}
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
    return names


def test_functions_of_walks_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    walks = text.partition("### Four walks")[2].partition("\n## ")[0]
    functions = [
        (path, name)
        for path, names in WALKED.findall(walks)
        for name in re.findall(r"`([A-Za-z_][\w.]*)`", names)
    ]
    assert len(functions) >= 25
    assert [pair for pair in functions if pair[1] not in list_names(pair[0])] == []
