"""Unpack code archives from users, confined to one directory.

Archives are assumed to be hostile. An archive is read once from start to end. The limits apply to
the unpacked data and not to the sizes in its headers.
"""

from __future__ import annotations

import dataclasses
import gzip
import os
import shutil
import struct
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from detcore.errors import UnsafePathError

_CHUNK_BYTES = 1 << 18
# Each entry has a header of 512 bytes, padding up to 512 bytes, and possibly a long name.
_OVERHEAD_BYTES = 4 << 10
_MAX_NAME_BYTES = 1 << 10
_MAX_PART_BYTES = 255
_MAX_PARTS = 64
# Extension headers contain a name and are read into memory.
_MAX_HEADER_BYTES = 8 << 10
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_EXTENSIONS = (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME)
_DAMAGED = (
    tarfile.TarError,
    EOFError,
    OverflowError,
    RecursionError,
    UnicodeError,
    ValueError,
    gzip.BadGzipFile,
    struct.error,
    zlib.error,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UnpackLimits:
    """Limits on the content of an archive.

    Attributes:
        size_bytes: Maximum total size of all files.
        num_entries: Maximum number of files and directories.
    """

    size_bytes: int
    num_entries: int


class _Header(tarfile.TarInfo):
    """Header that rejects unsupported types before reading their data."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0:
            raise UnsafePathError(f"{self.name!r} has a size of {self.size} bytes")
        if self.type in _EXTENSIONS:
            if self.size > _MAX_HEADER_BYTES:
                raise UnsafePathError(f"a header has {self.size} bytes")
        elif self.type not in (*_FILES, tarfile.DIRTYPE):
            raise UnsafePathError(
                f"{self.name!r} is neither a file nor a directory (type {self.type!r}); links and "
                "devices are not allowed"
            )
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]  # tarfile's own
        return member

    def _refuse_sparse(self, file: tarfile.TarInfo, *_: object) -> None:
        # The map of a sparse file may be as long as the archive and would be read into memory.
        raise UnsafePathError(f"{file.name!r} is a sparse file, which is not allowed")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


class _Counted:
    """Reads decompressed data and raises an error after a number of bytes."""

    def __init__(self, file: BinaryIO, max_bytes: int) -> None:
        self._file = file
        self._left = max_bytes

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise UnsafePathError("the unpacked data exceeds the limit")
        return data


def unpack(archive: Path, folder: Path, limits: UnpackLimits) -> None:
    """Unpack an archive (tar, gzip) into a new private directory.

    Args:
        archive: Path of the archive.
        folder: Directory to create in an existing parent. It is removed after an error.
        limits: Limits on the content.

    Raises:
        UnsafePathError: If an entry is not a plain file or directory inside `folder`, if a limit is
            exceeded, or if the archive cannot be read.
    """
    folder.mkdir(mode=0o700)
    try:
        max_bytes = limits.size_bytes + (limits.num_entries + 8) * _OVERHEAD_BYTES
        with gzip.open(archive, "rb") as file:
            counted = _Counted(file, max_bytes)  # type: ignore[arg-type]  # GzipFile reads
            with tarfile.open(fileobj=counted, mode="r|", tarinfo=_Header) as opened:  # type: ignore[call-overload]
                _Unpacking(folder, limits).run(opened)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        reason = str(error) if isinstance(error, UnsafePathError) else None
        if isinstance(error, FileExistsError):
            reason = f"{os.path.relpath(error.filename, folder)!r} occurs twice"
        if reason is not None:
            raise UnsafePathError(
                f"the submitted code is rejected: {reason}.\nNothing was recorded."
            ) from error
        if isinstance(error, _DAMAGED):
            raise UnsafePathError(
                f"the submitted code cannot be read: {type(error).__name__}: {error}.\n"
                "It must be a tar archive compressed with gzip. Nothing was recorded."
            ) from error
        raise


def sync_path(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Unpacking:
    """Unpacks one archive into a directory."""

    def __init__(self, folder: Path, limits: UnpackLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._size_bytes = 0
        self._num_entries = 0
        self._folders: set[tuple[str, ...]] = {()}

    def run(self, archive: tarfile.TarFile) -> None:
        for member in archive:
            parts = _split_name(member.name)
            if not parts and not member.isdir():
                raise UnsafePathError("a file has no name")
            self._folder_at(parts[:-1])
            if member.isdir():
                self._folder_at(parts)
            else:
                self._file_at(parts, member, archive)
            archive.members.clear()  # type: ignore[attr-defined]  # it remembers them all

    def _folder_at(self, parts: tuple[str, ...]) -> None:
        if parts not in self._folders:
            self._folder_at(parts[:-1])
            self._count_entry()
            self._folder.joinpath(*parts).mkdir(mode=0o700)
            self._folders.add(parts)

    def _file_at(
        self, parts: tuple[str, ...], member: tarfile.TarInfo, archive: tarfile.TarFile
    ) -> None:
        self._count_entry()
        data = archive.extractfile(member)
        if data is None:
            raise UnsafePathError(f"{member.name!r} is not a file")
        mode = 0o700 if member.mode & 0o100 else 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(self._folder.joinpath(*parts), flags, mode)
        with os.fdopen(descriptor, "wb") as file:
            while chunk := data.read(_CHUNK_BYTES):
                self._size_bytes += len(chunk)
                if self._size_bytes > self._limits.size_bytes:
                    raise UnsafePathError(
                        f"the files exceed {self._limits.size_bytes} bytes in total"
                    )
                file.write(chunk)

    def _count_entry(self) -> None:
        self._num_entries += 1
        if self._num_entries > self._limits.num_entries:
            raise UnsafePathError(
                f"it contains more than {self._limits.num_entries} files and directories"
            )


def _split_name(name: str) -> tuple[str, ...]:
    """Split a safe relative name into parts. Returns () for the directory itself."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise UnsafePathError(f"the name {name!r} is not UTF-8") from None
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts:
        raise UnsafePathError(f"{name!r} is outside the directory")
    if any(ord(character) < 32 or character in "\\\x7f" for character in name):
        raise UnsafePathError(f"the name {name!r} contains invalid characters")
    longest = max((len(part.encode()) for part in parts), default=0)
    if size > _MAX_NAME_BYTES or len(parts) > _MAX_PARTS or longest > _MAX_PART_BYTES:
        raise UnsafePathError(f"the name {name[:80]!r}... is too long")
    return parts
