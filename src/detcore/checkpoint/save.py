"""Save checkpoints: record, write, commit, record; clean up after a failure.

An asynchronous save runs on a separate thread, one at a time. Its result is reported exactly once.
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
from typing import TYPE_CHECKING, Any, TypeAlias

from detcore.checkpoint.commit import (
    CheckpointRecords,
    Scan,
    add_metadata,
    commit_manifest,
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
    from detcore.storage import FileDigest, StorageBackend, TransferObserver


Snapshot: TypeAlias = "Callable[[Path], Callable[[], None] | None]"
"""Copies the state, given the directory to write to; returns a function that writes the copies."""
Tensors: TypeAlias = "Sequence[TensorInfo] | Callable[[], Sequence[TensorInfo]]"
"""Tensors in a checkpoint's files, or a function that returns them after the snapshot."""
Timeout: TypeAlias = "float | Callable[[], float] | None"
"""Seconds to wait, a function that returns the remaining seconds, or None for no limit."""
# After a failure, a disk with less free space counts as full, because some frameworks raise errors
# that do not name the cause of a failed write.
_MIN_FREE_BYTES = 64 * 1024
# Maximum wait for a cancelled save to stop and to remove its files.
_CANCEL_TIMEOUT_S = 2.0
# Interval for reading the remaining time again.
_POLL_INTERVAL_S = 0.2


class SaveCancelled(CheckpointError):
    """Raised when a save was cancelled before its commit, only on the thread of the save."""


