"""Define the interface of storage back ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

__all__ = [
    "Capabilities", "Entry", "FileDigest", "Pair", "Progress",
    "StorageBackend",
]  # fmt: skip

Pair: TypeAlias = "tuple[Path, str]"
"""A local file and its key."""

Progress: TypeAlias = Callable[[int], None]
"""Called from any thread, with the number of bytes moved since the last call."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Guarantees of a back end beyond moving bytes.

    Attributes:
        atomic_create: If several processes `create` the same key, exactly one succeeds.
        fork_safe: A child process that was forked after the first use may use the back end.
        byte_progress: Progress is reported within a file, not only per file.
        durable: Files survive a power cut once `put_tree` or `create` returns.
    """

    atomic_create: bool
    fork_safe: bool
    byte_progress: bool
    durable: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A stored file: its key and size in bytes."""

    key: str
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class FileDigest:
    """Size of a file in bytes, and its XXH3 digest of 128 bits in hexadecimal."""

    size: int
    value: str


class StorageBackend(Protocol):
    """Files under one root, named by keys.

    A key is a relative POSIX path with no empty, ``.`` or ``..`` part; see `check_key`. Methods
    may be called from several threads. They raise `StorageError`, `StorageFullError` if the storage
    is full, and the built-in errors named below.

    Example::

        >>> import tempfile
        >>> from detcore.storage import LocalStorage
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     storage = LocalStorage(directory)
        ...     storage.create("run/notes.txt", b"first")
        ...     storage.replace("run/notes.txt", b"second")
        ...     storage.read("run/notes.txt"), [entry.key for entry in storage.list("run")]
        (b'second', ['run/notes.txt'])
    """

    @property
    def url(self) -> str:
        """URL of the root for `open_storage`, without credentials."""

    @property
    def capabilities(self) -> Capabilities:
        """Guarantees of this back end."""

    def direct_path(self, key: str) -> Path | None:
        """Return the local path of a key, or None if files are not on this machine."""

    def put_tree(
        self, pairs: Sequence[Pair], *, progress: Progress | None = None
    ) -> dict[str, FileDigest]:
        """Copy local files to keys, replacing existing files, and digest them on the way.

        Raises:
            StorageFullError: If the storage is full. It has the number of missing bytes if the
                back end reports it.
        """

    def get_tree(
        self,
        pairs: Sequence[Pair],
        *,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Copy keys to local files and digest them on the way. Creates missing directories.

        Raises:
            FileNotFoundError: If a key does not exist.
        """

    def digest_tree(
        self,
        keys: Sequence[str],
        *,
        make_durable: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Digest stored files in place.

        Args:
            keys: The files.
            make_durable: Whether to flush the files and their directories to disk. Needed for files
                that were written through `direct_path`.
            progress: Called with the number of bytes read since the last call.

        Raises:
            FileNotFoundError: If a key does not exist.
        """

    def create(self, key: str, data: bytes) -> None:
        """Store a small file that does not exist yet, atomically.

        Raises:
            FileExistsError: If the key exists. Its content stays unchanged.
        """

    def replace(self, key: str, data: bytes) -> None:
        """Create or replace a small file. Readers see the old or the new content."""

    def read(self, key: str) -> bytes:
        """Return the content of a small file.

        Raises:
            FileNotFoundError: If the key does not exist.
        """

    def list(self, prefix: str = "") -> list[Entry]:
        """Return the files below a prefix (a key, or "" for all), sorted by key.

        Includes files of other processes. Returns an empty list if the prefix does not exist.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files; keys that do not exist are skipped."""

    def delete_tree(self, prefix: str) -> None:
        """Delete everything below a prefix, including empty directories; rejects ""."""

    def probe(self) -> None:
        """Write, read and delete a small file, to detect problems early.

        Raises:
            StorageError: If it fails.
        """

    def close(self) -> None:
        """Release connections; idempotent."""
