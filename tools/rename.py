"""Move modules and rename what they define, as one table says, in code, tests and documents alike.

    python tools/rename.py table.txt --check
    python tools/rename.py table.txt

A line of the table names a module, a package, which goes with all its modules, or a name:

    shop.oven._heat -> shop.kitchen.heat
    shop.oven._bake:bake -> shop.oven._bake:bake_bread

The tool moves files with ``git mv`` and rewrites imports, dotted uses, names in ``__all__`` and in
tables of lazy packages, and in strings, comments and other files the dotted names, paths, entry
points and imports. A public name of a package stays unless the table has a line for it, too. A
definition that goes to another module is cut and pasted by hand first; the table's line then turns
all references. Names of methods and attributes are not renamed, and CHANGELOG.md is history.

It prints the places that it leaves to a person. Run ``ruff check --fix``, ``ruff format`` and
``tests/architecture/public_api.py --write`` afterwards; a second run changes nothing.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from renaming import ByHand, Table, TableError, rewrite_python, rewrite_text

__all__ = ["Plan", "main", "plan_renaming"]

SOURCE_FOLDERS = (
    "src", "plugins/*/src", "examples/plugins/*/src", "tests/support", "tests/toy_plugin", "tools",
    "benchmarks",
)  # fmt: skip
# Packages of detcore by their names alone.
TABLES_OF_ROOMS = {"tests/architecture/test_layers.py": "LAYERS"}
HISTORY = ("CHANGELOG.md",)
_PYTHON_BLOCK = re.compile(r"(^```(?:python|py)\b[^\n]*\n)(.*?)(^```)", re.M | re.S)


@dataclasses.dataclass
class Plan:
    """What a table changes in a repository.

    Attributes:
        moves: Old path -> new path, of modules and of folders of packages.
        files: Old path -> new path of each file.
        texts: Path before the moves -> old text and new text.
        by_hand: Path before the moves, and what is left to a person there.
    """

    moves: dict[Path, Path] = dataclasses.field(default_factory=dict)
    files: dict[Path, Path] = dataclasses.field(default_factory=dict)
    texts: dict[Path, tuple[str, str]] = dataclasses.field(default_factory=dict)
    by_hand: list[tuple[Path, ByHand]] = dataclasses.field(default_factory=list)


def plan_renaming(root: Path, table: Table, *, skip: Iterable[Path] = ()) -> Plan:
    """Return what a table changes in the files that git knows.

    Args:
        root: The repository's folder.
        table: Where modules and names go.
        skip: Files that are left alone: the table itself.

    Raises:
        TableError: If a module is neither at its old place nor at its new one, or at both.
    """
    folders = [path for pattern in SOURCE_FOLDERS for path in sorted(root.glob(pattern))] + [root]
    plan = Plan(moves=_moves(table, folders))
    paths = {_stem(old, root): _stem(new, root) for old, new in plan.moves.items()}
    table = dataclasses.replace(table, paths=paths)
    skipped = {path.resolve() for path in skip}
    words = {old.rpartition(".")[2] for old in table.modules} | {name for _, name in table.names}
    for path in _tracked_files(root):
        moved = _moved(path, plan.moves)
        if moved is not None:
            plan.files[path] = moved
        if path.resolve() in skipped or path.name in HISTORY:
            continue
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError:
            continue
        if moved is None and not any(word in text for word in words):
            continue
        new, left = _rewrite(path, text, table, folders, root)
        plan.by_hand += [(path, place) for place in left]
        if new != text:
            plan.texts[path] = (text, new)
    return plan


def _stem(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix().removesuffix(".py")


def _moves(table: Table, folders: Sequence[Path]) -> dict[Path, Path]:
    moves = {}
    # What is inside a package that moves, too, goes first.
    for old, new in sorted(table.modules.items(), key=lambda item: -item[0].count(".")):
        before, after = _locate(old, folders), _locate(new, folders)
        if before is None and after is not None:
            continue
        if before is None:
            raise TableError(f"{old} -> {new}: there is no module {old}")
        if after is not None:
            raise TableError(f"{old} -> {new}: {new} exists already")
        top, _, rest = new.partition(".")
        folder = next((one for one in folders if (one / top).is_dir()), None)
        if not rest:
            folder = before.parent if "." not in old else None
        if folder is None:
            raise TableError(f"{old} -> {new}: no source folder has a package {top}; make it first")
        target = folder.joinpath(*new.split("."))
        moves[before] = target if before.is_dir() else target.with_name(f"{target.name}.py")
    for target in moves.values():
        package = target.parent
        is_made = package in moves.values()
        if not is_made and not package.is_dir():
            raise TableError(f"{package} is no package; write its __init__.py first")
    return moves


def _moved(path: Path, moves: Mapping[Path, Path]) -> Path | None:
    """Return the new path of a file, or None if it stays."""
    for old, new in moves.items():
        if path == old:
            return new
        if path.is_relative_to(old):
            return new / path.relative_to(old)
    return None


def _locate(module: str, folders: Sequence[Path]) -> Path | None:
    """Return the file of a module, or the folder of a package."""
    for folder in folders:
        path = folder.joinpath(*module.split("."))
        for found in (path.with_name(f"{path.name}.py"), path):
            if found.is_file() or (found.is_dir() and any(found.rglob("*.py"))):
                return found
    return None


def _tracked_files(root: Path) -> list[Path]:
    listed = _git(root, "ls-files", "-z").split("\0")
    paths = [root / name for name in listed if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# -- one file -------------------------------------------------------------------------------------


def _rewrite(
    path: Path, text: str, table: Table, folders: Sequence[Path], root: Path
) -> tuple[str, list[ByHand]]:
    place = path.relative_to(root).as_posix()
    if place in TABLES_OF_ROOMS:
        text = _rename_rooms(text, table, TABLES_OF_ROOMS[place])
    if path.suffix == ".py" and _is_python(text):
        module, is_package = _module_of(path, folders)
        return rewrite_python(text, table, module, is_package=is_package)
    if path.suffix == ".md":
        return _rewrite_markdown(text, table)
    return rewrite_text(text, table), []


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _module_of(path: Path, folders: Sequence[Path]) -> tuple[str, bool]:
    """Return a file's module name, and whether it is a package's ``__init__.py``."""
    folder = next(one for one in folders if path.is_relative_to(one))
    parts = path.relative_to(folder).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return ".".join(parts[:-1] if is_package else parts), is_package


def _rewrite_markdown(text: str, table: Table) -> tuple[str, list[ByHand]]:
    """Rewrite a page: blocks of Python as such, all else as text."""
    written, left, end = [], list[ByHand](), 0
    for block in _PYTHON_BLOCK.finditer(text):
        code, places = block[2], list[ByHand]()
        if code == textwrap.dedent(code) and _is_python(code):
            code, places = rewrite_python(code, table, "", is_package=False)
        else:
            code = rewrite_text(code, table)
        before = text.count("\n", 0, block.start(2))
        left += [ByHand(before + place.line, place.reason) for place in places]
        written += [rewrite_text(text[end : block.start(2)], table), code]
        end = block.end(2)
    return "".join([*written, rewrite_text(text[end:], table)]), left


def _rename_rooms(text: str, table: Table, variable: str) -> str:
    """Rename packages of detcore in a table that names them without ``detcore``."""
    rooms = {
        old.partition(".")[2]: new.partition(".")[2]
        for old, new in table.modules.items()
        if old.count(".") == new.count(".") == 1
        and old.startswith("detcore.")
        and new.startswith("detcore.")
    }
    lines = text.splitlines(keepends=True)
    for node in _strings_of(text, variable):
        if node.value in rooms and node.end_col_offset is not None:
            # From the end on, so that columns stay right.
            line = lines[node.lineno - 1]
            new = f'"{rooms[str(node.value)]}"'
            lines[node.lineno - 1] = line[: node.col_offset] + new + line[node.end_col_offset :]
    return "".join(lines)


def _strings_of(text: str, variable: str) -> Iterator[ast.Constant]:
    """Yield the strings of a table, of a dictionary its keys, the last ones first."""
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.Assign) or ast.unparse(statement.targets[0]) != variable:
            continue
        value = statement.value
        nodes = value.keys if isinstance(value, ast.Dict) else list(ast.walk(value))
        strings = [node for node in nodes if isinstance(node, ast.Constant)]
        yield from sorted(strings, key=lambda node: (-node.lineno, -node.col_offset))


# -- the command ----------------------------------------------------------------------------------


def _show(plan: Plan, root: Path, *, with_differences: bool) -> None:
    for old, new in plan.moves.items():
        print(f"move {old.relative_to(root)} -> {new.relative_to(root)}")
    for path, (before, after) in plan.texts.items():
        name = str(path.relative_to(root))
        if not with_differences:
            print(f"rewrote {name}")
            continue
        print("\n".join(difflib.unified_diff(
            before.splitlines(), after.splitlines(), name, name, n=0, lineterm=""
        )))  # fmt: skip
    for path, place in plan.by_hand:
        print(f"by hand: {path.relative_to(root)}:{place.line}: {place.reason}")


def _apply(plan: Plan, root: Path) -> None:
    for path, (_, text) in plan.texts.items():
        path.write_bytes(text.encode())
    for old, new in plan.files.items():
        new.parent.mkdir(parents=True, exist_ok=True)
        _git(root, "mv", str(old), str(new))
    for folder in plan.moves:
        if folder.is_dir():
            _remove_bytecode(folder)


def _remove_bytecode(folder: Path) -> None:
    """Remove what Python compiled, since it imports even an empty folder as a package."""
    for cache in [*folder.rglob("__pycache__")]:
        shutil.rmtree(cache)
    for empty in sorted([folder, *folder.rglob("*")], reverse=True):
        if empty.is_dir() and not any(empty.iterdir()):
            empty.rmdir()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: with ``--check`` 1 if anything would change."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", type=Path, help="lines 'old.module -> new.module', also of names")
    parser.add_argument("--check", action="store_true", help="print the changes, make none")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    try:
        table = Table.parse(options.table.read_text(encoding="utf-8"))
        plan = plan_renaming(root, table, skip=[options.table])
    except TableError as error:
        print(f"{options.table}: {error}", file=sys.stderr)
        return 2
    if not options.check:
        _apply(plan, root)
    _show(plan, root, with_differences=options.check)
    return int(options.check and bool(plan.moves or plan.texts))


if __name__ == "__main__":
    sys.exit(main())
