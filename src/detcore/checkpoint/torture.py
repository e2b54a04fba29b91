"""Killing a process at every operation of saving and deleting, and restoring each time."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from detcore.checkpoint._context import CheckpointContext, CheckpointOwner
from detcore.checkpoint._crash import Crashed, CrashingDatabase, CrashingStorage, CrashPoint, Fuse
from detcore.checkpoint._recover import recover_checkpoints
from detcore.checkpoint._verify import verify_checkpoint
from detcore.distributed import DistributedContext

if TYPE_CHECKING:
    from detcore.database import Database
    from detcore.storage import StorageBackend

__all__ = ["Loss", "TortureReport", "torture_storage"]

_OLD, _NEW = 1, 2
_SIZES = {"weights.bin": 300_000, "deep/optimizer.bin": 70_000, "deep/empty.bin": 0}


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """A crash after which something was not as it should be."""

    scenario: str
    point: str
    operation: str
    what: str

    def __str__(self) -> str:
        return f"{self.scenario}, {self.point} ({self.operation}): {self.what}"


@dataclasses.dataclass(frozen=True, slots=True)
class TortureReport:
    """What came out.

    Attributes:
        points: Crash points tried, by scenario.
        losses: What was lost or left; empty if all is well.
    """

    points: dict[str, int]
    losses: tuple[Loss, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Bench:
    """A trial with an old checkpoint, and the way a process sees its storage and records."""

    database: Database
    storage: StorageBackend
    trial_id: int
    experiment_id: int
    old: str
    folder: Path

    def context(self, fuse: Fuse) -> CheckpointContext:
        return CheckpointContext(
            storage=CrashingStorage(self.storage, fuse),
            distributed=DistributedContext(),
            database=cast("Database", CrashingDatabase(self.database, fuse)),
            owner=CheckpointOwner(trial_id=self.trial_id, experiment_id=self.experiment_id),
        )


def torture_storage(
    storage: StorageBackend,
    *,
    on_point: Callable[[str, CrashPoint], None] | None = None,
) -> TortureReport:
    """Stop a save, a deletion and a partial deletion at each of their operations, one by one.

    After each stop a new process settles what is there, as the next start of a trial does: the
    newest checkpoint must then be the old or the new one, whole, and nothing else may be left.

    Args:
        storage: Where; what is in it is not touched, but its root must be for this test alone.
        on_point: Called with the scenario before each crash.

    Returns:
        How many points were tried, and what was lost.
    """
    points: dict[str, int] = {}
    losses: list[Loss] = []
    with _records() as (database, folder):
        for scenario, act in _SCENARIOS.items():
            bench = functools.partial(_bench, storage, database, folder)
            operations = len(_operations(bench, act))
            points[scenario] = 0
            for number in range(1, operations + 1):
                for is_done in (False, True):
                    point = CrashPoint(number, is_done)
                    if on_point is not None:
                        on_point(scenario, point)
                    points[scenario] += 1
                    loss = _try(bench, scenario, act, point)
                    if loss is not None:
                        losses.append(loss)
    return TortureReport(points, tuple(losses))


def _upload(bench: _Bench, context: CheckpointContext) -> None:
    context.upload(_written(bench.folder, _NEW), {"steps_completed": _NEW})


def _store_path(bench: _Bench, context: CheckpointContext) -> None:
    with context.store_path({"steps_completed": _NEW}) as (path, _):
        _write(path, _NEW)


def _save_sharded(bench: _Bench, context: CheckpointContext) -> None:
    with context.store_path({"steps_completed": _NEW}, shard=True) as (path, _):
        _write(path, _NEW)


def _replace(bench: _Bench, context: CheckpointContext) -> None:
    """Save a new checkpoint and delete the old one, as a retention policy does."""
    _upload(bench, context)
    context.delete(bench.old)


def _delete_part(bench: _Bench, context: CheckpointContext) -> None:
    _upload(bench, context)
    context.delete(bench.old, ["deep"])


_Act: TypeAlias = Callable[[_Bench, CheckpointContext], None]
_MakeBench: TypeAlias = Callable[[], contextlib.AbstractContextManager[_Bench]]

_SCENARIOS: dict[str, _Act] = {
    "upload": _upload,
    "store_path": _store_path,
    "store_path, sharded": _save_sharded,
    "save and delete": _replace,
    "save and delete a part": _delete_part,
}


def _operations(make_bench: _MakeBench, act: _Act) -> list[str]:
    fuse = Fuse()
    with make_bench() as bench:
        act(bench, bench.context(fuse))
    return fuse.names


def _try(make_bench: _MakeBench, scenario: str, act: _Act, point: CrashPoint) -> Loss | None:
    fuse = Fuse(point)
    with make_bench() as bench:
        with contextlib.suppress(Crashed):
            act(bench, bench.context(fuse))
        what = _look(bench)
        return None if what is None else Loss(scenario, str(point), fuse.names[-1], what)


def _look(bench: _Bench) -> str | None:
    """Settle as the next start does, and say what is wrong."""
    storage, database = bench.storage, bench.database
    recover_checkpoints(database, storage, bench.trial_id)
    latest = database.latest_checkpoint(bench.trial_id)
    if latest is None:
        return "neither the old nor the new checkpoint is there"
    faults = verify_checkpoint(storage, latest.uuid)
    if faults:
        return f"checkpoint {latest.uuid} is damaged: {faults[0]}"
    with (
        CheckpointContext(storage=storage, distributed=DistributedContext()).restore_path(
            latest.uuid
        ) as path,
    ):
        for name in _SIZES:
            if (path / name).read_bytes() != _content(name, latest.steps_completed):
                return f"{name} of checkpoint {latest.uuid} is not what was saved"
    known = {
        record.uuid for record in database.list_checkpoints(trial_id=bench.trial_id, states=_THERE)
    }
    strays = {entry.key.partition("/")[0] for entry in storage.list()} - known
    if strays:
        return f"files are left of {', '.join(sorted(strays))}, which is no checkpoint"
    for uuid in known - {latest.uuid}:
        faults = verify_checkpoint(storage, uuid)
        if faults:
            return f"checkpoint {uuid} is recorded, but damaged: {faults[0]}"
    return None


_THERE = ("ACTIVE", "COMPLETED", "PARTIALLY_DELETED")


@contextlib.contextmanager
def _records() -> Iterator[tuple[Database, Path]]:
    from detcore.database import Database

    with (
        tempfile.TemporaryDirectory(prefix="detcore-torture-") as name,
        Database.open(f"sqlite:///{Path(name) / 'records.db'}") as database,
    ):
        yield database, Path(name)


@contextlib.contextmanager
def _bench(storage: StorageBackend, database: Database, folder: Path) -> Iterator[_Bench]:
    place = Path(tempfile.mkdtemp(dir=folder))
    experiment_id = database.create_experiment(
        config={}, config_text=None, model_dir=str(place), name="torture"
    )
    trial_id = database.create_trial(experiment_id=experiment_id, hparams={}, seed=0)
    owner = CheckpointOwner(trial_id=trial_id, experiment_id=experiment_id)
    context = CheckpointContext(
        storage=storage, distributed=DistributedContext(), database=database, owner=owner
    )
    old = context.upload(_written(place / "old", _OLD), {"steps_completed": _OLD})
    try:
        yield _Bench(database, storage, trial_id, experiment_id, old, place / "new")
    finally:
        for top in {entry.key.partition("/")[0] for entry in storage.list()}:
            storage.delete_tree(top)
        shutil.rmtree(place)


def _written(folder: Path, steps: int) -> Path:
    _write(folder, steps)
    return folder


def _write(folder: Path, steps: int) -> None:
    for name in _SIZES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_content(name, steps))


def _content(name: str, steps: int) -> bytes:
    """Return bytes that differ by file and checkpoint."""
    size = _SIZES[name]
    unit = f"{name} of step {steps}\n".encode()
    return bytes((unit * (size // len(unit) + 1))[:size])
