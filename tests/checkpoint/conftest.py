"""A trial with records and a storage, and a folder worth saving."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcore._log import events
from detcore.checkpoint import CheckpointContext
from detcore.database import Database
from detcore.distributed import DistributedContext
from detcore.storage import LocalStorage, StorageBackend
from detcore_storage import FsspecStorage


@dataclasses.dataclass
class Desk:
    """A trial's checkpoints, and everything around them."""

    database: Database
    storage: StorageBackend
    trial_id: int
    saved: list[events.CheckpointCommitted]
    context: CheckpointContext

    def states(self) -> dict[str, str]:
        """State of each recorded checkpoint by UUID."""
        return {record.uuid: record.state for record in self.database.list_checkpoints()}

    def names(self, uuid: str) -> list[str]:
        """Names of the files that the storage holds of a checkpoint."""
        return [entry.key[len(uuid) + 1 :] for entry in self.storage.list(uuid)]


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


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'records.db'}") as opened:
        yield opened


def make_desk(database: Database, storage: StorageBackend) -> Desk:
    experiment_id = database.create_experiment(
        config={}, config_text=None, model_dir="/", name="test"
    )
    trial_id = database.create_trial(experiment_id=experiment_id, hparams={}, seed=0)
    records = Records(database)
    context = CheckpointContext(
        storage=storage, distributed=DistributedContext(), database=records, trial_id=trial_id
    )
    return Desk(database, storage, trial_id, records.saved, context)


@pytest.fixture(name="make_desk")
def make_desk_fixture() -> Any:
    return make_desk


@pytest.fixture(params=["local", "memory"])
def desk(request: pytest.FixtureRequest, tmp_path: Path, database: Database) -> Desk:
    """A desk on a storage that is a folder, and on one that is not."""
    if request.param == "local":
        return make_desk(database, LocalStorage(tmp_path / "checkpoints"))
    return make_desk(database, FsspecStorage(f"memory://{uuid.uuid4().hex}/c"))


@pytest.fixture
def local_desk(tmp_path: Path, database: Database) -> Desk:
    """A desk on a storage that is a folder."""
    return make_desk(database, LocalStorage(tmp_path / "checkpoints"))


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


def tree(folder: Path) -> dict[str, bytes | None]:
    """Content of each file below a folder by name; None for folders."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(name="tree")
def tree_fixture() -> Any:
    return tree
