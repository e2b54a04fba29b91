"""Access for the storage clauses: the storage, and direct access to its files."""

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
        storage_type: The name under which a plugin registers it (``checkpoint_storage.type``).
            Empty where the capability ``"registered"`` is declined.
        secrets: Texts that the storage was given and must not show.
        large_bytes: Size of the largest file; more than the store takes in one part.
        num_files: Number of small files that are transferred at once.
        num_listed: Number of files that are listed at once; more than the store's page size.
        num_examples: How many examples hypothesis tries per clause.
    """

    capabilities: ClassVar[Mapping[str, str]] = {
        "atomic-create": "of several writers that create one key at once, exactly one succeeds",
        "atomic-replace": "who reads a file while it is replaced sees the old or the new content",
        "backslash": "a backslash in a key is a character as any other",
        "byte-progress": "progress is told within a file, not only per file",
        "direct-path": "files lie in a folder of this machine, and direct_path says where",
        "durable": "what put_tree and create wrote survives a power cut when they return",
        "fork-safe": "it may be used in a child that was forked after its first use",
        "registered": "a plugin registers it, so that experiment files can name it",
        "reopened-by-url": "open_storage(url) opens the same place",
        "unusable": "make_unusable opens a place where nothing can be written",
    }

    storage_type: ClassVar[str] = ""
    secrets: ClassVar[tuple[str, ...]] = ()
    large_bytes: ClassVar[int] = 20 << 20
    num_files: ClassVar[int] = 200
    num_listed: ClassVar[int] = 1100
    num_examples: ClassVar[int] = 25

    def make_storage(self, tmp_path: Path) -> StorageBackend:
        """Open the storage, at a separate place for each test.

        Args:
            tmp_path: An empty folder of the test. Two calls with one folder open one place.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define make_storage")

    def raw_read(self, key: str) -> bytes | None:
        """Return the content stored under a key, or None, bypassing the storage under test."""
        raise NotImplementedError(f"{type(self).__name__} has to define raw_read")

    def raw_write(self, key: str, data: bytes) -> None:
        """Store a file, over one that may exist, bypassing the storage under test."""
        raise NotImplementedError(f"{type(self).__name__} has to define raw_write")

    def raw_list(self) -> list[str]:
        """Return all keys, in any order, bypassing the storage under test."""
        raise NotImplementedError(f"{type(self).__name__} has to define raw_list")

    def raw_delete(self, key: str) -> None:
        """Delete a file, bypassing the storage under test."""
        raise NotImplementedError(f"{type(self).__name__} has to define raw_delete")

    def make_settings(self, tmp_path: Path) -> Mapping[str, Any]:
        """Return the fields of ``checkpoint_storage``, without ``type``, that open the same place.

        Only asked where the capability ``"registered"`` is not declined.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define make_settings")

    def make_unusable(self, tmp_path: Path) -> StorageBackend:
        """Open a place where nothing can be written: a folder that is a file, a wrong key.

        Only asked where the capability ``"unusable"`` is not declined.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define make_unusable")

    @contextlib.contextmanager
    def opened(self, tmp_path: Path) -> Iterator[StorageBackend]:
        """Open the storage for a block; then delete all its files, and close it."""
        storage = self.make_storage(tmp_path)
        try:
            yield storage
        finally:
            for key in self.raw_list():
                self.raw_delete(key)
            storage.close()
            storage.close()  # twice does no harm

    def expect_stored(self, contents: Mapping[str, bytes]) -> None:
        """Fail unless these files are stored, and no others."""
        expect_equal(sorted(self.raw_list()), sorted(contents), "the stored keys")
        for key, data in contents.items():
            expect_equal(self.raw_read(key), data, f"the content of {key!r}")


class FolderAccess:
    """Raw accessors for a storage whose files lie in a folder of this machine, one file per key.

    `make_storage` of the suite sets `root`:

    ```python
    class TestTape(FolderAccess, StorageSuite):
        def make_storage(self, tmp_path):
            self.root = tmp_path / "tape"
            return TapeStorage(self.root)
    ```

    Attributes:
        root: The folder.
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
        """Return the names of all files below the folder."""
        return [
            path.relative_to(self.root).as_posix()
            for path in self.root.rglob("*")
            if path.is_symlink() or not path.is_dir()
        ]

    def raw_delete(self, key: str) -> None:
        """Delete a file."""
        (self.root / key).unlink()


def write_files(tmp_path: Path, contents: Mapping[str, bytes]) -> list[Pair]:
    """Write local files, to be put under these keys."""
    folder = tmp_path / "suite-files"
    folder.mkdir(exist_ok=True)
    before = sum(1 for _ in folder.iterdir())
    pairs = []
    for index, (key, data) in enumerate(contents.items(), before):
        path = folder / f"{index}"
        path.write_bytes(data)
        pairs.append((path, key))
    return pairs
