"""Saving: record, write, commit, record; and clean up when that fails."""

from __future__ import annotations

import contextlib
import datetime
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.checkpoint._commit import (
    add_metadata,
    commit,
    put_files,
    record_committed,
    seal_files,
)
from detcore.checkpoint._delete import remove_files
from detcore.checkpoint._full import explain_full
from detcore.checkpoint._ids import new_id
from detcore.checkpoint._manifest import METADATA_FILE, Manifest, has_manifest, read_manifest
from detcore.checkpoint._scan import Scan, scan_folder
from detcore.errors import DetcoreError

if TYPE_CHECKING:
    from detcore.checkpoint._context import CheckpointOwner
    from detcore.database import Database
    from detcore.hooks import CheckpointSaved
    from detcore.storage import FileDigest, StorageBackend

__all__ = ["Saver"]


class Saver:
    """Saves one trial's checkpoints, one after the other."""

    def __init__(
        self,
        *,
        storage: StorageBackend,
        database: Database | None,
        owner: CheckpointOwner | None,
        parent: str | None,
        on_saved: Callable[[CheckpointSaved], None] | None,
    ) -> None:
        self._storage = storage
        self._database = database
        self._owner = owner
        self._parent = parent
        self._on_saved = on_saved
        self._last: Manifest | None = None

    def save_copies(
        self, scan: Scan, metadata: Mapping[str, Any], versions: Mapping[str, str]
    ) -> Manifest:
        """Copy files to a new checkpoint and commit it."""
        with self.begun(metadata) as uuid:
            digests = put_files(self._storage, uuid, scan)
            manifest = self.commit(uuid, digests, scan.directories, metadata, versions)
        self.committed(manifest)
        return manifest

    @contextlib.contextmanager
    def saving(
        self, metadata: Mapping[str, Any], versions: Mapping[str, str]
    ) -> Iterator[tuple[Path, str]]:
        """Yield a folder to write to and commit what is in it, or leave nothing."""
        with self.begun(metadata) as uuid, self._folder(uuid) as (folder, is_direct):
            yield folder, uuid
            scan = scan_folder(folder)
            write = seal_files if is_direct else put_files
            digests = write(self._storage, uuid, scan)
            manifest = self.commit(uuid, digests, scan.directories, metadata, dict(versions))
        self.committed(manifest)

    def describe(self, uuid: str) -> CheckpointSaved:
        """Return what observers are told of a checkpoint."""
        from detcore.hooks import CheckpointSaved

        manifest = self._last
        if manifest is None or manifest.uuid != uuid:
            manifest = read_manifest(self._storage, uuid)
        return CheckpointSaved(
            uuid=uuid,
            steps_completed=manifest.steps_completed,
            url=f"{self._storage.url}/{uuid}",
            size_bytes=manifest.size_bytes,
            path=self._storage.direct_path(uuid),
        )

    @contextlib.contextmanager
    def begun(self, metadata: Mapping[str, Any]) -> Iterator[str]:
        """Record a new checkpoint; if the block fails before the commit, remove all traces."""
        uuid = new_id()
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
            # Not worth hiding what went wrong first: it stays recorded as ACTIVE, and the next
            # start of the trial removes it.
            import logging

            logging.getLogger("detcore").warning(
                "what was written of checkpoint %s could not be removed yet: %s", uuid, error
            )

    def _abandon(self, uuid: str) -> None:
        # What failed may have been the answer to a commit that got through: it counts then, and
        # the next start of the trial records it.
        if has_manifest(self._storage, uuid):
            return
        remove_files(self._storage, uuid)
        if self._database is not None and self._owner is not None:
            self._database.checkpoint_deleted(uuid)

    @contextlib.contextmanager
    def _folder(self, uuid: str) -> Iterator[tuple[Path, bool]]:
        """Yield a folder to write a checkpoint to, and whether that is its place in the storage."""
        direct = self._storage.direct_path(uuid)
        if direct is not None:
            direct.mkdir(parents=True)
            yield direct, True
            return
        import tempfile

        temporary = Path(tempfile.mkdtemp(prefix="detcore-save-"))
        try:
            yield temporary, False
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def commit(
        self,
        uuid: str,
        digests: Mapping[str, FileDigest],
        directories: tuple[str, ...],
        metadata: Mapping[str, Any],
        versions: Mapping[str, str],
    ) -> Manifest:
        """Make a checkpoint exist whose files are all in the storage."""
        import detcore

        files = dict(digests)
        if METADATA_FILE not in files:
            files |= add_metadata(self._storage, uuid, metadata)
        manifest = Manifest(
            uuid=uuid,
            steps_completed=metadata["steps_completed"],
            metadata=metadata,
            created=datetime.datetime.now(datetime.timezone.utc),
            files=files,
            directories=directories,
            parent=self._parent,
            versions={"detcore": detcore.__version__, **versions},
        )
        commit(self._storage, manifest)
        return manifest

    def committed(self, manifest: Manifest) -> None:
        """Record a checkpoint that exists, and tell of it."""
        self._last = manifest
        self._parent = manifest.uuid
        if self._database is not None and self._owner is not None:
            record_committed(self._database, manifest)
        if self._on_saved is not None:
            self._on_saved(self.describe(manifest.uuid))
