"""Write the ledger, which lists the records of each batch of a trial, and define its format."""

from __future__ import annotations

import dataclasses
import enum
import errno
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from detcore.contract.data import IdKind
from detcore.contract.errors import DataError, LedgerError, StorageFullError
from detcore.data.shuffled_order import Indices

_FLUSH_AT_BYTES = 1 << 20
_MAGIC = b"DLG1"
# magic, kind, 3 bytes of padding, body size, step, epoch, CRC of the body, CRC of all this
_HEAD = struct.Struct("<4sB3xQqqII")
_FORMAT_VERSION = 1
# Content hashes need all 64 bits.
_ID_TYPES = {2: "<u2", 4: "<u4", 8: "<i8"}


class FrameKind(enum.IntEnum):
    """The content of a frame's body."""

    HEADER = 0
    BATCHES = 1
    CENSUS = 2
    DIGESTS = 3
    NAMES = 4
    STATE = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHeader:
    """The first frame of a ledger file.

    Attributes:
        run_id: Number of this start of the trial, from 1.
        start_step: Step of the checkpoint from which the run started; 0 without a checkpoint.
        ids: The kind of the ids.
        num_records: Ids are 0 to ``num_records - 1``; None if unknown, or not indices.
        left_over: Number of ids that each epoch leaves out on purpose (a dropped last batch).
        rank: Index of the worker that wrote the file.
        world_size: Number of workers. Each writes a file.
    """

    run_id: int
    start_step: int
    ids: IdKind = IdKind.RECORD_INDEX
    num_records: int | None = None
    left_over: int = 0
    rank: int = 0
    world_size: int = 1


def pack_ids(kind: FrameKind, step: int, epoch: int, ids: Indices) -> bytes:
    """Return a frame of record ids."""
    return pack_frame(kind, step, epoch, ids.astype("<i8", copy=False).data)


def pack_batches(
    first_step: int, epochs: npt.ArrayLike, ends: npt.NDArray[np.integer], ids: Indices
) -> bytes:
    """Return a frame of the record ids of consecutive steps.

    The body has 64-bit integers: the bytes per id, the number of steps, the epoch of each step, and
    the end of each step's ids. The ids follow. This function runs once in many steps, when its code
    is in no cache, so it calls few functions.
    """
    largest = int(np.maximum.reduce(ids.view(np.uint64), initial=0))  # negative ids become large
    id_bytes = 2 if largest < 1 << 16 else 4 if largest < 1 << 32 else 8
    count = ends.size
    table = np.empty(2 + 2 * count, "<i8")
    table[0], table[1] = id_bytes, count
    table[2 : 2 + count] = epochs
    table[2 + count :] = ends
    packed = ids.astype(_ID_TYPES[id_bytes], copy=False)
    return pack_frame(FrameKind.BATCHES, first_step, int(table[2]), table.data, packed.data)


def pack_frame(kind: FrameKind, step: int, epoch: int, *body: bytes | memoryview) -> bytes:
    """Return a frame whose body is the concatenation of parts."""
    crc = size_bytes = 0
    for part in body:
        crc = zlib.crc32(part, crc)
        size_bytes += memoryview(part).nbytes
    head = _HEAD.pack(_MAGIC, kind, size_bytes, step, epoch, crc, 0)[:-4]
    return b"".join((head, zlib.crc32(head).to_bytes(4, "little"), *body))


