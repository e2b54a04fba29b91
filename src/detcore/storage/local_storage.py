"""Storage back end for a local or shared directory.

Also provides scratch directories that are removed even if their process is killed.
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
    PROBE_PREFIX,
    STALE_AFTER_S,
    is_storage_full,
    probe_round_trip,
    translate_errors,
)
from detcore.storage.storage_keys import check_key

_NO_HARD_LINKS = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
)
_TEMPORARY_PREFIX = ".detcore-tmp-"
_SCRATCH_PREFIX = "detcore-scratch-"
_UNLOCKED_PREFIX = "detcore-unlocked-"
_REMOVE_ATTEMPTS = 5
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
_MODE = 0o644
# Files flushed concurrently, so that the file system's journal commits several together.
_SYNCING_WORKERS = 16


class LocalStorage:
    """Files in a directory. They are durable when a call returns, and never outside the directory.

    The first write creates the directory.
    """

    def __init__(self, root: Path | str) -> None:
        """Store the path of the directory.

        Args:
            root: An absolute path.

        Raises:
            UnsafePathError: If the path is not absolute or contains a NUL character.
        """
        self._root = Path(root)
        if "\0" in str(root):
            raise UnsafePathError(f"the storage directory {str(root)!r} contains a NUL character")
        if not self._root.is_absolute():
            raise UnsafePathError(
                f"the storage directory {str(root)!r} is not absolute.\n"
                "The meaning of a relative path would change with the working directory."
            )

    @property
    def root(self) -> Path:
        """The directory."""
        return self._root

    @property
    def url(self) -> str:
        """The directory as a ``file://`` URL."""
        return self._root.as_uri()

    @property
    def capabilities(self) -> Capabilities:
        """A local file system supports all capabilities."""
        return Capabilities(atomic_create=True, fork_safe=True, byte_progress=True, durable=True)

    def direct_path(self, key: str) -> Path:
        """Return the path of a key; "" is the root.

        Raises:
            UnsafePathError: If the path leads out of the root, possibly through a symbolic link.
        """
        return self._locate(key) if key else self._root

    def _locate(self, key: str) -> Path:
        path = self._root / check_key(key)
        root = os.path.realpath(self._root)
        if os.path.commonpath([root, os.path.realpath(path)]) != root:
            raise UnsafePathError(
                f"{key!r} leads out of {self._root}, to {os.path.realpath(path)}.\n"
                "A symbolic link in the storage directory points elsewhere. Remove it."
            )
        return path

    def _locate_files(self, keys: Sequence[str]) -> list[Path]:
        """Return the paths of keys, and check each directory only once."""
        paths = []
        folders: dict[str, Path] = {}
        for key in keys:
            folder, _, name = check_key(key).rpartition("/")
            if folder not in folders:
                folders[folder] = self.direct_path(folder)
            path = folders[folder] / name
            paths.append(self._locate(key) if os.path.islink(path) else path)
        return paths

    def put_tree(
        self, pairs: Sequence[Pair], *, progress: Progress | None = None
    ) -> dict[str, FileDigest]:
        """Copy local files to keys and flush them to disk."""
        if not pairs:
            return {}
        keys = [key for _, key in pairs]
        targets = self._locate_files(keys)
        sizes = [os.stat(path).st_size for path, _ in pairs]

        def put_file(index: int) -> FileDigest:
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
            digests = run_all(put_file, sizes, small_workers=_SYNCING_WORKERS)
            with translate_errors(f"writing to {self._root}", self.url):
                self._sync_directories(targets)
        except StorageFullError as error:
            raise self._make_full_error(sum(sizes), targets, error.__cause__) from error.__cause__
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
        return self._read_files(keys, paths, progress)

    def digest_tree(
        self,
        keys: Sequence[str],
        *,
        make_durable: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Digest stored files, and flush them to disk if `make_durable` is set."""
        return self._read_files(keys, [None] * len(keys), progress, make_durable=make_durable)

    def _read_files(
        self,
        keys: Sequence[str],
        paths: Sequence[Path | None],
        progress: Progress | None,
        *,
        make_durable: bool = False,
    ) -> dict[str, FileDigest]:
        """Read and digest files, and write those that have a path."""
        sources = self._locate_files(keys)
        sizes = [os.stat(source).st_size for source in sources]

        def get_file(index: int) -> FileDigest:
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

        digests = run_all(get_file, sizes, small_workers=_SYNCING_WORKERS if make_durable else 1)
        if make_durable:
            with translate_errors(f"flushing files in {self._root}", self.url):
                self._sync_directories(sources)
        return dict(zip(keys, digests, strict=True))

    def create(self, key: str, data: bytes) -> None:
        """Store a small file that does not exist yet, atomically and durably."""
        path = self._locate(key)
        with self._atomic_write(path, data) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise FileExistsError(f"{key} exists already in {self.url}") from None
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                # Without hard links, creating the name first lets exactly one process succeed.
                os.close(os.open(path, _WRITE | os.O_EXCL, _MODE))
                os.replace(temporary, path)

    def replace(self, key: str, data: bytes) -> None:
        """Create or replace a small file, atomically and durably."""
        path = self._locate(key)
        with self._atomic_write(path, data) as temporary:
            os.replace(temporary, path)

    def read(self, key: str) -> bytes:
        """Return the content of a small file."""
        with translate_errors(f"reading {key}", self.url):
            return self._locate(key).read_bytes()

    def list(self, prefix: str = "") -> list[Entry]:
        """Return the files below a prefix, sorted by key. Links to files count as files."""
        top = self.direct_path(prefix)
        if top.is_file():
            return [Entry(prefix, top.stat().st_size)]
        entries = []
        for folder, folders, names in os.walk(top):
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in (*names, *links):
                path = os.path.join(folder, name)
                # A link with a missing target must still be visible and deletable.
                size = os.stat(path, follow_symlinks=os.path.exists(path)).st_size
                entries.append(Entry(os.path.relpath(path, self._root).replace(os.sep, "/"), size))
        return sorted(entries, key=lambda entry: entry.key)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, and directories that become empty."""
        for key in [check_key(key) for key in keys]:
            path = self._root / key
            self.direct_path(key.rpartition("/")[0])
            with (
                translate_errors(f"deleting {key}", self.url),
                contextlib.suppress(FileNotFoundError),
            ):
                path.unlink()
                self._remove_empty_directories(path.parent)

    def delete_tree(self, prefix: str) -> None:
        """Delete a directory and everything in it."""
        path = self._root / check_key(prefix)
        self.direct_path(prefix.rpartition("/")[0])
        with translate_errors(f"deleting {prefix}", self.url):
            if path.is_dir() and not path.is_symlink():
                _remove_tree(path)
            else:
                path.unlink(missing_ok=True)

    def probe(self) -> None:
        """Write, read and delete a small file; also delete leftovers of killed processes."""
        # The probe is not in a subdirectory: `delete` would remove the subdirectory while another
        # process may be about to write there.
        prefix = f"{PROBE_PREFIX}-"
        probe_round_trip(self, prefix)
        with os.scandir(self._root) as entries:
            stale = [
                candidate
                for candidate in entries
                if candidate.name.startswith((_TEMPORARY_PREFIX, prefix))
            ]
        for entry in stale:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - entry.stat().st_mtime > STALE_AFTER_S:
                    os.unlink(entry)

    def close(self) -> None:
        """No-op: nothing to release."""

    def _make_parents(self, paths: Iterable[Path]) -> None:
        for folder in {path.parent for path in paths}:
            self._make_directory(folder)

    def _make_directory(self, folder: Path) -> None:
        with translate_errors(f"creating the directory {folder}", self.url):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, FileNotFoundError) as error:
                raise StorageError(
                    f"the checkpoint storage {self.url} cannot be used, because the directory "
                    f"{folder} cannot be created: {error.strerror}.\n"
                    "A part of the path is a file or a broken link, or the file system does not "
                    "support directories, such as /proc.\n"
                    "Use another directory, or remove the obstacle."
                ) from error

    @contextlib.contextmanager
    def _atomic_write(self, path: Path, data: bytes) -> Iterator[Path]:
        """Write a temporary file on the same file system. The block moves it to `path`."""
        # In the root, so that a leftover of a killed process does not belong to a checkpoint.
        temporary = self._root / f"{_TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        self._make_directory(path.parent)
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
                    raise self._make_full_error(len(data), [temporary], error) from error
                raise
            finally:
                temporary.unlink(missing_ok=True)
            self._sync_directories([path])

    def _sync_directories(self, paths: Iterable[Path]) -> None:
        """Flush the names of files to disk: all directories from the files up to the root."""
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

    def _remove_empty_directories(self, folder: Path) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:  # the directory is not empty
                return
            folder = folder.parent

    def _make_full_error(
        self, total: int, targets: Sequence[Path], cause: BaseException | None
    ) -> StorageFullError:
        num_written = sum(path.stat().st_size for path in targets if path.is_file())
        missing = total - num_written
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC and self._root.exists():
            # With a quota or a file size limit, the free space of the disk does not matter.
            missing -= shutil.disk_usage(self._root).free
        missing = max(1, missing)
        return StorageFullError(
            f"no space left in {self._root}: writing {total} bytes needs {missing} more.\n"
            "Partial files were removed. Earlier checkpoints are intact.\n"
            "Free some space (detcore checkpoint delete UUID), then resume.",
            missing_bytes=missing,
        )


def _remove_tree(path: Path) -> None:
    """Remove a directory that other processes may also remove, or that NFS keeps busy."""
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
    """Yield a new temporary directory, which is removed after the block.

    If the process is killed before that, the next process that creates such a directory removes
    it. A trial that is preempted during each save therefore does not fill the disk.
    """
    parent = Path(tempfile.gettempdir())
    _remove_stale_scratch_directories(parent)
    unlocked = Path(tempfile.mkdtemp(prefix=_UNLOCKED_PREFIX, dir=parent))
    descriptor = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY)
    folder = unlocked
    try:
        # Without a lock (on some network file systems) it keeps a name that is never removed.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder = unlocked.rename(
                parent / unlocked.name.replace(_UNLOCKED_PREFIX, _SCRATCH_PREFIX)
            )
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_stale_scratch_directories(parent: Path) -> None:
    """Remove this user's scratch directories that no process holds."""
    with os.scandir(parent) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(_SCRATCH_PREFIX)]
    for path in paths:
        with contextlib.suppress(OSError):  # in use, or being removed by another process
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
