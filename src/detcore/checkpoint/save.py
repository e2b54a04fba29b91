"""Save checkpoints: record, write, commit, record; and clean up after a failure.

A save in the background runs on a thread of its own, one at a time, and its result is reported
exactly once.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from detcore.checkpoint.commit import (
    CheckpointRecords,
    Scan,
    add_metadata,
    commit,
    open_staging_directory,
    record_committed,
    scan_directory,
    write_files,
)
from detcore.checkpoint.delete import remove_files
from detcore.checkpoint.manifest import METADATA_FILE, Manifest, has_manifest
from detcore.checkpoint.manifest_fields import new_id
from detcore.contract.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    DetcoreError,
    StorageFullError,
)
from detcore.contract.values import SaveTimes, TensorInfo
from detcore.log import events
from detcore.version import __version__

if TYPE_CHECKING:
    from typing import Any

    from detcore.storage import FileDigest, StorageBackend, TransferObserver


Snapshot: TypeAlias = "Callable[[Path], Callable[[], None] | None]"
"""Copies the state, given the folder to write to; returns a function that writes the rest."""
Tensors: TypeAlias = "Sequence[TensorInfo] | Callable[[], Sequence[TensorInfo]]"
"""Tensors in a checkpoint's files, or a function that returns them after the snapshot."""
Timeout: TypeAlias = "float | Callable[[], float] | None"
"""Seconds to wait; or a function that returns the seconds left; None for no limit."""
# A disk with less space than this is taken for full after any failure: frameworks raise errors
# that do not say why a write failed.
_NOTHING_LEFT_BYTES = 64 * 1024
# How long a cancelled save may take to stop; its files are removed during that time.
_NOTICE_S = 2.0
# How often the remaining time is read again.
_POLL_INTERVAL_S = 0.2


class SaveStopped(CheckpointError):
    """A save that was cancelled before its commit; raised only on the save's own thread."""


