"""Share code between the storages that no file system serves."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

from detcore.errors import StorageError
from detcore.storage import (
    ByteSink,
    Digester,
    FileDigest,
    Pair,
    Progress,
    StorageBackend,
    check_key,
    is_safe_key,
    is_stale_probe,
    probe_round_trip,
    write_all,
)

# Folder of the files of `probe`.
_PROBES = ".detcore-probe"


class RemoteStorage(StorageBackend):
    """Files under a URL, which a client library moves."""

    def __init__(self, url: str) -> None:
        """Store the URL."""
        self._url = url

    @property
    def url(self) -> str:
        """URL of the root."""
        return self._url

    def direct_path(self, key: str) -> Path | None:
        """Return None: files are reached through the client only."""
        if key:
            check_key(key)
        return None

    def get_tree(
        self,
        pairs: Sequence[Pair],
        *,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Copy keys to local files; see `StorageBackend.get_tree`."""
        keys = [check_key(key) for _, key in pairs]
        for folder in {path.parent for path, _ in pairs}:
            folder.mkdir(parents=True, exist_ok=True)
        return self._fetch(keys, [path for path, _ in pairs], progress)

    def digest_tree(
        self,
        keys: Sequence[str],
        *,
        make_durable: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Digest stored files; see `StorageBackend.digest_tree`."""
        paths = [None] * len(keys)
        return self._fetch([check_key(key) for key in keys], paths, progress)

    def _fetch(
        self,
        keys: Sequence[str],
        paths: Sequence[Path | None],
        progress: Progress | None,
    ) -> dict[str, FileDigest]:
        """Read and digest files, and write those that have a path."""
        raise NotImplementedError

    def delete_tree(self, prefix: str) -> None:
        """Delete everything below a prefix."""
        check_key(prefix)
        keys = [entry.key for entry in self.list(prefix)]
        # No client is asked to remove a folder recursively: for some stores that would reach
        # beyond the prefix (a bucket's root removes the bucket).
        within = [key for key in keys if key == prefix or key.startswith(f"{prefix}/")]
        # detcore never writes names such as "../x"; they must not prevent deleting the others.
        self.delete(key for key in within if is_safe_key(key))

    def probe(self) -> None:
        """Write, read and delete a small file; also delete leftovers of killed processes."""
        probe_round_trip(self, f"{_PROBES}/")
        # Cleaning up after others is optional, so failures are ignored.
        with contextlib.suppress(OSError):
            found = [entry.key for entry in self.list(_PROBES)]
            self.delete(key for key in found if is_stale_probe(key[len(_PROBES) + 1 :]))


@contextlib.contextmanager
def bucket_needed(url: str, bucket: str) -> Iterator[None]:
    """Turn a store's "not found" into an error about the bucket, for writes."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename is not None:  # a local file to upload
            raise
        raise StorageError(
            f"the bucket {bucket!r} of {url} does not exist, or these credentials may not see it.\n"
            "It is not made for you. Make it, or correct the bucket and endpoint_url."
        ) from error


def read_parts(
    request: Callable[[int, int], Future[bytes] | Future[memoryview]],
    size: int,
    sink: ByteSink | None,
    *,
    part_bytes: int,
    max_parts: int,
    progress: Progress | None,
) -> FileDigest:
    """Read a large file in parts, some of them ahead of the write position.

    Args:
        request: Requests the bytes from a position to another, exclusive.
        size: Size of the file.
        sink: Target of the bytes; None: they are only digested.
        part_bytes: Size of a part.
        max_parts: Number of concurrent requests.
        progress: Called after each part with its size.
    """
    digester = Digester()
    ahead: collections.deque[Future[bytes] | Future[memoryview]] = collections.deque()
    start = 0
    try:
        while start < size or ahead:
            while start < size and len(ahead) < max_parts:
                stop = min(start + part_bytes, size)
                ahead.append(request(start, stop))
                start = stop
            data = ahead.popleft().result()
            digester.update(data)
            if sink is not None:
                write_all(sink, data)
            if progress is not None:
                progress(len(data))
    finally:
        for future in ahead:
            future.cancel()
    return digester.result()
