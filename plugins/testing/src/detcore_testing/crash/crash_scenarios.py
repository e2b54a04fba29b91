"""Crash test scenarios: operations to interrupt, and invariants to check afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from detcore.checkpoint import (
    CheckpointContext,
    CheckpointDamaged,
    apply_retention,
    list_committed,
    recover_checkpoints,
    repair_checkpoint,
    verify_checkpoint,
)
from detcore.distributed import DistributedContext
from detcore.errors import CheckpointError, PeerLostError
from detcore_testing.crash.crash_bench import (
    NEW,
    OLD,
    SIZES,
    Bench,
    Process,
    make_content,
)
from detcore_testing.crash.crash_points import Crashed, Fuse

_VERIFIED_STATES = ("COMPLETED", "PARTIALLY_DELETED")
_STATES_WITH_FILES = ("ACTIVE", "DAMAGED", "DELETING", *_VERIFIED_STATES)
_PARTS = (
    ("weights.bin",),
    ("deep/optimizer.bin", "deep/empty.bin"),
)  # files of two workers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Operations of one process, and the checks afterwards.

    Attributes:
        act: Runs the operations.
        prepare: Prepares the bench.
        finish: Continues the work in a new process after recovery.
        check: Returns a fault of the final state, or None.
        starts_damaged: Whether the bench starts with a damaged checkpoint.
    """

    act: Callable[[Process], None]
    prepare: Callable[[Bench], None] = lambda _bench: None
    finish: Callable[[Bench], None] = lambda _bench: None
    check: Callable[[Bench], str | None] = lambda _bench: None
    starts_damaged: bool = False


# -- saving ---------------------------------------------------------------------------------------


def _save_directory(process: Process) -> None:
    process.upload(NEW)


def _store_path(process: Process) -> None:
    with process.context().store_path({"steps_completed": NEW}) as (path, uuid):
        process.write(path, NEW)
    process.bench.acknowledged.append(uuid)


