"""The public API as text, read from the source: nothing is imported, no framework is needed.

``python tests/architecture/public_api.py --write`` writes ``public_api.txt`` anew.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))  # where it is run as a script

from source_tree import PLUGIN_SOURCES, ROOT, SOURCE, Module, is_private, modules_under

__all__ = ["COMMAND", "COMMITTED", "Api", "explain_difference", "render_project"]

COMMITTED = Path(__file__).with_name("public_api.txt")
COMMAND = "python tests/architecture/public_api.py --write"
_SPECIAL = {
    "__aenter__", "__aexit__", "__call__", "__contains__", "__enter__", "__exit__", "__getitem__",
    "__init__", "__iter__", "__len__", "__next__",
}  # fmt: skip
_SHOWN = {
    "abstractmethod", "cached_property", "classmethod", "clause", "dataclass", "deprecated",
    "final", "hookspec", "overload", "property", "runtime_checkable", "setter", "staticmethod",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Found:
    """Where a name is defined: the module, and the nodes (several for overloads)."""

    module: Module
    name: str
    nodes: tuple[ast.stmt, ...]


class Api:
    """The public names of some modules.

    Args:
        modules: All modules, the private ones, too: public names come from them.
    """

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = {module.name: module for module in modules}
        self.public = sorted(
            name
            for name, module in self.modules.items()
            if not module.is_private and module.declared_all() is not None
        )

    def lines(self) -> Iterator[str]:
        """Yield the text, line by line."""
        homes = self._homes()
        for name in self.public:
            source = self.modules[name].handed_on_whole
            if source is not None:
                yield from (f"module {name} = {source.name}", "")
                continue
            yield f"module {name}"
            for public in sorted(self.modules[name].declared_all() or ()):
                yield from (f"  {line}" for line in self._describe(name, public, homes))
            yield ""

    def _homes(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Return under which public name each definition is described; elsewhere it is named."""
        candidates: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for name in self.public:
            if self.modules[name].handed_on_whole is not None:
                continue
            for public in self.modules[name].declared_all() or ():
                found = self.find(name, public)
                if found is not None and found.nodes:
                    key = (found.module.name, found.name)
                    candidates.setdefault(key, []).append((name, public))
        return {
            key: min(places, key=lambda place: (-_common(key[0], place[0]), place))
            for key, places in candidates.items()
        }

    def _describe(
        self, module: str, name: str, homes: dict[tuple[str, str], tuple[str, str]]
    ) -> Iterator[str]:
        found = self.find(module, name)
        if found is None:
            yield f"{name}: defined elsewhere"
            return
        if not found.nodes:
            yield f"{name} = module {found.module.name}"
            return
        home = homes[found.module.name, found.name]
        if home != (module, name):
            yield f"{name} = {'.'.join(home)}"
            return
        for node in found.nodes:
            yield from self._definition(found.module, name, node)

    def _definition(self, module: Module, name: str, node: ast.stmt) -> Iterator[str]:
        if isinstance(node, ast.ClassDef):
            yield from _decorators(node)
            yield f"class {name}{_bases(node)}"
            yield from (f"  {line}" for line in sorted(self._members(module, node).values()))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _decorators(node)
            yield _function(node, name)
        else:
            yield _value(name, node)

    def _members(self, module: Module, node: ast.ClassDef) -> dict[str, str]:
        """Return a class's public members, those of bases that are not public included."""
        members: dict[str, str] = {}
        for base in reversed(node.bases):
            found = self._base(module, base)
            if found is not None and isinstance(found.nodes[0], ast.ClassDef):
                members.update(self._members(found.module, found.nodes[0]))
        for statement in node.body:
            members.update(_member(statement))
        return members

    def _base(self, module: Module, base: ast.expr) -> Found | None:
        """Return a base class that has no public name of its own."""
        if isinstance(base, ast.Subscript):
            base = base.value
        if not isinstance(base, ast.Name):
            return None
        found = self.find(module.name, base.id)
        if found is None or not found.nodes:
            return None
        is_public = any(
            self.find(public, found.name) == found
            for public in self.public
            if found.name in (self.modules[public].declared_all() or ())
        )
        return None if is_public else found

    def find(self, module_name: str, name: str, depth: int = 0) -> Found | None:
        """Return where a module's name is defined, through any number of imports."""
        module = self.modules.get(module_name)
        if module is None or depth > 20:
            return None
        if module.handed_on_whole is not None:
            return self.find(module.handed_on_whole.name, name, depth + 1)
        nodes = tuple(node for node in _statements(module.tree) if name in _defined(node))
        if nodes:
            return Found(module, name, nodes)
        for node in _statements(module.tree):
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                if (alias.asname or alias.name) != name or not isinstance(node, ast.ImportFrom):
                    continue
                inner = f"{node.module}.{alias.name}"
                if inner in self.modules:
                    return Found(self.modules[inner], alias.name, ())
                return self.find(node.module or "", alias.name, depth + 1)
        inner = f"{module_name}.{name}"
        return Found(self.modules[inner], name, ()) if inner in self.modules else None


