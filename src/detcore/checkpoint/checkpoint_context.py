"""Save and restore the checkpoints of one trial."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.checkpoint.commit import Selector, scan_directory
from detcore.checkpoint.delete import delete_checkpoint
from detcore.checkpoint.manifest import Manifest, read_manifest
from detcore.checkpoint.manifest_fields import AUDIT_FILE, check_metadata
from detcore.checkpoint.restore import DownloadMode, download_shared, open_restored
from detcore.checkpoint.save import Saver, Snapshot, Tensors
from detcore.contract.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    ContextStateError,
    InvalidCheckpointError,
    UnavailableError,
)

if TYPE_CHECKING:
    from detcore.checkpoint.commit import CheckpointRecords
    from detcore.checkpoint.sharded_save import ShardedSaver
    from detcore.distributed import DistributedContext
    from detcore.storage import StorageBackend, TransferObserver


class CheckpointContext(Saver):
    """Saves and restores checkpoints.

    A checkpoint exists once all of its files are in the storage and its manifest is written. An
    interrupted save is removed at the trial's next start.

    Attributes:
        versions: Versions to record in manifests, by distribution. Framework plugins add theirs.
        has_restored: Whether `restore_path` or `download` was called.
        restored_audit: The file of `write_audit` in the checkpoint from which the trial resumed,
            once it was restored; or None.
    """

    def __init__(
        self,
        *,
        storage: StorageBackend,
        distributed: DistributedContext,
        database: CheckpointRecords | None = None,
        trial_id: int | None = None,
        parent: str | None = None,
        observer: TransferObserver | None = None,
        on_damage: Callable[[str, str], object] | None = None,
    ) -> None:
        """Set up saving for a trial.

        Args:
            storage: Storage of the files; the caller closes it.
            distributed: This worker's rank and its peers.
            database: Records of checkpoints, or None.
            trial_id: The trial that owns the checkpoints; required with a database.
            parent: UUID of the checkpoint that the trial resumed from, or None.
            observer: Receives the progress of synchronous transfers, or None.
            on_damage: Called with UUID and error if the checkpoint from which the trial resumed is
                missing or damaged.
        """
        super().__init__(
            storage=storage, records=database, trial_id=trial_id, parent=parent, observer=observer
        )
        self._distributed = distributed
        self._resumed_from = parent
        self._on_damage = on_damage
        self.has_restored = False
        self.restored_audit: bytes | None = None

    def upload(
        self,
        ckpt_dir: Path | str | None,
        metadata: Mapping[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Selector | None = None,
    ) -> str:
        """Save a directory as a checkpoint, without writing to the directory.

        Args:
            ckpt_dir: The directory. With `shard`, None if this worker has nothing to save.
            metadata: JSON values, with at least ``steps_completed``; also saved as
                ``metadata.json``, unless the directory has a file of that name.
            shard: Whether every worker saves a part. All workers must then call this method.
            selector: Selects the files to save. Called with names relative to the directory; names
                of empty directories end in ``/``. Default: all files.

        Returns:
            The checkpoint's UUID.

        Raises:
            InvalidCheckpointError: If the metadata or the directory cannot be saved; nothing was
                written.
            UnsafePathError: If a name is unsafe or a link leads out of the directory.
            StorageFullError: If the storage is full; earlier checkpoints are intact.
        """
        self.wait()
        if shard:
            folder = None if ckpt_dir is None else Path(ckpt_dir)
            return self._sharded_saver().upload(folder, metadata, selector)
        self._check_caller("upload")
        if ckpt_dir is None:
            raise InvalidCheckpointError(
                "upload() was called without ckpt_dir.\n"
                "Pass a directory; None is only for workers of a sharded checkpoint (shard=True) "
                "that have nothing to save."
            )
        plain = check_metadata(metadata)
        scan = scan_directory(Path(ckpt_dir), selector)
        return self._save_copies(scan, plain)

    def download(
        self,
        storage_id: str,
        ckpt_dir: Path | str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Copy a checkpoint's files to a directory, and check each file against the manifest.

        If the directory exists, the files are moved into it after all of them have arrived. Files
        of the same name are replaced, other files stay. If several workers of a node name the same
        directory, one worker downloads all files that any of them selects. All workers of the node
        must call this method.

        Args:
            storage_id: The checkpoint's UUID.
            ckpt_dir: The directory; it may exist.
            download_mode: Which workers download.
            selector: Selects the files to download. Default: all files.

        Raises:
            CheckpointNotFoundError: If the checkpoint does not exist.
            CheckpointCorruptError: If a file is missing or has changed; the message names it.
        """
        sharing = self._find_sharing_workers(storage_id, download_mode)
        with self._report_damage(storage_id):
            download_shared(
                self._storage,
                storage_id,
                Path(ckpt_dir),
                sharing,
                selector=selector,
                observer=self._observer,
            )
        self._note_restored(storage_id, Path(ckpt_dir))

    @contextlib.contextmanager
    def store_path(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        shard: bool = False,
        tensors: Tensors = (),
    ) -> Iterator[tuple[Path, str]]:
        """Save the files that the block writes into a directory as a checkpoint.

        On local storage, the files are written in place. If the block raises, they are removed.

        Example:
            >>> from detcore import core
            >>> with core.init() as context:
            ...     with context.checkpoint.store_path({"steps_completed": 100}) as (path, uuid):
            ...         _ = (path / "weights.txt").write_text("0.5")
            ...     with context.checkpoint.restore_path(uuid) as path:
            ...         print((path / "weights.txt").read_text())
            0.5

        Args:
            metadata: JSON values, with at least ``steps_completed``.
            shard: Whether every worker saves a part. All workers must then enter the block.
            tensors: Descriptions of the tensors in the files, for the manifest, or a function that
                returns them after the block. Not supported for sharded checkpoints.

        Yields:
            The directory to write to, and the checkpoint's UUID.

        Raises:
            InvalidCheckpointError: If the metadata cannot be saved; the block is not entered.
            UnsafePathError: If the block created a link that leads out of the directory.
            StorageFullError: If the storage is full; earlier checkpoints are intact.
        """
        self.wait()
        if shard:
            with self._sharded_saver().save_directory(metadata) as (path, uuid):
                yield path, uuid
            return
        self._check_caller("store_path")
        plain = check_metadata(metadata)
        with self._save_directory(plain, tensors) as (path, uuid):
            yield path, uuid

    def save_async(
        self,
        snapshot: Snapshot,
        metadata: Mapping[str, Any] | None = None,
        *,
        tensors: Tensors = (),
    ) -> str:
        """Save a checkpoint while training continues.

        ```python
        def snapshot(path):
            weights = model.weights.copy()  # training waits for the copy
            return lambda: np.save(path / "weights.npy", weights)  # runs in the background

        uuid = context.checkpoint.save_async(snapshot, {"steps_completed": 100})
        ```

        A background thread calls the function that `snapshot` returned, digests or uploads the
        files, commits the checkpoint and records it. Only one save runs at a time: a new save waits
        for the previous save. An error on the thread is raised once, by the next call of `poll`,
        `wait`, `save_async` or another method that changes checkpoints, or on closing the context.

        Args:
            snapshot: Called immediately with the directory to write to. Returns None, or a function
                that writes the remaining files. The function must not use any object that training
                changes. It may raise.
            metadata: JSON values, with at least ``steps_completed``.
            tensors: Descriptions of the tensors in the files, for the manifest, or a function that
                returns them after `snapshot`.

        Returns:
            The UUID. The checkpoint exists only after the commit.

        Raises:
            InvalidCheckpointError: If the metadata cannot be saved; no save was started.
            StorageError: If the previous save failed.
        """
        self._check_caller("save_async")
        plain = check_metadata(metadata)
        return self._save_in_background(snapshot, plain, tensors)

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
        storage: StorageBackend | None = None,
    ) -> Iterator[Path]:
        """Provide a directory with a checkpoint's files, each checked against the manifest.

        On local storage, without a selector, the directory is the checkpoint itself: only read it.
        Otherwise it is a copy that is removed after the block. See `store_path` for an example.

        Args:
            storage_id: The checkpoint's UUID.
            download_mode: Which workers download and check. If workers share the download, all
                workers of a node must enter the block, and each waits at its end for the others.
            selector: Selects the files to provide. Default: all files. Workers that share a copy
                get every file that any of them selects.
            storage: Storage of the checkpoint. Default: the trial's storage.

        Yields:
            The directory.

        Raises:
            CheckpointNotFoundError: If the checkpoint does not exist.
            CheckpointCorruptError: If a file is missing or has changed; the message names it.
        """
        sharing = self._find_sharing_workers(storage_id, download_mode)
        with contextlib.ExitStack() as stack:
            with self._report_damage(storage_id):
                path = stack.enter_context(
                    open_restored(
                        storage or self._storage,
                        storage_id,
                        sharing,
                        selector=selector,
                        observer=self._observer,
                    )
                )
            self._note_restored(storage_id, path)
            yield path

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """Return the metadata that a checkpoint was saved with.

        Raises:
            CheckpointNotFoundError: If the checkpoint does not exist.
            CheckpointCorruptError: If its manifest is damaged.
        """
        return dict(self.get_manifest(storage_id).metadata)

    def get_manifest(self, storage_id: str) -> Manifest:
        """Return a checkpoint's manifest.

        Raises:
            CheckpointNotFoundError: If the checkpoint does not exist.
            CheckpointCorruptError: If its manifest is damaged.
        """
        self._wait_for(storage_id)
        with self._report_damage(storage_id):
            return read_manifest(self._storage, storage_id)

    def delete(self, storage_id: str, globs: Iterable[str] | None = None) -> dict[str, int]:
        """Delete a checkpoint, or the files in it that match patterns, and record the deletion.

        Deleting a deleted checkpoint has no effect. If the server with the records is unreachable,
        the deletion is postponed: the files are deleted when the trial starts again, or by
        ``detcore checkpoint prune``.

        Args:
            storage_id: The checkpoint's UUID.
            globs: Patterns as in `pathlib.Path.glob`. A matching directory is deleted with its
                contents. ``["**/*"]`` and None delete the whole checkpoint.

        Returns:
            The remaining files and their sizes; names of empty directories end in ``/``.

        Raises:
            CheckpointNotFoundError: If patterns are given and the checkpoint is not committed.
            CheckpointStateError: If it is in the model registry; nothing was deleted.
            UnsafePathError: If a pattern leads out of the checkpoint.
        """
        self._check_caller("delete")
        self.wait()
        try:
            return delete_checkpoint(self._storage, storage_id, database=self._records, globs=globs)
        except UnavailableError as away:
            import logging

            logging.getLogger("detcore").warning("%s", away)
            return self.get_manifest(storage_id).resources()

    @contextlib.contextmanager
    def _report_damage(self, storage_id: str) -> Iterator[None]:
        """Report damage of the checkpoint from which the trial resumed.

        The next start of the trial then resumes from the previous checkpoint.
        """
        try:
            yield
        except (CheckpointCorruptError, CheckpointNotFoundError) as error:
            if storage_id == self._resumed_from and self._on_damage is not None:
                self._on_damage(storage_id, str(error))
            raise

    def _note_restored(self, storage_id: str, path: Path) -> None:
        if storage_id == self._resumed_from and (path / AUDIT_FILE).exists():
            self.restored_audit = (path / AUDIT_FILE).read_bytes()

    def _find_sharing_workers(
        self, storage_id: str, mode: DownloadMode
    ) -> DistributedContext | None:
        """Return the workers that share a download, or None, once the checkpoint is saved."""
        if not isinstance(mode, DownloadMode):
            raise InvalidCheckpointError(
                f"download_mode is {mode!r}; expected a member of DownloadMode"
            )
        self.has_restored = True
        self._wait_for(storage_id)
        return self._distributed if mode is DownloadMode.LocalWorkersShareDownload else None

    def _wait_for(self, storage_id: str) -> None:
        """Wait for a checkpoint that is still being saved."""
        save = self._get_background_save()
        if save is not None and save.uuid == storage_id:
            self.wait()

    def _sharded_saver(self) -> ShardedSaver:
        from detcore.checkpoint.sharded_save import ShardedSaver

        return ShardedSaver(self, self._storage, self._distributed)

    def _check_caller(self, name: str) -> None:
        rank = self._distributed.rank
        if rank != 0:
            advice = (
                "Call it on rank 0 only"
                if name == "delete"
                else (
                    "Either rank 0 saves for all workers, or every worker saves its part.\n"
                    "Call it on rank 0 only, or pass shard=True on all workers"
                )
            )
            raise ContextStateError(f"{name}() was called on rank {rank}.\n{advice}.")
