"""What the checkpoint code asks of a storage back end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

__all__ = [
    "DEFAULT_ALGORITHM",
    "Capabilities",
    "Entry",
    "FileDigest",
    "Pair",
    "Progress",
    "StorageBackend",
]

DEFAULT_ALGORITHM = "xxh3_128"
"""How files are digested unless a manifest names something else."""

Pair: TypeAlias = "tuple[Path, str]"
"""A local file and its key."""

Progress: TypeAlias = Callable[[int], None]
"""Called with the number of bytes moved since the last call; from any thread."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a back end can do beyond moving bytes.

    Attributes:
        atomic_create: Of several processes that `create` one key, exactly one succeeds.
        fork_safe: It may be used in a child that was forked after its first use.
        byte_progress: Progress is told within a file, not only per file.
        durable: What `put_tree` and `create` wrote survives a power cut when they return.
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
    """What a file holds: size in bytes and digest in hexadecimal, with the algorithm's name."""

    size: int
    value: str
    algorithm: str = DEFAULT_ALGORITHM


class StorageBackend(Protocol):
    """Files under one root, named by keys.

    A key is a relative POSIX path with no empty, ``.`` or ``..`` part; see `check_key`. Methods
    may be called from several threads. Errors are `StorageError`, or `StorageFullError` where
    there is no room, apart from the built-in ones named below.
    """

    @property
    def url(self) -> str:
        """Where the root is, as a URL that `open_storage` takes; without credentials."""

    @property
    def capabilities(self) -> Capabilities:
        """What this back end can do."""

    def direct_path(self, key: str) -> Path | None:
        """Return the local path of a key, or None where files are not on this machine."""

    def put_tree(
        self, pairs: Sequence[Pair], *, progress: Progress | None = None
    ) -> dict[str, FileDigest]:
        """Copy local files to keys, replacing what is there, and digest them on the way.

        Raises:
            StorageFullError: With the number of bytes missing, where the store can tell.
        """

    def get_tree(
        self,
        pairs: Sequence[Pair],
        *,
        algorithm: str = DEFAULT_ALGORITHM,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Copy keys to local files and digest them on the way; parents are made.

        Args:
            pairs: Where to, and which.
            algorithm: How to digest them: as their manifest was.
            progress: Told of the bytes.

        Raises:
            FileNotFoundError: If a key does not exist.
        """

    def digest_tree(
        self,
        keys: Sequence[str],
        *,
        algorithm: str = DEFAULT_ALGORITHM,
        make_durable: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Digest stored files where they are.

        Args:
            keys: Which.
            algorithm: How to digest them: as their manifest was.
            make_durable: Also bring them, and their folders, safely to the disk. For files that
                were written through `direct_path`.
            progress: Told of the bytes.

        Raises:
            FileNotFoundError: If a key does not exist.
        """

    def create(self, key: str, data: bytes) -> None:
        """Store a small file that does not exist yet; whole or not at all.

        Raises:
            FileExistsError: If the key exists; it is left as it was.
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

        What other processes wrote is seen; a prefix that does not exist has no files.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files; keys that do not exist are skipped."""

    def delete_tree(self, prefix: str) -> None:
        """Delete everything below a prefix, empty folders included; "" is refused."""

    def probe(self) -> None:
        """Write, read and delete a small file, to find out now whether that works.

        Raises:
            StorageError: If it does not.
        """

    def close(self) -> None:
        """Release connections. Closing twice is fine."""