class Save:
    """One checkpoint, from its first record to its last. Created on the training thread.

    Attributes:
        uuid: The checkpoint.
        metadata: Its checked metadata.
        versions: Versions to record in its manifest, by distribution.
        tensors: Tensors in its files, to record in its manifest.
        stalled_s: Seconds for which training waited; None if training waits for the whole save.
        folder: Directory to which its files are written.
        is_in_place: Whether the directory is in the storage.
        size_bytes: Sum of the sizes of its files; None until all of them are written.
        failure: The exception that ended an asynchronous save, or None.
        manifest: Its manifest; set by the commit.
        times: Its duration; set when it is recorded.
    """

    manifest: Manifest
    times: SaveTimes

    def __init__(
        self, metadata: Mapping[str, Any], versions: Mapping[str, str], waited_s: float = 0.0
    ) -> None:
        """Start measuring the duration.

        Args:
            metadata: Checked metadata.
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
        self._is_cancelled = False
        self._done = threading.Event()
        self._pid = os.getpid()

    @property
    def steps_completed(self) -> int:
        """Batches completed when the save started."""
        return int(self.metadata["steps_completed"])

    @property
    def is_done(self) -> bool:
        """Whether an asynchronous save has ended, successfully or not."""
        return self._done.is_set()

    @property
    def is_ours(self) -> bool:
        """Whether this process runs the save; a process forked later does not have its thread."""
        return self._pid == os.getpid()

    @property
    def age_s(self) -> float:
        """Seconds since training requested the save, including the wait for the previous save."""
        return time.monotonic() - self._started_at + self._waited_s

    def freeze(self, tensors: Tensors) -> None:
        """Copy the present versions and tensors, which other code may change later."""
        self.versions = dict(self.versions)
        self.tensors = tuple(tensors() if callable(tensors) else tensors)

    def start_thread(self, work: Callable[[], None], cleanup: contextlib.ExitStack) -> None:
        """Do the remaining work on a daemon thread.

        Args:
            work: Commits and records the checkpoint.
            cleanup: Exited when the work ends, with the exception of a failed save.
        """
        remaining_work = cleanup.pop_all()

        def run() -> None:
            try:
                with remaining_work:
                    work()
            except BaseException as error:  # noqa: BLE001  (raised on the training thread)
                self.failure = error
            finally:
                self._done.set()

        try:
            threading.Thread(target=run, name="detcore-save", daemon=True).start()
        except BaseException:  # the process cannot start another thread
            with remaining_work:
                raise

    def stop(self) -> None:
        """Cancel the save after its current operation."""
        self._is_cancelled = True

    def check(self) -> None:
        """Raise an error if the save was cancelled.

        Raises:
            SaveCancelled: If the save was cancelled.
        """
        if self._is_cancelled:
            raise SaveCancelled("the save was cancelled")

    def finish(self) -> None:
        """Set `times`, after the commit."""
        total_s = time.monotonic() - self._started_at
        stalled_s = total_s if self.stalled_s is None else self.stalled_s
        size_bytes = self.manifest.size_bytes
        self.times = SaveTimes(size_bytes=size_bytes, stalled_s=stalled_s, total_s=total_s)

    def wait(self, timeout_s: Timeout = None) -> bool:
        """Wait until an asynchronous save ends; return whether it has ended."""
        if not callable(timeout_s):
            return self._done.wait(timeout_s)
        while (left_s := timeout_s()) > 0:
            if self._done.wait(min(left_s, _POLL_INTERVAL_S)):
                return True
        return self.is_done


class Saver:
    """Saves one trial's checkpoints, one at a time. Base class of `CheckpointContext`.

    Call all methods from the training thread. An error of an asynchronous save is raised once, by
    the next call of `poll`, `wait` or another method that changes checkpoints, or on closing.

    Attributes:
        versions: Versions to record in manifests, by distribution. Framework plugins add theirs.
        on_commit: Called on the training thread with the UUID of each new checkpoint, or None.
        watched_state: Returns the state whose digests are added to each checkpoint, or None.
    """

    on_commit: Callable[[str], object] | None = None
    watched_state: Callable[[], Mapping[str, Any]] | None = None

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
        self._save: Save | None = None  # the asynchronous save in progress
        self._cancelled_saves: list[Save] = []
        self._waited_s = 0.0  # since the last asynchronous save started

    @property
    def steps_being_saved(self) -> int | None:
        """Completed batches of the asynchronous checkpoint in progress, or None."""
        save = self._get_background_save()
        return None if save is None or save.is_done else save.steps_completed

    def poll(self) -> None:
        """Report the result of an asynchronous save that has ended; never blocks.

        Raises:
            StorageError: If the save failed, as `store_path` would have raised.
        """
        if self._save is not None and self._save.is_done:
            self._collect_result(self._save)

    def wait(self, timeout_s: Timeout = None) -> None:
        """Wait for an asynchronous save in progress, if there is one.

        Args:
            timeout_s: Maximum wait in seconds; None for no limit. A function is called several
                times a second and returns the remaining seconds.

        Raises:
            CheckpointTimeoutError: If the save has not ended in time. It continues, and `wait` may
                be called again.
            StorageError: If the save failed, as `store_path` would have raised.
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
        self._collect_result(save)

    def cancel_save(self, timeout_s: float = 2.0) -> None:
        """Cancel the asynchronous save in progress, and remove the files that it wrote.

        If its commit has started, the checkpoint may still be completed.

        Args:
            timeout_s: Maximum wait for its end, in seconds. A storage request in progress is not
                interrupted, but no other request follows.
        """
        save = self._get_background_save()
        if save is None:
            return
        save.stop()
        self._save = None
        self._cancelled_saves.append(save)
        if not save.wait(timeout_s):
            return
        if not any(isinstance(error, SaveCancelled) for error in list_causes(save.failure)):
            self._collect_result(save)  # it ended before it was cancelled

    def close(self, timeout_s: Timeout = 0.0, error: BaseException | None = None) -> None:
        """Wait for the asynchronous save in progress, and cancel it after the timeout.

        Args:
            timeout_s: Maximum wait, as for `wait`.
            error: The error that already ends the trial. If the save also fails, its failure is
                logged and added to this error as a note, but not raised.

        Raises:
            CheckpointTimeoutError: If the save did not end in time.
            StorageError: If the save failed.
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
            for save in self._cancelled_saves:
                if save.is_ours:
                    save.wait(
                        _CANCEL_TIMEOUT_S if left_s is None else min(left_s, _CANCEL_TIMEOUT_S)
                    )

    def abandon(self) -> bool:
        """Remove the temporary files of cancelled saves that have not ended.

        Call it before the process exits.

        Returns:
            Whether such saves exist. Their threads may be waiting for the storage, which would
            block a regular exit of the process.
        """
        unfinished = [save for save in self._cancelled_saves if save.is_ours and not save.is_done]
        for save in unfinished:
            if not save.is_in_place:
                shutil.rmtree(save.folder, ignore_errors=True)
        return bool(unfinished)

    def _save_copies(self, scan: Scan, metadata: Mapping[str, Any]) -> str:
        """Copy files to a new checkpoint and commit it; return its UUID."""
        with self._start_save(metadata) as save:
            self._transfer_and_commit(save, scan, self._observer)
        self._record_end(save)
        self._announce_commit(save)
        return save.uuid

    @contextlib.contextmanager
    def _save_directory(
        self, metadata: Mapping[str, Any], tensors: Tensors
    ) -> Iterator[tuple[Path, str]]:
        """Yield a directory to write to and commit its contents; remove them on an error."""
        with self._start_save(metadata) as save, self._stage_save(save):
            yield save.folder, save.uuid
            self._add_audit(save)
            save.freeze(tensors)
            self._transfer_and_commit(save, scan_directory(save.folder), self._observer)
        self._record_end(save)
        self._announce_commit(save)

    def _save_in_background(
        self, snapshot: Snapshot, metadata: Mapping[str, Any], tensors: Tensors
    ) -> str:
        """Wait for the previous save and start another; return its checkpoint's UUID.

        If `snapshot` raises, all traces of the save are removed.
        """
        self.wait()
        waited_s, self._waited_s = self._waited_s, 0.0
        with contextlib.ExitStack() as stack:
            save = stack.enter_context(self._start_save(metadata, waited_s))
            stack.enter_context(self._stage_save(save))
            writes = [snapshot(save.folder)]
            self._add_audit(save)
            save.freeze(tensors)
            save.stalled_s = save.age_s
            save.start_thread(functools.partial(self._complete_save, save, writes), stack)
        self._save = save
        return save.uuid

    def _add_audit(self, save: Save) -> None:
        """Write the digests of the watched state."""
        if self.watched_state is not None:
            from detcore.checkpoint.restore_audit import write_audit

            write_audit(save.folder, self.watched_state())

    def _complete_save(self, save: Save, writes: list[Callable[[], None] | None]) -> None:
        """Write, transfer and commit the files, on the thread of the save."""
        # Popped from the list, so that the copies of the state are freed before the upload.
        write = writes.pop()
        if write is not None:
            write()
        del write
        save.check()
        scan = scan_directory(save.folder)
        save.size_bytes = scan.size_bytes()
        self._transfer_and_commit(save, scan)
        self._record_end(save)

    def _transfer_and_commit(
        self, save: Save, scan: Scan, observer: TransferObserver | None = None
    ) -> None:
        """Transfer files to the storage, or flush files that are in place, and commit them."""
        digests = write_files(
            self._storage, save.uuid, scan, is_in_place=save.is_in_place, observer=observer,
            check=save.check,
        )  # fmt: skip
        self._commit_files(save, digests, scan.directories)

    def _commit_files(
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
        commit_manifest(self._storage, save.manifest)

    @contextlib.contextmanager
    def _start_save(self, metadata: Mapping[str, Any], waited_s: float = 0.0) -> Iterator[Save]:
        """Record a new checkpoint; if the block raises before the commit, remove all traces."""
        save = Save(metadata, self.versions, waited_s)
        self._record_change(
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
            full_error = explain_full_disk(error, self._storage, save.uuid, last)
            self._try_remove_files(save.uuid)
            if full_error is not None:
                raise full_error from error
            raise

    def _try_remove_files(self, uuid: str) -> None:
        try:
            # The error may be a lost response to a successful commit. The checkpoint then exists,
            # and the next start of the trial records it.
            if not has_manifest(self._storage, uuid):
                remove_files(self._storage, uuid)
                self._record_change(events.CheckpointDeleted(uuid=uuid, resources={}))
        except (DetcoreError, OSError) as error:
            # Only logged, so that the first error is raised. The checkpoint stays ACTIVE, and the
            # trial's next start removes it.
            import logging

            logging.getLogger("detcore").warning(
                "files of the failed checkpoint %s could not be removed yet: %s", uuid, error
            )

    @contextlib.contextmanager
    def _stage_save(self, save: Save) -> Iterator[None]:
        """Set the directory of a save during the block."""
        with open_staging_directory(self._storage, save.uuid) as (save.folder, save.is_in_place):
            yield

    def _record_change(self, change: events.CheckpointEvent) -> None:
        if self._records is not None:
            self._records.record_checkpoint(change, trial_id=self._trial_id)

    def _record_end(self, save: Save) -> None:
        """Record a committed checkpoint, on the thread that committed it."""
        save.finish()
        if self._records is not None:
            record_committed(self._records, self._storage, save.manifest, save.times)
        self._last_save = save
        self._parent = save.uuid

    def _collect_result(self, save: Save) -> None:
        """Report the result of an asynchronous save that has ended.

        Raises:
            BaseException: The exception of a failed save.
        """
        self._save = None
        if save.failure is not None:
            raise save.failure
        self._announce_commit(save)

    def _announce_commit(self, save: Save) -> None:
        if self.on_commit is not None:
            self.on_commit(save.uuid)

    def _get_background_save(self) -> Save | None:
        if self._save is not None and not self._save.is_ours:
            self._save = None  # a forked child: the parent process owns the save
        return self._save


def list_causes(error: BaseException | None) -> list[BaseException]:
    """Return an exception and its causes, since storages and frameworks wrap exceptions."""
    causes: list[BaseException] = []  # checked, because an exception may be its own cause
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


def _describe_delay(save: Save, waited_s: float) -> str:
    progress = (
        "its files were still being written"
        if save.size_bytes is None
        else f"its {save.size_bytes} bytes were being transferred to the storage"
    )
    return (
        f"checkpoint {save.uuid} of batch {save.steps_completed} was not saved within "
        f"{waited_s:.1f} s (started {save.age_s:.1f} s ago): {progress}.\n"
        "Earlier checkpoints are intact. The trial's next start keeps this checkpoint if it was "
        "committed in the meantime, and removes it otherwise.\n"
        "Allow more time with checkpoint_exit_timeout_s, or find out why the storage is slow:  "
        "detcore storage check URL"
    )


def explain_full_disk(
    error: BaseException, storage: StorageBackend, uuid: str, last: Manifest | None
) -> StorageFullError | None:
    """Return an error with the missing space, if a full disk caused the failure.

    Call it before the partial checkpoint is removed.

    Args:
        error: The exception that ended a save.
        storage: The storage in which the files were written.
        uuid: The checkpoint.
        last: The trial's previous checkpoint, whose size is the expected size.
    """
    root = storage.direct_path("")
    if root is None or not root.is_dir() or isinstance(error, StorageFullError):
        return None
    if not isinstance(error, Exception):
        return None
    free = shutil.disk_usage(root).free
    from detcore.storage import is_storage_full

    is_full_error = any(map(is_storage_full, list_causes(error)))
    if not is_full_error and free > _MIN_FREE_BYTES:
        return None
    num_written = sum(entry.size for entry in storage.list(uuid))
    expected = last.size_bytes if last is not None else 0
    num_missing = max(1, expected - num_written - free)
    measure = (
        f"the previous checkpoint has {expected} bytes, so about {num_missing} bytes are missing"
        if expected > num_written + free
        else f"at least {num_missing} bytes are missing"
    )
    return StorageFullError(
        f"no space left in {root} for checkpoint {uuid}: {num_written} bytes were written, "
        f"{measure}.\n"
        "The partial checkpoint is removed. Earlier checkpoints are intact.\n"
        "Free some space (detcore checkpoint delete UUID), then resume.",
        missing_bytes=num_missing,
    )
