"""Suite for the contract of storage back ends."""

from __future__ import annotations

from detcore_testing.storage.storage_keeping import KeepingClauses
from detcore_testing.storage.storage_moving import MovingClauses
from detcore_testing.storage.storage_naming import NamingClauses
from detcore_testing.storage.storage_sharing import SharingClauses


class StorageSuite(MovingClauses, NamingClauses, SharingClauses, KeepingClauses):
    """Tests each clause of the `detcore.storage.StorageBackend` contract.

    A subclass opens the storage. Its raw accessors read and write the storage's files by other
    means, through the file system or with the store's own client. The suite trusts these accessors
    and compares the storage with them. Local files of the suite are in
    ``tmp_path / "suite-..."`` and ``tmp_path / "thread-..."``. Put the storage elsewhere.

    ```python
    class TestTape(FolderAccess, StorageSuite):
        storage_type = "tape"
        declined = {"durable": "the tape is rewound once an hour"}

        def make_storage(self, tmp_path):
            self.root = tmp_path / "tape"
            return TapeStorage(TapeSettings(root=self.root))
    ```
    """
