"""The ledger: which records each batch of a trial used."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from detcore.data._ledger_format import FrameKind, IdKind, LedgerHeader, pack_header, pack_ids
from detcore.data._order import Indices
from detcore.errors import DataError, LedgerError, StorageFullError

__all__ = ["LedgerWriter"]

_FLUSH_AT_BYTES = 1 << 20


class LedgerWriter:
    """Logs the ids of the records that each step used, for `verify_ledger` to prove from.

    What `flush` returned from survives ``kill -9`` of the process (it is in the kernel's hands;
    a power cut may take it). The file is made by the first flush. Calls come from one thread.

    Args:
        path: File to write, ``ledger-<run_id>.bin`` in the trial's folder; must not exist.
        run_id: Counts the starts of the trial, from 1.
        start_step: Steps completed when the run started: those of the checkpoint it restored.
        rank: Index of this worker.
        world_size: Number of workers; each writes a file of its own.
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
        self._path = Path(path)
        self._header = LedgerHeader(
            run_id=run_id, start_step=start_step, rank=rank, world_size=world_size
        )
        self._descriptor: int | None = None
        self._frames: list[bytes] = []
        self._buffered_bytes = 0
        self._last_step = start_step

    def describe(self, ids: IdKind, *, num_records: int | None = None, left_over: int = 0) -> None:
        """Say what an id is, before the first `log` or `census`.

        Args:
            ids: What the ids are.
            num_records: How many ids an epoch has in all, where they are ``0 .. num_records-1``.
            left_over: Ids that each epoch leaves out on purpose, as with ``drop_last``.

        Raises:
            LedgerError: If something was logged already.
        """
        if self._frames or self._descriptor is not None:
            raise LedgerError("a ledger's ids are described before the first of them is logged")
        previous = self._header
        self._header = LedgerHeader(
            run_id=previous.run_id,
            start_step=previous.start_step,
            ids=ids,
            num_records=num_records,
            left_over=left_over,
            rank=previous.rank,
            world_size=previous.world_size,
        )

    def log(self, step: int, epoch: int, record_ids: npt.ArrayLike) -> None:
        """Note which records a step used. Buffered: see `flush`.

        Args:
            step: Batches completed once this step is done, so the first step of a trial is 1.
                A step whose records belong to two epochs is logged once for each.
            epoch: Pass over the data that the records belong to, from 0.
            record_ids: Ids, ``(n,)``, integers of at most 64 bits.

        Raises:
            DataError: If the step is not after those before, or the ids are no integers.
        """
        if step < max(self._last_step, self._header.start_step + 1):
            raise DataError(
                f"step {step} is logged after step {self._last_step} in a run that started at "
                f"step {self._header.start_step}.\n"
                "Steps are counted from 1 over the whole life of the trial, and never go back."
            )
        self._last_step = step
        self._append(pack_ids(FrameKind.BATCH, step, epoch, _as_ids(record_ids)))

    def census(self, ids: npt.ArrayLike) -> None:
        """Note the ids of the whole data set, each as often as the data set holds it.

        For ids that are no indices; call it any number of times before the first `log`, with a
        part of the ids each time.
        """
        self._append(pack_ids(FrameKind.CENSUS, 0, 0, _as_ids(ids)))

    def flush(self) -> None:
        """Hand everything logged to the kernel.

        Raises:
            StorageFullError: If there is no room. The file then ends before what did not fit, and
                what did not fit is kept for the next flush.
            LedgerError: If the file exists already.
        """
        if self._descriptor is None:
            self._descriptor = self._open()
            self._frames.insert(0, pack_header(self._header))
        if not self._frames:
            return
        self._write(self._descriptor, b"".join(self._frames))
        self._frames.clear()
        self._buffered_bytes = 0

    def close(self) -> None:
        """Flush and close. A second call does nothing."""
        if self._descriptor is None and not self._frames:
            return
        try:
            self.flush()
        finally:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = None
            self._frames.clear()

    def _append(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._buffered_bytes += len(frame)
        if self._buffered_bytes >= _FLUSH_AT_BYTES:
            self.flush()

    def _open(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError as error:
            raise LedgerError(
                f"the ledger {self._path} exists already.\n"
                "Each run of a trial writes one of its own; a second writer would mix two runs.\n"
                "Start the run under a new run id."
            ) from error

    def _write(self, descriptor: int, content: bytes) -> None:
        start = os.fstat(descriptor).st_size
        view = memoryview(content)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError as error:
            # Without this the next flush would write behind a torn frame.
            os.ftruncate(descriptor, start)
            os.lseek(descriptor, start, os.SEEK_SET)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise StorageFullError(
                f"no room for {len(content)} more bytes of the data ledger {self._path}.\n"
                "Training stops, because what it does from here on could not be proved.\n"
                "Free some space and resume, or turn data_ledger off.",
                missing_bytes=len(view),
            ) from error


def _as_ids(values: npt.ArrayLike) -> Indices:
    ids = np.asarray(values)
    if ids.dtype.kind == "u":
        return ids.astype(np.uint64).view(np.int64).ravel()  # hashes: the same 64 bits
    if ids.dtype.kind != "i" and ids.size:
        raise DataError(
            f"record ids are integers of at most 64 bits, not {ids.dtype}: {ids.ravel()[:3]}"
        )
    return ids.astype(np.int64).ravel()
