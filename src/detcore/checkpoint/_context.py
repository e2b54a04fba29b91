"""Saving and restoring the checkpoints of one trial."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.checkpoint._async import Behind, Threads
from detcore.checkpoint._delete import delete_checkpoint
from detcore.checkpoint._download import DownloadMode, download_checkpoint
from detcore.checkpoint._manifest import Manifest, read_manifest
from detcore.checkpoint._metadata import check_metadata
from detcore.checkpoint._outstanding import Outstanding, SaveProgress, Timeout
from detcore.checkpoint._save import Saver, SaveTimes, Snapshot, Tensors
from detcore.checkpoint._scan import Selector, scan_folder
from detcore.errors import ContextStateError, InvalidCheckpointError, UnavailableError

if TYPE_CHECKING:
    from detcore.checkpoint._records import CheckpointRecords
    from detcore.checkpoint._sharded import ShardedSaver
    from detcore.checkpoint._watch import TransferObserver
    from detcore.distributed import DistributedContext
    from detcore.hooks import CheckpointSaved
    from detcore.storage import StorageBackend

__all__ = ["CheckpointContext", "CheckpointOwner"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOwner:
    """Whose checkpoints are saved."""

    trial_id: int
    experiment_id: int


class CheckpointContext:
    """Saves and restores checkpoints.

    A checkpoint counts once all of its files are in the storage and its manifest is written; what
    was being saved when the process died is removed at the next start.

    Attributes:
        versions: Versions to note in the manifests, by distribution; framework plugins add theirs.
        has_restored: Whether `restore_path` or `download` was called.
    """

    def __init__(
        self,
        *,
        storage: StorageBackend,
        distributed: DistributedContext,
        database: CheckpointRecords | None = None,
        owner: CheckpointOwner | None = None,
        parent: str | None = None,
        on_saved: Callable[[CheckpointSaved], None] | None = None,
        behind: Behind | None = None,
        observer: TransferObserver | None = None,
    ) -> None:
        """Take what a trial's checkpoints need.

        Args:
            storage: Where the files go; not closed by this.
            distributed: This worker's place among the trial's workers.
            database: Where checkpoints are recorded, or None.
            owner: Whose they are; needed with a database.
            parent: UUID of the checkpoint that the trial resumed from, or None.
            on_saved: Called after each commit, on the thread that uses this context.
            behind: Time and threads of asynchronous saves; default: this machine's.
            observer: Told of the bytes of transfers that the caller waits for; None: nobody is.
        """
        behind = behind or Threads()
        self._storage = storage
        self._distributed = distributed
        self._database = database
        self.versions: dict[str, str] = {}
        self.has_restored = False
        self._saver = Saver(
            storage=storage,
            database=database,
            owner=owner,
            parent=parent,
            on_saved=on_saved,
            behind=behind,
            observer=observer,
        )
        self._observer = observer
        self._outstanding = Outstanding(self._saver, behind)

    def upload(
        self,
        ckpt_dir: Path | str | None,
        metadata: Mapping[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Selector | None = None,
    ) -> str:
        """Save a folder as a checkpoint. The folder itself is not written to.

        Args:
            ckpt_dir: The folder. With `shard`, None where this worker has nothing to save.
            metadata: JSON values, with at least ``steps_completed``; also saved as
                ``metadata.json``, unless the folder has a file of that name.
            shard: Whether every worker saves a part; all of them then call this.
            selector: Which files to save; called with names below the folder, those of empty
                folders end in ``/``. Default: all.

        Returns:
            The checkpoint's UUID.

        Raises:
            InvalidCheckpointError: If the metadata or the folder cannot be saved; nothing was
                written.
            UnsafePathError: If a name is unsafe or a link leads out of the folder.
            StorageFullError: If there is no room; earlier checkpoints are untouched.
        """
        self._outstanding.wait()
        if shard:
            folder = None if ckpt_dir is None else Path(ckpt_dir)
            return self._sharded_saver().upload(folder, metadata, self.versions, selector)
        self._check_caller("upload")
        if ckpt_dir is None:
            raise InvalidCheckpointError(
                "upload() needs a ckpt_dir; None is for workers of a sharded checkpoint that "
                "have nothing to save"
            )
        plain = check_metadata(metadata)
        scan = scan_folder(Path(ckpt_dir), selector)
        return self._saver.save_copies(scan, plain, self.versions).uuid

    def download(
        self,
        storage_id: str,
        ckpt_dir: Path | str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Copy a checkpoint's files to a folder, each checked against the manifest.

        Into a folder that exists the files are moved once all of them are there: those of the same
        name are replaced, others stay. Of the workers of a node that name the same folder, one
        downloads what any of them selects; all workers of the node call this.

        Args:
            storage_id: The checkpoint's UUID.
            ckpt_dir: The folder; it may exist.
            download_mode: Which workers download.
            selector: Which files to take; default: all.

        Raises:
            CheckpointNotFoundError: If there is no such checkpoint.
            CheckpointCorruptError: If a file is missing or has changed; it is named.
        """
        from detcore.checkpoint._shared import download_shared

        _check_mode(download_mode)
        self.has_restored = True
        self._settle(storage_id)
        folder = Path(ckpt_dir)
        if download_mode is DownloadMode.LocalWorkersShareDownload:
            download_shared(
                self._storage,
                storage_id,
                folder,
                self._distributed,
                selector=selector,
                observer=self._observer,
            )
        else:
            download_checkpoint(
                self._storage, storage_id, folder, selector=selector, observer=self._observer
            )

    @contextlib.contextmanager
    def store_path(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        shard: bool = False,
        tensors: Tensors = (),
    ) -> Iterator[tuple[Path, str]]:
        """Save what the block writes into a folder as a checkpoint.

        ```python
        with context.checkpoint.store_path({"steps_completed": 100}) as (path, uuid):
            (path / "weights.bin").write_bytes(weights)
        ```

        On a storage that is a folder of this machine, the files are written in place. If the
        block raises, nothing is left.

        Args:
            metadata: JSON values, with at least ``steps_completed``.
            shard: Whether every worker saves a part; all of them then enter the block.
            tensors: What the files hold, for the manifest, or what tells it after the block; not
                of sharded checkpoints.

        Yields:
            The folder to write to, and the checkpoint's UUID.

        Raises:
            InvalidCheckpointError: If the metadata cannot be saved; the block is not entered.
            UnsafePathError: If the block made a link that leads out of the folder.
            StorageFullError: If there is no room; earlier checkpoints are untouched.
        """
        self._outstanding.wait()
        if shard:
            with self._sharded_saver().saving(metadata, self.versions) as (path, uuid):
                yield path, uuid
            return
        self._check_caller("store_path")
        plain = check_metadata(metadata)
        with self._saver.saving(plain, self.versions, tensors) as (path, uuid):
            yield path, uuid

    def save_async(
        self,
        snapshot: Snapshot,
        metadata: Mapping[str, Any] | None = None,
        *,
        tensors: Tensors = (),
    ) -> str:
        """Save a checkpoint while training goes on.

        ```python
        def snapshot(path):
            weights = model.weights.copy()  # training stands still for this
            return lambda: np.save(path / "weights.npy", weights)  # and not for this

        uuid = context.checkpoint.save_async(snapshot, {"steps_completed": 100})
        ```

        A thread calls what `snapshot` returned, digests or uploads the files, commits the
        checkpoint and records it. One save is under way at a time: an earlier one is waited for
        first. What the thread fails with is raised once, by the next call of `poll`, `wait`,
        `save_async` or another method that changes checkpoints, or when the context is closed.

        Args:
            snapshot: Called at once with the folder to write to; returns what writes the rest, or
                None. That function must touch nothing that training changes, and may raise.
            metadata: JSON values, with at least ``steps_completed``.
            tensors: What the files hold, for the manifest, or what tells it after `snapshot`.

        Returns:
            The checkpoint's UUID; it counts only once it is committed.

        Raises:
            InvalidCheckpointError: If the metadata cannot be saved; nothing was begun.
            StorageError: What the save before failed with.
        """
        self._check_caller("save_async")
        plain = check_metadata(metadata)
        return self._outstanding.begin(snapshot, plain, self.versions, tensors)

    def poll(self) -> None:
        """Take note of an asynchronous save that is over; costs nothing while there is none.

        Observers are told of it now, on this thread.

        Raises:
            StorageError: If it failed; as `store_path` would have raised.
        """
        self._outstanding.poll()

    def wait(self, timeout_s: Timeout = None) -> None:
        """Wait until no asynchronous save is under way.

        Args:
            timeout_s: How long, in seconds; None: as long as it takes. A function is asked
                several times a second how many are left.

        Raises:
            CheckpointTimeoutError: If it is not over by then. It goes on and can be waited for
                again.
            StorageError: If it failed; as `store_path` would have raised.
        """
        self._outstanding.wait(timeout_s)

    def progress(self) -> SaveProgress | None:
        """Return how far the asynchronous save under way is; None where there is none."""
        return self._outstanding.progress()

    def give_up(self, timeout_s: float = 2.0) -> None:
        """Give up the asynchronous save under way, and remove what was written of it.

        One that gets its commit through first counts.

        Args:
            timeout_s: How long to wait for its end, in seconds. A request to the storage that
                lasts longer ends by itself, and nothing comes after it.
        """
        self._outstanding.give_up(timeout_s)

    def abandon(self) -> bool:
        """Remove the temporary files of saves that were given up and have not ended.

        Called when the process is about to end.

        Returns:
            Whether there are any. Threads of theirs may wait for the storage, and a process that
            ends as usual waits for them.
        """
        return self._outstanding.abandon()

    @property
    def save_times(self) -> list[SaveTimes]:
        """How long the last saves of this context took, oldest first."""
        return list(self._saver.seen)

    def close(self, timeout_s: Timeout = 0.0, error: BaseException | None = None) -> None:
        """Wait for the asynchronous save under way; one that is not over then is given up.

        Args:
            timeout_s: How long, as for `wait`.
            error: What ends the trial already. What the save fails with is added to it as a note
                and logged, and not raised.

        Raises:
            CheckpointTimeoutError: If it was not over by then.
            StorageError: If it failed.
        """
        self._outstanding.close(timeout_s, error)

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> Iterator[Path]:
        """Give the block a folder with a checkpoint's files, each checked against the manifest.

        On a storage that is a folder of this machine, and without a selector, it is the checkpoint
        itself: read it only. Otherwise it is a copy that is removed after the block.

        Args:
            storage_id: The checkpoint's UUID.
            download_mode: Which workers download, and check. Where they share it, all workers of a
                node enter the block, and it is left once all of them leave it.
            selector: Which files to take; default: all. Workers that share a copy get what any of
                them selects.

        Yields:
            The folder.

        Raises:
            CheckpointNotFoundError: If there is no such checkpoint.
            CheckpointCorruptError: If a file is missing or has changed; it is named.
        """
        from detcore.checkpoint._shared import restored

        _check_mode(download_mode)
        self.has_restored = True
        self._settle(storage_id)
        is_shared = download_mode is DownloadMode.LocalWorkersShareDownload
        sharing = self._distributed if is_shared else None
        with restored(
            self._storage, storage_id, sharing, selector=selector, observer=self._observer
        ) as path:
            yield path

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """Return the metadata that a checkpoint was saved with.

        Raises:
            CheckpointNotFoundError: If there is no such checkpoint.
            CheckpointCorruptError: If its manifest is damaged.
        """
        return dict(self.get_manifest(storage_id).metadata)

    def get_manifest(self, storage_id: str) -> Manifest:
        """Return what a checkpoint consists of.

        Raises:
            CheckpointNotFoundError: If there is no such checkpoint.
            CheckpointCorruptError: If its manifest is damaged.
        """
        self._settle(storage_id)
        return read_manifest(self._storage, storage_id)

    def delete(self, storage_id: str, globs: Iterable[str] | None = None) -> dict[str, int]:
        """Delete a checkpoint, or those of its files that patterns name, and record it.

        Deleting one that is deleted already is fine. Where the records are behind a server that is
        away, it is put off: the files stay until the server is back, and are deleted when the trial
        starts again or by the next pass of ``detcore checkpoint prune``.

        Args:
            storage_id: The checkpoint's UUID.
            globs: Patterns as in `pathlib.Path.glob`; a folder that matches goes with all that is
                in it. ``["**/*"]`` and None mean everything.

        Returns:
            The files that are left and their sizes; those of empty folders end in ``/``.

        Raises:
            CheckpointNotFoundError: If patterns are given and the checkpoint is not committed.
            CheckpointStateError: If it is in the model registry; nothing was deleted.
            UnsafePathError: If a pattern leads out of the checkpoint.
        """
        self._check_caller("delete")
        self._outstanding.wait()
        try:
            return delete_checkpoint(
                self._storage, storage_id, database=self._database, globs=globs
            )
        except UnavailableError as away:
            import logging

            logging.getLogger("detcore").warning("%s", away)
            return self.get_manifest(storage_id).resources()

    def describe_saved(self, storage_id: str) -> CheckpointSaved:
        """Return what observers are told of a checkpoint that this context saved.

        Raises:
            CheckpointNotFoundError: If there is no such checkpoint.
        """
        self._settle(storage_id)
        return self._saver.describe(storage_id)

    def _settle(self, storage_id: str) -> None:
        """Wait for a checkpoint that is asked for while it is being saved."""
        if self._outstanding.uuid == storage_id:
            self._outstanding.wait()

    def _sharded_saver(self) -> ShardedSaver:
        from detcore.checkpoint._sharded import ShardedSaver

        return ShardedSaver(self._saver, self._storage, self._distributed)

    def _check_caller(self, name: str) -> None:
        rank = self._distributed.rank
        if rank != 0:
            what = (
                "Call it on rank 0 only"
                if name == "delete"
                else (
                    "One worker saves for all, or every worker saves its part.\n"
                    "Call it on rank 0 only, or pass shard=True on all workers"
                )
            )
            raise ContextStateError(f"{name}() was called on rank {rank}.\n{what}.")


def _check_mode(mode: object) -> None:
    if not isinstance(mode, DownloadMode):
        raise InvalidCheckpointError(
            f"download_mode is {mode!r}; expected one of DownloadMode's values"
        )
