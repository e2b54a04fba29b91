"""Each promise of `tests/promises.txt` has tests, and `nox -s tests` or `nox -s soak` runs them."""

from __future__ import annotations

import ast
import functools
import re

from source_tree import ROOT

PROMISES = ROOT / "tests/promises.txt"
MIN_PROMISES = 76
_TESTED = re.compile(r'"((?:tests|plugins/\w+/tests)(?:/[\w/]+)?)"')


def read_promises() -> dict[str, list[str]]:
    """Return the tests of each promise."""
    promises: dict[str, list[str]] = {}
    tests: list[str] = []
    for line in PROMISES.read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            tests.append(line.strip())
        elif line and not line.startswith("#"):
            tests = promises[line] = []
    return promises


@functools.cache
def list_tests(path: str) -> frozenset[str]:
    """Return the names of the test functions of a file; none if the file is missing."""
    file = ROOT / path
    tree = ast.parse(file.read_text(encoding="utf-8") if file.is_file() else "")
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def is_tested(path: str) -> bool:
    """Return whether a session of the noxfile names the file or a directory above it."""
    names = _TESTED.findall((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    return any(path == name or path.startswith(f"{name}/") for name in names)


def test_promises_have_tests_that_run() -> None:
    promises = read_promises()
    assert len(promises) >= MIN_PROMISES
    tests = [test.split("::") for names in promises.values() for test in names]
    assert [promise for promise, names in promises.items() if not names] == []
    assert [f"{path}::{name}" for path, name in tests if name not in list_tests(path)] == []
    assert [path for path, _ in tests if not is_tested(path)] == []
