"""Syntax trees of the project's source."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "PLUGIN_SOURCES",
    "ROOT",
    "SOURCE",
    "Import",
    "Module",
    "is_private",
    "modules_under",
]

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PLUGIN_SOURCES = tuple(sorted([*ROOT.glob("plugins/*/src"), *ROOT.glob("examples/plugins/*/src")]))


@dataclasses.dataclass(frozen=True)
class Import:
    """An import: ``import a`` is ``("a", None)`` and ``from a import b`` is ``("a", "b")``."""

    module: str
    name: str | None
    line: int
    for_types_only: bool


@dataclasses.dataclass(frozen=True)
class Module:
    """A source file."""

    name: str
    path: Path

    @functools.cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.path.read_text(encoding="utf-8"), str(self.path))

    @property
    def is_package(self) -> bool:
        """Whether the file is an ``__init__.py``."""
        return self.path.name == "__init__.py"

    @property
    def is_private(self) -> bool:
        """Whether the module is private: it has no ``__all__``, or an underscore in its path."""
        is_marked = any(is_private(part) for part in self.name.split("."))
        return is_marked or self.declared_all() is None

    @functools.cached_property
    def imports(self) -> tuple[Import, ...]:
        """All imports, including imports in functions."""
        return tuple(_imports(self.tree, self, for_types_only=False))

    @property
    def handed_on_whole(self) -> Module | None:
        """Core module whose names this module re-exports with ``import *``, or None."""
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                name = str(node.module)
                return Module(name, SOURCE.joinpath(*name.split(".")).with_suffix(".py"))
        return None

    def declared_all(self) -> list[str] | None:
        """Return the names in ``__all__``, or None without ``__all__``."""
        source = self.handed_on_whole
        if source is not None:
            return source.declared_all()
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
            ):
                return [str(name) for name in ast.literal_eval(node.value)]
        return None

    def place(self, line: int) -> str:
        """Return file and line, for messages."""
        return f"{self.path.relative_to(ROOT)}:{line}"


def is_private(name: str) -> bool:
    """Whether a name starts with an underscore and is no ``__dunder__``."""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


@functools.cache
def modules_under(folder: Path) -> list[Module]:
    """Return all modules in a folder of packages; skeletons of one blank line are left out.

    Every caller gets the same ones, so that each is parsed once in a process.
    """
    modules = []
    for path in sorted(folder.rglob("*.py")):
        if not path.read_text(encoding="utf-8").strip():
            continue
        parts = path.relative_to(folder).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        modules.append(Module(".".join(parts), path))
    return modules


def _imports(node: ast.AST, module: Module, *, for_types_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, None, child.lineno, for_types_only)
        elif isinstance(child, ast.ImportFrom):
            source = _absolute(child, module)
            for alias in child.names:
                yield Import(source, alias.name, child.lineno, for_types_only)
        elif isinstance(child, ast.If) and _is_type_checking(child.test):
            for body, is_typing in ((child.body, True), (child.orelse, for_types_only)):
                holder = ast.Module(body=body, type_ignores=[])
                yield from _imports(holder, module, for_types_only=is_typing)
        else:
            yield from _imports(child, module, for_types_only=for_types_only)


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _absolute(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    base = parts if module.is_package else parts[:-1]
    base = base[: len(base) - (node.level - 1)]
    return ".".join([*base, *filter(None, [node.module])])
