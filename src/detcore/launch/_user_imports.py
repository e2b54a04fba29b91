"""The imports of a trial's code, read from its source without running it."""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.contract.values import Framework
    from detcore.hooks import PluginManager

__all__ = ["UserImports", "find_preload", "read_imports"]

_MAX_FILES = 200
# Takes some 0.3 s.
_MAX_BYTES = 500_000
_ENVIRONMENTS = frozenset({"environ", "environb"})
_SETTERS = frozenset({"putenv", "unsetenv"})
_READING = frozenset({"copy", "get", "items", "keys", "values"})
# Modules that are there to set variables.
_SETTING_MODULES = frozenset({"dotenv", "environs", "decouple"})


class UserImports:
    """The imports of a trial's code.

    Attributes:
        packages: Top-level packages that are imported from elsewhere.
        may_set_variables: Whether the code may change environment variables. Those that a
            framework reads when it is imported have to be set before that.
    """

    def __init__(self) -> None:
        self.packages: set[str] = set()
        self.may_set_variables = False


def read_imports(module: str, folder: Path) -> UserImports | None:
    """Follow the imports of a module through the files of a folder.

    Args:
        module: Its dotted name.
        folder: Folder of the user's code.

    Returns:
        The imports; None if they cannot be determined, because a file is missing or is not valid
        Python, or because the files are too many or too long.
    """
    found = UserImports()
    seen: set[Path] = set()
    num_bytes = 0
    waiting = list(_files(module, folder))
    if not waiting:
        return None
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            num_bytes += path.stat().st_size
            if len(seen) > _MAX_FILES or num_bytes > _MAX_BYTES:
                return None
            tree = _parse(path)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        found.may_set_variables = found.may_set_variables or _may_set_variables(tree)
        for name in _imported(tree, path, folder):
            own = list(_files(name, folder))
            waiting += own
            if not own:
                found.packages.add(name.partition(".")[0])
    found.may_set_variables = found.may_set_variables or bool(found.packages & _SETTING_MODULES)
    return found


def _parse(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the worker that imports the file shows them
        return ast.parse(path.read_bytes())


def _files(module: str, folder: Path) -> Iterator[Path]:
    """Yield the files that an import of a module runs, as far as they are in the folder."""
    path = folder
    for part in module.split("."):
        path = path / part
        if os.path.isfile(path / "__init__.py"):  # Path.is_file raises if the name is too long
            yield path / "__init__.py"
        elif os.path.isfile(path.with_suffix(".py")):
            yield path.with_suffix(".py")
            return
        elif not os.path.isdir(path):
            return


def _imported(tree: ast.Module, path: Path, folder: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package: tuple[str, ...] = ()
            if node.level:
                above = path.parent.relative_to(folder).parts
                package = above[: len(above) - node.level + 1]
            base = ".".join([*package, *((node.module or "").split(".") if node.module else ())])
            if base:
                yield base
            # Each name may be a module.
            if node.level or base:
                yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


def _may_set_variables(tree: ast.Module) -> bool:
    """Return whether a module may change variables: any use that is not plainly a read may."""
    reading = {id(node) for parent in ast.walk(tree) for node in _read_by(parent)}
    for node in ast.walk(tree):
        name = _name(node)
        if name in _SETTERS or (name in _ENVIRONMENTS and id(node) not in reading):
            return True
    return False


def _read_by(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that it only reads."""
    is_reading = isinstance(node, ast.Attribute) and node.attr in _READING
    if is_reading or (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)):
        yield node.value  # type: ignore[attr-defined]  # both have one
    elif isinstance(node, ast.Compare):
        yield from node.comparators


def _name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def find_preload(
    entrypoint: object, model_dir: Path, plugins: PluginManager
) -> tuple[list[str] | None, str]:
    """Return the framework modules to import before the code of trials, or None and why not.

    Args:
        entrypoint: The experiment's.
        model_dir: Folder of the user's code.
        plugins: Provide frameworks.
    """
    # Imported by a worker it would be there before it is run.
    from detcore.launch.worker import is_trial_class

    if not is_trial_class(entrypoint):
        return None, "they run a command"
    module = str(entrypoint).partition(":")[0]
    found = read_imports(module, model_dir)
    if found is None:
        return None, f"what {module} imports cannot be told from its source"
    if found.may_set_variables:
        # A framework would read them before they are set.
        return None, f"{module}, or what it imports, may set environment variables"
    frameworks = [
        framework
        for framework in plugins.frameworks().values()
        if framework.trial_class.partition(":")[0].partition(".")[0] in found.packages
    ]
    return [name for each in frameworks for name in _modules(each)], ""


def _modules(framework: Framework) -> Iterator[str]:
    yield from framework.requires
    for name in (
        framework.trial_class,
        framework.context_class,
        framework.controller,
        framework.prepare_worker,
    ):
        if name is not None:
            yield name
