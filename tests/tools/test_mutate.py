"""The tool that measures which faults the tests catch."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import mutate
import pytest
from mutations import Mutation, compiles, find_sites, plant

SOURCE = '''
"""A module."""
import typing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import never_there
    LIMIT = 1

__all__ = ["first"]


def first(data: "dict[str, int]", *, most: int = 3) -> list[int]:
    """Return some."""
    found = []
    for key in sorted(data, reverse=True):
        if key.startswith("_") or len(found) >= most:
            continue
        found.append(data[key])
    if not found:
        raise KeyError(f"none of {len(data) - 1}", "bad" if most < 1 else "good")
    return found
'''
KEYS = ("operator", "before", "after")
EXPECTED = [
    ("constant", "3", "4"),
    ("constant", "3", "(2)"),
    ("keyword-dropped", "sorted(data, reverse=True)", "sorted(data)"),
    ("constant", "True", "False"),
    (
        "not-added",
        'key.startswith("_") or len(found) >= most',
        "(not (key.startswith('_') or len(found) >= most))",
    ),
    (
        "boolean",
        'key.startswith("_") or len(found) >= most',
        "(key.startswith('_') and len(found) >= most)",
    ),
    ("constant", '"_"', "''"),
    ("boundary", "len(found) >= most", "(len(found) > most)"),
    ("comparison", "len(found) >= most", "(len(found) < most)"),
    ("loop", "continue", "break"),
    ("statement-deleted", "found.append(data[key])", "pass"),
    ("not-removed", "not found", "(found)"),
    (
        "statement-deleted",
        'raise KeyError(f"none of {len(data) - 1}", "bad" if most < 1 else "good")',
        "pass",
    ),
    ("return-none", "return found", "return None"),
]


def mutations_of(text: str) -> list[Mutation]:
    return [site.mutation for site in find_sites("m.py", text)]


def test_the_faults_of_a_module() -> None:
    found = [tuple(getattr(one, key) for key in KEYS) for one in mutations_of(SOURCE)]
    assert found == EXPECTED
    assert {one.scope for one in mutations_of(SOURCE)} == {"first"}


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("a += 1\n", ["pass", "a -= 1", "2", "(0)"]),
        ("ä = 'ü' < b\n", ["''", "('ü' <= b)", "('ü' >= b)"]),
        ("try:\n    f()\nexcept (A, B):\n    g.h = 2.5\n",
         ["pass", "A", "B", "pass", "3.5", "(1.5)"]),
        ("try:\n    f()\nexcept A:\n    raise\n", ["pass", "()", "pass"]),
        ("x = a if b else c\n", ["(not (b))"]),
        ("x = [a for a in b if not a]\n", ["(a)"]),
        ("log.warning('x', 1)\necho('x', err=True)\n", ["pass"]),
        ("async def f():\n    await g()\n    return\n", ["pass", "pass"]),
        ("@overload\ndef f(x: int = 1): ...\n", []),
        ("T = Literal['a'] | int\nx = '%s' % 1\n", ["''", "2", "(0)"]),
    ],
)  # fmt: skip
def test_the_faults_of_a_statement(text: str, after: list[str]) -> None:
    assert [one.after for one in mutations_of(text)] == after


def test_a_fault_changes_one_place_and_is_found_again_after_others_changed() -> None:
    faults = mutations_of(SOURCE)
    assert len(set(faults)) == len(faults)
    longer = f"def other():\n    return 3 or not 2\n{SOURCE}"
    for fault in faults:
        planted = plant(SOURCE, fault)
        assert planted is not None
        changed = SOURCE.replace(fault.before, "", 1).count("\n")
        assert abs(planted.count("\n") - SOURCE.count("\n")) <= changed
        assert plant(longer, fault) == f"def other():\n    return 3 or not 2\n{planted}"
    assert plant(SOURCE.replace("return found", "return list(found)"), faults[-1]) is None


def test_every_fault_of_this_repository_in_a_module_is_valid_python() -> None:
    path = mutate.ROOT / "src/detcore/config/_fields.py"
    text = path.read_text(encoding="utf-8")
    sites = find_sites("fields.py", text)
    assert len({site.mutation.operator for site in sites}) > 6
    assert all(compiles(text, site) for site in sites)


def test_a_plan_depends_on_the_seed_alone() -> None:
    parts = {"src/detcore/search": 9, "plugins/storage/src": 3}
    chosen = mutate.plan(mutate.ROOT, 1, parts)
    assert chosen == mutate.plan(mutate.ROOT, 1, parts)
    assert len(set(chosen)) == 12
    assert Counter(mutate.room_of(one.file) for one in chosen) == {
        "search": 9, "plugins/storage": 3,
    }  # fmt: skip
    assert set(chosen) != set(mutate.plan(mutate.ROOT, 2, parts))


def test_every_room_has_tests_and_every_path_is_there() -> None:
    files = [*mutate.ROOT.glob("src/detcore/**/*.py"), *mutate.ROOT.glob("plugins/*/src/**/*.py")]
    for file in files:
        name = file.relative_to(mutate.ROOT).as_posix()
        paths = mutate.tests_of(name)
        assert [path for path in paths if not (mutate.ROOT / path).exists()] == [], name
        assert mutate.environment_of(name) in {"bare", "tensorflow", "torch"}
    names = [file.relative_to(mutate.ROOT).as_posix() for file in files]
    rooms = {mutate.room_of(name) for name in names} - {"modules"}
    assert rooms == {*mutate.ROOM_TESTS, *(f"plugins/{name}" for name in mutate.PLUGIN_TESTS)}
    modules = {Path(name).stem for name in names if mutate.room_of(name) == "modules"}
    assert modules == {*mutate.MODULE_TESTS}
    assert [path for path in mutate.TEST_ENVIRONMENTS if not (mutate.ROOT / path).exists()] == []


def git(root: Path, *arguments: str) -> None:
    own = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    subprocess.run(["git", *own, *arguments], cwd=root, check=True, capture_output=True)


TINY = """
import time