class LedgerWriter:
    """Logs the ids of the records that each step used, as input for ``detcore data verify``.

    After `flush` has returned, the kernel has the data. It survives ``kill -9`` of the process, but
    not a power cut. The first flush creates the file. Calls must come from one thread.

    Args:
        path: File to write, ``ledger-<run_id>.bin`` in the trial's directory, with the rank after
            the run id if the trial has several workers. The file must not exist.
        run_id: Number of this start of the trial, from 1.
        start_step: Number of steps completed when the run started.
        rank: Index of this worker.
        world_size: Number of workers. Each writes a separate file.
    """

    def __init__(
        self,
        path: Path,
        *,
        run_id: int,
        start_step: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._file = FrameFile(path, self._pack_header, "data ledger", "data_ledger")
        self._header = LedgerHeader(
            run_id=run_id, start_step=start_step, rank=rank, world_size=world_size
        )
        self._last_step = start_step
        # The first step, the epochs and the ids of the steps that are not in a frame yet.
        self._first_step = 0
        self._epochs: list[int] = []
        self._ids: list[Indices] = []
        self._id_bytes = 0

    def describe(self, ids: IdKind, *, num_records: int | None = None, left_over: int = 0) -> None:
        """Define the ids, before the first `log` or `census`.

        Args:
            ids: The kind of the ids.
            num_records: Number of ids in an epoch, if they are ``0 .. num_records-1``.
            left_over: Number of ids that each epoch leaves out on purpose, as with ``drop_last``.

        Raises:
            LedgerError: If ids were logged already, or if the ids are content hashes and the trial
                has several workers.
        """
        if self._epochs or self._file.is_started:
            raise LedgerError("describe() was called after ids were logged; call it before log()")
        previous = self._header
        if ids is IdKind.CONTENT_HASH and previous.world_size > 1:
            raise LedgerError(
                f"data_ledger is true, the trial has {previous.world_size} workers, and the "
                "training data is a pipeline, whose records have no indices.\n"
                "It is unknown whether the workers divide such data or each reads all of it.\n"
                "Set data_ledger: false, or resources.slots_per_trial: 1, or train on arrays."
            )
        self._header = dataclasses.replace(
            previous, ids=ids, num_records=num_records, left_over=left_over
        )

    def log(self, step: int, epoch: int, record_ids: npt.ArrayLike) -> None:
        """Log the records that a step used, into a buffer; see `flush`.

        The ids are copied. Consecutive steps become one frame.

        Args:
            step: Number of batches completed after this step, so the first step of a trial is 1. A
                step with records of two epochs is logged once for each epoch.
            epoch: Epoch of the records, from 0.
            record_ids: Ids, ``(n,)``, integers of at most 64 bits.

        Raises:
            DataError: If the step is lower than the last logged step, or the ids are not integers.
        """
        self._check_step(step)
        ids = np.array(_convert_ids(record_ids))
        if step != self._last_step + 1:
            self._pack_steps()
        if not self._epochs:
            self._first_step = step
        self._last_step = step
        self._epochs.append(epoch)
        self._ids.append(ids)
        self._id_bytes += ids.nbytes
        if self._id_bytes >= _FLUSH_AT_BYTES:
            self.flush()

    def log_batches(
        self,
        first_step: int,
        epochs: npt.ArrayLike,
        ends: npt.ArrayLike,
        record_ids: npt.ArrayLike,
    ) -> None:
        """Log the records that consecutive steps used, into one frame; see `log`.

        Args:
            first_step: The first of the steps.
            epochs: Epoch of each step's records, ``(steps,)``, or one number for all steps.
            ends: End of each step's ids in `record_ids`, ``(steps,)``, ascending. The last end is
                the number of ids.
            record_ids: Ids of all steps, ``(n,)``, integers of at most 64 bits.

        Raises:
            DataError: If the first step is lower than the last logged step, the ids are not
                integers, or the last end is not the number of ids.
        """
        self._check_step(first_step)
        ids, bounds = _convert_ids(record_ids), np.asarray(ends)
        if not bounds.size or bounds[-1] != ids.size:
            raise DataError(f"the batches end at {bounds[-1:]}, but there are {ids.size} ids")
        self._pack_steps()
        self._last_step = first_step + bounds.size - 1
        self._append_frame(pack_batches(first_step, epochs, bounds, ids))

    def census(self, ids: npt.ArrayLike) -> None:
        """Log the ids of the whole data set, each as often as the data set contains it.

        For ids that are not indices. It may be called several times before the first `log`, with a
        part of the ids each time.
        """
        self._pack_steps()
        self._append_frame(pack_ids(FrameKind.CENSUS, 0, 0, _convert_ids(ids)))

    def _pack_steps(self) -> None:
        """Create a frame of the steps that `log` has buffered."""
        if not self._epochs:
            return
        ends = np.cumsum([ids.size for ids in self._ids])
        ids = np.concatenate(self._ids)
        self._file.append(pack_batches(self._first_step, self._epochs, ends, ids))
        self._epochs.clear()
        self._ids.clear()
        self._id_bytes = 0

    def _check_step(self, step: int) -> None:
        if step < max(self._last_step, self._header.start_step + 1):
            raise DataError(
                f"step {step} is logged after step {self._last_step} in a run that started at "
                f"step {self._header.start_step}.\n"
                "Steps are counted from 1 over all runs of the trial, and never decrease."
            )

    def _pack_header(self) -> bytes:
        header = self._header
        fields = {"format": _FORMAT_VERSION, **dataclasses.asdict(header), "ids": header.ids.value}
        return pack_frame(FrameKind.HEADER, 0, 0, json.dumps(fields).encode())

    def _append_frame(self, frame: bytes) -> None:
        if self._file.append(frame):
            self.flush()

    def flush(self) -> None:
        """Pass all logged data to the kernel.

        Raises:
            StorageFullError: If the disk is full. The file then ends with the last complete frame,
                and the next flush tries the remaining frames again.
            LedgerError: If the file exists already.
        """
        self._pack_steps()
        self._file.flush()

    def close(self) -> None:
        """Flush and close; idempotent."""
        self._pack_steps()
        self._file.close()


class FrameFile:
    """A file of frames that only grows. It is buffered, and only complete frames are written.

    Args:
        path: File to write. It must not exist. The first flush creates it.
        header: Returns the first frame of the file.
        what: Name of the file in messages.
        setting: Setting of the experiment file that disables the file.
    """

    def __init__(self, path: Path, header: Callable[[], bytes], what: str, setting: str) -> None:
        self._path = Path(path)
        self._header = header
        self._what = what
        self._setting = setting
        self._descriptor: int | None = None
        self._frames: list[bytes] = []
        self._buffered_bytes = 0
        self._size_bytes = 0  # of the file

    @property
    def is_started(self) -> bool:
        """Whether a frame was added."""
        return bool(self._frames) or self._descriptor is not None

    def append(self, frame: bytes) -> bool:
        """Add a frame to the buffer, and return whether it is time to flush."""
        self._frames.append(frame)
        self._buffered_bytes += len(frame)
        return self._buffered_bytes >= _FLUSH_AT_BYTES

    def flush(self) -> None:
        """Pass the buffered frames to the kernel, after the header in a new file."""
        if self._descriptor is None:
            self._descriptor = self._create_file()
            self._frames.insert(0, self._header())
        if not self._frames:
            return
        frames = self._frames
        self._write_bytes(self._descriptor, frames[0] if len(frames) == 1 else b"".join(frames))
        self._frames.clear()
        self._buffered_bytes = 0

    def close(self) -> None:
        """Flush and close; idempotent."""
        if not self.is_started:
            return
        try:
            self.flush()
        finally:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = None
            self._frames.clear()

    def abandon(self) -> None:
        """Close the file without writing the buffered frames."""
        self._frames.clear()
        self.close()

    def _create_file(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError as error:
            raise LedgerError(
                f"the {self._what} {self._path} exists already.\n"
                "Each run of a trial writes a separate file; a second writer would mix two runs.\n"
                "Start the run under a new run id."
            ) from error

    def _write_bytes(self, descriptor: int, content: bytes) -> None:
        view = memoryview(content)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError as error:
            # Otherwise the next flush would write after a torn frame.
            os.ftruncate(descriptor, self._size_bytes)
            os.lseek(descriptor, self._size_bytes, os.SEEK_SET)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise StorageFullError(
                f"no space left for {len(content)} more bytes of the {self._what} {self._path}.\n"
                "Training stops, because further steps could not be recorded.\n"
                f"Free some space and resume, or turn {self._setting} off.",
                missing_bytes=len(view),
            ) from error
        self._size_bytes += len(content)


def _convert_ids(values: npt.ArrayLike) -> Indices:
    ids = np.asarray(values)
    if ids.dtype.kind == "u":
        return ids.astype(np.uint64).view(np.int64).ravel()  # hashes keep their 64 bits
    if ids.dtype.kind != "i" and ids.size:
        raise DataError(
            f"record ids must be integers of at most 64 bits, got {ids.dtype}: {ids.ravel()[:3]}"
        )
    return ids.astype(np.int64, copy=False).ravel()
