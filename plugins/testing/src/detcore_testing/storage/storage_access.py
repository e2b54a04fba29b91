"""Helpers of the storage clauses: the storage, and raw access to its files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from detcore.storage import Pair, StorageBackend
from detcore_testing.suite_clauses import Suite, expect_equal


class StorageAccess(Suite):
    """Declarations that a subclass of `detcore_testing.StorageSuite` makes about its storage.

    Attributes:
        storage_type: Registered name of the storage (``checkpoint_storage.type``).
            Empty if the capability ``"registered"`` is declined.
        secrets: Secret strings in the settings, which the storage must not show.
        large_bytes: Size of the largest file. It should exceed the store's part size.
        num_files: Number of small files in one transfer.
        num_listed: Number of files in one listing. It should exceed the store's page size.
        num_examples: Number of hypothesis examples per clause.
    """

    capabilities: ClassVar[Mapping[str, str]] = {
        "atomic-create": "if several writers create a key concurrently, exactly one succeeds",
        "atomic-replace": "a reader sees the old or the new content while a file is replaced",
        "backslash": "a backslash in a key is an ordinary character",
        "byte-progress": "progress is reported within a file, not only per file",
        "direct-path": "files are stored in a local directory, and direct_path returns their paths",
        "durable": "files survive a power failure after put_tree and create return",
        "fork-safe": "the storage works in a child forked after its first use",
        "registered": "a plugin registers the storage, so that experiment files can name it",
        "reopened-by-url": "open_storage(url) opens the same location",
        "unusable": "make_unusable opens a location that is not writable",
    }

    storage_type: ClassVar[str] = ""
    secrets: ClassVar[tuple[str, ...]] = ()
    large_bytes: ClassVar[int] = 20 << 20
    num_files: ClassVar[int] = 200
    num_listed: ClassVar[int] = 1100
    num_examples: ClassVar[int] = 25

    def make_storage(self, tmp_path: Path) -> StorageBackend:
        """Open the storage at a separate location for each test.

        Args:
            tmp_path: Empty directory of the test. Each directory stands for one location.
        """
        raise NotImplementedError(f"{type(self).__name__} must define make_storage")

    def raw_read(self, key: str) -> bytes | None:
        """Return the content stored under a key, or None, bypassing the storage under test."""
        raise NotImplementedError(f"{type(self).__name__} must define raw_read")

    def raw_write(self, key: str, data: bytes) -> None:
        """Store a file, or replace an existing file, bypassing the storage under test."""
        raise NotImplementedError(f"{type(self).__name__} must define raw_write")

    def raw_list(self) -> list[str]:
        """Return all keys, in any order, bypassing the storage under test."""
        raise NotImplementedError(f"{type(self).__name__} must define raw_list")

    def raw_delete(self, key: str) -> None:
        """Delete a file, bypassing the storage under test."""
        raise NotImplementedError(f"{type(self).__name__} must define raw_delete")

    def make_settings(self, tmp_path: Path) -> Mapping[str, Any]:
        """Return the fields of ``checkpoint_storage``, without ``type``, for the same location.

        Not called if the capability ``"registered"`` is declined.
        """
        raise NotImplementedError(f"{type(self).__name__} must define make_settings")

    def make_unusable(self, tmp_path: Path) -> StorageBackend:
        """Open a location that is not writable, such as a path below a file, or with a wrong key.

        Not called if the capability ``"unusable"`` is declined.
        """
        raise NotImplementedError(f"{type(self).__name__} must define make_unusable")

    @contextlib.contextmanager
    def opened(self, tmp_path: Path) -> Iterator[StorageBackend]:
        """Open the storage for a block, then delete its files and close it."""
        storage = self.make_storage(tmp_path)
        try:
            yield storage
        finally:
            for key in self.raw_list():
                self.raw_delete(key)
            storage.close()
            storage.close()  # may be called twice

    def expect_stored(self, contents: Mapping[str, bytes]) -> None:
        """Fail unless exactly these files are stored."""
        expect_equal(sorted(self.raw_list()), sorted(contents), "the stored keys")
        for key, data in contents.items():
            expect_equal(self.raw_read(key), data, f"the content of {key!r}")


class FolderAccess:
    """Raw accessors for a storage with one file per key in a local directory.

    `make_storage` must set `root`:

    ```python
    class TestTape(FolderAccess, StorageSuite):
        def make_storage(self, tmp_path):
            self.root = tmp_path / "tape"
            return TapeStorage(self.root)
    ```

    Attributes:
        root: The directory.
    """

    root: Path

    def raw_read(self, key: str) -> bytes | None:
        """Return a file's content, or None."""
        path = self.root / key
        return path.read_bytes() if path.is_file() else None

    def raw_write(self, key: str, data: bytes) -> None:
        """Write a file."""
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def raw_list(self) -> list[str]:
        """Return the keys of all files in the directory."""
        return [
            path.relative_to(self.root).as_posix()
            for path in self.root.rglob("*")
            if path.is_symlink() or not path.is_dir()
        ]

    def raw_delete(self, key: str) -> None:
        """Delete a file."""
        (self.root / key).unlink()


def write_files(tmp_path: Path, contents: Mapping[str, bytes]) -> list[Pair]:
    """Write local files, and return pairs of path and key for `put_tree`."""
    folder = tmp_path / "suite-files"
    folder.mkdir(exist_ok=True)
    before = sum(1 for _ in folder.iterdir())
    pairs = []
    for index, (key, data) in enumerate(contents.items(), before):
        path = folder / f"{index}"
        path.write_bytes(data)
        pairs.append((path, key))
    return pairs
