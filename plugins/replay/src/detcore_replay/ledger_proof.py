"""Prove from the ledgers of a trial that each record was used once in each epoch."""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from detcore.data import FrameKind, IdKind, LedgerHeader
from detcore.errors import LedgerError
from detcore_replay.frames import Frame, read_header, scan_frames

_EXAMPLES = 5
_ID_TYPES = {2: "<u2", 4: "<u4", 8: "<i8"}
Indices = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """Records used by one pass over the data.

    Attributes:
        epoch: The pass, from 0.
        num_records: Ids used, repetitions included.
        is_complete: Whether training reached the next epoch, or used every id.
        num_twice: Ids used more often than the data set contains them.
        num_never: Ids that were left out; None if unknown: the epoch is not complete, or the
            ledger does not list the data set.
        examples: Some of the ids of `num_twice` and `num_never`.
    """

    epoch: int
    num_records: int
    is_complete: bool
    num_twice: int
    num_never: int | None
    examples: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReport:
    """Result of verifying the ledgers of a trial.

    Attributes:
        ids: The kind of the ids.
        num_records: Ids of the whole data set; None if the ledger does not contain it.
        left_over: Ids that each epoch leaves out on purpose.
        runs: Run ids that left a ledger.
        first_step: First step that counts.
        last_step: Last step that counts.
        missing_steps: Steps in between, or up to the last one known, that no ledger contains.
        superseded_steps: Steps that were trained and then lost with the process that trained
            them: a later run started before them.
        epochs: One report for each epoch.
    """

    ids: IdKind
    num_records: int | None
    left_over: int
    runs: tuple[int, ...]
    first_step: int
    last_step: int
    missing_steps: int
    superseded_steps: int
    epochs: tuple[EpochReport, ...]

    @property
    def is_proved(self) -> bool:
        """Whether every record was used exactly once in every epoch (at most once in a part)."""
        return (
            not self.missing_steps
            and (self.num_records is not None)
            and all(not epoch.num_twice and not epoch.num_never for epoch in self.epochs)
        )

    def sentence(self) -> str:
        """Return the verdict in one sentence."""
        if self.missing_steps:
            return (
                f"Not proved: {self.missing_steps} of the steps {self.first_step} to "
                f"{self.last_step} are in no ledger."
            )
        twice = sum(epoch.num_twice for epoch in self.epochs)
        never = sum(epoch.num_never or 0 for epoch in self.epochs)
        if twice or never:
            return (
                f"Refuted: {twice} of the uses repeat a record within its epoch, and {never} "
                f"{'record was' if never == 1 else 'records were'} never used in theirs."
            )
        if self.num_records is None:
            return (
                "Not proved: none was used twice, but the ledger does not say which records "
                "there are, so whether one was left out is unknown."
            )
        return self._proof()

    def _proof(self) -> str:
        whole = sum(epoch.is_complete for epoch in self.epochs)
        parts = []
        if whole:
            epochs = "epoch" if whole == 1 else "epochs"
            dropped = f" but the {self.left_over} it drops" if self.left_over else ""
            parts.append(f"each of {whole} complete {epochs} used every record{dropped} once")
        parts += [
            f"the {epoch.num_records} of epoch {epoch.epoch}, which is not complete, were used once"
            for epoch in self.epochs
            if not epoch.is_complete
        ]
        restarts = len(self.runs) - 1
        across = f", across {restarts} restart{'s' * (restarts != 1)}" if restarts else ""
        return (
            f"Proved: of {self.num_records} records, {' and '.join(parts)}; "
            f"none twice, none never{across}."
        )


@dataclasses.dataclass
class _File:
    path: Path
    header: LedgerHeader
    frames: list[Frame]


def verify_ledger(
    trial_dir: Path, *, reported_steps: Mapping[int, int] | None = None
) -> LedgerReport:
    """Check that every record of each epoch was used once: none twice, none never.

    Steps that a run trained after the step from which a later run started were lost with its
    process, so they do not count. If the last epoch is incomplete, it is checked for repetitions
    only.

    Args:
        trial_dir: Folder of the trial, with its ``ledger-*.bin`` files.
        reported_steps: Steps that each run is known to have completed, by run id. The ledgers must
            reach the steps that their newest run, and any run after it, reported.

    Returns:
        The report; ``report.is_proved`` is the answer.

    Raises:
        LedgerError: If there is no ledger, one is damaged, or they do not belong together.
    """
    paths = sorted(Path(trial_dir).glob("ledger-*.bin"))
    files = [file for path in paths if (file := _open(path)) is not None]
    return _verify(Path(trial_dir), files, reported_steps or {})