class Save:
    """One checkpoint from its first record to its last, on the training thread or begun there.

    Attributes:
        uuid: The checkpoint.
        metadata: Its metadata, checked already.
        versions: Versions to record in its manifest, by distribution.
        tensors: Tensors in its files, to record in its manifest.
        stalled_s: Seconds for which it stopped training; None if training waits for all of it.
        folder: Where its files are written.
        is_in_place: Whether that is their place in the storage.
        size_bytes: Sum of the sizes of its files; None until all of them are written.
        failure: The exception that ended it in the background, or None.
        manifest: Its manifest, once it is committed.
        times: Its duration, once it is recorded.
    """

    manifest: Manifest
    times: SaveTimes

    def __init__(
        self, metadata: Mapping[str, Any], versions: Mapping[str, str], waited_s: float = 0.0
    ) -> None:
        """Start to measure its time.

        Args:
            metadata: Metadata, checked already.
            versions: Versions to record.
            waited_s: Seconds for which training has waited for the previous save.
        """
        self.uuid = new_id()
        self.metadata = metadata
        self.versions = versions
        self.tensors: tuple[TensorInfo, ...] = ()
        self.stalled_s: float | None = None
        self.folder = Path()
        self.is_in_place = False
        self.size_bytes: int | None = None
        self.failure: BaseException | None = None
        self._started_at = time.monotonic()
        self._waited_s = waited_s
        self._is_stopped = False
        self._done = threading.Event()
        self._pid = os.getpid()

    @property
    def steps_completed(self) -> int:
        """Batches completed when it began."""
        return int(self.metadata["steps_completed"])

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
        """Seconds since training requested it, including the wait for the previous save."""
        return time.monotonic() - self._started_at + self._waited_s

    def freeze(self, tensors: Tensors) -> None:
        """Set the versions, which other code may add to, and the tensors, as they are now."""
        self.versions = dict(self.versions)
        self.tensors = tuple(tensors() if callable(tensors) else tensors)

    def start_thread(self, work: Callable[[], None], cleanup: contextlib.ExitStack) -> None:
        """Do the rest on a thread that does not keep the process alive.

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
            threading.Thread(target=run, name="detcore-save", daemon=True).start()
        except BaseException:  # no more threads
            with rest:
                raise

    def stop(self) -> None:
        """Refuse further operations; the current one is allowed to finish."""
        self._is_stopped = True

    def check(self) -> None:
        """Refuse to continue after a stop.

        Raises:
            SaveStopped: If the save was cancelled.
        """
        if self._is_stopped:
            raise SaveStopped("the save was given up")

    def finish(self) -> None:
        """Set `times`, once it is committed."""
        total_s = time.monotonic() - self._started_at
        stalled_s = total_s if self.stalled_s is None else self.stalled_s
        size_bytes = self.manifest.size_bytes
        self.times = SaveTimes(size_bytes=size_bytes, stalled_s=stalled_s, total_s=total_s)

    def wait(self, timeout_s: Timeout = None) -> bool:
        """Wait until it ends in the background; return whether it has."""
        if not callable(timeout_s):
            return self._done.wait(timeout_s)
        while (left_s := timeout_s()) > 0:
            if self._done.wait(min(left_s, _POLL_INTERVAL_S)):
                return True
        return self.is_done


class Saver:
    """Saves one trial's checkpoints, one at a time; the base of `CheckpointContext`.

    All methods must be called from the training thread. An error of a save in the background is
    raised once, by the next call of `poll`, `wait` or another method that changes checkpoints, or
    on closing.

    Attributes:
        versions: Versions to record in manifests, by distribution; framework plugins add theirs.
    """

    def __init__(
        self,
        *,
        storage: StorageBackend,
        records: CheckpointRecords | None,
        trial_id: int | None,
        parent: str | None,
        observer: TransferObserver | None,
    ) -> None:
        self.versions: dict[str, str] = {}
        self._storage = storage
        self._records = records
        self._trial_id = trial_id
        self._parent = parent
        self._observer = observer
        self._last_save: Save | None = None
        self._save: Save | None = None  # in the background
        self._given_up: list[Save] = []
        self._waited_s = 0.0  # since the last save in the background began

    @property
    def steps_being_saved(self) -> int | None:
        """Batches of the checkpoint that is being saved in the background, or None."""
        save = self._get_background_save()
        return None if save is None or save.is_done else save.steps_completed

    def poll(self) -> None:
        """Complete an asynchronous save that has ended; returns at once if none has.

        Raises:
            StorageError: If it failed; as `store_path` would have raised.
        """
        if self._save is not None and self._save.is_done:
            self._collect(self._save)

    def wait(self, timeout_s: Timeout = None) -> None:
        """Wait until no asynchronous save is under way.

        Args:
            timeout_s: How long to wait, in seconds; None for no limit. A function is called several
                times a second and returns the seconds left.

        Raises:
            CheckpointTimeoutError: If the save has not ended by then. It continues, and can be
                waited for again.
            StorageError: If it failed; as `store_path` would have raised.
        """
        save = self._get_background_save()
        if save is None:
            return
        start = time.monotonic()
        is_over = save.wait(timeout_s)
        waited_s = time.monotonic() - start
        self._waited_s += waited_s
        if not is_over:
            raise CheckpointTimeoutError(_describe_delay(save, waited_s), uuid=save.uuid)
        self._collect(save)

    def cancel_save(self, timeout_s: float = 2.0) -> None:
        """Cancel the asynchronous save under way, and remove the files that it wrote.

        If its commit has started, it may still complete, and the checkpoint then counts.

        Args:
            timeout_s: How long to wait for its end, in seconds. A storage request that lasts longer
                finishes by itself, and no other follows it.
        """
        save = self._get_background_save()
        if save is None:
            return
        save.stop()
        self._save = None
        self._given_up.append(save)
        if not save.wait(timeout_s):
            return
        if not any(isinstance(error, SaveStopped) for error in list_causes(save.failure)):
            self._collect(save)  # it ended before the stop took effect

    def close(self, timeout_s: Timeout = 0.0, error: BaseException | None = None) -> None:
        """Wait for the asynchronous save under way, and cancel it after the timeout.

        Args:
            timeout_s: How long to wait, as for `wait`.
            error: The error that already ends the trial. If the save fails as well, its failure is
                logged and added to this error as a note, and not raised.

        Raises:
            CheckpointTimeoutError: If the save did not end in time.
            StorageError: If it failed.
        """
        try:
            try:
                self.wait(timeout_s)
            except CheckpointTimeoutError:
                self.cancel_save(0.0)
                raise
        except Exception as failure:
            if error is None:
                raise
            import logging

            text = f"in addition, a checkpoint could not be saved: {failure}"
            logging.getLogger("detcore").error(text)
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(text)
        finally:
            left_s = timeout_s() if callable(timeout_s) else timeout_s
            for save in self._given_up:
                if save.is_ours:
                    save.wait(_NOTICE_S if left_s is None else min(left_s, _NOTICE_S))

    def abandon(self) -> bool:
        """Remove the temporary files of cancelled saves that have not ended.

        Called when the process is about to exit.

        Returns:
            Whether there were any. Their threads may be waiting for the storage, and a regular exit
            of the process would wait for them.
        """
        left = [save for save in self._given_up if save.is_ours and not save.is_done]
        for save in left:
            if not save.is_in_place:
                shutil.rmtree(save.folder, ignore_errors=True)
        return bool(left)

    def _save_copies(self, scan: Scan, metadata: Mapping[str, Any]) -> str:
        """Copy files to a new checkpoint and commit it; return its UUID."""
        with self._started(metadata) as save:
            self._seal(save, scan, self._observer)
        self._record_end(save)
        return save.uuid

    @contextlib.contextmanager
    def _saving(self, metadata: Mapping[str, Any], tensors: Tensors) -> Iterator[tuple[Path, str]]:
        """Yield a folder to write to and commit its contents, or leave nothing behind."""
        with self._started(metadata) as save, self._staged(save):
            yield save.folder, save.uuid
            save.freeze(tensors)
            self._seal(save, scan_directory(save.folder), self._observer)
        self._record_end(save)

    def _save_in_background(
        self, snapshot: Snapshot, metadata: Mapping[str, Any], tensors: Tensors
    ) -> str:
        """Wait for the previous save and start one; return its checkpoint's UUID.

        An exception of `snapshot`, which is called here, is raised, and nothing is left behind.
        """
        self.wait()
        waited_s, self._waited_s = self._waited_s, 0.0
        with contextlib.ExitStack() as stack:
            save = stack.enter_context(self._started(metadata, waited_s))
            stack.enter_context(self._staged(save))
            writes = [snapshot(save.folder)]
            save.freeze(tensors)
            save.stalled_s = save.age_s
            save.start_thread(functools.partial(self._finish, save, writes), stack)
        self._save = save
        return save.uuid

    def _finish(self, save: Save, writes: list[Callable[[], None] | None]) -> None:
        """Do the rest of a save, on its own thread."""
        # Removed from the list, so that the copies of the state are freed before the upload.
        write = writes.pop()
        if write is not None:
            write()
        del write
        save.check()
        scan = scan_directory(save.folder)
        save.size_bytes = scan.size_bytes()
        self._seal(save, scan)
        self._record_end(save)

    def _seal(self, save: Save, scan: Scan, observer: TransferObserver | None = None) -> None:
        """Transfer files to the storage, or flush them if they are in place, and commit them."""
        digests = write_files(
            self._storage, save.uuid, scan, is_in_place=save.is_in_place, observer=observer,
            check=save.check,
        )  # fmt: skip
        self._commit(save, digests, scan.directories)

    def _commit(
        self, save: Save, digests: Mapping[str, FileDigest], directories: tuple[str, ...]
    ) -> None:
        """Commit a checkpoint whose files are all in the storage."""
        files = dict(digests)
        if METADATA_FILE not in files:
            save.check()
            files |= add_metadata(self._storage, save.uuid, save.metadata)
        save.manifest = Manifest(
            uuid=save.uuid,
            steps_completed=save.steps_completed,
            metadata=save.metadata,
            created=datetime.datetime.now(datetime.timezone.utc),
            files=files,
            directories=directories,
            parent=self._parent,
            versions={"detcore": __version__, **save.versions},
            tensors=save.tensors,
        )
        save.check()
        commit(self._storage, save.manifest)

    @contextlib.contextmanager
    def _started(self, metadata: Mapping[str, Any], waited_s: float = 0.0) -> Iterator[Save]:
        """Record a new checkpoint; if the block fails before the commit, remove all traces."""
        save = Save(metadata, self.versions, waited_s)
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
            last = None if self._last_save is None else self._last_save.manifest
            explained = explain_full_disk(error, self._storage, save.uuid, last)
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
        with open_staging_directory(self._storage, save.uuid) as (save.folder, save.is_in_place):
            yield

    def _record(self, change: events.CheckpointEvent) -> None:
        if self._records is not None:
            self._records.record_checkpoint(change, trial_id=self._trial_id)

    def _record_end(self, save: Save) -> None:
        """Record a committed checkpoint, on the thread that committed it."""
        save.finish()
        if self._records is not None:
            record_committed(self._records, self._storage, save.manifest, save.times)
        self._last_save = save
        self._parent = save.uuid

    def _collect(self, save: Save) -> None:
        """Report a save in the background that has ended.

        Raises:
            BaseException: The exception that it failed with.
        """
        self._save = None
        if save.failure is not None:
            raise save.failure

    def _get_background_save(self) -> Save | None:
        if self._save is not None and not self._save.is_ours:
            self._save = None  # a forked child: the parent is responsible for it
        return self._save


def list_causes(error: BaseException | None) -> list[BaseException]:
    """Return an exception and its causes; a storage or a framework may have wrapped it."""
    causes: list[BaseException] = []  # an exception may be raised from itself
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


def _describe_delay(save: Save, waited_s: float) -> str:
    progress = (
        "its files were still being written"
        if save.size_bytes is None
        else f"its {save.size_bytes} bytes were on their way to the storage"
    )
    return (
        f"checkpoint {save.uuid} of batch {save.steps_completed} was not saved within "
        f"{waited_s:.1f} s (begun {save.age_s:.1f} s ago): {progress}.\n"
        "It does not count before it is whole, and earlier checkpoints are untouched; the trial's "
        "next start keeps it if it was committed after all, and removes it if not.\n"
        "Give it more time with checkpoint_exit_timeout_s, or look at why the storage is slow: "
        "detcore storage check URL"
    )


def explain_full_disk(
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
    from detcore.storage import is_storage_full

    says_full = any(map(is_storage_full, list_causes(error)))
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
