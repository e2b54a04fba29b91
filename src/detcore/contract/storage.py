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
"""Called with the number of bytes moved since the last call; from any thread."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Guarantees of a back end beyond moving bytes.

    Attributes:
        atomic_create: Of several processes that `create` one key, exactly one succeeds.
        fork_safe: It may be used in a child that was forked after its first use.
        byte_progress: Progress is reported within a file, not only per file.
        durable: Files of `put_tree` and `create` survive a power cut once these return.
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
    may be called from several threads. Errors are `StorageError`, or `StorageFullError` if the
    storage is full, apart from the built-in ones named below.
    """

    @property
    def url(self) -> str:
        """URL of the root, as `open_storage` accepts it; without credentials."""

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
            StorageFullError: With the number of missing bytes, if the store reports it.
        """

    def get_tree(
        self,
        pairs: Sequence[Pair],
        *,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Copy keys to local files and digest them on the way; missing parents are created.

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
            make_durable: Whether to flush them, and their folders, to the disk. For files that
                were written through `direct_path`.
            progress: Called with numbers of bytes.

        Raises:
            FileNotFoundError: If a key does not exist.
        """

    def create(self, key: str, data: bytes) -> None:
        """Store a small file that does not exist yet, atomically.

        Raises:
            FileExistsError: If the key exists; it stays unchanged.
        """

    def replace(self, key: str, data: bytes) -> None:
        """Store a small file over one that may exist; readers see the old or the new one."""

    def read(self, key: str) -> bytes:
        """Return the content of a small file.

        Raises:
            FileNotFoundError: If the key does not exist.
        """

    def list(self, prefix: str = "") -> list[Entry]:
        """Return the files below a prefix (a key, or "" for all), sorted by key.

        Includes files that other processes wrote; a prefix that does not exist has no files.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files; keys that do not exist are skipped."""

    def delete_tree(self, prefix: str) -> None:
        """Delete everything below a prefix, including empty folders; "" is refused."""

    def probe(self) -> None:
        """Write, read and delete a small file, to detect problems early.

        Raises:
            StorageError: If it fails.
        """

    def close(self) -> None:
        """Release connections; idempotent."""