def wait(ready=True):
    while not ready:
        time.sleep(60)

def add(a, b):
    return a + b

def untested():
    return 1
"""
TINY_TESTS = """
import subprocess, sys
from tiny import add, wait

def test_wait():
    wait()

def test_a_process_imports_the_same():
    code = "import tiny; raise SystemExit(tiny.add(1, 2))"
    result = subprocess.run([sys.executable, "-c", code], cwd="plugins/storage/src", check=False)
    assert result.returncode == 3
"""
BROKEN_TEST = "def test_broken():\n    assert False\n"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A repository with the layout of this one, and two commits."""
    root = tmp_path / "tiny"
    source, tests = root / "plugins/storage/src", root / "plugins/storage/tests"
    source.mkdir(parents=True)
    tests.mkdir()
    (root / "tests").mkdir()
    (root / "tests/conftest.py").write_text("")
    (root / "conftest.py").write_text("")
    (root / "pytest.ini").write_text("[pytest]\npythonpath = plugins/storage/src\n")
    (source / "tiny.py").write_text(TINY)
    (tests / "test_add.py").write_text(TINY_TESTS)
    (tests / "test_broken.py").write_text(BROKEN_TEST)
    git(tmp_path, "init", "--quiet", str(root))
    git(root, "add", ".")
    git(root, "commit", "--message", "with tests")
    (tests / "test_add.py").write_text("def test_nothing():\n    pass\n")
    git(root, "commit", "--all", "--message", "without")
    return root


def run_mutate(root: Path, *arguments: str | Path) -> str:
    command = [sys.executable, mutate.__file__, "--root", root, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.cold  # it adopts the processes that tests leave behind, so it cannot share any
def test_what_the_tests_of_two_commits_catch_is_compared(tiny: Path, tmp_path: Path) -> None:
    faults = [
        fault
        for fault in mutations_of(TINY)
        if fault.after in ("False", "(a - b)", "return None") and fault.before != "return a + b"
    ]
    gone = dataclasses.replace(faults[0], before="no such text")
    name = "plugins/storage/src/tiny.py"
    mutants, first, second = (tmp_path / name for name in ("mutants", "first", "second"))
    mutants.write_text(
        "".join(
            json.dumps({**dataclasses.asdict(fault), "file": name}) + "\n"
            for fault in (*faults, gone)
        )
    )
    own = ("--python", sys.executable, "--timeout", "2")
    plain = ("--pytest-args", "--disable-plugin-autoload", "-p", "pytest_timeout")
    run_mutate(tiny, "run", mutants, "--out", first, *own, "--source", "HEAD^", *plain)
    run_mutate(
        tiny,
        "run",
        mutants,
        "--out",
        second,
        *own,
        "--source",
        "HEAD^",
        "--tests-from",
        "HEAD",
        *plain,
    )
    for file, outcomes in (
        (first, ["timeout", "caught", "survived", "gone"]),
        (second, ["survived", "survived", "survived", "gone"]),
    ):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [line["outcome"] for line in lines] == outcomes
        assert not any("broken" in str(line.get("test")) for line in lines)

    again = run_mutate(tiny, "run", mutants, "--out", first, *own)
    assert again == ""
    text = run_mutate(tiny, "compare", first, second)
    assert "plugins/storage           3      2    66.7%      0     0.0%" in text
    assert text.index("only A: 2") < text.index("only B: 0") < text.index("nothing: 1")
    assert text.endswith("tiny.py:12: return-none: return 1 -> return None\n")
