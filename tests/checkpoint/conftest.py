"""A trial with records and a storage, and a folder worth saving."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from detcore.checkpoint import CheckpointContext
from detcore.distributed import DistributedContext
from detcore.log import events
from detcore.records import Database
from detcore.storage import LocalStorage, StorageBackend
from detcore_storage import FsspecStorage

META = {"steps_completed": 3, "loss": 0.25}


class Records:
    """A database, and the commits that it was given, in their order, with what observers get."""

    def __init__(self, database: Database) -> None:
        self.saved: list[events.CheckpointCommitted] = []
        self._database = database

    def record_checkpoint(
        self, change: events.CheckpointEvent, *, trial_id: int | None = None, force: bool = False
    ) -> None:
        self._database.record_checkpoint(change, trial_id=trial_id, force=force)
        if isinstance(change, events.CheckpointCommitted):
            self.saved.append(change)


class Desk(CheckpointContext):
    """A trial's checkpoints, and everything around them."""

    def __init__(self, database: Database, storage: StorageBackend) -> None:
        experiment_id = database.create_experiment(
            config={}, config_text=None, model_dir="/", name="test"
        )
        self.database, self.storage = database, storage
        self.trial_id = database.create_trial(experiment_id=experiment_id, hparams={}, seed=0)
        records = Records(database)
        self.saved = records.saved
        super().__init__(
            storage=storage, distributed=DistributedContext(), database=records,
            trial_id=self.trial_id,
        )  # fmt: skip

    def states(self) -> dict[str, str]:
        """State of each recorded checkpoint by UUID."""
        return {record.uuid: record.state for record in self.database.list_checkpoints()}

    def names(self, uuid: str) -> list[str]:
        """Names of the files that the storage holds of a checkpoint."""
        return [entry.key[len(uuid) + 1 :] for entry in self.storage.list(uuid)]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'records.db'}") as opened:
        yield opened


@pytest.fixture
def make_desk() -> type[Desk]:
    return Desk


@pytest.fixture(params=["local", "memory"])
def desk(request: pytest.FixtureRequest, tmp_path: Path, database: Database) -> Desk:
    """A desk on a storage that is a folder, and on one that is not."""
    if request.param == "local":
        return Desk(database, LocalStorage(tmp_path / "checkpoints"))
    return Desk(database, FsspecStorage(f"memory://{uuid4().hex}/c"))


@pytest.fixture
def local_desk(tmp_path: Path, database: Database) -> Desk:
    """A desk on a storage that is a folder."""
    return Desk(database, LocalStorage(tmp_path / "checkpoints"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to save, with empty folders, hidden files and a link."""
    root = tmp_path / "model"
    (root / "variables").mkdir(parents=True)
    (root / "empty" / "nested").mkdir(parents=True)
    (root / "weights.bin").write_bytes(bytes(range(256)) * 8_000)
    (root / "variables" / "a[0]").write_text("zero")
    (root / "variables" / ".hidden").write_text("dot")
    (root / "nothing").write_bytes(b"")
    (root / "link").symlink_to("weights.bin")
    return root


@pytest.fixture
def uuid(desk: Desk, folder: Path) -> str:
    """A checkpoint of the folder."""
    return desk.upload(folder, META)


@pytest.fixture
def local_uuid(local_desk: Desk, folder: Path) -> str:
    return local_desk.upload(folder, META)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Content of each file below a folder by name; None for folders."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(name="tree")
def tree_fixture() -> Any:
    return tree
