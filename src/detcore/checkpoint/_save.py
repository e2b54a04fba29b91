"""Save checkpoints: record, write, commit, record; and clean up after a failure."""

from __future__ import annotations

import collections
import contextlib
import datetime
import functools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from detcore._log import events
from detcore.checkpoint._commit import (
    CheckpointRecords,
    Scan,
    add_metadata,
    commit,
    record_committed,
    scan_folder,
    staging_folder,
    write_files,
)
from detcore.checkpoint._delete import remove_files
from detcore.checkpoint._fields import new_id
from detcore.checkpoint._manifest import METADATA_FILE, Manifest, has_manifest
from detcore.contract.errors import CheckpointError, DetcoreError, StorageFullError
from detcore.contract.values import SaveTimes, TensorInfo

if TYPE_CHECKING:
    from detcore.storage import FileDigest, Pair, Progress, StorageBackend, TransferObserver


_SAVES_REMEMBERED = 16
Snapshot: TypeAlias = "Callable[[Path], Callable[[], None] | None]"
"""Copies the state, given the folder to write to; returns a function that writes the rest."""
# A disk with less space than this is taken for full after any failure: frameworks raise errors
# that do not say why a write failed.
_NOTHING_LEFT_BYTES = 64 * 1024
Tensors: TypeAlias = "Sequence[TensorInfo] | Callable[[], Sequence[TensorInfo]]"
"""Tensors in a checkpoint's files, or a function that returns them after the snapshot."""


