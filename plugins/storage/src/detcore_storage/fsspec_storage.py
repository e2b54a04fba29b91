"""Use any URL that fsspec supports as a storage back end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from detcore.errors import ConfigError, StorageError
from detcore.storage import (
    ByteSink,
    Capabilities,
    Entry,
    FileDigest,
    Pair,
    Progress,
    check_key,
    copy_stream,
    digest_bytes,
    run_all,
)
from detcore_storage.remote_storage import RemoteStorage, read_parts
from detcore_storage.retries import RetryPolicy, retry_async, translate_errors

# Up to this many files are examined one by one; for more, a listing is cheaper.
_MAX_EXAMINED = 2
# Files up to this size are moved in one request; larger ones are read in parts.
_LARGE_BYTES = 8 << 20
_PART_BYTES = 4 << 20
_MAX_PARTS_AHEAD = 3
# Concurrent files of less than 1 MiB, and of more: fewer than 64 MB are in flight.
_SMALL_BYTES = 1 << 20
_MAX_SMALL = 32
_MAX_LARGE = 3
T = TypeVar("T")

# The extra of the storage distribution with the driver of a scheme.
_EXTRAS = {
    "gs": "gcs",
    "gcs": "gcs",
    "abfs": "azure",
    "adl": "azure",
    "az": "azure",
}
# fsspec protocols that are not storages: they wrap another protocol, or read an archive.
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

    Only calls with one literal path are used. fsspec calls with several paths expand ``*?[]`` in
    names, and place files depending on existing files.
    """

    policy = RetryPolicy()
    """Retry policy for network file systems."""

    def __init__(self, url: str, **options: Any) -> None:
        """Store the arguments without connecting.

        Args:
            url: The root, such as ``"abfs://container/prefix"``.
            **options: Options of the fsspec file system. For credentials, prefer the cloud's
                environment variables and files.
        """
        super().__init__(url.rstrip("/") if not url.endswith("://") else url)
        self._options = options
        self._connection: tuple[int, Any, str] | None = None
        self._parent_connection: tuple[int, Any, str] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Guarantees of fsspec for every scheme."""
        is_async = self._is_async
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
        self._make_directories(keys)
        sizes = [path.stat().st_size for path, _ in pairs]

        def put(index: int) -> FileDigest:
            path, key = pairs[index]
            with translate_errors(f"writing {key}", self.url):
                if sizes[index] > _LARGE_BYTES:
                    with open(path, "rb", buffering=0) as source:
                        return self._write_stream(key, source, progress)
                data = path.read_bytes()
                self._call_file_system("pipe_file", self._resolve_path(key), data)
            if progress is not None:
                progress(len(data))
            return digest_bytes(data)

        with self._translate_write_errors():
            return dict(zip(keys, self._run_all(put, sizes), strict=True))

    def _translate_write_errors(self) -> AbstractContextManager[None]:
        """Explain a failed write, if a subclass knows more than the error."""
        return contextlib.nullcontext()

    def _run_all(self, work: Callable[[int], T], sizes: Sequence[int]) -> list[T]:
        """Call `work` with each index, with more concurrency for small files over a network."""
        if not self._is_async:
            return run_all(work, sizes)
        return run_all(
            work, sizes, small_bytes=_SMALL_BYTES, workers=_MAX_LARGE, small_workers=_MAX_SMALL
        )

    def _fetch_files(
        self,
        keys: Sequence[str],
        paths: Sequence[Path | None],
        progress: Progress | None,
    ) -> dict[str, FileDigest]:
        """Read and digest files, and write files that have a path."""
        sizes = self._read_sizes(keys)

        def get(index: int) -> FileDigest:
            key, path, size = keys[index], paths[index], sizes[index]
            with translate_errors(f"reading {key}", self.url):
                if size > _LARGE_BYTES:
                    with open(path, "wb", 0) if path else contextlib.nullcontext() as sink:
                        return self._read_large(key, size, sink, progress)
                data = self._read_whole(key, size)
            if path is not None:
                path.write_bytes(data)
            if progress is not None:
                progress(len(data))
            return digest_bytes(data)

        return dict(zip(keys, self._run_all(get, sizes), strict=True))

    def _read_whole(self, key: str, size: int) -> bytes:
        if not self._is_async:
            data: bytes = self._fs.cat_file(self._resolve_path(key))
            return data
        return self._request_part(key, 0, size).result() if size else b""

    def _read_large(
        self,
        key: str,
        size: int,
        sink: ByteSink | None,
        progress: Progress | None,
    ) -> FileDigest:
        """Read a large file, and write it to the sink."""
        if not self._is_async:
            with self._open_read(key) as source:
                return copy_stream(source, sink, progress)
        return read_parts(
            functools.partial(self._request_part, key), size, sink, part_bytes=_PART_BYTES,
            max_parts=_MAX_PARTS_AHEAD, progress=progress,
        )  # fmt: skip

    def _request_part(self, key: str, start: int, stop: int) -> Future[bytes]:
        """Request a part of a file, with retries."""
        fs, path = self._fs, self._resolve_path(key)

        async def read() -> bytes:
            data: bytes = await fs._cat_file(path, start=start, end=stop)
            if len(data) != stop - start:
                raise ConnectionError(
                    f"received {len(data)} of {stop - start} bytes; the connection was cut, or the "
                    "file changed"
                )
            return data

        return asyncio.run_coroutine_threadsafe(retry_async(read, self.policy), fs.loop)

    def create(self, key: str, data: bytes) -> None:
        """Store a small file that does not exist yet; see `StorageBackend.create`."""
        self._make_directories([check_key(key)])
        path = self._resolve_path(key)
        with self._translate_write_errors(), translate_errors(f"creating {key}", self.url):
            # Versions of fsspec that do not know mode="create" ignore it and overwrite.
            if self._call_file_system("exists", path):
                raise FileExistsError(f"{key} already exists in {self.url}")
            try:
                self._call_file_system("pipe_file", path, data, mode="create")
            except FileExistsError as error:
                raise FileExistsError(f"{key} already exists in {self.url}") from error

    def replace(self, key: str, data: bytes) -> None:
        """Store a small file, as atomically as the store puts a single object."""
        self._make_directories([check_key(key)])
        with self._translate_write_errors(), translate_errors(f"writing {key}", self.url):
            self._call_file_system("pipe_file", self._resolve_path(key), data)

    def read(self, key: str) -> bytes:
        """Return the content of a small file."""
        with translate_errors(f"reading {check_key(key)}", self.url):
            data: bytes = self._call_file_system("cat_file", self._resolve_path(key))
            return data

    def list(self, prefix: str = "") -> list[Entry]:
        """Return the files below a prefix, sorted by key."""
        root = self._resolve_path(check_key(prefix) if prefix else "")
        with translate_errors(f"listing {prefix or 'all files'}", self.url):
            self._fs.invalidate_cache()  # other processes write here, too
            try:
                infos: dict[str, Any] = self._call_file_system("find", root, detail=True)
            except FileNotFoundError:
                return []
        start = len(self._resolve_path("")) + 1
        if prefix and infos.get(root, {}).get("type") == "file":
            infos = {root: infos[root]}
        entries = [
            Entry(path[start:], int(info["size"] or 0))
            for path, info in infos.items()
            # Some stores also list directories, or placeholders that tools create for them.
            if info["type"] == "file" and not path.endswith("/") and len(path) > start
        ]
        return sorted(entries, key=lambda entry: entry.key)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files; keys that do not exist are skipped."""
        paths = [self._resolve_path(check_key(key)) for key in keys]
        if not paths:
            return

        def delete(index: int) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._call_file_system("rm_file", paths[index])

        with translate_errors(f"deleting {paths[0]}{' and others' * (len(paths) > 1)}", self.url):
            self._run_all(delete, [0] * len(paths))

    def close(self) -> None:
        """Release the file system; fsspec shares and closes connections itself."""
        if self._connection is not None and self._connection[0] != os.getpid():
            self._parent_connection = self._connection
        self._connection = None

    @property
    def _fs(self) -> Any:
        return self._open_file_system()[0]

    def _open_file_system(self) -> tuple[Any, str]:
        """Return the file system and its root path. A forked child reconnects."""
        pid = os.getpid()
        if self._connection is None or self._connection[0] != pid:
            # The parent's connections are kept, unused: closing them here would wait for the
            # parent's event loop, which does not run in this process.
            self._parent_connection = self._connection
            try:
                fs, root = self._connect()
            except ImportError as error:
                raise StorageError(
                    f"the storage {self._url} needs a package that is not installed.\n"
                    f"{self._how_to_install(error)}"
                ) from error
            except ValueError as error:
                scheme = self._url.partition("://")[0]
                schemes = _known_schemes()
                if scheme not in schemes:
                    raise ConfigError(
                        f"the storage {self._url} has an unknown URL scheme, {scheme!r}.\n"
                        f"Supported schemes: {', '.join(schemes)}."
                    ) from error
                raise ConfigError(f"the storage {self._url} cannot be used: {error}") from error
            self._connection = (pid, fs, root.rstrip("/"))
        return self._connection[1], self._connection[2]

    def _how_to_install(self, error: ImportError) -> str:
        extra = _EXTRAS.get(self._url.partition("://")[0])
        if extra is not None:
            return f"Install it with: pip install 'detcore-storage[{extra}]'"
        packages = re.findall(r'"([\w-]+)"', str(error))  # fsspec names them in quotes, or says how
        return f"Install it with: pip install {' '.join(packages)}" if packages else str(error)

    def _connect(self) -> tuple[Any, str]:
        """Return a file system and the root's path in it."""
        import fsspec

        fs, root = fsspec.core.url_to_fs(self._url, **self._options)
        return fs, root

    @property
    def _is_async(self) -> bool:
        """Whether this is a network file system, whose calls are coroutines."""
        return bool(getattr(self._fs, "async_impl", False))

    def _call_file_system(self, name: str, *args: Any, **options: Any) -> Any:
        """Call the file system, with retries for network file systems."""
        if not self._is_async:
            return getattr(self._fs, name)(*args, **options)
        from fsspec.asyn import sync

        method = getattr(self._fs, f"_{name}")

        async def call() -> Any:
            return await retry_async(lambda: method(*args, **options), self.policy)

        return sync(self._fs.loop, call)

    def _resolve_path(self, key: str) -> str:
        root = self._open_file_system()[1]
        return f"{root}/{key}" if key else root

    def _open_read(self, key: str) -> BinaryIO:
        return cast("BinaryIO", self._fs.open(self._resolve_path(key), "rb"))

    def _write_stream(self, key: str, source: BinaryIO, progress: Progress | None) -> FileDigest:
        # An error inside this block may leave a partial object. It belongs to a checkpoint without
        # a manifest, which is ignored.
        with self._fs.open(self._resolve_path(key), "wb") as target:
            return copy_stream(source, target, progress)

    def _make_directories(self, keys: Iterable[str]) -> None:
        for folder in sorted({self._resolve_path(key).rpartition("/")[0] for key in keys}):
            if folder:
                with translate_errors(f"creating the directory {folder}", self.url):
                    self._fs.makedirs(folder, exist_ok=True)

    def _read_sizes(self, keys: Sequence[str]) -> Sequence[int]:
        """Return the sizes of files.

        Raises:
            FileNotFoundError: If a file does not exist.
        """
        if len(keys) <= _MAX_EXAMINED:
            with translate_errors(f"reading the sizes of {', '.join(keys)}", self.url):
                infos = [self._call_file_system("info", self._resolve_path(key)) for key in keys]
            return [int(info["size"] or 0) for info in infos]
        common = os.path.commonpath([key.rpartition("/")[0] for key in keys])
        sizes = {entry.key: entry.size for entry in self.list(common)}
        for key in keys:
            if key not in sizes:
                raise FileNotFoundError(f"{key} does not exist in {self.url}")
        return [sizes[key] for key in keys]


def _known_schemes() -> list[str]:
    import fsspec

    return sorted(set(fsspec.available_protocols()) - _WRAPPERS)