def _save_shards(process: Process, *, dying: Collection[int]) -> None:
    """Save one shard on each of two workers. The dying workers share the process's fuse."""
    key = secrets.token_hex(16)
    failures: list[BaseException] = []

    def save_shard(rank: int) -> None:
        worker = process if rank in dying else Process(process.bench, Fuse())
        try:
            with DistributedContext(
                rank=rank, size=2, local_rank=rank, local_size=2, cross_rank=0, cross_size=1,
                key=key,
            ) as distributed:  # fmt: skip
                context = worker.context(distributed)
                with context.store_path({"steps_completed": NEW}, shard=True) as (path, uuid):
                    worker.write(path, NEW, _PARTS[rank])
            if rank == 0:
                process.bench.acknowledged.append(uuid)
        except BaseException as error:  # noqa: BLE001  (raised below in the caller's thread)
            failures.append(error)

    threads = [threading.Thread(target=save_shard, args=(rank,)) for rank in range(len(_PARTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(failures, key=lambda error: isinstance(error, PeerLostError)):
        raise error


def _save_async(process: Process) -> None:
    context = process.context()

    def snapshot(folder: Path) -> Callable[[], None]:
        return lambda: process.write(folder, NEW)

    uuid = context.save_async(snapshot, {"steps_completed": NEW})
    context.wait()
    process.bench.acknowledged.append(uuid)


# -- deleting -------------------------------------------------------------------------------------


def _save_and_delete(process: Process) -> None:
    """Save a new checkpoint and delete the old checkpoint."""
    process.upload(NEW)
    process.context().delete(process.bench.old)


def _delete_part(process: Process) -> None:
    process.upload(NEW)
    process.context().delete(process.bench.old, ["deep"])


# -- retention ----------------------------------------------------------------------------------


def _prepare_retention(bench: Bench) -> None:
    """Add checkpoints. Retention keeps the best, the registered and the two latest checkpoints."""
    from detcore.records import MetricRecord

    process = Process(bench, Fuse())
    names = ("registered", "third", "fourth", "before", "latest")
    for steps, name in enumerate(names, NEW):
        bench.prepared[name] = process.upload(steps)
    model = f"torture of trial {bench.trial_id}"
    bench.database.create_model(model)
    bench.database.register_version(model, bench.prepared["registered"])
    bench.database.add_metrics(
        MetricRecord(
            trial_id=bench.trial_id,
            run_id=1,
            kind="validation",
            steps_completed=steps,
            metrics={"loss": float(steps)},
        )
        for steps in range(OLD, NEW + len(names) + 1)
    )


def _apply_retention(process: Process) -> None:
    apply_retention(process.database, process.storage, process.bench.experiment_id)


def _finish_retention(bench: Bench) -> None:
    _apply_retention(Process(bench, Fuse()))


def _check_retention(bench: Bench) -> str | None:
    names = ("registered", "before", "latest")
    retained = (bench.old, *(bench.prepared[name] for name in names))
    deleted = (bench.prepared["third"], bench.prepared["fourth"])
    expected = dict.fromkeys(retained, "COMPLETED") | dict.fromkeys(deleted, "DELETED")
    states = bench.states()
    if states != expected:
        return f"after the next pass the checkpoints are {states}, not {expected}"
    fuse = Fuse()
    _apply_retention(Process(bench, fuse))
    return _find_change(fuse, "a repeated retention pass")


# -- recovery and repair --------------------------------------------------------------------------


def _prepare_wrecks(bench: Bench) -> None:
    """Leave the files and records of four killed processes."""
    deleted, partial = (Process(bench, Fuse()).upload(steps) for steps in (4, 5))
    wrecks: dict[str, tuple[Callable[[Process], object], str]] = {
        "half written": (lambda process: process.upload(2), "create "),
        "not recorded": (lambda process: process.upload(3), "record checkpoint_committed"),
        "deleted": (lambda process: process.context().delete(deleted), f"delete {deleted}/weights"),
        "in part": (lambda process: process.context().delete(partial, ["deep"]), "replace "),
    }
    for name, (act, stop) in wrecks.items():
        before = set(bench.states())
        with contextlib.suppress(Crashed):
            act(Process(bench, Fuse(stop_at=stop)))
        bench.prepared[name] = next(iter(set(bench.states()) - before), "")
    bench.prepared.update({"deleted": deleted, "in part": partial})


def _recover_trial(process: Process) -> None:
    recover_checkpoints(process.database, process.storage, process.bench.trial_id)


def _check_recovery(bench: Bench) -> str | None:
    expected = {
        bench.old: "COMPLETED",
        bench.prepared["half written"]: "DELETED",
        bench.prepared["not recorded"]: "COMPLETED",
        bench.prepared["deleted"]: "DELETED",
        bench.prepared["in part"]: "PARTIALLY_DELETED",
    }
    states = bench.states()
    return None if states == expected else f"the checkpoints are {states}, not {expected}"


def _prepare_damage(bench: Bench) -> None:
    """Leave a damaged checkpoint, an intact checkpoint recorded as damaged, and a stray file."""
    process = Process(bench, Fuse())
    for steps, name in ((2, "damaged"), (3, "intact")):
        bench.prepared[name] = process.upload(steps)
    bench.storage.replace(f"{bench.prepared['damaged']}/weights.bin", bytes(SIZES["weights.bin"]))
    bench.database.record_checkpoint(CheckpointDamaged(uuid=bench.prepared["intact"]))
    bench.storage.replace(f"{bench.old}/deep/stray", b"x")


def _repair_all(process: Process) -> None:
    for record in process.bench.records():
        repair_checkpoint(process.database, process.storage, record, remove_strays=True)


def _check_repair(bench: Bench) -> str | None:
    expected = {
        bench.old: "COMPLETED",
        bench.prepared["damaged"]: "DAMAGED",
        bench.prepared["intact"]: "COMPLETED",
    }
    states = bench.states()
    return None if states == expected else f"the checkpoints are {states}, not {expected}"


SCENARIOS: Mapping[str, Scenario] = {
    "upload": Scenario(act=_save_directory),
    "store_path": Scenario(act=_store_path),
    "two workers": Scenario(act=functools.partial(_save_shards, dying=(0, 1))),
    "two workers, the chief dies": Scenario(act=functools.partial(_save_shards, dying=(0,))),
    "two workers, the other dies": Scenario(act=functools.partial(_save_shards, dying=(1,))),
    "save_async": Scenario(act=_save_async),
    "save and delete": Scenario(act=_save_and_delete),
    "save and delete a part": Scenario(act=_delete_part),
    "retention pass": Scenario(
        act=_apply_retention,
        prepare=_prepare_retention,
        finish=_finish_retention,
        check=_check_retention,
    ),
    "recovery": Scenario(act=_recover_trial, prepare=_prepare_wrecks, check=_check_recovery),
    "repair": Scenario(
        act=_repair_all,
        prepare=_prepare_damage,
        finish=lambda bench: _repair_all(Process(bench, Fuse())),
        check=_check_repair,
        starts_damaged=True,
    ),
}


# -- invariants -----------------------------------------------------------------------------------


def find_fault(bench: Bench, scenario: Scenario) -> str | None:
    """Check the state after a stop, recover as the next start does, and check again.

    Returns:
        A fault, or None.
    """
    try:
        fault = None if scenario.starts_damaged else _find_damage(bench)
        if fault is not None:
            return f"{fault}, before recovery"
        recover_checkpoints(bench.database, bench.storage, bench.trial_id)
        scenario.finish(bench)
        fuse = Fuse()
        _recover_trial(Process(bench, fuse))
        return _find_loss(bench) or scenario.check(bench) or _find_change(fuse, "a second recovery")
    except CheckpointError as error:
        return f"recovery failed: {str(error).partition(chr(10))[0]}"


def _find_damage(bench: Bench) -> str | None:
    """Find a checkpoint that counts as complete but is damaged."""
    recorded = {uuid for uuid, state in bench.states().items() if state == "COMPLETED"}
    for uuid in {*recorded, *list_committed(bench.storage)}:
        for fault in verify_checkpoint(bench.storage, uuid):
            if not fault.is_stray:
                return f"checkpoint {uuid} counts as complete but is damaged: {fault}"
    return None


def _find_loss(bench: Bench) -> str | None:
    """Compare the state after recovery with the required state."""
    storage, database = bench.storage, bench.database
    latest = database.latest_checkpoint(bench.trial_id)
    if latest is None:
        return "neither the old nor the new checkpoint exists"
    context = CheckpointContext(storage=storage, distributed=DistributedContext())
    with context.restore_path(latest.uuid) as path:
        for name in SIZES:
            if (path / name).read_bytes() != make_content(name, latest.steps_completed):
                return f"{name} of checkpoint {latest.uuid} differs from the saved file"
    states = bench.states()
    uuids = {uuid for uuid, state in states.items() if state in _STATES_WITH_FILES}
    tops = {entry.key.partition("/")[0] for entry in storage.list()}
    strays = {top for top in tops - uuids if not top.startswith(".detcore-")}
    if strays:
        return f"files remain that belong to no checkpoint: {', '.join(sorted(strays))}"
    for uuid in (uuid for uuid, state in states.items() if state in _VERIFIED_STATES):
        faults = verify_checkpoint(storage, uuid)
        if faults:
            return f"checkpoint {uuid} is recorded as complete but damaged: {faults[0]}"
    unfinished = [uuid for uuid, state in states.items() if state in ("ACTIVE", "DELETING")]
    if unfinished:
        return f"checkpoint {unfinished[0]} is still {states[unfinished[0]]}"
    for uuid in bench.acknowledged:
        if states.get(uuid, "COMPLETED") != "COMPLETED" and uuid not in bench.prepared.values():
            return f"checkpoint {uuid} was saved but is {states[uuid]}"
    return None


def _find_change(fuse: Fuse, activity: str) -> str | None:
    if not fuse.operations:
        return None
    return f"{activity} made a change: {fuse.operations[0][0]}"
