"""Define crash-test scenarios: operations to interrupt, and invariants to check afterwards."""

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
    content,
)
from detcore_testing.crash.crash_points import Crashed, Fuse

_WHOLE = ("COMPLETED", "PARTIALLY_DELETED")
_KNOWN = ("ACTIVE", "DAMAGED", "DELETING", *_WHOLE)
_PARTS = (("weights.bin",), ("deep/optimizer.bin", "deep/empty.bin"))  # of two workers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Operations of one process.

    Attributes:
        act: Performs them.
        prepare: Sets the bench up for them.
        finish: Continues the work in the next process, after recovery.
        check: Returns a description of the final fault, or None.
        begins_damaged: Whether the bench starts with a damaged checkpoint.
    """

    act: Callable[[Process], None]
    prepare: Callable[[Bench], None] = lambda _bench: None
    finish: Callable[[Bench], None] = lambda _bench: None
    check: Callable[[Bench], str | None] = lambda _bench: None
    begins_damaged: bool = False


# -- saving ---------------------------------------------------------------------------------------


def _upload(process: Process) -> None:
    process.upload(NEW)


def _store_path(process: Process) -> None:
    with process.context().store_path({"steps_completed": NEW}) as (path, uuid):
        process.write(path, NEW)
    process.bench.acknowledged.append(uuid)


def _shard(process: Process, *, dying: Collection[int]) -> None:
    """Save with two workers, each a part; some of them die with the process."""
    key = secrets.token_hex(16)
    failures: list[BaseException] = []

    def work(rank: int) -> None:
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
        except BaseException as error:  # noqa: BLE001  (raised below, on the caller's thread)
            failures.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(_PARTS))]
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


def _replace(process: Process) -> None:
    """Save a new checkpoint and delete the old one."""
    process.upload(NEW)
    process.context().delete(process.bench.old)


def _delete_part(process: Process) -> None:
    process.upload(NEW)
    process.context().delete(process.bench.old, ["deep"])


# -- a retention pass -----------------------------------------------------------------------------


def _prepare_retention(bench: Bench) -> None:
    """Add checkpoints; of six, the best (the old one), a registered one and the two latest stay."""
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


def _retain(process: Process) -> None:
    apply_retention(process.database, process.storage, process.bench.experiment_id)


def _retain_again(bench: Bench) -> None:
    _retain(Process(bench, Fuse()))


def _check_retention(bench: Bench) -> str | None:
    names = ("registered", "before", "latest")
    kept = (bench.old, *(bench.prepared[name] for name in names))
    gone = (bench.prepared["third"], bench.prepared["fourth"])
    expected = dict.fromkeys(kept, "COMPLETED") | dict.fromkeys(gone, "DELETED")
    found = bench.states()
    if found != expected:
        return f"after the next pass checkpoints are {found}, not {expected}"
    fuse = Fuse()
    _retain(Process(bench, fuse))
    return _unexpected(fuse, "a pass after the last one")


# -- settling, and repairing ----------------------------------------------------------------------


def _prepare_wrecks(bench: Bench) -> None:
    """Leave the files and records of four killed processes."""
    gone, part = (Process(bench, Fuse()).upload(steps) for steps in (4, 5))
    wrecks: dict[str, tuple[Callable[[Process], object], str]] = {
        "half written": (lambda process: process.upload(2), "create "),
        "not recorded": (lambda process: process.upload(3), "record checkpoint_committed"),
        "deleted": (lambda process: process.context().delete(gone), f"delete {gone}/weights"),
        "in part": (lambda process: process.context().delete(part, ["deep"]), "replace "),
    }
    for name, (act, stop) in wrecks.items():
        before = set(bench.states())
        with contextlib.suppress(Crashed):
            act(Process(bench, Fuse(stop_at=stop)))
        bench.prepared[name] = next(iter(set(bench.states()) - before), "")
    bench.prepared.update({"deleted": gone, "in part": part})


def _recover(process: Process) -> None:
    recover_checkpoints(process.database, process.storage, process.bench.trial_id)


def _check_recovery(bench: Bench) -> str | None:
    expected = {
        bench.old: "COMPLETED",
        bench.prepared["half written"]: "DELETED",
        bench.prepared["not recorded"]: "COMPLETED",
        bench.prepared["deleted"]: "DELETED",
        bench.prepared["in part"]: "PARTIALLY_DELETED",
    }
    found = bench.states()
    return None if found == expected else f"checkpoints are {found}, not {expected}"


def _prepare_damage(bench: Bench) -> None:
    """Leave a damaged checkpoint, one falsely recorded as damaged, and a stray file."""
    process = Process(bench, Fuse())
    for steps, name in ((2, "damaged"), (3, "mended")):
        bench.prepared[name] = process.upload(steps)
    bench.storage.replace(f"{bench.prepared['damaged']}/weights.bin", bytes(SIZES["weights.bin"]))
    bench.database.record_checkpoint(CheckpointDamaged(uuid=bench.prepared["mended"]))
    bench.storage.replace(f"{bench.old}/deep/stray", b"x")


def _repair(process: Process) -> None:
    for record in process.bench.records():
        repair_checkpoint(process.database, process.storage, record, remove_strays=True)


def _check_repair(bench: Bench) -> str | None:
    expected = {
        bench.old: "COMPLETED",
        bench.prepared["damaged"]: "DAMAGED",
        bench.prepared["mended"]: "COMPLETED",
    }
    found = bench.states()
    return None if found == expected else f"checkpoints are {found}, not {expected}"


SCENARIOS: Mapping[str, Scenario] = {
    "upload": Scenario(act=_upload),
    "store_path": Scenario(act=_store_path),
    "two workers": Scenario(act=functools.partial(_shard, dying=(0, 1))),
    "two workers, the chief dies": Scenario(act=functools.partial(_shard, dying=(0,))),
    "two workers, the other dies": Scenario(act=functools.partial(_shard, dying=(1,))),
    "save_async": Scenario(act=_save_async),
    "save and delete": Scenario(act=_replace),
    "save and delete a part": Scenario(act=_delete_part),
    "retention pass": Scenario(
        act=_retain, prepare=_prepare_retention, finish=_retain_again, check=_check_retention
    ),
    "recovery": Scenario(act=_recover, prepare=_prepare_wrecks, check=_check_recovery),
    "repair": Scenario(
        act=_repair,
        prepare=_prepare_damage,
        finish=lambda bench: _repair(Process(bench, Fuse())),
        check=_check_repair,
        begins_damaged=True,
    ),
}


# -- what must hold -------------------------------------------------------------------------------


def find_fault(bench: Bench, scenario: Scenario) -> str | None:
    """Check the state that a stopped process left, recover as the next start does, and check again.

    Returns:
        Description of a fault, or None.
    """
    try:
        fault = None if scenario.begins_damaged else _find_damage(bench)
        if fault is not None:
            return f"{fault}, before anything was settled"
        recover_checkpoints(bench.database, bench.storage, bench.trial_id)
        scenario.finish(bench)
        fuse = Fuse()
        _recover(Process(bench, fuse))
        return _find_loss(bench) or scenario.check(bench) or _unexpected(fuse, "settling once more")
    except CheckpointError as error:
        return f"what is there cannot be settled: {str(error).partition(chr(10))[0]}"


def _find_damage(bench: Bench) -> str | None:
    """Look for checkpoints that count as complete, but are damaged."""
    recorded = {uuid for uuid, state in bench.states().items() if state == "COMPLETED"}
    for uuid in {*recorded, *list_committed(bench.storage)}:
        for fault in verify_checkpoint(bench.storage, uuid):
            if not fault.is_stray:
                return f"checkpoint {uuid} counts, and is damaged: {fault}"
    return None


def _find_loss(bench: Bench) -> str | None:
    """Compare the state after recovery with the required state."""
    storage, database = bench.storage, bench.database
    latest = database.latest_checkpoint(bench.trial_id)
    if latest is None:
        return "neither the old nor the new checkpoint is there"
    context = CheckpointContext(storage=storage, distributed=DistributedContext())
    with context.restore_path(latest.uuid) as path:
        for name in SIZES:
            if (path / name).read_bytes() != content(name, latest.steps_completed):
                return f"{name} of checkpoint {latest.uuid} is not what was saved"
    states = bench.states()
    known = {uuid for uuid, state in states.items() if state in _KNOWN}
    tops = {entry.key.partition("/")[0] for entry in storage.list()}
    strays = {top for top in tops - known if not top.startswith(".detcore-")}
    if strays:
        return f"files are left of {', '.join(sorted(strays))}, which is no checkpoint"
    for uuid in (uuid for uuid, state in states.items() if state in _WHOLE):
        faults = verify_checkpoint(storage, uuid)
        if faults:
            return f"checkpoint {uuid} is recorded, but damaged: {faults[0]}"
    unsettled = [uuid for uuid, state in states.items() if state in ("ACTIVE", "DELETING")]
    if unsettled:
        return f"checkpoint {unsettled[0]} is still {states[unsettled[0]]}"
    for uuid in bench.acknowledged:
        if states.get(uuid, "COMPLETED") != "COMPLETED" and uuid not in bench.prepared.values():
            return f"checkpoint {uuid} was saved, and is {states[uuid]}"
    return None


def _unexpected(fuse: Fuse, what: str) -> str | None:
    if not fuse.operations:
        return None
    return f"{what} changed something: {fuse.operations[0][0]}"