def _open(path: Path) -> _File | None:
    """Map a ledger; None if its process was killed before it had logged anything."""
    if not path.stat().st_size:
        return None
    with path.open("rb") as file:
        # Unmapped with its last user: closing it here would fail while an array refers to it.
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    frames = list(scan_frames(path, content))
    if not frames:
        return None
    fields = read_header(path, frames[0], "data ledger")
    fields["ids"] = IdKind(fields["ids"])
    batches = [each for frame in frames[1:] for each in _split_frame(frame)]
    return _File(path, LedgerHeader(**fields), batches)


def _split_frame(frame: Frame) -> Iterator[Frame]:
    """Iterate over the batches of a frame of many, or return any other frame."""
    if frame.kind is not FrameKind.BATCHES:
        yield frame
        return
    sizes = np.frombuffer(frame.body, "<i8", count=2)
    id_bytes, count = sizes.tolist()
    table = np.frombuffer(frame.body, "<i8", count=2 * count, offset=sizes.nbytes)
    epochs, ends = table.reshape(2, count).tolist()
    ids = frame.body[sizes.nbytes + table.nbytes :]
    for index, (epoch, start, end) in enumerate(zip(epochs, [0, *ends[:-1]], ends, strict=True)):
        body = ids[id_bytes * start : id_bytes * end]
        yield Frame(FrameKind.BATCHES, frame.step + index, epoch, body, id_bytes)


def _ids_of(frame: Frame) -> Indices:
    """Return the ids in the body of a frame, without copying 64-bit ones if possible."""
    return np.frombuffer(frame.body, dtype=_ID_TYPES[frame.id_bytes]).astype(np.int64, copy=False)


def _verify(trial_dir: Path, files: list[_File], reported_steps: Mapping[int, int]) -> LedgerReport:
    if not files:
        raise LedgerError(
            f"there is no data ledger in {trial_dir}.\n"
            "Records are logged only where the experiment file says data_ledger: true.\n"
            "Add it and train again; past runs cannot be verified."
        )
    _check_same_data(files)
    header = files[0].header
    counted, superseded = _counted_frames(files)
    steps = _steps_of_all(counted, header.world_size)
    first = min(file.header.start_step for file in files) + 1
    newest = max(file.header.run_id for file in files)
    reported = [step for run_id, step in reported_steps.items() if run_id >= newest]
    last = max((*(frame.step for _, frame in counted), *reported), default=first - 1)
    census = _census(files)
    by_epoch: dict[int, list[tuple[_File, Frame]]] = {}
    for file, frame in counted:
        by_epoch.setdefault(frame.epoch, []).append((file, frame))
    reached = _epoch_reached_by_all(counted)
    return LedgerReport(
        ids=header.ids,
        num_records=None if census is None else int(census[1].sum()),
        left_over=header.left_over,
        runs=tuple(sorted({file.header.run_id for file in files})),
        first_step=first,
        last_step=last,
        missing_steps=last - first + 1 - int(((steps >= first) & (steps <= last)).sum()),
        superseded_steps=len({(file.header.run_id, frame.step) for file, frame in superseded}),
        epochs=tuple(
            _report_epoch(epoch, by_epoch[epoch], census, went_on=epoch < reached)
            for epoch in sorted(by_epoch)
        ),
    )


def _check_same_data(files: list[_File]) -> None:
    first = files[0]
    seen: dict[tuple[int, int], Path] = {}
    for file in files:
        header = file.header
        for name in ("ids", "num_records", "left_over", "world_size"):
            mine, theirs = getattr(header, name), getattr(first.header, name)
            if mine != theirs:
                raise LedgerError(
                    f"{file.path} and {first.path} are of different data: {name} is "
                    f"{getattr(mine, 'value', mine)} in one and {getattr(theirs, 'value', theirs)} "
                    "in the other.\n"
                    "Epochs of different data cannot be compared.\n"
                    "Was the data changed, or the number of workers, before the trial was resumed?"
                )
        key = (header.run_id, header.rank)
        if key in seen:
            raise LedgerError(f"{file.path} and {seen[key]} are of the same run and rank {key}")
        seen[key] = file.path
    # A rank of a run that was killed early may have written nothing; its steps are missing then.
    absent = set(range(first.header.world_size)) - {rank for _, rank in seen}
    if absent:
        raise LedgerError(
            f"there is no ledger of rank {sorted(absent)} of {first.header.world_size}.\n"
            "Each worker writes one in the trial's folder, on the machine where it runs.\n"
            "Copy all of them into one folder, and verify that."
        )


