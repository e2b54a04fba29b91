"""Any URL that fsspec knows, as a storage back end."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from detcore.errors import ConfigError, StorageError
from detcore.storage._copy import copy_stream, digest_stream, run_all
from detcore.storage._faults import means_exists, translated
from detcore.storage._keys import check_key
from detcore.storage._protocol import Capabilities, Entry, FileDigest, Pair, Progress

__all__ = ["FsspecStorage"]


class FsspecStorage:
    """Files under a URL of any scheme that fsspec knows (``s3://``, ``memory://``, ...).

    Only calls that take one literal path are used: those of fsspec that take several expand
    ``*?[]`` in names, and place files differently depending on what exists already.
    """

    def __init__(self, url: str, **options: Any) -> None:
        """Remember where the files are; nothing is connected yet.

        Args:
            url: The root, such as ``"s3://bucket/prefix"``.
            **options: Handed to the fsspec file system. Credentials are better kept in the
                cloud's own variables and files.
        """
        self._url = url.rstrip("/") if not url.endswith("://") else url
        self._options = options
        self._opened: tuple[int, Any, str] | None = None

    @property
    def url(self) -> str:
        """Where the root is."""
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        """What fsspec promises for every scheme, which is little."""
        is_async = bool(getattr(self._fs, "async_impl", False))
        return Capabilities(
            atomic_create=is_async, fork_safe=not is_async, byte_progress=True, durable=False
        )

    def direct_path(self, key: str) -> Path | None:
        """Return None: files are reached through fsspec only."""
        if key:
            check_key(key)
        return None

    def put_tree(
        self, pairs: Sequence[Pair], *, progress: Progress | None = None
    ) -> dict[str, FileDigest]:
        """Copy local files to keys; see `StorageBackend.put_tree`."""
        keys = [check_key(key) for _, key in pairs]
        self._make_folders(keys)

        def put(pair: Pair) -> FileDigest:
            path, key = pair
            with translated(f"writing {key}", self.url), open(path, "rb") as source:
                return self._write_stream(key, source, progress)

        sizes = [path.stat().st_size for path, _ in pairs]
        return dict(zip(keys, run_all(put, pairs, sizes), strict=True))

    def get_tree(
        self, pairs: Sequence[Pair], *, progress: Progress | None = None
    ) -> dict[str, FileDigest]:
        """Copy keys to local files; see `StorageBackend.get_tree`."""
        keys = [check_key(key) for _, key in pairs]
        for folder in {path.parent for path, _ in pairs}:
            folder.mkdir(parents=True, exist_ok=True)

        def get(pair: Pair) -> FileDigest:
            path, key = pair
            with (
                translated(f"copying {key} to {path}", self.url),
                self._open_read(key) as source,
                open(path, "wb") as target,
            ):
                return copy_stream(source, target, progress)

        sizes = [self._size(key) for key in keys]
        return dict(zip(keys, run_all(get, pairs, sizes), strict=True))

    def digest_tree(
        self, keys: Sequence[str], *, make_durable: bool = False
    ) -> dict[str, FileDigest]:
        """Digest stored files; see `StorageBackend.digest_tree`."""

        def digest(key: str) -> FileDigest:
            with translated(f"reading {key}", self.url), self._open_read(key) as source:
                return digest_stream(source)

        sizes = [self._size(check_key(key)) for key in keys]
        return dict(zip(keys, run_all(digest, keys, sizes), strict=True))

    def create(self, key: str, data: bytes) -> None:
        """Store a small file that does not exist yet; see `StorageBackend.create`."""
        self._make_folders([check_key(key)])
        path = self._path(key)
        with translated(f"creating {key}", self.url):
            # Versions of fsspec that do not know mode="create" ignore it and overwrite.
            if self._fs.exists(path):
                raise FileExistsError(f"{key} exists already in {self.url}")
            try:
                self._fs.pipe_file(path, data, mode="create")
            except OSError as error:
                if means_exists(error):
                    raise FileExistsError(f"{key} exists already in {self.url}") from error
                raise

    def replace(self, key: str, data: bytes) -> None:
        """Store a small file; as atomic as the store's own put of one object."""
        self._make_folders([check_key(key)])
        with translated(f"writing {key}", self.url):
            self._fs.pipe_file(self._path(key), data)

    def read(self, key: str) -> bytes:
        """Return the content of a small file."""
        with translated(f"reading {check_key(key)}", self.url):
            data: bytes = self._fs.cat_file(self._path(key))
            return data

    def list(self, prefix: str = "") -> list[Entry]:
        """Return the files below a prefix, sorted by key."""
        root = self._path(check_key(prefix) if prefix else "")
        fs = self._fs
        fs.invalidate_cache()  # other processes write here too
        with translated(f"listing {prefix or 'all files'}", self.url):
            try:
                found: dict[str, Any] = fs.find(root, detail=True)
            except FileNotFoundError:
                return []
        start = len(self._path("")) + 1
        if root in found:  # the prefix is a file itself
            found = {root: found[root]}
        entries = [Entry(path[start:], int(info["size"] or 0)) for path, info in found.items()]
        return sorted(entries, key=lambda entry: entry.key)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files; keys that do not exist are skipped."""
        for key in keys:
            path = self._path(check_key(key))
            with translated(f"deleting {key}", self.url):
                try:
                    self._fs.rm_file(path)
                except FileNotFoundError:
                    continue

    def delete_tree(self, prefix: str) -> None:
        """Delete everything below a prefix."""
        check_key(prefix)
        keys = [entry.key for entry in self.list(prefix)]
        # fsspec is never told to remove a folder recursively: for some stores that would reach
        # beyond the prefix (a bucket's root removes the bucket).
        self.delete(key for key in keys if key == prefix or key.startswith(f"{prefix}/"))

    def probe(self) -> None:
        """Write, read and delete a small file."""
        key = f".detcore-probe-{uuid.uuid4().hex}"
        data = uuid.uuid4().bytes
        with translated("a first test of the checkpoint storage", self.url):
            self.replace(key, data)
            try:
                if self.read(key) != data:
                    raise StorageError(
                        f"{self.url} gave back something else than was written to {key}.\n"
                        "Checkpoints would not be safe there."
                    )
            finally:
                self.delete([key])

    def close(self) -> None:
        """Let go of the file system; fsspec shares and closes connections itself."""
        self._opened = None

    @property
    def _fs(self) -> Any:
        return self._open()[0]

    def _open(self) -> tuple[Any, str]:
        """Return the file system and its root path; anew in a forked child."""
        pid = os.getpid()
        if self._opened is None or self._opened[0] != pid:
            import fsspec

            try:
                fs, root = fsspec.core.url_to_fs(self._url, **self._options)
            except ImportError as error:
                raise StorageError(
                    f"the storage {self._url} needs a package that is not installed.\n{error}"
                ) from error
            except ValueError as error:
                raise ConfigError(f"the storage {self._url} cannot be used: {error}") from error
            self._opened = (pid, fs, root.rstrip("/"))
        return self._opened[1], self._opened[2]

    def _path(self, key: str) -> str:
        root = self._open()[1]
        return f"{root}/{key}" if key else root

    def _open_read(self, key: str) -> BinaryIO:
        return cast("BinaryIO", self._fs.open(self._path(key), "rb"))

    def _write_stream(self, key: str, source: BinaryIO, progress: Progress | None) -> FileDigest:
        # An error inside this block may leave a partial object (s3fs and gcsfs commit what they
        # have); it belongs to a checkpoint without a manifest, which does not count.
        with self._fs.open(self._path(key), "wb") as target:
            return copy_stream(source, target, progress)

    def _make_folders(self, keys: Iterable[str]) -> None:
        for folder in sorted({self._path(key).rpartition("/")[0] for key in keys}):
            if folder:
                with translated(f"making the folder {folder}", self.url):
                    self._fs.makedirs(folder, exist_ok=True)

    def _size(self, key: str) -> int:
        with translated(f"looking at {key}", self.url):
            return int(self._fs.size(self._path(key)) or 0)
