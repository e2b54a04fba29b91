"""Save checkpoints: record, write, commit, record; and clean up after a failure."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import errno
import functools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from detcore.checkpoint._async import AsyncSave, Behind, Threads
from detcore.checkpoint._commit import (
    add_metadata,
    commit,
    put_files,
    record_committed,
    seal_files,
    staging_folder,
)
from detcore.checkpoint._delete import remove_files
from detcore.checkpoint._fields import new_id
from detcore.checkpoint._manifest import METADATA_FILE, Manifest, has_manifest
from detcore.checkpoint._recover import describe_checkpoint
from detcore.checkpoint._scan import Scan, scan_folder
from detcore.errors import DetcoreError, StorageFullError

if TYPE_CHECKING:
    from detcore.checkpoint._context import CheckpointOwner
    from detcore.checkpoint._records import CheckpointRecords
    from detcore.checkpoint._watch import TransferObserver
    from detcore.hooks import CheckpointSaved
    from detcore.storage import FileDigest, StorageBackend
    from detcore.types import TensorInfo

__all__ = ["Description", "SaveTimes", "Saver", "Snapshot", "Tensors"]

_SAVES_REMEMBERED = 16
Snapshot: TypeAlias = "Callable[[Path], Callable[[], None] | None]"
"""Copies the state, given the folder to write to; returns a function that writes the rest."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# A disk with less space than this is taken for full after any failure: frameworks raise errors
# that do not say why a write failed.
_NOTHING_LEFT_BYTES = 64 * 1024
Tensors: TypeAlias = "Sequence[TensorInfo] | Callable[[], Sequence[TensorInfo]]"
"""Tensors in a checkpoint's files, or a function that returns them after the snapshot."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SaveTimes:
    """Duration of a save.

    Attributes:
        size_bytes: Sum of the sizes of its files.
        stalled_s: Seconds for which training waited, including the wait for the previous save.
        total_s: Seconds from its beginning, after that wait, to its record.
    """

    size_bytes: int
    stalled_s: float
    total_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Fields of a checkpoint's manifest other than its files."""

    metadata: Mapping[str, Any]
    versions: Mapping[str, str]
    tensors: tuple[TensorInfo, ...] = ()


