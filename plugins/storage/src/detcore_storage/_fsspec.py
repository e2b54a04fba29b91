"""Use any URL that fsspec supports as a storage back end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, cast

from detcore.errors import ConfigError, StorageError
from detcore.storage import (
    Capabilities,
    Entry,
    FileDigest,
    Pair,
    Progress,
    Sink,
    check_key,
    copy_stream,
    run_all,
)
from detcore_storage._bulk import LARGE_BYTES, BulkTransfers
from detcore_storage._remote import RemoteStorage
from detcore_storage._retries import RetryPolicy, translated

# Up to this many files are examined one by one; for more, a listing is cheaper.
_FEW = 2
_PUTS_AT_ONCE = 2  # large files

# The extra of the storage distribution with the driver of a scheme.
_EXTRAS = {
    "gs": "gcs",
    "gcs": "gcs",
    "abfs": "azure",
    "adl": "azure",
    "az": "azure",
}
# fsspec's protocols that reach no storage: they wrap another one, or read an archive.
_WRAPPERS = frozenset(
    {
        "async_wrapper",
        "asynclocal",
        "asyncwrapper",
        "blockcache",
        "cached",
        "data",
        "dir",
        "filecache",
        "generic",
        "libarchive",
        "local",
        "reference",
        "simplecache",
        "tar",
        "zip",
    }
)


class FsspecStorage(RemoteStorage):
    """Files under a URL of any scheme that fsspec knows (``abfs://``, ``memory://``, ...).

    Only calls that take one literal path are used: those of fsspec that take several expand
    ``*?[]`` in names, and place files differently depending on what exists already.
    """

    policy = RetryPolicy()
    """How long to try again; for file systems over a network."""

    _gets_at_once = 3  # large files; their parts in flight determine the memory of a transfer

    def __init__(self, url: str, **options: Any) -> None:
        """Store the arguments; the connection is made later.

        Args:
            url: The root, such as ``"abfs://container/prefix"``.
            **options: Options of the fsspec file system. Prefer the cloud's own variables and
                files for credentials.
        """
        super().__init__(url.rstrip("/") if not url.endswith("://") else url)
        self._options = options
        self._opened: tuple[int, Any, str] | None = None
        self._parents: tuple[int, Any, str] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Guarantees of fsspec for every scheme, which are few."""
        is_async = bool(getattr(self._fs, "async_impl", False))
        # The parent never sees data that a child writes to its memory.
        is_memory = getattr(self._fs, "protocol", "") == "memory"
        return Capabilities(
            atomic_create=is_async,
            fork_safe=not (is_async or is_memory),
            byte_progress=True,
            durable=False,
        )

    def put_tree(
        self, pairs: Sequence[Pair], *, progress: Progress | None = None
    ) -> dict[str, FileDigest]:
        """Copy local files to keys; see `StorageBackend.put_tree`."""
        keys = [check_key(key) for _, key in pairs]
        if not pairs:
            return {}
        self._make_folders(keys)
        sizes = [path.stat().st_size for path, _ in pairs]

        def put_small(bulk: BulkTransfers, small: Sequence[int]) -> list[FileDigest]:
            files = [(pairs[i][0], self._path(keys[i]), sizes[i]) for i in small]
            with translated(f"writing {_some(keys, small)}", self.url):
                return bulk.put_small(files, progress)

        def put(index: int) -> FileDigest:
            path, key = pairs[index]
            with translated(f"writing {key}", self.url), open(path, "rb", buffering=0) as source:
                return self._write_stream(key, source, progress)

        with self._writing():
            return self._move(keys, sizes, put_small, put, _PUTS_AT_ONCE)

    def _writing(self) -> AbstractContextManager[None]:
        """Explain a failed write, where a subclass knows more than the error says."""
        return contextlib.nullcontext()

    def _move(
        self,
        keys: Sequence[str],
        sizes: Sequence[int],
        move_small: Callable[[BulkTransfers, Sequence[int]], list[FileDigest]],
        move: Callable[[int], FileDigest],
        workers: int,
    ) -> dict[str, FileDigest]:
        """Move small files together where the file system is asynchronous, and the others by one.

        Args:
            keys: All files.
            sizes: Their sizes.
            move_small: Moves those with some indices.
            move: Moves the one with an index.
            workers: How many of these an asynchronous file system moves at once.
        """
        bulk = self._bulk
        digests: dict[int, FileDigest] = {}
        if bulk is not None:
            small = [index for index, size in enumerate(sizes) if size <= LARGE_BYTES]
            if small:
                digests.update(zip(small, move_small(bulk, small), strict=True))
        large = [index for index in range(len(keys)) if index not in digests]
        done = run_all(
            lambda at: move(large[at]),
            [sizes[index] for index in large],
            workers=None if bulk is None else workers,
        )
        digests.update(zip(large, done, strict=True))
        return {key: digests[index] for index, key in enumerate(keys)}

    def _fetch(
        self,
        keys: Sequence[str],
        paths: Sequence[Path | None],
        progress: Progress | None,
    ) -> dict[str, FileDigest]:
        """Read and digest files, and write those that have a path."""
        sizes = self._sizes(keys)

        def get_small(bulk: BulkTransfers, small: Sequence[int]) -> list[FileDigest]:
            files = [(paths[i], self._path(keys[i]), sizes[i]) for i in small]
            with translated(f"reading {_some(keys, small)}", self.url):
                return bulk.get_small(files, progress)

        def get(index: int) -> FileDigest:
            key, path = keys[index], paths[index]
            with (
                translated(f"reading {key}", self.url),
                open(path, "wb", buffering=0) if path else contextlib.nullcontext() as sink,
            ):
                return self._read_large(key, sizes[index], sink, progress)

        return self._move(keys, sizes, get_small, get, self._gets_at_once)

    def _read_large(
        self,
        key: str,
        size: int,
        sink: Sink | None,
        progress: Progress | None,
    ) -> FileDigest:
        """Read a large file, and write it to the sink."""
        bulk = self._bulk
        if bulk is not None:
            return bulk.read_large(self._path(key), size, sink, progress)
        with self._open_read(key) as source:
            return copy_stream(source, sink, progress)

    def create(self, key: str, data: bytes) -> None:
        """Store a small file that does not exist yet; see `StorageBackend.create`."""
        self._make_folders([check_key(key)])
        path = self._path(key)
        with self._writing(), translated(f"creating {key}", self.url):
            # Versions of fsspec that do not know mode="create" ignore it and overwrite.
            if self._call("exists", path):
                raise FileExistsError(f"{key} exists already in {self.url}")
            try:
                self._call("pipe_file", path, data, mode="create")
            except FileExistsError as error:
                raise FileExistsError(f"{key} exists already in {self.url}") from error

    def replace(self, key: str, data: bytes) -> None:
        """Store a small file; as atomic as the store's own put of one object."""
        self._make_folders([check_key(key)])
        with self._writing(), translated(f"writing {key}", self.url):
            self._call("pipe_file", self._path(key), data)

    def read(self, key: str) -> bytes:
        """Return the content of a small file."""
        with translated(f"reading {check_key(key)}", self.url):
            data: bytes = self._call("cat_file", self._path(key))
            return data

    def list(self, prefix: str = "") -> list[Entry]:
        """Return the files below a prefix, sorted by key."""
        root = self._path(check_key(prefix) if prefix else "")
        with translated(f"listing {prefix or 'all files'}", self.url):
            self._fs.invalidate_cache()  # other processes write here, too
            try:
                found: dict[str, Any] = self._call("find", root, detail=True)
            except FileNotFoundError:
                return []
        start = len(self._path("")) + 1
        if prefix and found.get(root, {}).get("type") == "file":
            found = {root: found[root]}
        entries = [
            Entry(path[start:], int(info["size"] or 0))
            for path, info in found.items()
            # Some stores also list folders, or placeholders that tools create for them.
            if info["type"] == "file" and not path.endswith("/") and len(path) > start
        ]
        return sorted(entries, key=lambda entry: entry.key)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files; keys that do not exist are skipped."""
        paths = [self._path(check_key(key)) for key in keys]
        if not paths:
            return
        bulk = self._bulk
        with translated(f"deleting {paths[0]}{' and others' * (len(paths) > 1)}", self.url):
            if bulk is not None:
                bulk.delete(paths)
                return
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(path)

    def close(self) -> None:
        """Release the file system; fsspec shares and closes connections itself."""
        if self._opened is not None and self._opened[0] != os.getpid():
            self._parents = self._opened
        self._opened = None

    @property
    def _fs(self) -> Any:
        return self._open()[0]

    def _open(self) -> tuple[Any, str]:
        """Return the file system and its root path, reconnecting in a forked child."""
        pid = os.getpid()
        if self._opened is None or self._opened[0] != pid:
            # The parent's connections are kept, unused: closing them here would wait for the
            # parent's event loop, which does not run in this process.
            self._parents = self._opened
            try:
                fs, root = self._connect()
            except ImportError as error:
                raise StorageError(
                    f"the storage {self._url} needs a package that is not installed.\n"
                    f"{self._how_to_install(error)}"
                ) from error
            except ValueError as error:
                scheme = self._url.partition("://")[0]
                known = _known_schemes()
                if scheme not in known:
                    raise ConfigError(
                        f"the storage {self._url} has an unknown URL scheme, {scheme!r}.\n"
                        f"Schemes that can be used: {', '.join(known)}."
                    ) from error
                raise ConfigError(f"the storage {self._url} cannot be used: {error}") from error
            self._opened = (pid, fs, root.rstrip("/"))
        return self._opened[1], self._opened[2]

    def _how_to_install(self, error: ImportError) -> str:
        extra = _EXTRAS.get(self._url.partition("://")[0])
        if extra is None:
            return str(error)
        return f"Install it with: pip install 'detcore-storage[{extra}]'"

    def _connect(self) -> tuple[Any, str]:
        """Return a file system and the root's path in it."""
        import fsspec

        fs, root = fsspec.core.url_to_fs(self._url, **self._options)
        return fs, root

    @property
    def _bulk(self) -> BulkTransfers | None:
        """Transfers of many files, if the file system is asynchronous."""
        fs = self._fs
        return BulkTransfers(fs, self.policy) if getattr(fs, "async_impl", False) else None

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call the file system, with retries for network file systems."""
        bulk = self._bulk
        if bulk is None:
            return getattr(self._fs, name)(*args, **options)
        method = getattr(self._fs, f"_{name}")
        return bulk.run(lambda: method(*args, **options))

    def _path(self, key: str) -> str:
        root = self._open()[1]
        return f"{root}/{key}" if key else root

    def _open_read(self, key: str) -> BinaryIO:
        return cast("BinaryIO", self._fs.open(self._path(key), "rb"))

    def _write_stream(self, key: str, source: BinaryIO, progress: Progress | None) -> FileDigest:
        # An error inside this block may leave a partial object (the data so far); it belongs to a
        # checkpoint without a manifest, which does not count.
        with self._fs.open(self._path(key), "wb") as target:
            return copy_stream(source, target, progress)

    def _make_folders(self, keys: Iterable[str]) -> None:
        for folder in sorted({self._path(key).rpartition("/")[0] for key in keys}):
            if folder:
                with translated(f"making the folder {folder}", self.url):
                    self._fs.makedirs(folder, exist_ok=True)

    def _sizes(self, keys: Sequence[str]) -> Sequence[int]:
        """Return the sizes of files.

        Raises:
            FileNotFoundError: If one does not exist.
        """
        if len(keys) <= _FEW:
            with translated(f"looking at {', '.join(keys)}", self.url):
                found = [self._call("info", self._path(key)) for key in keys]
            return [int(info["size"] or 0) for info in found]
        common = os.path.commonpath([key.rpartition("/")[0] for key in keys])
        there = {entry.key: entry.size for entry in self.list(common)}
        for key in keys:
            if key not in there:
                raise FileNotFoundError(f"there is no {key} in {self.url}")
        return [there[key] for key in keys]


def _some(keys: Sequence[str], indices: Sequence[int]) -> str:
    more = f" and {len(indices) - 1} more" if len(indices) > 1 else ""
    return f"{keys[indices[0]]}{more}"


def _known_schemes() -> list[str]:
    import fsspec

    return sorted(set(fsspec.available_protocols()) - _WRAPPERS)
