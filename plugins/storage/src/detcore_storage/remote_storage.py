"""Share code between the storages that are not file systems."""

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

# Directory of the files of `probe`.
_PROBES = ".detcore-probe"


class RemoteStorage(StorageBackend):
    """Files under a URL, transferred by a client library."""

    def __init__(self, url: str) -> None:
        """Store the URL."""
        self._url = url

    @property
    def url(self) -> str:
        """URL of the root."""
        return self._url

    def direct_path(self, key: str) -> Path | None:
        """Return None, because files are accessed only through the client."""
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
        return self._fetch_files(keys, [path for path, _ in pairs], progress)

    def digest_tree(
        self,
        keys: Sequence[str],
        *,
        make_durable: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Digest stored files; see `StorageBackend.digest_tree`."""
        paths = [None] * len(keys)
        return self._fetch_files([check_key(key) for key in keys], paths, progress)

    def _fetch_files(
        self,
        keys: Sequence[str],
        paths: Sequence[Path | None],
        progress: Progress | None,
    ) -> dict[str, FileDigest]:
        """Read and digest files, and write files that have a path."""
        raise NotImplementedError

    def delete_tree(self, prefix: str) -> None:
        """Delete everything below a prefix."""
        check_key(prefix)
        keys = [entry.key for entry in self.list(prefix)]
        # Files are not deleted recursively by the client, because some stores would delete more
        # than the prefix (a bucket's root removes the bucket).
        within = [key for key in keys if key == prefix or key.startswith(f"{prefix}/")]
        # detcore never writes names such as "../x". They must not prevent deleting other files.
        self.delete(key for key in within if is_safe_key(key))

    def probe(self) -> None:
        """Write, read and delete a small file; also delete leftovers of killed processes."""
        probe_round_trip(self, f"{_PROBES}/")
        # Deleting leftovers is optional, so failures are ignored.
        with contextlib.suppress(OSError):
            keys = [entry.key for entry in self.list(_PROBES)]
            self.delete(key for key in keys if is_stale_probe(key[len(_PROBES) + 1 :]))


@contextlib.contextmanager
def explain_missing_bucket(url: str, bucket: str) -> Iterator[None]:
    """Translate a store's "not found" into an error about the bucket, for writes."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename is not None:  # a local file to upload
            raise
        raise StorageError(
            f"the bucket {bucket!r} of {url} does not exist, or these credentials may not see it.\n"
            "detcore does not create buckets. Create it, or fix bucket and endpoint_url."
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
        request: Requests the bytes from a start position to an exclusive end.
        size: Size of the file.
        sink: Target of the bytes; None to only digest them.
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
