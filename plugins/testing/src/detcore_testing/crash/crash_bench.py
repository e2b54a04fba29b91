"""Trial with an old checkpoint, on which processes work until they are stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from detcore.checkpoint import CheckpointContext
from detcore.distributed import DistributedContext
from detcore_testing.crash.crash_points import CrashingDatabase, CrashingStorage, Fuse, tear

if TYPE_CHECKING:
    from detcore.records import CheckpointRecord, Database
    from detcore.storage import StorageBackend


OLD, NEW = 1, 2
SIZES = {"weights.bin": 300_000, "deep/optimizer.bin": 70_000, "deep/empty.bin": 0}
_CONFIG = {"searcher": {"metric": "loss", "smaller_is_better": True}}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A trial with an old checkpoint.

    Attributes:
        old: UUID of the old checkpoint.
        folder: Directory for files of the test.
        prepared: Checkpoints that the scenario prepared, by name.
        acknowledged: Checkpoints whose save returned.
    """

    database: Database
    storage: StorageBackend
    trial_id: int
    experiment_id: int
    old: str
    folder: Path
    prepared: dict[str, str]
    acknowledged: list[str]

    def states(self) -> dict[str, str]:
        """Return the recorded state of each checkpoint."""
        return {record.uuid: record.state for record in self.records()}

    def records(self) -> list[CheckpointRecord]:
        """Return the trial's checkpoints."""
        return self.database.list_checkpoints(trial_id=self.trial_id)


class Process:
    """A process that works on a bench until its fuse stops it."""

    def __init__(self, bench: Bench, fuse: Fuse) -> None:
        self.bench = bench
        self.fuse = fuse
        self.storage = cast("StorageBackend", CrashingStorage(bench.storage, fuse))
        self.database = cast("Database", CrashingDatabase(bench.database, fuse))

    def context(self, distributed: DistributedContext | None = None) -> CheckpointContext:
        """Return the trial's checkpoint context, for one worker or one of several workers."""
        return CheckpointContext(
            storage=self.storage,
            distributed=distributed or DistributedContext(),
            database=self.database,
            trial_id=self.bench.trial_id,
        )

    def upload(self, steps: int) -> str:
        """Save an existing directory."""
        folder = self.bench.folder / f"step-{steps}"
        write_files(folder, steps, Fuse())
        uuid = self.context().upload(folder, {"steps_completed": steps})
        self.bench.acknowledged.append(uuid)
        return uuid

    def write(self, folder: Path, steps: int, names: Iterable[str] = SIZES) -> None:
        """Write files for a save, each as a separate operation."""
        write_files(folder, steps, self.fuse, names)


@contextlib.contextmanager
def make_bench(
    storage: StorageBackend, database: Database, folder: Path, prepare: Callable[[Bench], None]
) -> Iterator[Bench]:
    """Create a trial with an old checkpoint for one crash, and empty the storage afterwards."""
    directory = Path(tempfile.mkdtemp(dir=folder))
    experiment_id = database.create_experiment(
        config=_CONFIG, config_text=None, model_dir=str(directory), name="torture"
    )
    trial_id = database.create_trial(experiment_id=experiment_id, hparams={}, seed=0)
    bench = Bench(
        database=database, storage=storage, trial_id=trial_id,
        experiment_id=experiment_id, old="", folder=directory, prepared={}, acknowledged=[],
    )  # fmt: skip
    try:
        bench = dataclasses.replace(bench, old=Process(bench, Fuse()).upload(OLD))
        prepare(bench)
        bench.acknowledged.clear()
        yield bench
    finally:
        for top in {entry.key.partition("/")[0] for entry in storage.list()}:
            storage.delete_tree(top)
        shutil.rmtree(directory)


def write_files(folder: Path, steps: int, fuse: Fuse, names: Iterable[str] = SIZES) -> None:
    """Write the files of a checkpoint, each as a separate operation."""
    for name in names:
        path, data = folder / name, make_content(name, steps)
        path.parent.mkdir(parents=True, exist_ok=True)
        fuse.run(
            f"write {name}",
            functools.partial(path.write_bytes, data),
            functools.partial(tear, data, path),
        )


def make_content(name: str, steps: int) -> bytes:
    """Return content that is different for each file and checkpoint."""
    size = SIZES[name]
    line = f"{name} of step {steps}\n".encode()
    return bytes((line * (size // len(line) + 1))[:size])