def render_project() -> str:
    """Return the public API of the core and of the plugins."""
    folders = (SOURCE, *PLUGIN_SOURCES)
    api = Api(module for folder in folders for module in modules_under(folder))
    return "\n".join(api.lines())


def explain_difference(old: str, new: str) -> str:
    """Return a diff of two such texts with what to do; empty if they are equal."""
    if old == new:
        return ""
    diff = list(difflib.unified_diff(
        old.splitlines(), new.splitlines(), COMMITTED.name, "the source", lineterm="", n=2
    ))  # fmt: skip
    words = [f"The public API is not what {COMMITTED.name} says:", "", *diff, ""]
    if any(line.startswith("-") and not line.startswith("---") for line in diff):
        words.append(
            "Lines with '-' are gone or changed: what worked may stop working, so that it has to "
            "be deprecated first (detcore.deprecation; docs/api-policy.md says for how long)."
        )
    words.append(f"If it is meant: {COMMAND}, and commit the file with the change.")
    return "\n".join(words)


# -- reading the syntax tree ----------------------------------------------------------------------


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield what a module executes or shows to type checkers at its top level."""
    for node in tree.body:
        if isinstance(node, (ast.If, ast.Try)):
            yield from node.body
        else:
            yield node


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _member(node: ast.stmt) -> dict[str, str]:
    """Return what a statement of a class's body adds to its public members, by sorting key."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if is_private(node.name) or (node.name.startswith("__") and node.name not in _SPECIAL):
            return {}
        shown = [f"@{_decorator(item)} " for item in node.decorator_list if _is_shown(item)]
        line = f"{''.join(shown)}{_function(node, node.name)}"
        kind = (
            "".join(shown) if any("overload" in item or "setter" in item for item in shown) else ""
        )
        members = {f"{node.name}{kind}{line if kind else ''}": line}
        if node.name == "__init__":
            members.update(_attributes(node))
        return members
    names = {name for name in _defined(node) if not name.startswith("_")}
    return {name: _value(name, node) for name in names}


def _attributes(init: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    """Return the public attributes that ``__init__`` sets."""
    found = {}
    for node in ast.walk(init):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
                and not target.attr.startswith("_")
            ):
                annotation = getattr(node, "annotation", None)
                found[target.attr] = f"self.{target.attr}" + (
                    f": {ast.unparse(annotation)}" if annotation is not None else ""
                )
    return found


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{start} {name}({ast.unparse(node.args)}){returns}"


def _value(name: str, node: ast.stmt) -> str:
    annotation = getattr(node, "annotation", None)
    value = getattr(node, "value", None)
    text = f"{name}: {ast.unparse(annotation)}" if annotation is not None else name
    return f"{text} = {ast.unparse(value)}" if value is not None else text


def _bases(node: ast.ClassDef) -> str:
    items = [ast.unparse(base) for base in node.bases]
    items += [f"{item.arg}={ast.unparse(item.value)}" for item in node.keywords]
    return f"({', '.join(items)})" if items else ""


def _decorators(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    yield from (f"@{_decorator(item)}" for item in node.decorator_list if _is_shown(item))


def _decorator(node: ast.expr) -> str:
    return (
        ast.unparse(node).rpartition(".")[2]
        if isinstance(node, ast.Attribute)
        else (ast.unparse(node))
    )


def _is_shown(node: ast.expr) -> bool:
    called = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(called).rpartition(".")[2] in _SHOWN


def _common(first: str, second: str) -> int:
    """Return how many leading parts two dotted names share."""
    count = 0
    for left, right in zip(first.split("."), second.split("."), strict=False):
        if left != right:
            break
        count += 1
    return count


def main() -> None:
    """Write the file, or show how the source differs from it."""
    text = render_project()
    if "--write" in sys.argv[1:]:
        COMMITTED.write_text(text, encoding="utf-8")
        print(f"wrote {COMMITTED.relative_to(ROOT)}: {text.count(chr(10))} lines")
        return
    old = COMMITTED.read_text(encoding="utf-8") if COMMITTED.exists() else ""
    sys.exit(explain_difference(old, text) or None)


if __name__ == "__main__":
    main()