class Saver:
    """Saves one trial's checkpoints, one at a time.

    Attributes:
        seen: Durations of recent saves, oldest first.
        observer: Receives the progress of saves that the caller waits for, or None.
    """

    def __init__(
        self,
        *,
        storage: StorageBackend,
        database: CheckpointRecords | None,
        owner: CheckpointOwner | None,
        parent: str | None,
        on_saved: Callable[[CheckpointSaved], None] | None,
        behind: Behind | None = None,
        observer: TransferObserver | None = None,
    ) -> None:
        self._storage = storage
        self.observer = observer
        self._database = database
        self._owner = owner
        self._parent = parent
        self._on_saved = on_saved
        self._behind = behind or Threads()
        self._last: Manifest | None = None
        self._last_times: SaveTimes | None = None
        self._began = 0.0
        self.seen: collections.deque[SaveTimes] = collections.deque(maxlen=_SAVES_REMEMBERED)

    def save_copies(
        self, scan: Scan, metadata: Mapping[str, Any], versions: Mapping[str, str]
    ) -> Manifest:
        """Copy files to a new checkpoint and commit it."""
        with self.begun(metadata) as uuid:
            digests = put_files(self._storage, uuid, scan, observer=self.observer)
            manifest = self.commit(uuid, digests, scan.directories, metadata, versions)
        self.committed(manifest)
        return manifest

    @contextlib.contextmanager
    def saving(
        self, metadata: Mapping[str, Any], versions: Mapping[str, str], tensors: Tensors = ()
    ) -> Iterator[tuple[Path, str]]:
        """Yield a folder to write to and commit its contents, or leave nothing behind."""
        with self.begun(metadata) as uuid, self._folder(uuid) as (folder, is_direct):
            yield folder, uuid
            what = _describe(metadata, versions, tensors)
            scan = scan_folder(folder)
            manifest = self._seal(self._storage, uuid, scan, is_direct, what, self.observer)
        self.committed(manifest)

    def begin(
        self,
        snapshot: Snapshot,
        metadata: Mapping[str, Any],
        versions: Mapping[str, str],
        tensors: Tensors,
        *,
        began: float,
    ) -> AsyncSave:
        """Begin a save that ends on another thread; pass it to `collect` then.

        Args:
            snapshot: Called here; its exceptions are raised, and nothing is left behind.
            metadata: Metadata, checked already.
            versions: Versions, by distribution.
            tensors: Tensors in the files; evaluated after the snapshot.
            began: When the caller requested it, by this saver's clock.
        """
        with contextlib.ExitStack() as stack:
            uuid = stack.enter_context(self.begun(metadata))
            folder, is_direct = stack.enter_context(self._folder(uuid))
            writes = [snapshot(folder)]
            what = _describe(metadata, versions, tensors)
            save = AsyncSave(uuid, metadata["steps_completed"], began=began, behind=self._behind)
            work = functools.partial(self._finish, save, writes, folder, is_direct, what)
            save.temporary = None if is_direct else folder
            save.stalled_s = self._behind.now() - began
            save.start(work, stack)
        return save

    def _finish(
        self,
        save: AsyncSave,
        writes: list[Callable[[], None] | None],
        folder: Path,
        is_direct: bool,
        what: Description,
    ) -> Manifest:
        """Do the rest of a save, on its own thread."""
        # Removed from the list, so that the copies of the state are freed before the upload.
        write = writes.pop()
        if write is not None:
            write()
        del write
        transfer = save.transfer
        transfer.check()
        scan = scan_folder(folder)
        transfer.begin(scan.size_bytes(), self._behind.now())
        storage = transfer.watched(self._storage)
        manifest = self._seal(storage, save.uuid, scan, is_direct, what)
        self._record(manifest, self._times(manifest, stalled_s=save.stalled_s))
        return manifest

    def collect(self, save: AsyncSave) -> None:
        """Report a save that has ended.

        Raises:
            BaseException: The exception that it failed with.
        """
        if save.failure is not None:
            raise save.failure
        manifest, ended = save.manifest, save.ended
        assert manifest is not None  # it ended without a failure
        assert ended is not None
        self._tell(
            manifest,
            SaveTimes(
                size_bytes=manifest.size_bytes,
                stalled_s=save.stalled_s,
                total_s=ended - self._began,
            ),
        )

    def _seal(
        self,
        storage: StorageBackend,
        uuid: str,
        scan: Scan,
        is_direct: bool,
        what: Description,
        observer: TransferObserver | None = None,
    ) -> Manifest:
        """Transfer files to the storage, or flush them if they are in place, and commit them."""
        write = seal_files if is_direct else put_files
        digests = write(storage, uuid, scan, observer=observer)
        return self._commit(storage, uuid, digests, scan.directories, what)

    def describe(self, uuid: str) -> CheckpointSaved:
        """Return the description of a checkpoint for observers."""
        manifest, times = self._last, self._last_times
        if manifest is None or times is None or manifest.uuid != uuid:
            return describe_checkpoint(self._storage, uuid)
        return self._describe(manifest, times)

    def _describe(self, manifest: Manifest, times: SaveTimes) -> CheckpointSaved:
        from detcore.hooks import CheckpointSaved

        return CheckpointSaved(
            uuid=manifest.uuid,
            steps_completed=manifest.steps_completed,
            url=f"{self._storage.url}/{manifest.uuid}",
            size_bytes=manifest.size_bytes,
            path=self._storage.direct_path(manifest.uuid),
            stalled_s=times.stalled_s,
            total_s=times.total_s,
        )

    def _times(self, manifest: Manifest, *, stalled_s: float | None = None) -> SaveTimes:
        """Return the duration of a save that is committed now."""
        total_s = self._behind.now() - self._began
        return SaveTimes(
            size_bytes=manifest.size_bytes,
            stalled_s=total_s if stalled_s is None else stalled_s,
            total_s=total_s,
        )

    @contextlib.contextmanager
    def begun(self, metadata: Mapping[str, Any]) -> Iterator[str]:
        """Record a new checkpoint; if the block fails before the commit, remove all traces."""
        uuid = new_id()
        self._began = self._behind.now()
        if self._database is not None and self._owner is not None:
            self._database.checkpoint_started(
                uuid=uuid,
                trial_id=self._owner.trial_id,
                experiment_id=self._owner.experiment_id,
                storage_url=self._storage.url,
                steps_completed=metadata["steps_completed"],
            )
        try:
            yield uuid
        except BaseException as error:
            explained = explain_full(error, self._storage, uuid, self._last)
            self._try_abandon(uuid)
            if explained is not None:
                raise explained from error
            raise

    def _try_abandon(self, uuid: str) -> None:
        try:
            self._abandon(uuid)
        except (DetcoreError, OSError) as error:
            # Not worth hiding the first error: it stays recorded as ACTIVE, and the trial's next
            # start removes it.
            import logging

            logging.getLogger("detcore").warning(
                "files of the failed checkpoint %s could not be removed yet: %s", uuid, error
            )

    def _abandon(self, uuid: str) -> None:
        # The failure may have been a lost response to a commit that succeeded: the checkpoint then
        # counts, and the next start of the trial records it.
        if has_manifest(self._storage, uuid):
            return
        remove_files(self._storage, uuid)
        if self._database is not None and self._owner is not None:
            self._database.checkpoint_deleted(uuid)

    def _folder(self, uuid: str) -> contextlib.AbstractContextManager[tuple[Path, bool]]:
        """Provide a folder to write a checkpoint to, and whether it is its place in the storage."""
        return staging_folder(self._storage, uuid)

    def commit(
        self,
        uuid: str,
        digests: Mapping[str, FileDigest],
        directories: tuple[str, ...],
        metadata: Mapping[str, Any],
        versions: Mapping[str, str],
    ) -> Manifest:
        """Commit a checkpoint whose files are all in the storage."""
        what = Description(metadata=metadata, versions=versions)
        return self._commit(self._storage, uuid, digests, directories, what)

    def _commit(
        self,
        storage: StorageBackend,
        uuid: str,
        digests: Mapping[str, FileDigest],
        directories: tuple[str, ...],
        what: Description,
    ) -> Manifest:
        import detcore

        files = dict(digests)
        if METADATA_FILE not in files:
            files |= add_metadata(storage, uuid, what.metadata)
        manifest = Manifest(
            uuid=uuid,
            steps_completed=what.metadata["steps_completed"],
            metadata=what.metadata,
            created=datetime.datetime.now(datetime.timezone.utc),
            files=files,
            directories=directories,
            parent=self._parent,
            versions={"detcore": detcore.__version__, **what.versions},
            tensors=what.tensors,
        )
        commit(storage, manifest)
        return manifest

    def committed(self, manifest: Manifest) -> None:
        """Record a committed checkpoint, and notify observers."""
        times = self._times(manifest)
        self._record(manifest, times)
        self._tell(manifest, times)

    def _record(self, manifest: Manifest, times: SaveTimes) -> None:
        if self._database is not None and self._owner is not None:
            record_committed(self._database, manifest, self._describe(manifest, times))

    def _tell(self, manifest: Manifest, times: SaveTimes) -> None:
        """Remember the newest checkpoint and notify observers, which run foreign code."""
        self._last, self._last_times = manifest, times
        self._parent = manifest.uuid
        self.seen.append(times)
        if self._on_saved is not None:
            self._on_saved(self.describe(manifest.uuid))


def _describe(
    metadata: Mapping[str, Any], versions: Mapping[str, str], tensors: Tensors
) -> Description:
    named = tensors() if callable(tensors) else tensors
    return Description(metadata=metadata, versions=dict(versions), tensors=tuple(named))


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
    if not _says_full(error) and free > _NOTHING_LEFT_BYTES:
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


def _says_full(error: BaseException) -> bool:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, OSError) and link.errno in _FULL:
            return True
        link = link.__cause__ or link.__context__
    return False
