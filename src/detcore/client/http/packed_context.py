"""Pack the directory of a user's code for a server."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import stat
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from detcore.contract.errors import ConfigError
from detcore.record_descriptions import format_bytes

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


IGNORE_FILE = ".detignore"
MAX_CONTEXT_BYTES = 96 * 1000 * 1000
MAX_CONTEXT_ENTRIES = 20_000
# Excluded by default. A line such as "!.git" in the ignore file includes them.
_LEFT_OUT = (".git", "__pycache__", ".ipynb_checkpoints")
_LISTED = 10
# A constant time makes archives reproducible. ZIP does not support times before 1980.
_TIME = 315_619_200
_CHUNK_BYTES = 1 << 20
_LEVEL = 6


@dataclasses.dataclass(frozen=True, slots=True)
class PackedContext:
    """A packed directory.

    Attributes:
        file: The open archive (tar, gzip). Closing it removes it.
        digest: Hexadecimal SHA-256 of the archive. Equal files have equal digests.
        size_bytes: Size of the archive.
        num_files: Number of files in the archive.
    """

    file: IO[bytes]
    digest: str
    size_bytes: int
    num_files: int


@dataclasses.dataclass(frozen=True, slots=True)
class _PackedFile:
    """A file or directory to pack. `path` is the location of its content."""

    name: str
    path: Path
    is_folder: bool
    size_bytes: int = 0


def pack_directory(folder: Path) -> PackedContext:
    """Pack the files in a directory, except for files that its ``.detignore`` excludes.

    ``.detignore`` at the top of the directory has the syntax of ``.gitignore``. ``.git``,
    ``__pycache__`` and ``.ipynb_checkpoints`` are excluded by default. A link to an entry of the
    directory is replaced by its target. Times and owners are not stored, so that equal files give
    equal archives. Execute permissions are stored.

    Args:
        folder: The directory.

    Raises:
        ConfigError: If the directory does not exist, has more than 96 MB or too many files, or if
            an entry cannot be packed. The message names the entry.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise ConfigError(f"the code directory {folder} does not exist")
    entries = list(_Walk(folder, _read_rules(folder)))
    _check_size(folder, entries)
    _check_names(folder, entries)
    file = tempfile.TemporaryFile(prefix="detcore-context-")  # noqa: SIM115  (returned open)
    try:
        # The header has no name and no time, so that the archive is reproducible.
        with (
            gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for entry in entries:
                _add_entry(archive, entry)
        size_bytes = file.tell()
        return PackedContext(
            file, _compute_digest(file), size_bytes, sum(not entry.is_folder for entry in entries)
        )
    except BaseException:
        file.close()
        raise


def _read_rules(folder: Path) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    path = folder / IGNORE_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        return GitIgnoreSpec.from_lines([*_LEFT_OUT, *lines])
    except ValueError as error:
        raise ConfigError(f"{path} has an invalid pattern: {error}") from error


class _Walk:
    """The entries to pack, sorted by name, with each directory before its content."""

    def __init__(self, folder: Path, rules: GitIgnoreSpec) -> None:
        self._folder = folder
        self._rules = rules
        self._num = 0
        self._unreadable: list[str] = []

    def __iter__(self) -> Iterator[_PackedFile]:
        yield from self._walk_directory(self._folder, "", (self._folder,))
        if self._unreadable:
            listed = "\n".join(f"  {line}" for line in self._unreadable[:_LISTED])
            more = len(self._unreadable) - _LISTED
            raise ConfigError(
                f"files in {self._folder} cannot be read:\n{listed}"
                + (f"\n  and {more} more" if more > 0 else "")
                + f"\nMake them readable, or exclude them with lines in {IGNORE_FILE}."
            )

    def _walk_directory(
        self, path: Path, prefix: str, above: tuple[Path, ...]
    ) -> Iterator[_PackedFile]:
        try:
            names = sorted(os.listdir(path))
        except OSError as error:
            self._unreadable.append(f"{prefix or '.'}: {error.strerror}")
            return
        for name in names:
            yield from self._walk_entry(path / name, prefix + name, above)

    def _walk_entry(self, path: Path, name: str, above: tuple[Path, ...]) -> Iterator[_PackedFile]:
        mode = path.lstat().st_mode
        # A pattern such as "data/" only matches directories, and a link to a directory only after
        # it has been resolved.
        if self._rules.match_file(f"{name}/" if stat.S_ISDIR(mode) else name):
            return
        if stat.S_ISLNK(mode):
            path = self._resolve_link(path, name)
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode) and (path in above or self._rules.match_file(f"{name}/")):
                if path in above:
                    raise self._make_entry_error(
                        name, f"is a link to {path}, which contains the link"
                    )
                return
        self._num += 1
        if self._num > MAX_CONTEXT_ENTRIES:
            raise ConfigError(
                f"{self._folder} has more than {MAX_CONTEXT_ENTRIES:,} files and directories.\n"
                f"Exclude data, results and environments with lines in "
                f"{self._folder / IGNORE_FILE} (as in .gitignore), or submit another directory."
            )
        if stat.S_ISDIR(mode):
            yield _PackedFile(name, path, is_folder=True)
            yield from self._walk_directory(path, f"{name}/", (*above, path))
        elif stat.S_ISREG(mode):
            if os.access(path, os.R_OK):
                yield _PackedFile(name, path, is_folder=False, size_bytes=path.stat().st_size)
            else:
                self._unreadable.append(f"{name}: Permission denied")
        else:
            raise self._make_entry_error(
                name, "is neither a file nor a directory (a socket, a pipe, a device)"
            )

    def _resolve_link(self, path: Path, name: str) -> Path:
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):
            raise self._make_entry_error(
                name, f"is a link to {os.readlink(path)!r}, which does not exist"
            ) from None
        if not target.is_relative_to(self._folder):
            raise self._make_entry_error(
                name, f"is a link to {target}, which is not in the submitted directory"
            )
        return target

    def _make_entry_error(self, name: str, why: str) -> ConfigError:
        return ConfigError(
            f"{self._folder / name} cannot be submitted: it {why}.\n"
            f"Replace it, or exclude it with a line in {self._folder / IGNORE_FILE}: /{name}"
        )


