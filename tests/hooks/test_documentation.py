"""Each hook has a complete docstring, a row in the documentation, and a test."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from detcore.contract import hooks as specs

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "writing-a-plugin.md"


def documented_names(heading: str) -> set[str]:
    """Return the names in the first columns of the tables below a heading."""
    text = DOCUMENT.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2]
    section = re.split(rf"^#{{1,{heading.count('#')}}} ", text, maxsplit=1, flags=re.MULTILINE)[0]
    return set(re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE))


def test_specification_exports_every_hook() -> None:
    defined = {name for name, _ in inspect.getmembers(specs, inspect.isfunction)}
    assert {name for name in defined if name.startswith("detcore_")} == set(specs.__all__)


def test_documentation_lists_exactly_the_hooks() -> None:
    assert documented_names("## Hooks") == set(specs.__all__)


@pytest.mark.parametrize("hook", specs.__all__)
def test_hook_docstring_is_complete(hook: str) -> None:
    doc = inspect.getdoc(getattr(specs, hook)) or ""
    kind = "register" if hook.startswith("detcore_register_") else "observer"
    assert f"\nKind: {kind}.\n" in doc
    assert "\nWhen: " in doc
    assert ("\nExample::\n" in doc) == (kind == "register")
    assert ("\nReturns:\n" in doc) == (kind == "register")
    for argument in inspect.signature(getattr(specs, hook)).parameters:
        assert f"    {argument}: " in doc


@pytest.mark.parametrize("hook", specs.__all__)
def test_hook_has_a_test_of_its_name(hook: str) -> None:
    tests = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tests |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert f"test_{hook}" in tests


def test_documentation_lists_every_problem_kind() -> None:
    kinds = set()
    for path in (ROOT / "src" / "detcore" / "plugins").glob("*.py"):
        # delivery.py has a thread name that looks like a problem kind.
        if path.name != "delivery.py":
            constants = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            texts = {node.value for node in constants if isinstance(node, ast.Constant)}
            kinds |= {text for text in texts if re.fullmatch(r"[a-z]+(-[a-z]+)+", str(text))}
    assert documented_names("### Faults that the doctor finds") == kinds
    assert len(kinds) > 20
