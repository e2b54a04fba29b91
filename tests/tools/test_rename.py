"""Tests of the tool that moves modules and renames their definitions."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path

import pytest
import rename
from renaming import Table, TableError, rewrite_python, rewrite_text

TREE = {
    "src/shop/__init__.py": (
        'from shop.oven._bread import Bread\n\n__all__ = ["Bread", "bake"]\n\n'
        '_HOMES = {"bake": "shop.oven._bake", "Bread": "shop.oven._bread"}\n'
    ),
    "src/shop/oven/__init__.py": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
        "    from shop.oven._bake import bake\n    from shop.oven._heat import (\n"
        "        LIMIT,  # of the fuse\n        warm,\n    )\n\n"
        '__all__ = ["LIMIT", "bake", "warm"]\n\n'
        '_HOMES = {"bake": "_bake", "warm": "_heat", "LIMIT": "_heat"}\n'
    ),
    "src/shop/oven/_bread.py": "class Bread:\n    grams = 500\n",
    "src/shop/oven/_heat.py": (
        '"""Heat; see `shop.oven._bake`."""\n\n__all__ = ["LIMIT", "warm"]\n\nLIMIT = 3\n\n\n'
        "def warm(to=LIMIT):\n    global LIMIT\n    LIMIT = to\n    return warm, f'{LIMIT} LIMIT'\n"
        "\n\ndef other(LIMIT):\n    return LIMIT\n"
    ),
    "src/shop/oven/_bake.py": (
        '"""Bake."""\nimport shop.oven._heat\nfrom shop.oven import _heat\n'
        "from shop.oven import _heat as heat\nfrom shop.oven._heat import LIMIT, warm\n\n\n"
        "def bake(bread: Bread) -> int:\n    from shop.oven._bread import Bread\n\n"
        "    warm(to=_heat.LIMIT)\n    heat.warm(shop.oven._heat.LIMIT)\n"
        "    return [LIMIT for LIMIT in (1, Bread.grams)]\n"
    ),
    "src/shop/till/__init__.py": "",
    "plugins/cart/src/shop_cart/plugin.py": "from shop.oven import bake, warm\nimport shop.oven\n",
    "plugins/cart/pyproject.toml": '[project.entry-points."shop"]\noven = "shop.oven._bake:bake"\n',
    "tests/oven/test_bake.py": (
        "from pathlib import Path\n\nfrom shop.oven import _bake\n"
        "from shop.oven._bake import bake\nfrom shop.oven._heat import LIMIT\n\n\n"
        "def test_bake(monkeypatch):\n"
        '    monkeypatch.setattr(_bake, "bake", lambda: LIMIT)\n'
        '    monkeypatch.setattr("shop.oven._heat.LIMIT", 4)\n'
        '    command = "python -m shop.oven._bake", f"{bake} in {_bake!r}, {{bake}}"\n'
        '    source = "from shop.oven._heat import warm"\n'
        "    assert bake(1) == command\n"
    ),
    "tests/oven/helper.py": "from ..oven import test_bake\n",
    "docs/guide.md": (
        "See `shop.oven._heat.LIMIT`, [the source](../src/shop/oven/_bake.py) and `my-shop.oven`.\n"
        "\n::: shop.oven._bake\n\n"
        "```python\nfrom shop.oven._heat import LIMIT\n\nprint(LIMIT)\n```\n"
    ),
    "mkdocs.yml": "hooks: [src/shop/oven/_heat.py]\n",
    "CHANGELOG.md": "- `shop.oven._heat` is new.\n",
}  # fmt: skip
TABLE = """
shop.oven._heat -> shop.till.heat  # cools down there
shop.oven._bake -> shop.oven.baking
shop.oven._heat:LIMIT -> shop.till.heat:MAX_HEAT
shop.oven._bake:bake -> shop.oven.baking:bake_bread
"""
EXPECTED = {
    "src/shop/__init__.py": (
        'from shop.oven._bread import Bread\n\n__all__ = ["Bread", "bake"]\n\n'
        '_HOMES = {"bake": "shop.oven.baking", "Bread": "shop.oven._bread"}\n'
    ),
    "src/shop/oven/__init__.py": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
        "    from shop.oven.baking import bake_bread as bake\n    from shop.till.heat import (\n"
        "        MAX_HEAT as LIMIT,  # of the fuse\n        warm,\n    )\n\n"
        '__all__ = ["LIMIT", "bake", "warm"]\n\n'
        '_HOMES = {"bake": "baking", "warm": "_heat", "LIMIT": "_heat"}\n'
    ),
    "src/shop/till/heat.py": (
        '"""Heat; see `shop.oven.baking`."""\n\n__all__ = ["MAX_HEAT", "warm"]\n\n'
        "MAX_HEAT = 3\n\n\n"
        "def warm(to=MAX_HEAT):\n    global MAX_HEAT\n    MAX_HEAT = to\n"
        "    return warm, f'{MAX_HEAT} LIMIT'\n"
        "\n\ndef other(LIMIT):\n    return LIMIT\n"
    ),
    "src/shop/oven/baking.py": (
        '"""Bake."""\nimport shop.till.heat\nfrom shop.till import heat as _heat\n'
        "from shop.till import heat\nfrom shop.till.heat import MAX_HEAT, warm\n\n\n"
        "def bake_bread(bread: Bread) -> int:\n    from shop.oven._bread import Bread\n\n"
        "    warm(to=_heat.MAX_HEAT)\n    heat.warm(shop.till.heat.MAX_HEAT)\n"
        "    return [LIMIT for LIMIT in (1, Bread.grams)]\n"
    ),
    "plugins/cart/src/shop_cart/plugin.py": "from shop.oven import bake, warm\nimport shop.oven\n",
    "plugins/cart/pyproject.toml": (
        '[project.entry-points."shop"]\noven = "shop.oven.baking:bake_bread"\n'
    ),
    "tests/oven/test_bake.py": (
        "from pathlib import Path\n\nfrom shop.oven import baking\n"
        "from shop.oven.baking import bake_bread\nfrom shop.till.heat import MAX_HEAT\n\n\n"
        "def test_bake(monkeypatch):\n"
        '    monkeypatch.setattr(baking, "bake_bread", lambda: MAX_HEAT)\n'
        '    monkeypatch.setattr("shop.till.heat.MAX_HEAT", 4)\n'
        '    command = "python -m shop.oven.baking", f"{bake_bread} in {baking!r}, {{bake}}"\n'
        '    source = "from shop.till.heat import warm"\n'
        "    assert bake_bread(1) == command\n"
    ),
    "docs/guide.md": (
        "See `shop.till.heat.MAX_HEAT`, [the source](../src/shop/oven/baking.py) and "
        "`my-shop.oven`.\n\n::: shop.oven.baking\n\n"
        "```python\nfrom shop.till.heat import MAX_HEAT\n\nprint(MAX_HEAT)\n```\n"
    ),
    "mkdocs.yml": "hooks: [src/shop/till/heat.py]\n",
    "CHANGELOG.md": "- `shop.oven._heat` is new.\n",
}


def make_tree(folder: Path, tree: dict[str, str]) -> Path:
    for name, text in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "-q", folder], check=True)
    subprocess.run(["git", "-C", folder, "add", "-A"], check=True)
    return folder


def read_tree(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in paths}


def run(folder: Path, table: str, *options: str) -> subprocess.CompletedProcess[str]:
    path = folder.parent / "table.txt"
    path.write_text(table, encoding="utf-8")
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = rename.main([str(path), "--root", str(folder), *options])
    return subprocess.CompletedProcess([], code, stdout.getvalue(), stderr.getvalue())


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "shop", TREE)


def test_modules_and_names_move_everywhere(shop: Path) -> None:
    finished = run(shop, TABLE)
    assert finished.returncode == 0, finished.stderr
    tree = read_tree(shop)
    assert {name: tree[name] for name in EXPECTED} == EXPECTED
    assert {*TREE} - {*tree} == {"src/shop/oven/_heat.py", "src/shop/oven/_bake.py"}
    assert "move src/shop/oven/_heat.py -> src/shop/till/heat.py" in finished.stdout


def test_it_names_what_it_leaves_to_a_person(shop: Path) -> None:
    lines = run(shop, TABLE).stdout.splitlines()
    assert [line for line in lines if line.startswith("by hand: ")] == [
        "by hand: src/shop/__init__.py:5: bake is shop.oven.baking:bake_bread now",
        "by hand: src/shop/oven/__init__.py:12: bake is shop.oven.baking:bake_bread now",
        "by hand: src/shop/oven/__init__.py:12: warm is in shop.till.heat now",
        "by hand: src/shop/oven/__init__.py:12: LIMIT is shop.till.heat:MAX_HEAT now",
        "by hand: src/shop/oven/__init__.py:12: LIMIT is in shop.till.heat now",
    ]


def test_a_second_run_changes_nothing(shop: Path) -> None:
    run(shop, TABLE)
    before = read_tree(shop)
    again = run(shop, TABLE, "--check")
    assert (again.returncode, again.stderr) == (0, "")
    assert run(shop, TABLE).returncode == 0
    assert read_tree(shop) == before


def test_check_shows_the_changes_and_makes_none(shop: Path) -> None:
    path = shop.parent / "table.txt"
    path.write_text(TABLE, encoding="utf-8")
    command = [sys.executable, str(Path(rename.__file__)), str(path), "--root", str(shop)]
    shown = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
    assert shown.returncode == 1
    assert "move src/shop/oven/_bake.py -> src/shop/oven/baking.py" in shown.stdout
    assert '-oven = "shop.oven._bake:bake"\n+oven = "shop.oven.baking:bake_bread"' in shown.stdout
    assert read_tree(shop) == TREE


def test_a_package_moves_with_all_its_files_but_those_that_go_elsewhere(shop: Path) -> None:
    cache = shop / "src/shop/oven/__pycache__"
    cache.mkdir()
    (cache / "_heat.pyc").touch()
    table = "shop.oven -> shop.kitchen\nshop.oven._heat -> shop.kitchen.heat\n"
    assert run(shop, table).returncode == 0
    tree = read_tree(shop)
    assert not (shop / "src/shop/oven").exists()
    assert (shop / "src/shop/kitchen/heat.py").is_file()
    assert tree["plugins/cart/src/shop_cart/plugin.py"] == (
        "from shop.kitchen import bake, warm\nimport shop.kitchen\n"
    )
    assert '"shop.kitchen._bread"' in tree["src/shop/__init__.py"]
    assert (
        '{"bake": "_bake", "warm": "heat", "LIMIT": "heat"}'
        in (tree["src/shop/kitchen/__init__.py"])
    )
    assert tree["docs/guide.md"].startswith("See `shop.kitchen.heat.LIMIT`, [the source](../src/")


def test_a_module_goes_to_another_distribution(shop: Path) -> None:
    assert run(shop, "shop.oven._bread -> shop_cart.bread\n").returncode == 0
    tree = read_tree(shop)
    assert "plugins/cart/src/shop_cart/bread.py" in tree
    assert tree["src/shop/__init__.py"].startswith("from shop_cart.bread import Bread\n")


def test_tables_of_rooms_follow(tmp_path: Path) -> None:
    layers = 'LAYERS = (\n    ("hooks", "spool"),\n)\nOTHER = "spool"\n'
    tree = {
        "src/detcore/spool/__init__.py": "",
        "tests/architecture/test_layers.py": layers,
    }
    folder = make_tree(tmp_path / "tree", tree)
    assert run(folder, "detcore.spool -> detcore.log").returncode == 0
    tree = read_tree(folder)
    assert tree["tests/architecture/test_layers.py"] == layers.replace('"spool")', '"log")')


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("shop.oven", "line 1: 'shop.oven' is not"),
        ("shop.a -> shop.b\nshop.b -> shop.c", "shop.b is or contains an old name"),
        ("shop.oven -> shop.oven.inner", "shop.oven.inner is or contains an old name"),
        ("shop.lost -> shop.found", "there is no module shop.lost"),
        ("shop.oven._heat -> shop.oven._bread", "shop.oven._bread exists already"),
        ("shop.oven._heat -> shop.cellar.heat", "is no package; write its __init__.py first"),
        ("shop.oven._heat -> hall.heat", "no source folder has a package hall"),
        ("shop.oven._heat -> shop.a\nshop.oven._heat -> shop.b", "says again"),
        ("shop.a:f -> shop.a:g\nshop.a:g -> shop.a:h", "shop.a:g is an old name"),
    ],
)
def test_tables_that_cannot_be_applied(shop: Path, table: str, message: str) -> None:
    refused = run(shop, table)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert read_tree(shop) == TREE


NAMES = Table.parse("a.b:old -> a.b:new\na.c -> a.d.c\na.m:f -> a.n:f")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from a.b import old\nold.old(old=old)\n", "from a.b import new\nnew.old(old=new)\n"),
        ("from a.b import old as x\nx()\n", "from a.b import new as x\nx()\n"),
        ("import a.b\na.b.old.run()\n", "import a.b\na.b.new.run()\n"),
        ("from a import b\nb.old\n", "from a import b\nb.new\n"),
        ("import a as z\nz.c.x\n", "import a as z\nz.d.c.x\n"),
        ('from a.b import old\n"""See `old`, ``old()``, `a.old`.\n\n>>> old(1), "old"\n"""\n',
         'from a.b import new\n"""See `new`, ``new()``, `a.old`.\n\n>>> new(1), "new"\n"""\n'),
        # The new name exists in the module or in a function that uses the old name.
        ("from a.b import old\nnew = old\n", "from a.b import new as old\nnew = old\n"),
        (
            "from a.b import old\ndef f(new):\n    return old\n",
            "from a.b import new as old\ndef f(new):\n    return old\n",
        ),
        # Other names with the same spelling.
        (
            "from a.b import old\ndef f(old):\n    return old\ndef g():\n    return old\n",
            "from a.b import new\ndef f(old):\n    return old\ndef g():\n    return new\n",
        ),
        (
            "from a.b import old\nclass C:\n    old = 1\n    def f(self):\n        return old\n",
            "from a.b import new\nclass C:\n    old = 1\n    def f(self):\n        return new\n",
        ),
        # Imports inside functions, and of several modules.
        (
            "def f():\n    from a import b, c\n    return b.old, c.x\nc = 1\n",
            "def f():\n    from a import b\n    from a.d import c\n    return b.new, c.x\nc = 1\n",
        ),
        (
            "from a.m import (\n    f,  # why\n    g,\n)\nf()\n",
            "# why\nfrom a.n import f\nfrom a.m import g\nf()\n",
        ),
        ("import a.c as c\nimport a.c\na.c.x, c.x\n",
         "import a.d.c as c\nimport a.d.c\na.d.c.x, c.x\n"),
        ("from a.b import old\nx = f'{old:>{old.y}} old {{old}}'\n",
         "from a.b import new\nx = f'{new:>{new.y}} old {{old}}'\n"),
        ("x = 'a.c.x', 'a.cat', 'aa.c', 'a.b.old'  # a.c\n",
         "x = 'a.d.c.x', 'a.cat', 'aa.c', 'a.b.new'  # a.d.c\n"),
        ("from a.b import old\n@old\nasync def f(x: old = old) -> old: ...\n",
         "from a.b import new\n@new\nasync def f(x: new = new) -> new: ...\n"),
    ],
)  # fmt: skip
def test_one_text_of_python(before: str, after: str) -> None:
    assert rewrite_python(before, NAMES, "x", is_package=False) == (after, [])


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("import a\na.m.f()\n", None),
        ("from a import m\nm.f()\n", "write it as a.n.f, and import that"),
        ("import a.m\nx = f'{a.m.f}'\n", "a.n.f in an f-string"),
    ],
)
def test_uses_that_an_import_would_have_to_be_added_for(before: str, reason: str | None) -> None:
    left = rewrite_python(before, NAMES, "x", is_package=False)[1]
    assert [place.reason for place in left] == ([reason] if reason else [])


def test_a_definition_moves_by_hand() -> None:
    left = rewrite_python("def f(): ...\n", NAMES, "a.m", is_package=False)[1]
    assert [place.reason for place in left] == ["move the definition of f to a.n"]
    left = rewrite_python("from a.m import f\n", NAMES, "a.n", is_package=False)[1]
    assert [place.reason for place in left] == ["the module would import from itself"]


def test_relative_imports() -> None:
    text = "from . import c, x\nfrom .c import y\nfrom .x import z\n"
    moved, left = rewrite_python(text, NAMES, "a.test_x", is_package=False)
    assert not left
    assert moved == "from .d import c\nfrom . import x\nfrom .d.c import y\nfrom .x import z\n"
    table = Table.parse("a.test_x -> e.test_x")
    assert rewrite_python(text, table, "a.test_x", is_package=False)[0] == (
        "from a import c, x\nfrom a.c import y\nfrom a.x import z\n"
    )


def test_texts() -> None:
    assert rewrite_text("src/a/c.py a.c:f a.m:f a/c-x `a.b.old()`", NAMES) == (
        "src/a/d/c.py a.d.c:f a.n:f a/c-x `a.b.new()`"
    )
    with pytest.raises(TableError):
        Table.parse("a.b -> a.b")


def test_tables_of_lazy_packages_follow_their_modules() -> None:
    text = (
        "from detcore.lazy import lazy_names\n\n__getattr__, __dir__ = lazy_names(\n"
        '    __name__,\n    {"_heat": "LIMIT warm", "_bake": "bake", "": "oven", %s}\n)\n'
    )
    old, new = text % '"detcore.old": "x"', text % '"detcore.new": "x"'
    table = Table(
        {"shop._heat": "shop.parts.heat", "detcore.old": "detcore.new"},
        {("shop._bake", "bake"): ("shop._bake", "bake_bread")},
    )
    written, left = rewrite_python(old, table, "shop", is_package=True)
    assert written == new.replace('"_heat"', '"parts.heat"')
    assert [(place.line, place.reason) for place in left] == [(5, "names of shop._bake have moved")]