def caused_by(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that led to it; a storage or a framework may have wrapped it."""
    seen: list[BaseException] = []  # an exception may be raised from itself
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


class SaveStopped(CheckpointError):
    """A save that was cancelled before its commit; raised only on the save's own thread."""


class Background:
    """The machine's monotonic clock, and daemon threads; tests substitute their own."""

    def now(self) -> float:
        """Return a monotonic time in seconds."""
        return time.monotonic()

    def start(self, work: Callable[[], None]) -> None:
        """Start work on a thread that does not keep the process alive."""
        threading.Thread(target=work, name="detcore-save", daemon=True).start()

    def wait(self, done: threading.Event, timeout_s: float | None) -> bool:
        """Wait until an event is set or the timeout expires; return whether it is set."""
        return done.wait(timeout_s)


class Transfer:
    """A save's storage: counts the bytes that arrive, and refuses operations after a stop.

    Attributes:
        total_bytes: Sum of the sizes of its files; 0 until all of them are written.
        moved_bytes: Bytes in the storage, if the storage reports them.
        began: Time of the first transfer, by `Background.now`; None before.
        is_stopped: Whether further operations of the save are refused.
    """

    def __init__(self, storage: StorageBackend) -> None:
        self._storage = storage
        self.total_bytes = 0
        self.moved_bytes = 0
        self.began: float | None = None
        self.is_stopped = False
        self._lock = threading.Lock()

    def begin(self, total_bytes: int, now: float) -> None:
        """Record that the files are written and their transfer to the storage begins."""
        self.total_bytes, self.began = total_bytes, now

    def check(self) -> None:
        """Refuse to continue after a stop.

        Raises:
            SaveStopped: If the save was cancelled.
        """
        if self.is_stopped:
            raise SaveStopped("the save was given up")

    def __getattr__(self, name: str) -> Any:
        self.check()
        return getattr(self._storage, name)

    def put_tree(
        self, pairs: Sequence[Pair], *, progress: Progress | None = None
    ) -> dict[str, FileDigest]:
        """Copy files; a stop takes effect between two pieces."""
        self.check()
        return self._storage.put_tree(pairs, progress=self._counted(progress))

    def digest_tree(
        self, keys: Sequence[str], *, progress: Progress | None = None, **options: Any
    ) -> dict[str, FileDigest]:
        """Digest files in place; a stop takes effect between two pieces."""
        self.check()
        return self._storage.digest_tree(keys, progress=self._counted(progress), **options)

    def _counted(self, progress: Progress | None) -> Progress:
        def count(size: int) -> None:  # on any thread
            with self._lock:
                self.moved_bytes += size
            self.check()
            if progress is not None:
                progress(size)

        return count


class Save:
    """One checkpoint from its first record to its last, on the training thread or begun there.

    Attributes:
        uuid: The checkpoint.
        metadata: Its metadata, checked already.
        versions: Versions to record in its manifest, by distribution.
        tensors: Tensors in its files, to record in its manifest.
        requested: When the training thread requested it, by `Background.now`.
        began: When it began, after the wait for the previous one.
        stalled_s: Seconds for which it stopped training; None if training waits for all of it.
        folder: Where its files are written.
        is_in_place: Whether that is their place in the storage.
        transfer: Progress of its transfer in the background.
        failure: The exception that ended it in the background, or None.
        manifest: Its manifest, once it is committed.
        times: Its duration, once it is recorded.
    """

    manifest: Manifest
    times: SaveTimes

    def __init__(
        self,
        metadata: Mapping[str, Any],
        versions: Mapping[str, str],
        *,
        storage: StorageBackend,
        behind: Background,
        waited_s: float = 0.0,
    ) -> None:
        self.uuid = new_id()
        self.metadata = metadata
        self.versions = versions
        self.tensors: tuple[TensorInfo, ...] = ()
        self.began = behind.now()
        self.requested = self.began - waited_s
        self.stalled_s: float | None = None
        self.folder = Path()
        self.is_in_place = False
        self.transfer = Transfer(storage)
        self.failure: BaseException | None = None
        self._behind = behind
        self._done = threading.Event()
        self._pid = os.getpid()

    @property
    def steps_completed(self) -> int:
        """Batches completed when it began."""
        return int(self.metadata["steps_completed"])

    def freeze(self, tensors: Tensors) -> None:
        """Set the versions, which other code may add to, and the tensors, as they are now."""
        self.versions = dict(self.versions)
        self.tensors = tuple(tensors() if callable(tensors) else tensors)

    def start(self, work: Callable[[], None], cleanup: contextlib.ExitStack) -> None:
        """Do the rest on a background thread.

        Args:
            work: Commits and records the checkpoint.
            cleanup: Exited when the work ends, with the exception if it failed.
        """
        rest = cleanup.pop_all()

        def run() -> None:
            try:
                with rest:
                    work()
            except BaseException as error:  # noqa: BLE001  (raised on the training thread)
                self.failure = error
            finally:
                self._done.set()

        try:
            self._behind.start(run)
        except BaseException:  # no more threads
            with rest:
                raise

    @property
    def is_done(self) -> bool:
        """Whether it has ended in the background, successfully or not."""
        return self._done.is_set()

    @property
    def is_ours(self) -> bool:
        """Whether this process runs it; a child forked since then does not have the thread."""
        return self._pid == os.getpid()

    @property
    def age_s(self) -> float:
        """Seconds since it was requested."""
        return self._behind.now() - self.requested

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it ends in the background; return whether it has."""
        return self._behind.wait(self._done, timeout_s)

    def stop(self) -> None:
        """Refuse further operations; the current one is allowed to finish."""
        self.transfer.is_stopped = True


class Saver:
    """Saves one trial's checkpoints, one at a time.

    Attributes:
        versions: Versions to record in manifests, by distribution.
        seen: Durations of recent saves, oldest first.
        observer: Receives the progress of saves that the caller waits for, or None.
    """

    def __init__(
        self,
        *,
        storage: StorageBackend,
        records: CheckpointRecords | None,
        trial_id: int | None,
        parent: str | None,
        behind: Background,
        observer: TransferObserver | None = None,
    ) -> None:
        self.versions: dict[str, str] = {}
        self._storage = storage
        self.observer = observer
        self._records = records
        self._trial_id = trial_id
        self._parent = parent
        self._behind = behind
        self._last: Save | None = None
        self.seen: collections.deque[SaveTimes] = collections.deque(maxlen=_SAVES_REMEMBERED)

    def save_copies(self, scan: Scan, metadata: Mapping[str, Any]) -> str:
        """Copy files to a new checkpoint and commit it; return its UUID."""
        with self.begun(metadata) as save:
            self._seal(save, self._storage, scan, self.observer)
        self.committed(save)
        return save.uuid

    @contextlib.contextmanager
    def saving(
        self, metadata: Mapping[str, Any], tensors: Tensors = ()
    ) -> Iterator[tuple[Path, str]]:
        """Yield a folder to write to and commit its contents, or leave nothing behind."""
        with self.begun(metadata) as save, self._staged(save):
            yield save.folder, save.uuid
            save.freeze(tensors)
            self._seal(save, self._storage, scan_folder(save.folder), self.observer)
        self.committed(save)

    def begin(
        self,
        snapshot: Snapshot,
        metadata: Mapping[str, Any],
        tensors: Tensors,
        *,
        waited_s: float,
    ) -> Save:
        """Begin a save that ends on another thread; pass it to `collect` then.

        Args:
            snapshot: Called here; its exceptions are raised, and nothing is left behind.
            metadata: Metadata, checked already.
            tensors: Tensors in the files; evaluated after the snapshot.
            waited_s: Seconds for which training has waited for the previous save.
        """
        with contextlib.ExitStack() as stack:
            save = stack.enter_context(self.begun(metadata, waited_s=waited_s))
            stack.enter_context(self._staged(save))
            writes = [snapshot(save.folder)]
            save.freeze(tensors)
            save.stalled_s = save.age_s
            save.start(functools.partial(self._finish, save, writes), stack)
        return save

    def _finish(self, save: Save, writes: list[Callable[[], None] | None]) -> None:
        """Do the rest of a save, on its own thread."""
        # Removed from the list, so that the copies of the state are freed before the upload.
        write = writes.pop()
        if write is not None:
            write()
        del write
        save.transfer.check()
        scan = scan_folder(save.folder)
        save.transfer.begin(scan.size_bytes(), self._behind.now())
        self._seal(save, cast("StorageBackend", save.transfer), scan)
        self._record_end(save)

    def collect(self, save: Save) -> None:
        """Report a save in the background that has ended.

        Raises:
            BaseException: The exception that it failed with.
        """
        if save.failure is not None:
            raise save.failure
        self._report(save)

    def _seal(
        self,
        save: Save,
        storage: StorageBackend,
        scan: Scan,
        observer: TransferObserver | None = None,
    ) -> None:
        """Transfer files to the storage, or flush them if they are in place, and commit them."""
        digests = write_files(
            storage, save.uuid, scan, is_in_place=save.is_in_place, observer=observer
        )
        self.commit(save, digests, scan.directories, storage)

    @contextlib.contextmanager
    def begun(self, metadata: Mapping[str, Any], *, waited_s: float = 0.0) -> Iterator[Save]:
        """Record a new checkpoint; if the block fails before the commit, remove all traces."""
        save = Save(
            metadata, self.versions, storage=self._storage, behind=self._behind, waited_s=waited_s
        )
        self._record(
            events.CheckpointStarted(
                uuid=save.uuid,
                storage_url=self._storage.url,
                steps_completed=save.steps_completed,
            )
        )
        try:
            yield save
        except BaseException as error:
            last = None if self._last is None else self._last.manifest
            explained = explain_full(error, self._storage, save.uuid, last)
            self._try_abandon(save.uuid)
            if explained is not None:
                raise explained from error
            raise

    def _try_abandon(self, uuid: str) -> None:
        try:
            # The failure may have been a lost response to a commit that succeeded: the checkpoint
            # then counts, and the next start of the trial records it.
            if not has_manifest(self._storage, uuid):
                remove_files(self._storage, uuid)
                self._record(events.CheckpointDeleted(uuid=uuid, resources={}))
        except (DetcoreError, OSError) as error:
            # Not worth hiding the first error: it stays recorded as ACTIVE, and the trial's next
            # start removes it.
            import logging

            logging.getLogger("detcore").warning(
                "files of the failed checkpoint %s could not be removed yet: %s", uuid, error
            )

    @contextlib.contextmanager
    def _staged(self, save: Save) -> Iterator[None]:
        """Provide the folder to write a checkpoint to."""
        with staging_folder(self._storage, save.uuid) as (save.folder, save.is_in_place):
            yield

    def commit(
        self,
        save: Save,
        digests: Mapping[str, FileDigest],
        directories: tuple[str, ...],
        storage: StorageBackend | None = None,
    ) -> None:
        """Commit a checkpoint whose files are all in the storage."""
        import detcore

        storage = self._storage if storage is None else storage
        files = dict(digests)
        if METADATA_FILE not in files:
            files |= add_metadata(storage, save.uuid, save.metadata)
        save.manifest = Manifest(
            uuid=save.uuid,
            steps_completed=save.steps_completed,
            metadata=save.metadata,
            created=datetime.datetime.now(datetime.timezone.utc),
            files=files,
            directories=directories,
            parent=self._parent,
            versions={"detcore": detcore.__version__, **save.versions},
            tensors=save.tensors,
        )
        commit(storage, save.manifest)

    def committed(self, save: Save) -> None:
        """Record a committed checkpoint."""
        self._record_end(save)
        self._report(save)

    def _record(self, change: events.CheckpointEvent) -> None:
        if self._records is not None:
            self._records.record_checkpoint(change, trial_id=self._trial_id)

    def _record_end(self, save: Save) -> None:
        total_s = self._behind.now() - save.began
        save.times = SaveTimes(
            size_bytes=save.manifest.size_bytes,
            stalled_s=total_s if save.stalled_s is None else save.stalled_s,
            total_s=total_s,
        )
        if self._records is not None:
            record_committed(self._records, save.manifest, storage=self._storage, times=save.times)

    def _report(self, save: Save) -> None:
        """Remember the newest checkpoint."""
        self._last = save
        self._parent = save.uuid
        self.seen.append(save.times)


def explain_full(
    error: BaseException, storage: StorageBackend, uuid: str, last: Manifest | None
) -> StorageFullError | None:
    """Return an error that says how much space is missing, if a full disk caused the failure.

    Call it before the partial checkpoint is removed.

    Args:
        error: The exception that ended a save.
        storage: The storage that was written to in place.
        uuid: The checkpoint.
        last: The trial's previous checkpoint; the next one is about as large.
    """
    root = storage.direct_path("")
    if root is None or not root.is_dir() or isinstance(error, StorageFullError):
        return None
    if not isinstance(error, Exception):
        return None
    free = shutil.disk_usage(root).free
    from detcore.storage import is_full

    says_full = any(map(is_full, caused_by(error)))
    if not says_full and free > _NOTHING_LEFT_BYTES:
        return None
    written = sum(entry.size for entry in storage.list(uuid))
    expected = last.size_bytes if last is not None else 0
    missing = max(1, expected - written - free)
    measure = (
        f"the last one took {expected} bytes, so about {missing} bytes are missing"
        if expected > written + free
        else f"at least {missing} bytes are missing"
    )
    return StorageFullError(
        f"no room left in {root} for checkpoint {uuid}: {written} bytes were written, {measure}.\n"
        "The partial checkpoint is removed; earlier checkpoints are untouched.\n"
        "Make room there (detcore checkpoint delete UUID), then resume from the last one.",
        missing_bytes=missing,
    )
