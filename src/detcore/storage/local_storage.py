"""Use a folder of this machine, or of a shared file system, as a storage back end.

Also temporary folders that do not outlive their process, even if it is killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from detcore.contract.errors import StorageError, StorageFullError, UnsafePathError
from detcore.contract.storage import (
    Capabilities,
    Entry,
    FileDigest,
    Pair,
    Progress,
)
from detcore.storage.file_digests import copy_stream, run_all
from detcore.storage.storage_faults import (
    PROBES,
    STALE_AFTER_S,
    is_storage_full,
    probe_round_trip,
    translate_errors,
)
from detcore.storage.storage_keys import check_key

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_TEMPORARY = ".detcore-tmp-"
_SCRATCH = "detcore-scratch-"
_NOT_LOCKED_YET = "detcore-unlocked-"
_REMOVE_ATTEMPTS = 5
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
_MODE = 0o644
# Files that are flushed concurrently: the file system's journal then commits several together.
_SYNCING_WORKERS = 16


class LocalStorage:
    """Files in a folder: durable when a call returns, and never outside of the folder."""

    def __init__(self, root: Path | str) -> None:
        """Store the path of the folder, which is created by the first write.

        Args:
            root: An absolute path.

        Raises:
            UnsafePathError: If it is not absolute, or no path.
        """
        self._root = Path(root)
        if "\0" in str(root):
            raise UnsafePathError(f"the storage folder {str(root)!r} has a NUL character")
        if not self._root.is_absolute():
            raise UnsafePathError(
                f"the storage folder {str(root)!r} is not absolute.\n"
                "The meaning of a relative path would change with the working directory."
            )

    @property
    def root(self) -> Path:
        """The folder."""
        return self._root

    @property
    def url(self) -> str:
        """The folder as a ``file://`` URL."""
        return self._root.as_uri()

    @property
    def capabilities(self) -> Capabilities:
        """A local file system supports all capabilities."""
        return Capabilities(atomic_create=True, fork_safe=True, byte_progress=True, durable=True)

    def direct_path(self, key: str) -> Path:
        """Return the path of a key; "" is the root.

        Raises:
            UnsafePathError: If it leads out of the root, also through a symbolic link.
        """
        return self._locate(key) if key else self._root

    def _locate(self, key: str) -> Path:
        path = self._root / check_key(key)
        root = os.path.realpath(self._root)
        if os.path.commonpath([root, os.path.realpath(path)]) != root:
            raise UnsafePathError(
                f"{key!r} leads out of {self._root}, to {os.path.realpath(path)}.\n"
                "A symbolic link in the storage folder points elsewhere; remove it."
            )
        return path

    def _locate_all(self, keys: Sequence[str]) -> list[Path]:
        """Return the paths of keys; checks each folder only once."""
        found = []
        folders: dict[str, Path] = {}
        for key in keys:
            folder, _, name = check_key(key).rpartition("/")
            if folder not in folders:
                folders[folder] = self.direct_path(folder)
            path = folders[folder] / name
            found.append(self._locate(key) if os.path.islink(path) else path)
        return found

    def put_tree(
        self, pairs: Sequence[Pair], *, progress: Progress | None = None
    ) -> dict[str, FileDigest]:
        """Copy local files to keys and flush them to the disk."""
        if not pairs:
            return {}
        keys = [key for _, key in pairs]
        targets = self._locate_all(keys)
        sizes = [os.stat(path).st_size for path, _ in pairs]

        def put(index: int) -> FileDigest:
            with (
                translate_errors(f"writing {targets[index]}", self.url),
                open(pairs[index][0], "rb", 0) as source,
                open(os.open(targets[index], _WRITE | os.O_TRUNC, _MODE), "wb", 0) as target,
            ):
                digest = copy_stream(source, target, progress)
                os.fsync(target.fileno())
                return digest

        try:
            self._make_parents(targets)
            digests = run_all(put, sizes, small_workers=_SYNCING_WORKERS)
            with translate_errors(f"writing to {self._root}", self.url):
                self._sync_folders(targets)
        except StorageFullError as error:
            raise self._full(sum(sizes), targets, error.__cause__) from error.__cause__
        return dict(zip(keys, digests, strict=True))

    def get_tree(
        self,
        pairs: Sequence[Pair],
        *,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Copy keys to local files; see `StorageBackend.get_tree`."""
        keys, paths = [check_key(key) for _, key in pairs], [path for path, _ in pairs]
        for folder in {path.parent for path in paths}:
            folder.mkdir(parents=True, exist_ok=True)
        return self._fetch(keys, paths, progress)

    def digest_tree(
        self,
        keys: Sequence[str],
        *,
        make_durable: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Digest stored files, and flush them to the disk if `make_durable` is set."""
        return self._fetch(keys, [None] * len(keys), progress, make_durable=make_durable)

    def _fetch(
        self,
        keys: Sequence[str],
        paths: Sequence[Path | None],
        progress: Progress | None,
        *,
        make_durable: bool = False,
    ) -> dict[str, FileDigest]:
        """Read and digest files, and write those that have a path."""
        sources = self._locate_all(keys)
        sizes = [os.stat(source).st_size for source in sources]

        def get(index: int) -> FileDigest:
            path = paths[index]
            with (
                translate_errors(f"reading {keys[index]}", self.url),
                open(sources[index], "rb", 0) as source,
                open(path, "wb", 0) if path else contextlib.nullcontext() as sink,
            ):
                digest = copy_stream(source, sink, progress)
                if make_durable:
                    os.fsync(source.fileno())
                return digest

        digests = run_all(get, sizes, small_workers=_SYNCING_WORKERS if make_durable else 1)
        if make_durable:
            with translate_errors(f"bringing files of {self._root} to the disk", self.url):
                self._sync_folders(sources)
        return dict(zip(keys, digests, strict=True))

    def create(self, key: str, data: bytes) -> None:
        """Store a small file that does not exist yet, atomically and durably."""
        path = self._locate(key)
        with self._written_beside(path, data) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise FileExistsError(f"{key} exists already in {self.url}") from None
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                # A file system without hard links: creating the name first admits one winner.
                os.close(os.open(path, _WRITE | os.O_EXCL, _MODE))
                os.replace(temporary, path)

    def replace(self, key: str, data: bytes) -> None:
        """Store a small file over one that may exist, atomically and durably."""
        path = self._locate(key)
        with self._written_beside(path, data) as temporary:
            os.replace(temporary, path)

    def read(self, key: str) -> bytes:
        """Return the content of a small file."""
        with translate_errors(f"reading {key}", self.url):
            return self._locate(key).read_bytes()

    def list(self, prefix: str = "") -> list[Entry]:
        """Return the files below a prefix, sorted by key; links to files count as files."""
        top = self.direct_path(prefix)
        if top.is_file():
            return [Entry(prefix, top.stat().st_size)]
        entries = []
        for folder, folders, names in os.walk(top):
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in (*names, *links):
                path = os.path.join(folder, name)
                # A link whose target is gone must still be visible and deletable.
                size = os.stat(path, follow_symlinks=os.path.exists(path)).st_size
                entries.append(Entry(os.path.relpath(path, self._root).replace(os.sep, "/"), size))
        return sorted(entries, key=lambda entry: entry.key)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, and the folders that become empty."""
        for key in [check_key(key) for key in keys]:
            path = self._root / key
            self.direct_path(key.rpartition("/")[0])
            with (
                translate_errors(f"deleting {key}", self.url),
                contextlib.suppress(FileNotFoundError),
            ):
                path.unlink()
                self._remove_empty(path.parent)

    def delete_tree(self, prefix: str) -> None:
        """Delete a folder and everything in it."""
        path = self._root / check_key(prefix)
        self.direct_path(prefix.rpartition("/")[0])
        with translate_errors(f"deleting {prefix}", self.url):
            if path.is_dir() and not path.is_symlink():
                _remove_tree(path)
            else:
                path.unlink(missing_ok=True)

    def probe(self) -> None:
        """Write, read and delete a small file; also delete leftovers of killed processes."""
        # Not in a folder, which would be removed with its last file while another process may be
        # about to put one there.
        prefix = f"{PROBES}-"
        probe_round_trip(self, prefix)
        with os.scandir(self._root) as entries:
            left = [each for each in entries if each.name.startswith((_TEMPORARY, prefix))]
        for entry in left:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - entry.stat().st_mtime > STALE_AFTER_S:
                    os.unlink(entry)

    def close(self) -> None:
        """Return at once: there is nothing to release."""

    def _make_parents(self, paths: Iterable[Path]) -> None:
        for folder in {path.parent for path in paths}:
            self._make_folder(folder)

    def _make_folder(self, folder: Path) -> None:
        with translate_errors(f"making the folder {folder}", self.url):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, FileNotFoundError) as error:
                raise StorageError(
                    f"the checkpoint storage {self.url} cannot be used, because the folder "
                    f"{folder} cannot be made: {error.strerror}.\n"
                    "A part of the path is a file, a broken link, or in a file "
                    "system that does not support folders, such as /proc.\n"
                    "Name another folder, or remove the obstacle."
                ) from error

    @contextlib.contextmanager
    def _written_beside(self, path: Path, data: bytes) -> Iterator[Path]:
        """Write a temporary file on the same file system, for the block to move to a path."""
        # In the root, so that a leftover of a killed process belongs to no checkpoint.
        temporary = self._root / f"{_TEMPORARY}{uuid.uuid4().hex}"
        self._make_folder(path.parent)
        with translate_errors(f"writing {path}", self.url):
            try:
                descriptor = os.open(temporary, _WRITE | os.O_EXCL, _MODE)
                with open(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(descriptor)
                yield temporary
            except OSError as error:
                if is_storage_full(error):
                    raise self._full(len(data), [temporary], error) from error
                raise
            finally:
                temporary.unlink(missing_ok=True)
            self._sync_folders([path])

    def _sync_folders(self, paths: Iterable[Path]) -> None:
        """Flush the names of files to the disk: every folder from theirs up to the root's."""
        folders = set()
        for path in paths:
            folder = path.parent
            while folder not in folders and folder != self._root.parent:
                folders.add(folder)
                folder = folder.parent
        for folder in folders | {self._root}:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _remove_empty(self, folder: Path) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:  # the folder is not empty
                return
            folder = folder.parent

    def _full(
        self, total: int, targets: Sequence[Path], cause: BaseException | None
    ) -> StorageFullError:
        written = sum(path.stat().st_size for path in targets if path.is_file())
        missing = total - written
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC and self._root.exists():
            # With a quota or a file size limit, the free space of the disk is irrelevant.
            missing -= shutil.disk_usage(self._root).free
        missing = max(1, missing)
        return StorageFullError(
            f"no room left in {self._root}: {total} bytes were to be written, {missing} bytes "
            "are missing.\n"
            "The partial files are removed; earlier checkpoints are untouched.\n"
            "Make room there (detcore checkpoint delete UUID), then resume from the last one.",
            missing_bytes=missing,
        )


def _remove_tree(path: Path) -> None:
    """Remove a folder that others may be removing too, or in which NFS still keeps files."""
    for attempt in range(_REMOVE_ATTEMPTS):
        try:
            shutil.rmtree(path)
        except OSError as error:
            if not path.exists():
                return
            is_last = attempt == _REMOVE_ATTEMPTS - 1
            if is_last or error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EBUSY):
                raise
            time.sleep(0.05 * attempt)
        else:
            return


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a new temporary folder, which is removed after the block.

    If the process is killed before that, the next process that creates such a folder removes it,
    so a trial that is preempted during each save does not fill the disk.
    """
    parent = Path(tempfile.gettempdir())
    _remove_those_of_the_dead(parent)
    unlocked = Path(tempfile.mkdtemp(prefix=_NOT_LOCKED_YET, dir=parent))
    descriptor = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY)
    folder = unlocked
    try:
        # Without a lock (on some network file systems) it keeps a name that is never cleaned up.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder = unlocked.rename(parent / unlocked.name.replace(_NOT_LOCKED_YET, _SCRATCH))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_those_of_the_dead(parent: Path) -> None:
    """Remove this user's scratch folders that no process holds any more."""
    with os.scandir(parent) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(_SCRATCH)]
    for path in found:
        with contextlib.suppress(OSError):  # in use, or being removed by another process
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
