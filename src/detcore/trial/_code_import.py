"""Run the user's code from a checkpoint, and restore the state of the process afterwards."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

__all__ = ["code_imported_from"]


@contextlib.contextmanager
def code_imported_from(
    code: Path, aliases: Mapping[str, ModuleType] | None = None
) -> Iterator[None]:
    """Make imports search a folder first, and undo all changes afterwards.

    Inside the block the folder is also the current folder, as it is for a worker. Imported modules
    of the same names are put back afterwards, and the folder's modules are removed from
    ``sys.modules``; objects created from them stay usable. No bytecode is written into the folder.
    Not thread-safe: ``sys.path``, ``sys.modules`` and the current folder belong to the process.

    Args:
        code: The folder.
        aliases: Modules to make available under other names inside the block.
    """
    code = code.resolve()
    aliases = aliases or {}
    own = _importable(code) | {name.partition(".")[0] for name in aliases}
    modules, path, folder = dict(sys.modules), list(sys.path), Path.cwd()
    writes_bytecode = sys.dont_write_bytecode
    hidden = {name: module for name, module in modules.items() if name.partition(".")[0] in own}
    for name in hidden:
        del sys.modules[name]
    sys.modules.update(aliases)
    sys.path.insert(0, str(code))
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    os.chdir(code)
    try:
        yield
    finally:
        os.chdir(folder)
        sys.dont_write_bytecode = writes_bytecode
        sys.path[:] = path
        for name in [name for name in sys.modules if name.partition(".")[0] in own]:
            del sys.modules[name]
        sys.modules.update(hidden)
        for entry in [entry for entry in sys.path_importer_cache if _is_inside(entry, code)]:
            del sys.path_importer_cache[entry]


def _importable(code: Path) -> set[str]:
    """Return the top-level names that an import may find in a folder."""
    names = {path.stem for path in code.glob("*.py")}
    names |= {path.name for path in code.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    # The interpreter needs its own modules; a folder cannot replace the imported ones.
    return names - set(sys.stdlib_module_names)


def _is_inside(entry: str, code: Path) -> bool:
    return entry == str(code) or entry.startswith(str(code) + os.sep)
