"""Provide a trial with an old checkpoint, for processes that are stopped while working on it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from detcore.checkpoint import CheckpointContext
from detcore.database import Database
from detcore.distributed import DistributedContext
from detcore.errors import PeerLostError
from detcore_testing._crash import CrashingDatabase, CrashingStorage, Fuse, tear

if TYPE_CHECKING:
    from detcore.database import CheckpointRecord, Database
    from detcore.storage import StorageBackend


OLD, NEW = 1, 2
SIZES = {"weights.bin": 300_000, "deep/optimizer.bin": 70_000, "deep/empty.bin": 0}
_CONFIG = {"searcher": {"metric": "loss", "smaller_is_better": True}}


class Job:
    """Several workers that exchange values until one of them is gone.

    Args:
        size: Number of workers.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._values: list[Any] = [None] * size

    def lose(self) -> None:
        """Notify the other workers that one is gone."""
        self._barrier.abort()

    def gather(self, rank: int, value: Any) -> list[Any]:
        """Return the values of all workers, once each of them has supplied one.

        Raises:
            PeerLostError: If a worker is gone.
        """
        self._values[rank] = value
        try:
            self._barrier.wait()
            values = list(self._values)
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise PeerLostError("another worker is gone") from None
        return values


class Rank:
    """A worker's position in a job: the part of `DistributedContext` that saving needs."""

    def __init__(self, job: Job, rank: int) -> None:
        self._job = job
        self.rank = rank
        self.size = job.size

    def allgather(self, stuff: Any) -> list[Any]:
        """Return every worker's value in rank order."""
        return self._job.gather(self.rank, stuff)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A trial with an old checkpoint.

    Attributes:
        old: UUID of the old checkpoint.
        folder: Folder for files of the test; the stopped process logs its acknowledged saves there.
        prepared: Checkpoints that the scenario made beforehand, by name.
    """

    database: Database
    storage: StorageBackend
    trial_id: int
    experiment_id: int
    old: str
    folder: Path
    prepared: dict[str, str]

    def acknowledge(self, uuid: str) -> None:
        """Log, durably, that a save returned: its checkpoint must exist from now on."""
        descriptor = os.open(self._notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(descriptor, f"{uuid}\n".encode())
        os.close(descriptor)

    def acknowledged(self) -> list[str]:
        """Return the acknowledged checkpoints."""
        return self._notes.read_text().split() if self._notes.exists() else []

    def states(self) -> dict[str, str]:
        """Return the recorded state of each checkpoint of the trial."""
        return {record.uuid: record.state for record in self.records()}

    def records(self) -> list[CheckpointRecord]:
        """Return the trial's checkpoints."""
        return self.database.list_checkpoints(trial_id=self.trial_id)

    @property
    def _notes(self) -> Path:
        return self.folder / "acknowledged"


class Process:
    """A process at work on a bench, until its fuse blows."""

    def __init__(self, bench: Bench, fuse: Fuse) -> None:
        self.bench = bench
        self.fuse = fuse
        self.storage = cast("StorageBackend", CrashingStorage(bench.storage, fuse))
        self.database = cast("Database", CrashingDatabase(bench.database, fuse))

    def survivor(self) -> Process:
        """Return another process of the job, which is not stopped."""
        return Process(self.bench, Fuse())

    def context(self, rank: Rank | None = None) -> CheckpointContext:
        """Return the context that the trial saves with; `rank` places it among several workers."""
        bench = self.bench
        return CheckpointContext(
            storage=self.storage,
            distributed=cast("DistributedContext", rank or DistributedContext()),
            database=self.database,
            trial_id=bench.trial_id,
        )

    def upload(self, steps: int) -> str:
        """Save a folder that exists already."""
        folder = self.bench.folder / f"step-{steps}"
        write_files(folder, steps, Fuse())
        uuid = self.context().upload(folder, {"steps_completed": steps})
        self.bench.acknowledge(uuid)
        return uuid

    def write(self, folder: Path, steps: int, names: Iterable[str] = SIZES) -> None:
        """Write files to be saved, each as a separate operation."""
        write_files(folder, steps, self.fuse, names)


@contextlib.contextmanager
def make_bench(
    storage: StorageBackend, database: Database, folder: Path, prepare: Callable[[Bench], None]
) -> Iterator[Bench]:
    """Make a trial with an old checkpoint for one crash; the storage is empty afterwards."""
    place = Path(tempfile.mkdtemp(dir=folder))
    experiment_id = database.create_experiment(
        config=_CONFIG, config_text=None, model_dir=str(place), name="torture"
    )
    trial_id = database.create_trial(experiment_id=experiment_id, hparams={}, seed=0)
    bench = Bench(
        database=database, storage=storage, trial_id=trial_id,
        experiment_id=experiment_id, old="", folder=place, prepared={},
    )  # fmt: skip
    try:
        bench = dataclasses.replace(bench, old=Process(bench, Fuse()).upload(OLD))
        prepare(bench)
        with contextlib.suppress(FileNotFoundError):
            bench.folder.joinpath("acknowledged").unlink()
        yield bench
    finally:
        for top in {entry.key.partition("/")[0] for entry in storage.list()}:
            storage.delete_tree(top)
        shutil.rmtree(place)


def open_bench(facts: Mapping[str, Any], database: Database, storage: StorageBackend) -> Bench:
    """Return the bench that another process made.

    Args:
        facts: The bench's other fields.
        database: Its records, opened here.
        storage: Its storage, opened here.
    """
    given = {**facts, "folder": Path(facts["folder"])}
    return Bench(database=database, storage=storage, **given)


def model_name(bench: Bench) -> str:
    """Return the name of the model that the scenarios of a bench use."""
    return f"torture of trial {bench.trial_id}"


def write_files(folder: Path, steps: int, fuse: Fuse, names: Iterable[str] = SIZES) -> None:
    """Write files of a checkpoint, each as a separate operation."""
    for name in names:
        path, data = folder / name, content(name, steps)
        path.parent.mkdir(parents=True, exist_ok=True)
        fuse.run(
            f"write {name}",
            functools.partial(path.write_bytes, data),
            functools.partial(tear, data, path),
        )


def content(name: str, steps: int) -> bytes:
    """Return content that differs by file and checkpoint."""
    size = SIZES[name]
    unit = f"{name} of step {steps}\n".encode()
    return bytes((unit * (size // len(unit) + 1))[:size])
