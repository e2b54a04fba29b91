"""Copy the user's code into a checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# Suffixes of source and settings. Folders of code often contain data as well, which does not
# belong in a checkpoint.
_SUFFIXES = frozenset(
    {".cfg", ".ini", ".ipynb", ".json", ".md", ".py", ".pyi", ".sh", ".toml", ".txt"}
    | {".yaml", ".yml"}
)
_MAX_BYTES = 1 << 20
_MAX_FILES = 50_000
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
        if seen > _MAX_FILES:
            logging.getLogger("detcore").warning(
                "%s holds more than %d files; checkpoints get the code of its first folders only. "
                "Give the folder of your code alone: detcore run CONFIG.yaml MODEL_DIR",
                source,
                _MAX_FILES,
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
    from detcore.masking import mask_code, secret_values

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
    return path.stat().st_size <= _MAX_BYTES