def _counted_frames(
    files: list[_File],
) -> tuple[list[tuple[_File, Frame]], list[tuple[_File, Frame]]]:
    """Return the batches that count, and those that a later run repeated."""
    counted: list[tuple[_File, Frame]] = []
    superseded: list[tuple[_File, Frame]] = []
    for file in files:
        later = [
            other.header.start_step for other in files if other.header.run_id > file.header.run_id
        ]
        end = min(later, default=None)
        for frame in file.frames:
            if frame.kind is FrameKind.BATCHES:
                counts = end is None or frame.step <= end
                (counted if counts else superseded).append((file, frame))
    return counted, superseded


def _steps_of_all(counted: list[tuple[_File, Frame]], world_size: int) -> Indices:
    """Return the steps that count and that each rank logged, in order."""
    steps: list[set[int]] = [set() for _ in range(world_size)]
    for file, frame in counted:
        steps[file.header.rank].add(frame.step)
    return np.array(sorted(set.intersection(*steps)), dtype=np.int64)


def _census(files: list[_File]) -> tuple[Indices, Indices] | None:
    """Return the ids of the data set and how often it contains each, as counted by each run."""
    num_records = files[0].header.num_records
    if num_records is not None:
        return np.arange(num_records), np.ones(num_records, dtype=np.int64)
    found: tuple[Indices, Indices] | None = None
    for run_id in sorted({file.header.run_id for file in files}):
        parts = [
            _ids_of(frame)
            for file in files
            for frame in file.frames
            if file.header.run_id == run_id and frame.kind is FrameKind.CENSUS
        ]
        if not parts:
            continue
        ids, counts = np.unique(np.concatenate(parts), return_counts=True)
        if found is not None and not all(map(np.array_equal, found, (ids, counts))):
            raise LedgerError(
                f"run {run_id} found other records in the data set than the run before it.\n"
                "Epochs of different data cannot be compared."
            )
        found = ids, counts.astype(np.int64)
    return found


def _epoch_reached_by_all(counted: list[tuple[_File, Frame]]) -> int:
    reached: dict[int, int] = {}
    for file, frame in counted:
        rank = file.header.rank
        reached[rank] = max(reached.get(rank, 0), frame.epoch)
    return min(reached.values(), default=0)


def _report_epoch(
    epoch: int,
    frames: list[tuple[_File, Frame]],
    census: tuple[Indices, Indices] | None,
    *,
    went_on: bool,
) -> EpochReport:
    header = frames[0][0].header
    used = np.concatenate([_ids_of(frame) for _, frame in frames])
    ids, times = np.unique(used, return_counts=True)
    if header.num_records is not None:
        _check_range(epoch, ids, header.num_records)
    held = np.ones(len(ids), dtype=np.int64) if census is None else _look_up(ids, *census)
    total = None if census is None else int(census[1].sum()) - header.left_over
    extra = ids[times > held]
    spent = int(np.minimum(times, held).sum())
    # A duplicate takes the place of no other id: only distinct uses make an epoch complete.
    is_complete = went_on or (total is not None and spent >= total)
    num_never = None if total is None or not is_complete else max(0, total - spent)
    examples = [*extra[:_EXAMPLES].tolist()]
    if census is not None and num_never:
        examples += census[0][_look_up(census[0], ids, times) < census[1]][:_EXAMPLES].tolist()
    return EpochReport(
        epoch=epoch,
        num_records=int(used.size),
        is_complete=is_complete,
        num_twice=int((times - held)[times > held].sum()),
        num_never=num_never,
        examples=tuple(examples),
    )


def _check_range(epoch: int, ids: Indices, num_records: int) -> None:
    if ids.size and (ids[0] < 0 or ids[-1] >= num_records):
        raise LedgerError(
            f"epoch {epoch} used ids from {ids[0]} to {ids[-1]}, but the data set has "
            f"{num_records} records, 0 to {num_records - 1}"
        )


def _look_up(wanted: Indices, ids: Indices, counts: Indices) -> Indices:
    """Return the counts of some ids, of which `ids` are sorted; 0 where one is not among them."""
    if not ids.size:
        return np.zeros(len(wanted), dtype=np.int64)
    places = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[places] == wanted, counts[places], 0)
