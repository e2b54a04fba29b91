"""Copy the user's code into a checkpoint, and import it from there."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["code_imported_from", "copy_code", "list_code"]

# Suffixes of source and settings. Folders of code often contain data as well, which does not
# belong in a checkpoint.
_SUFFIXES = frozenset(
    {".cfg", ".ini", ".ipynb", ".json", ".md", ".py", ".pyi", ".sh", ".toml", ".txt"}
    | {".yaml", ".yml"}
)
_LARGEST_BYTES = 1 << 20
_MOST_FILES = 50_000
_NOT_CODE = frozenset({"__pycache__", "node_modules", "venv"})
# Folders with these contain records and checkpoints: a copy would grow with every checkpoint.
_OWN_FILES = frozenset({"detcore.db", "manifest.json"})


def list_code(source: Path) -> list[str]:
    """List the source and settings files of at most 1 MiB each below a folder.

    Hidden files, caches, links, and folders with detcore's records or checkpoints are left out. In
    a folder with very many files the list is cut short, with a warning.

    Args:
        source: Folder of the user's code.

    Returns:
        Paths relative to `source`.
    """
    found: list[str] = []
    seen = 0
    for folder, folders, files in os.walk(source):
        if folder != str(source) and _OWN_FILES & set(files):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name not in _NOT_CODE and name[0] != ".")
        seen += len(files)
        if seen > _MOST_FILES:
            logging.getLogger("detcore").warning(
                "%s holds more than %d files; checkpoints get the code of its first folders only. "
                "Give the folder of your code alone: detcore run CONFIG.yaml MODEL_DIR",
                source,
                _MOST_FILES,
            )
            break
        paths = (Path(folder, name) for name in sorted(files))
        found.extend(str(path.relative_to(source)) for path in paths if _is_code(path))
    return found


def copy_code(
    source: Path, names: Iterable[str], target: Path, *, config: Mapping[str, Any] | None
) -> None:
    """Copy files to a new folder, under the same names and without the experiment's secrets.

    A checkpoint may be passed on to users who must not have the storage's credentials.

    Args:
        source: Folder of the user's code.
        names: Result of `list_code`; files deleted since then are skipped.
        target: Folder to create.
        config: The experiment's configuration, with its secrets; None: `source` has none.
    """
    from detcore._secrets import mask_code, secret_values

    secrets = [] if config is None else secret_values(config)
    target.mkdir()
    for name in names:
        if (source / name).exists():
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            content = (source / name).read_bytes()
            if config is None:
                copy.write_bytes(content)
                continue
            # Bytes that are not valid UTF-8 are preserved.
            text = content.decode("utf-8", "surrogateescape")
            copy.write_bytes(mask_code(text, secrets).encode("utf-8", "surrogateescape"))


def _is_code(path: Path) -> bool:
    if path.name.startswith(".") or path.is_symlink() or path.suffix not in _SUFFIXES:
        return False
    return path.stat().st_size <= _LARGEST_BYTES


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
