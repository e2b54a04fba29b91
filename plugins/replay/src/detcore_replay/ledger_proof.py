"""Prove from the ledgers of a trial that each record was used once in each epoch."""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from detcore.data import Frame, FrameKind, IdKind, LedgerHeader, read_header, scan_frames
from detcore.errors import LedgerError

_MAX_EXAMPLES = 5
_ID_TYPES = {2: "<u2", 4: "<u4", 8: "<i8"}
Indices = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """Records used by one pass over the data.

    Attributes:
        epoch: The pass, from 0.
        num_records: Ids used, repetitions included.
        is_complete: Whether training reached the next epoch or used every id.
        num_twice: Ids used more often than the data set contains them.
        num_never: Ids that were not used. None if unknown, because the epoch is incomplete or the
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
        left_over: Ids that each epoch omits on purpose.
        runs: Run ids that left a ledger.
        first_step: First step that counts.
        last_step: Last step that counts.
        missing_steps: Steps in between, or up to the last known step, that no ledger contains.
        superseded_steps: Steps that were trained and then lost with their process, because a later
            run started before them.
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
                "Not proved: no record was used twice, but the ledger does not list the records of "
                "the data set, so omitted records are unknown."
            )
        return self._describe_proof()

    def _describe_proof(self) -> str:
        num_complete = sum(epoch.is_complete for epoch in self.epochs)
        parts = []
        if num_complete:
            epochs = "epoch" if num_complete == 1 else "epochs"
            dropped = f" but the {self.left_over} it drops" if self.left_over else ""
            parts.append(
                f"each of {num_complete} complete {epochs} used every record{dropped} once"
            )
        parts += [
            f"the {epoch.num_records} of epoch {epoch.epoch}, which is not complete, were used once"
            for epoch in self.epochs
            if not epoch.is_complete
        ]
        restarts = len(self.runs) - 1
        across = f", across {restarts} restart{'s' * (restarts != 1)}" if restarts else ""
        return (
            f"Proved ({self.num_records} records): {' and '.join(parts)}; "
            f"none twice, none never{across}."
        )


@dataclasses.dataclass
class _LedgerFile:
    path: Path
    header: LedgerHeader
    frames: list[Frame]


def verify_ledger(
    trial_dir: Path, *, reported_steps: Mapping[int, int] | None = None
) -> LedgerReport:
    """Check that every record of each epoch was used exactly once.

    Steps that a run trained beyond the start of a later run do not count, because they were lost
    with the process. An incomplete last epoch is checked only for repetitions.

    Args:
        trial_dir: Directory of the trial, with ``ledger-*.bin`` files.
        reported_steps: Steps that each run reported as completed, by run id. The ledgers must reach
            the steps that their newest run, and any later run, reported.

    Returns:
        The report with the result ``report.is_proved``.

    Raises:
        LedgerError: If no ledger exists, a ledger is damaged, or the ledgers do not belong
            together.
    """
    paths = sorted(Path(trial_dir).glob("ledger-*.bin"))
    files = [file for path in paths if (file := _map_ledger(path)) is not None]
    return _build_report(Path(trial_dir), files, reported_steps or {})


def _map_ledger(path: Path) -> _LedgerFile | None:
    """Map a ledger into memory; return None if its process was killed before logging."""
    if not path.stat().st_size:
        return None
    with path.open("rb") as file:
        # The map is released with its last array. Closing it here would fail.
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    frames = list(scan_frames(path, content))
    if not frames:
        return None
    fields = read_header(path, frames[0], "data ledger")
    fields["ids"] = IdKind(fields["ids"])
    batches = [batch for frame in frames[1:] for batch in _split_frame(frame)]
    return _LedgerFile(path, LedgerHeader(**fields), batches)


def _split_frame(frame: Frame) -> Iterator[Frame]:
    """Yield the batches of a frame with several batches, or any other frame itself."""
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


def _read_ids(frame: Frame) -> Indices:
    """Return the ids in the body of a frame, without a copy of 64-bit ids if possible."""
    return np.frombuffer(frame.body, dtype=_ID_TYPES[frame.id_bytes]).astype(np.int64, copy=False)


def _build_report(
    trial_dir: Path, files: list[_LedgerFile], reported_steps: Mapping[int, int]
) -> LedgerReport:
    if not files:
        raise LedgerError(
            f"{trial_dir} does not contain a data ledger.\n"
            "Records are logged only if the experiment file has data_ledger: true.\n"
            "Add the setting and train again. Past runs cannot be verified."
        )
    _check_same_data(files)
    header = files[0].header
    counted, superseded = _select_frames(files)
    steps = _find_common_steps(counted, header.world_size)
    first = min(file.header.start_step for file in files) + 1
    newest = max(file.header.run_id for file in files)
    reported = [step for run_id, step in reported_steps.items() if run_id >= newest]
    last = max((*(frame.step for _, frame in counted), *reported), default=first - 1)
    census = _read_census(files)
    by_epoch: dict[int, list[tuple[_LedgerFile, Frame]]] = {}
    for file, frame in counted:
        by_epoch.setdefault(frame.epoch, []).append((file, frame))
    reached = _find_common_epoch(counted)
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


def _check_same_data(files: list[_LedgerFile]) -> None:
    first = files[0]
    paths: dict[tuple[int, int], Path] = {}
    for file in files:
        header = file.header
        for name in ("ids", "num_records", "left_over", "world_size"):
            value, first_value = getattr(header, name), getattr(first.header, name)
            if value != first_value:
                raise LedgerError(
                    f"{file.path} and {first.path} belong to different data: {name} is "
                    f"{getattr(value, 'value', value)} in one and "
                    f"{getattr(first_value, 'value', first_value)} in the other.\n"
                    "Epochs of different data cannot be compared.\n"
                    "Was the data changed, or the number of workers, before the trial was resumed?"
                )
        key = (header.run_id, header.rank)
        if key in paths:
            raise LedgerError(f"{file.path} and {paths[key]} belong to the same run and rank {key}")
        paths[key] = file.path
    # A rank that was killed early may not have written a ledger. Its steps are then missing.
    absent = set(range(first.header.world_size)) - {rank for _, rank in paths}
    if absent:
        raise LedgerError(
            f"the ledger of rank {sorted(absent)} of {first.header.world_size} is missing.\n"
            "Each worker writes a ledger to the trial's directory on its machine.\n"
            "Copy all ledgers into one directory, and verify it."
        )


def _select_frames(
    files: list[_LedgerFile],
) -> tuple[list[tuple[_LedgerFile, Frame]], list[tuple[_LedgerFile, Frame]]]:
    """Return the batches that count, and the batches that a later run repeated."""
    counted: list[tuple[_LedgerFile, Frame]] = []
    superseded: list[tuple[_LedgerFile, Frame]] = []
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


def _find_common_steps(counted: list[tuple[_LedgerFile, Frame]], world_size: int) -> Indices:
    """Return the counted steps that all ranks logged, in order."""
    steps: list[set[int]] = [set() for _ in range(world_size)]
    for file, frame in counted:
        steps[file.header.rank].add(frame.step)
    return np.array(sorted(set.intersection(*steps)), dtype=np.int64)


def _read_census(files: list[_LedgerFile]) -> tuple[Indices, Indices] | None:
    """Return the ids of the data set and their multiplicities, as counted by each run."""
    num_records = files[0].header.num_records
    if num_records is not None:
        return np.arange(num_records), np.ones(num_records, dtype=np.int64)
    census: tuple[Indices, Indices] | None = None
    for run_id in sorted({file.header.run_id for file in files}):
        parts = [
            _read_ids(frame)
            for file in files
            for frame in file.frames
            if file.header.run_id == run_id and frame.kind is FrameKind.CENSUS
        ]
        if not parts:
            continue
        ids, counts = np.unique(np.concatenate(parts), return_counts=True)
        if census is not None and not all(map(np.array_equal, census, (ids, counts))):
            raise LedgerError(
                f"run {run_id} found other records in the data set than the previous run.\n"
                "Epochs of different data cannot be compared."
            )
        census = ids, counts.astype(np.int64)
    return census


def _find_common_epoch(counted: list[tuple[_LedgerFile, Frame]]) -> int:
    reached: dict[int, int] = {}
    for file, frame in counted:
        rank = file.header.rank
        reached[rank] = max(reached.get(rank, 0), frame.epoch)
    return min(reached.values(), default=0)


def _report_epoch(
    epoch: int,
    frames: list[tuple[_LedgerFile, Frame]],
    census: tuple[Indices, Indices] | None,
    *,
    went_on: bool,
) -> EpochReport:
    header = frames[0][0].header
    used = np.concatenate([_read_ids(frame) for _, frame in frames])
    ids, times = np.unique(used, return_counts=True)
    if header.num_records is not None:
        _check_range(epoch, ids, header.num_records)
    multiplicities = np.ones(len(ids), dtype=np.int64) if census is None else _look_up(ids, *census)
    total = None if census is None else int(census[1].sum()) - header.left_over
    extra = ids[times > multiplicities]
    num_distinct = int(np.minimum(times, multiplicities).sum())
    # Only distinct uses count: a duplicate does not replace another id.
    is_complete = went_on or (total is not None and num_distinct >= total)
    num_never = None if total is None or not is_complete else max(0, total - num_distinct)
    examples = [*extra[:_MAX_EXAMPLES].tolist()]
    if census is not None and num_never:
        examples += census[0][_look_up(census[0], ids, times) < census[1]][:_MAX_EXAMPLES].tolist()
    return EpochReport(
        epoch=epoch,
        num_records=int(used.size),
        is_complete=is_complete,
        num_twice=int((times - multiplicities)[times > multiplicities].sum()),
        num_never=num_never,
        examples=tuple(examples),
    )


def _check_range(epoch: int, ids: Indices, num_records: int) -> None:
    if ids.size and (ids[0] < 0 or ids[-1] >= num_records):
        raise LedgerError(
            f"epoch {epoch} used ids from {ids[0]} to {ids[-1]}, but the data set has "
            f"{num_records} records, 0 to {num_records - 1}"
        )


def _look_up(keys: Indices, ids: Indices, counts: Indices) -> Indices:
    """Return the count of each key, given sorted `ids` with counts; 0 for keys not in `ids`."""
    if not ids.size:
        return np.zeros(len(keys), dtype=np.int64)
    positions = np.minimum(np.searchsorted(ids, keys), len(ids) - 1)
    return np.where(ids[positions] == keys, counts[positions], 0)
