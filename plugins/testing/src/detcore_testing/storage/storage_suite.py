"""The contract that every storage back end has to keep, wherever it keeps files."""

from __future__ import annotations

from detcore_testing.storage.storage_keeping import KeepingClauses
from detcore_testing.storage.storage_moving import MovingClauses
from detcore_testing.storage.storage_naming import NamingClauses
from detcore_testing.storage.storage_sharing import SharingClauses


class StorageSuite(MovingClauses, NamingClauses, SharingClauses, KeepingClauses):
    """The contract of `detcore.storage.StorageBackend`, clause by clause.

    A subclass says how a storage is opened, and reads and writes its files by other means: through
    the file system, or with the store's own client. The suite trusts these accessors, and tests
    the storage against them. Local files of the suite itself go below
    ``tmp_path / "suite-..."`` and ``tmp_path / "thread-..."``; the storage is anywhere else.

    ```python
    class TestTape(FolderAccess, StorageSuite):
        storage_type = "tape"
        declined = {"durable": "the tape is rewound once an hour"}

        def make_storage(self, tmp_path):
            self.root = tmp_path / "tape"
            return TapeStorage(TapeSettings(root=self.root))
    ```
    """
