"""Find the files to migrate, and replace each file atomically."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import difflib
import io
import os
import re
import shutil
import stat
import tempfile
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from detcore_determined.migrate.experiment_file import migrate_config
from detcore_determined.migrate.findings import Finding, get_place
from detcore_determined.migrate.names import ROOTS
from detcore_determined.migrate.python_module import migrate_python

_PYTHON = (".py", ".pyi")
_YAML = (".yaml", ".yml")
_NOTEBOOK = ".ipynb"
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv"}
# In the file, a line of a cell is a JSON string, or follows an escaped line end inside one.
_IMPORT = re.compile(rf'(?:"|\\n)\s*(?:from|import)\s+(?P<name>(?:{"|".join(ROOTS)})\b[\w.]*)')


class _UnreadableError(ValueError):
    """A file that cannot be decoded, or whose text would encode to other bytes."""


@dataclasses.dataclass(frozen=True, slots=True)
class FileReport:
    """Result of migrating one file.

    Attributes:
        path: The file, as the caller named it.
        num_changes: Number of spans that were, or would be, replaced.
        findings: Remaining work; a finding of kind ``error`` says why the file was left alone.
        diff: The change as a unified diff; empty if nothing changes.
    """

    path: Path
    num_changes: int
    findings: tuple[Finding, ...]
    diff: str = ""

    @property
    def is_changed(self) -> bool:
        """Whether the file changed, or would change."""
        return bool(self.diff)

    @property
    def is_failed(self) -> bool:
        """Whether the file could not be read or written."""
        return any(finding.kind == "error" for finding in self.findings)


def find_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files to migrate, each once, in order of their names.

    Files passed by name may have any suffix. In directories, files with the suffixes ``.py``,
    ``.pyi``, ``.yaml``, ``.yml`` and ``.ipynb`` are selected, except in hidden directories, virtual
    environments and installed packages. Links to directories are not followed. A directory that
    cannot be read is yielded itself.

    Args:
        paths: Files and directories.
    """
    visited = set()
    for path in paths:
        for file in _below(path) if os.path.isdir(path) else [path]:
            real = os.path.realpath(file)
            if real not in visited:
                visited.add(real)
                yield file


def migrate_file(path: Path, *, write: bool = True) -> FileReport:
    """Migrate a Python module or an experiment file.

    A changed file is written beside the old file and replaces it atomically, with the same
    permissions. If the path is a link, its target is replaced and the link stays.

    Args:
        path: The file.
        write: Whether to write the file; otherwise the report describes the change.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
        status = real.stat()
        if not stat.S_ISREG(status.st_mode):
            if stat.S_ISDIR(status.st_mode):
                os.scandir(real).close()  # raises the reason, if the folder cannot be read
            return _failed(path, "it is not a regular file")
        content = real.read_bytes()
        is_yaml = path.suffix in _YAML
        text, encoding = _decode(content, is_python=not is_yaml and path.suffix != _NOTEBOOK)
    except (OSError, _UnreadableError) as error:
        return _failed(path, _words(error))
    if path.suffix == _NOTEBOOK:
        return FileReport(path, 0, tuple(mentions(text)))
    migrate = migrate_config if is_yaml else migrate_python
    migrated = migrate(text)
    findings = migrated.remaining if write else migrated.findings
    if migrated.text == text:
        return FileReport(path, 0, findings)
    report = FileReport(path, migrated.num_changes, findings, _diff(path, text, migrated.text))
    if not write:
        return report
    try:
        if not status.st_mode & 0o222:
            raise PermissionError("it is read-only; make it writable: chmod u+w")
        _replace(real, content, migrated.text.encode(encoding))
    except (OSError, UnicodeError) as error:
        findings = (*migrated.findings, *_failed(path, f"not written: {_words(error)}").findings)
        return dataclasses.replace(report, findings=findings, num_changes=0, diff="")
    return report


def _decode(content: bytes, *, is_python: bool) -> tuple[str, str]:
    """Return a file's text and its encoding; a coding cookie applies to Python only."""
    encoding = "utf-8-sig" if content.startswith(codecs.BOM_UTF8) else "utf-8"
    try:
        if is_python:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
        is_whole = text.encode(encoding) == content
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise _UnreadableError(f"it cannot be decoded: {error}") from error
    if not is_whole:
        raise _UnreadableError(f"decoding and encoding it as {encoding} gives other bytes")
    return text, encoding


def _below(folder: Path) -> Iterator[Path]:
    failed: list[Path] = []
    for root, folders, files in os.walk(
        folder, onerror=lambda error: failed.append(Path(error.filename))
    ):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED
            and not Path(root, name, "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            path = Path(root, name)
            if path.suffix in (*_PYTHON, *_YAML, _NOTEBOOK) and path.is_file():
                yield path
    yield from failed


def _replace(path: Path, old: bytes, new: bytes) -> None:
    """Replace a file's content atomically, unless another process changed it in the meantime."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(new)
            file.flush()
            os.fsync(file.fileno())
        shutil.copystat(path, name)
        with contextlib.suppress(PermissionError):  # only the owner, or root, may change the owner
            os.chown(name, path.stat().st_uid, path.stat().st_gid)
        if path.read_bytes() != old:
            raise OSError("it was changed by another process; run the command again")
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _diff(path: Path, old: str, new: str) -> str:
    names = (str(path), str(path)) if path.is_absolute() else (f"a/{path}", f"b/{path}")
    lines = difflib.unified_diff(_lines(old), _lines(new), *names, lineterm="\n")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _lines(text: str) -> list[str]:
    """Split at line feeds only, as ``patch`` does."""
    return list(io.StringIO(text, newline="\n"))


def _failed(path: Path, problem: str) -> FileReport:
    return FileReport(path, 0, (Finding(0, 0, "", problem, "", "error"),))


def _words(error: Exception) -> str:
    strerror = getattr(error, "strerror", None)
    return str(strerror or error)


def mentions(source: str) -> Iterator[Finding]:
    """Yield a finding for each import of Determined in the cells of a notebook.

    Args:
        source: The file, JSON.
    """
    for match in _IMPORT.finditer(source):
        line, column = get_place(source, match.start("name"))
        yield Finding(
            line, column, match["name"], "notebooks are not rewritten",
            "change it by hand, or make it a script: jupyter nbconvert --to script",
        )  # fmt: skip