def _check_names(folder: Path, entries: Sequence[_PackedFile]) -> None:
    """Raise an error for a name that the server would reject, before sending anything."""
    names: dict[str, str] = {}
    for entry in entries:
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"{entry.name!r} in {folder} cannot be submitted: its name is not UTF-8.\n"
                "Rename it."
            ) from None
        first_name = names.setdefault(entry.name.casefold(), entry.name)
        if first_name != entry.name:
            raise ConfigError(
                f"{first_name!r} and {entry.name!r} in {folder} differ only in case, so they are "
                "the same file on some file systems.\n"
                f"Rename one of them, or exclude it with a line in {IGNORE_FILE}."
            )


def _check_size(folder: Path, entries: Sequence[_PackedFile]) -> None:
    total = sum(entry.size_bytes for entry in entries)
    if total <= MAX_CONTEXT_BYTES:
        return
    sizes: Counter[str] = Counter()
    for entry in entries:
        sizes[entry.name.partition("/")[0]] += entry.size_bytes
    largest = sizes.most_common(_LISTED)
    listed = "\n".join(f"  {format_bytes(size):>9}  {name}" for name, size in largest)
    raise ConfigError(
        f"{folder} has {format_bytes(total)}; expected at most {format_bytes(MAX_CONTEXT_BYTES)}. "
        f"The largest entries:\n{listed}\n"
        f"Exclude data and results with lines in {folder / IGNORE_FILE} (as in .gitignore)."
    )


def _add_entry(archive: tarfile.TarFile, entry: _PackedFile) -> None:
    header = tarfile.TarInfo(entry.name)
    header.mtime = _TIME
    if entry.is_folder:
        header.type, header.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(header)
        return
    try:
        with entry.path.open("rb") as file:
            status = os.fstat(file.fileno())
            # Bytes that were appended after reading the size are left out.
            header.size = entry.size_bytes
            header.mode = 0o755 if status.st_mode & 0o100 else 0o644
            archive.addfile(header, file)
    except OSError as error:
        raise ConfigError(
            f"{entry.path} cannot be submitted: {error}.\n"
            "If it is being written, wait until it is complete, or exclude it with a line in "
            f"{IGNORE_FILE}."
        ) from error


def _compute_digest(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    file.seek(0)
    return digest.hexdigest()
