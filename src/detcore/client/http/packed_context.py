"""The folder of a user's code, packed for a server."""

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
# Never of use elsewhere; a line such as "!.git" in the ignore file takes them in.
_LEFT_OUT = (".git", "__pycache__", ".ipynb_checkpoints")
_LISTED = 10
# Any would do, as long as it is the same one each time; ZIP knows none before 1980.
_TIME = 315_619_200
_CHUNK_BYTES = 1 << 20
_LEVEL = 6


@dataclasses.dataclass(frozen=True, slots=True)
class PackedContext:
    """A folder that was packed.

    Attributes:
        file: The archive (tar, gzip), open; closing it removes it.
        digest: SHA-256 of the archive, in hexadecimal digits: the same for the same files.
        size_bytes: Its size.
        num_files: How many files are in it.
    """

    file: IO[bytes]
    digest: str
    size_bytes: int
    num_files: int


@dataclasses.dataclass(frozen=True, slots=True)
class _PackedFile:
    """A file or folder to pack_directory; `path` is the location of its content."""

    name: str
    path: Path
    is_folder: bool
    size_bytes: int = 0


def pack_directory(folder: Path) -> PackedContext:
    """Pack the files below a folder, but for those that its ``.detignore`` leaves out.

    ``.detignore`` at the top of the folder is read as git reads ``.gitignore``. ``.git``,
    ``__pycache__`` and ``.ipynb_checkpoints`` are left out by default. A link to something in the
    folder is replaced by its target. Times and owners are not kept, so that the same files give the
    same archive; execute permission is kept.

    Args:
        folder: The folder.

    Raises:
        ConfigError: If there is no such folder, if its files have more than 96 MB or are too many,
            or if an entry cannot be packed; the message names it.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder} to hand in")
    entries = list(_Walk(folder, _read_rules(folder)))
    _check_size(folder, entries)
    _check_names(folder, entries)
    file = tempfile.TemporaryFile(prefix="detcore-context-")  # noqa: SIM115  (handed on)
    try:
        # No name and no time in the header: they would differ each time.
        with (
            gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for entry in entries:
                _add(archive, entry)
        size_bytes = file.tell()
        return PackedContext(
            file, _digest(file), size_bytes, sum(not entry.is_folder for entry in entries)
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
        raise ConfigError(f"{path} has a line that is no pattern: {error}") from error


class _Walk:
    """The entries to pack_directory, sorted by name: a folder before its content."""

    def __init__(self, folder: Path, rules: GitIgnoreSpec) -> None:
        self._folder = folder
        self._rules = rules
        self._num = 0
        self._unreadable: list[str] = []

    def __iter__(self) -> Iterator[_PackedFile]:
        yield from self._below(self._folder, "", (self._folder,))
        if self._unreadable:
            listed = "\n".join(f"  {line}" for line in self._unreadable[:_LISTED])
            more = len(self._unreadable) - _LISTED
            raise ConfigError(
                f"files of {self._folder} cannot be read:\n{listed}"
                + (f"\n  and {more} more" if more > 0 else "")
                + f"\nMake them readable, or leave them out with a line in {IGNORE_FILE}."
            )

    def _below(self, path: Path, prefix: str, above: tuple[Path, ...]) -> Iterator[_PackedFile]:
        try:
            names = sorted(os.listdir(path))
        except OSError as error:
            self._unreadable.append(f"{prefix or '.'}: {error.strerror}")
            return
        for name in names:
            yield from self._one(path / name, prefix + name, above)

    def _one(self, path: Path, name: str, above: tuple[Path, ...]) -> Iterator[_PackedFile]:
        mode = path.lstat().st_mode
        # A pattern such as "data/" matches folders only; a link is no folder until it is followed.
        if self._rules.match_file(f"{name}/" if stat.S_ISDIR(mode) else name):
            return
        if stat.S_ISLNK(mode):
            path = self._followed(path, name)
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode) and (path in above or self._rules.match_file(f"{name}/")):
                if path in above:
                    raise self._refused(name, f"is a link to {path}, which it is in itself")
                return
        self._num += 1
        if self._num > MAX_CONTEXT_ENTRIES:
            raise ConfigError(
                f"{self._folder} has more than {MAX_CONTEXT_ENTRIES:,} files and folders, which "
                f"is no folder of code alone.\nHand in another folder, or leave some out with "
                f"lines in {self._folder / IGNORE_FILE} (as in .gitignore): data, results, "
                "environments."
            )
        if stat.S_ISDIR(mode):
            yield _PackedFile(name, path, is_folder=True)
            yield from self._below(path, f"{name}/", (*above, path))
        elif stat.S_ISREG(mode):
            if os.access(path, os.R_OK):
                yield _PackedFile(name, path, is_folder=False, size_bytes=path.stat().st_size)
            else:
                self._unreadable.append(f"{name}: Permission denied")
        else:
            raise self._refused(name, "is neither a file nor a folder (a socket, a pipe, a device)")

    def _followed(self, path: Path, name: str) -> Path:
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):
            raise self._refused(
                name, f"is a link to {os.readlink(path)!r}, which is not there"
            ) from None
        if not target.is_relative_to(self._folder):
            raise self._refused(
                name, f"is a link to {target}, which is not in the folder that is handed in"
            )
        return target

    def _refused(self, name: str, why: str) -> ConfigError:
        return ConfigError(
            f"{self._folder / name} cannot be handed in: it {why}.\n"
            f"Replace it, or leave it out with a line in {self._folder / IGNORE_FILE}: /{name}"
        )


def _check_names(folder: Path, entries: Sequence[_PackedFile]) -> None:
    """Raise for a name that the server would refuse, before anything is sent."""
    known: dict[str, str] = {}
    for entry in entries:
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"{entry.name!r} in {folder} cannot be handed in: the name is not UTF-8.\n"
                "Give it another name."
            ) from None
        other = known.setdefault(entry.name.casefold(), entry.name)
        if other != entry.name:
            raise ConfigError(
                f"{other!r} and {entry.name!r} in {folder} differ in capitals only, and are one "
                "file to some file systems.\n"
                f"Give one of them another name, or leave it out with a line in {IGNORE_FILE}."
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
        f"{folder} is too big to be handed in: its files have {format_bytes(total)}, and at most "
        f"{format_bytes(MAX_CONTEXT_BYTES)} are taken. The largest:\n{listed}\n"
        f"Leave out what is no code, such as data and results, with lines in "
        f"{folder / IGNORE_FILE} (as in .gitignore)."
    )


def _add(archive: tarfile.TarFile, entry: _PackedFile) -> None:
    header = tarfile.TarInfo(entry.name)
    header.mtime = _TIME
    if entry.is_folder:
        header.type, header.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(header)
        return
    try:
        with entry.path.open("rb") as file:
            found = os.fstat(file.fileno())
            # Bytes that were appended since the size was read are left out.
            header.size = entry.size_bytes
            header.mode = 0o755 if found.st_mode & 0o100 else 0o644
            archive.addfile(header, file)
    except OSError as error:
        raise ConfigError(
            f"{entry.path} cannot be handed in: {error}.\n"
            "If it is being written, wait until that is done, or leave it out with a line in "
            f"{IGNORE_FILE}."
        ) from error


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    file.seek(0)
    return digest.hexdigest()
