"""Copy the user's code into a checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# Suffixes of source and settings files. Code directories often also contain data, which does not
# belong in a checkpoint.
_SUFFIXES = frozenset(
    {".cfg", ".ini", ".ipynb", ".json", ".md", ".py", ".pyi", ".sh", ".toml", ".txt"}
    | {".yaml", ".yml"}
)
_MAX_BYTES = 1 << 20
_MAX_FILES = 50_000
_NOT_CODE = frozenset({"__pycache__", "node_modules", "venv"})
# Directories with these files contain records or checkpoints: a copy would grow with every
# checkpoint.
_OWN_FILES = frozenset({"detcore.db", "manifest.json"})


def list_code(source: Path) -> list[str]:
    """List the source and settings files below a directory, up to 1 MiB each.

    Hidden files, caches, links, and directories with detcore's records or checkpoints are excluded.
    In a directory with too many files, the list is truncated with a warning.

    Args:
        source: Directory of the user's code.

    Returns:
        Paths relative to `source`.
    """
    names: list[str] = []
    num_files = 0
    for folder, folders, files in os.walk(source):
        if folder != str(source) and _OWN_FILES & set(files):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name not in _NOT_CODE and name[0] != ".")
        num_files += len(files)
        if num_files > _MAX_FILES:
            logging.getLogger("detcore").warning(
                "%s contains more than %d files, so checkpoints include only part of its code. "
                "Pass a directory with only your code:  detcore run CONFIG.yaml MODEL_DIR",
                source,
                _MAX_FILES,
            )
            break
        paths = (Path(folder, name) for name in sorted(files))
        names.extend(str(path.relative_to(source)) for path in paths if _is_code(path))
    return names


def copy_code(
    source: Path, names: Iterable[str], target: Path, *, config: Mapping[str, Any] | None
) -> None:
    """Copy files to a new directory under the same names, masking the experiment's secrets.

    A checkpoint may be given to users who must not have the storage credentials.

    Args:
        source: Directory of the user's code.
        names: Result of `list_code`; files deleted since then are skipped.
        target: Directory to create.
        config: The experiment's configuration with its secrets, or None if `source` has no secrets.
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
