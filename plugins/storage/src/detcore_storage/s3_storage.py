"""Use S3 through obstore, called synchronously in threads.

Its asynchronous calls are not used: they occasionally abort the process at interpreter exit.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from detcore.errors import StorageError
from detcore.storage import (
    Capabilities,
    Digester,
    Entry,
    FileDigest,
    Pair,
    Progress,
    check_key,
    digest_bytes,
    run_all,
)
from detcore_storage.remote_storage import RemoteStorage, explain_missing_bucket, read_parts
from detcore_storage.retries import RetryPolicy, retry, translate_errors

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import S3Store

    from detcore_storage.s3_clients import S3Clients
    from detcore_storage.storage_settings import S3Settings


T = TypeVar("T")
_logger = logging.getLogger("detcore.storage")
_PART_BYTES = 5 << 20
_MAX_PARTS = 9_000  # S3's limit is 10,000
# Concurrent parts of all large files.
_MAX_CONCURRENT_PARTS = 6
# Files up to this size are uploaded in one request.
_WHOLE_BYTES = 8 << 20
# Concurrent files of more than 1 MiB, and of less: fewer than 100 MB are in flight.
_MAX_LARGE = 3
_MAX_SMALL = 32
_FIRST_BYTES = 1 << 20
_DELETE_BATCH_SIZE = 500
_STALE_AFTER_S = 24 * 3600.0


def open_s3(settings: S3Settings) -> S3Storage:
    """Return the storage of ``type: s3``, and of ``s3://`` URLs."""
    return S3Storage(settings)


class S3Storage(RemoteStorage):
    """Checkpoints in an S3 bucket."""

    # The first process that used obstore. Its threads serve all stores of the process, and a forked
    # child would wait for them forever: https://github.com/developmentseed/obstore/pull/441
    _first_pid: ClassVar[int | None] = None

    def __init__(self, settings: S3Settings) -> None:
        """Store the settings without connecting."""
        super().__init__(f"s3://{settings.root()}")
        self._settings = settings
        self._open_clients: S3Clients | None = None
        # An attempt includes obstore's retries. Together they stay below the deadline.
        self._policy = RetryPolicy(deadline_s=settings.deadline_s / 2, renew=self.close)

    @property
    def capabilities(self) -> Capabilities:
        """S3 has conditional puts, which not every server honours."""
        return Capabilities(atomic_create=True, fork_safe=False, byte_progress=True, durable=True)

    def put_tree(
        self, pairs: Sequence[Pair], *, progress: Progress | None = None
    ) -> dict[str, FileDigest]:
        """Copy local files to keys; see `StorageBackend.put_tree`."""
        keys = [check_key(key) for _, key in pairs]
        sizes = [path.stat().st_size for path, _ in pairs]
        large = [key for key, size in zip(keys, sizes, strict=True) if size > _WHOLE_BYTES]

        def put(index: int) -> FileDigest:
            path, key = pairs[index]
            if sizes[index] <= _WHOLE_BYTES:
                return self._put_whole(path, key, progress)
            return self._put_parts(path, key, len(large), progress)

        try:
            with self._translate_write_errors(f"writing to {self._settings.root()}"):
                digests = run_all(
                    put, sizes, small_bytes=_FIRST_BYTES, workers=_MAX_LARGE,
                    small_workers=_MAX_SMALL,
                )  # fmt: skip
        except StorageError:
            # Parts that obstore has sent would remain in the bucket, invisible but billed.
            self._clear_failed(large)
            raise
        return dict(zip(keys, digests, strict=True))

    def create(self, key: str, data: bytes) -> None:
        """Store a small file that does not exist yet, with a conditional put."""
        check_key(key)
        with self._translate_write_errors(f"creating {key}"):
            from obstore.exceptions import AlreadyExistsError, PreconditionError

            try:
                self._call_with_retries(lambda: self._store.put(key, data, mode="create"))
            except (AlreadyExistsError, PreconditionError) as error:
                raise FileExistsError(f"{key} already exists in {self.url}") from error

    def replace(self, key: str, data: bytes) -> None:
        """Store a small file, and replace an existing file."""
        check_key(key)
        with self._translate_write_errors(f"writing {key}"):
            self._call_with_retries(lambda: self._store.put(key, data, use_multipart=False))

    def read(self, key: str) -> bytes:
        """Return the content of a small file."""
        check_key(key)
        with translate_errors(f"reading {key}", self.url):
            return self._call_with_retries(lambda: bytes(self._store.get(key).bytes()))

    def list(self, prefix: str = "") -> list[Entry]:
        """Return the files below a prefix, sorted by key."""
        if prefix:
            check_key(prefix)
        with translate_errors(f"listing {prefix or 'all files'}", self.url):
            try:
                entries = self._call_with_retries(lambda: self._list_entries(prefix))
                if not entries and prefix:
                    meta = self._call_with_retries(lambda: self._store.head(prefix))
                    entries = [Entry(meta["path"], meta["size"])]
            except FileNotFoundError:
                return []
        return sorted(entries, key=lambda entry: entry.key)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files; keys that do not exist are skipped."""
        checked_keys = [check_key(key) for key in keys]

        def delete(batch: Sequence[str]) -> None:
            self._store.delete(batch)

        with translate_errors(f"deleting {', '.join(checked_keys[:3])}", self.url):
            for start in range(0, len(checked_keys), _DELETE_BATCH_SIZE):
                batch = checked_keys[start : start + _DELETE_BATCH_SIZE]
                with contextlib.suppress(FileNotFoundError):
                    self._call_with_retries(functools.partial(delete, batch))

    def probe(self) -> None:
        """Write, read and delete a small file; also abort uploads of killed processes."""
        super().probe()
        try:
            self.clear_uploads(older_than_s=_STALE_AFTER_S)
        except StorageError as error:
            # Listing uploads needs a separate permission, which saving does not need.
            _logger.warning(
                "cannot list unfinished uploads in %s, which may be billed: %s",
                self.url, str(error).partition("\n")[0],
            )  # fmt: skip

    def clear_uploads(self, prefix: str = "", *, older_than_s: float) -> int:
        """Abort abandoned multipart uploads, whose parts are billed but not listed.

        Args:
            prefix: Prefix to search, below the storage's own prefix.
            older_than_s: Minimum age in seconds. Younger uploads may still be in progress.

        Returns:
            The number of aborted uploads.
        """
        start = "/".join(part for part in (self._settings.prefix, prefix) if part)
        age = datetime.timedelta(seconds=older_than_s)
        latest = datetime.datetime.now(datetime.timezone.utc) - age

        def is_abandoned(upload: Mapping[str, Any]) -> bool:
            key = f"{upload['Key']}/"
            return upload["Initiated"] <= latest and (not start or key.startswith(f"{start}/"))

        with translate_errors("listing unfinished uploads", self.url):
            candidates = self._call_with_retries(
                lambda: self._list_pages("list_multipart_uploads", "Uploads", start)
            )
            uploads = [upload for upload in candidates if is_abandoned(upload)]
            for upload in uploads:
                self._call_with_retries(functools.partial(self._abort_upload, upload))
        return len(uploads)

    def close(self) -> None:
        """Close the connections; the next request reconnects with current credentials."""
        if self._open_clients is not None:
            self._open_clients.close()
        self._open_clients = None

    def _fetch_files(
        self,
        keys: Sequence[str],
        paths: Sequence[Path | None],
        progress: Progress | None,
    ) -> dict[str, FileDigest]:
        small: dict[int, FileDigest] = {}
        large: dict[int, Mapping[str, Any]] = {}

        def get(index: int) -> None:
            meta, data = self._call_with_retries(lambda: _read_if_small(self._store, keys[index]))
            if data is None:
                large[index] = meta
                return
            path = paths[index]
            if path is not None:
                path.write_bytes(data)
            if progress is not None:
                progress(len(data))
            small[index] = digest_bytes(data)

        def get_large(position: int) -> FileDigest:
            index = order[position]
            return self._get_parts(keys[index], large[index], paths[index], len(order), progress)

        with translate_errors(f"reading from {self._settings.root()}", self.url):
            run_all(get, [0] * len(keys), workers=_MAX_SMALL)
            order = list(large)
            sizes = [large[index]["size"] for index in order]
            digests = run_all(get_large, sizes, workers=_MAX_LARGE)
        all_digests = small | dict(zip(order, digests, strict=True))
        return {key: all_digests[index] for index, key in enumerate(keys)}

    def _put_whole(self, path: Path, key: str, progress: Progress | None) -> FileDigest:
        data = path.read_bytes()
        self._call_with_retries(lambda: self._store.put(key, data, use_multipart=False))
        if progress is not None:
            progress(len(data))
        return digest_bytes(data)

    def _put_parts(
        self, path: Path, key: str, num_large: int, progress: Progress | None
    ) -> FileDigest:
        """Upload in parts. obstore retries each part, but not with renewed credentials."""
        reported = 0  # by all attempts

        def report(sent: int) -> None:
            nonlocal reported
            if progress is not None and sent > reported:
                progress(sent - reported)
                reported = sent

        return self._call_with_retries(lambda: self._put_parts_once(path, key, num_large, report))

    def _put_parts_once(
        self, path: Path, key: str, num_large: int, report: Callable[[int], None]
    ) -> FileDigest:
        digester = Digester()
        part = max(_PART_BYTES, -(-path.stat().st_size // _MAX_PARTS))

        def parts() -> Iterator[bytes]:
            message = 0
            with open(path, "rb", buffering=0) as source:
                while data := source.read(part):
                    digester.update(data)
                    yield data
                    message += len(data)
                    report(message)

        try:
            self._store.put(key, parts(), chunk_size=part, max_concurrency=_share_parts(num_large))
        except FileNotFoundError:
            # Either the bucket does not exist, or the last response was lost. In that case the
            # upload is complete, and a retry of the request does not find it.
            if self._digest_stored(key) != digester.result():
                raise
        return digester.result()

    def _digest_stored(self, key: str) -> FileDigest | None:
        """Return the digest of the stored file, or None."""
        try:
            meta = self._call_with_retries(lambda: self._store.head(key))
        except FileNotFoundError:
            return None
        return self._get_parts(key, meta, None, 1, None)

    def _get_parts(
        self,
        key: str,
        meta: Mapping[str, Any],
        path: Path | None,
        num_large: int,
        progress: Progress | None,
    ) -> FileDigest:
        """Download in ranges; see `read_parts`."""
        max_parts = _share_parts(num_large)
        with (
            ThreadPoolExecutor(max_parts, thread_name_prefix="detcore-storage") as pool,
            open(path, "wb", buffering=0) if path else contextlib.nullcontext() as sink,
        ):

            def request(start: int, stop: int) -> Future[memoryview]:
                return pool.submit(self._get_range, key, meta, start, stop)

            return read_parts(
                request, meta["size"], sink, part_bytes=_PART_BYTES, max_parts=max_parts,
                progress=progress,
            )  # fmt: skip

    def _get_range(self, key: str, meta: Mapping[str, Any], start: int, stop: int) -> memoryview:
        options: GetOptions = {"range": (start, stop)}
        if meta.get("e_tag"):
            options["if_match"] = meta["e_tag"]  # all parts must be of the same object

        def read() -> memoryview:
            data = memoryview(self._store.get(key, options=options).bytes())
            if len(data) != stop - start:
                raise ConnectionError(f"received {len(data)} of {stop - start} bytes of {key}")
            return data

        return self._call_with_retries(read)

    def _list_entries(self, prefix: str) -> Sequence[Entry]:
        """Return the files below a prefix."""
        from obstore.exceptions import BaseError

        try:
            pages = self._store.list(prefix or None, chunk_size=1000)
            return [Entry(meta["path"], meta["size"]) for page in pages for meta in page]
        except BaseError as error:
            # One key such as "a//b" fails the whole listing.
            if "Error parsing Path" not in str(error):
                raise
        root = f"{self._settings.prefix}/" if self._settings.prefix else ""
        below = f"{root}{prefix}/" if prefix else root
        contents = self._list_pages("list_objects_v2", "Contents", below)
        return [Entry(content["Key"][len(root) :], content["Size"]) for content in contents
                if not content["Key"].endswith("/")]  # fmt: skip

    def _list_pages(self, call: str, field: str, prefix: str) -> Sequence[Mapping[str, Any]]:
        """Return the items of a field in all pages of a botocore call."""
        pages = self._clients.botocore.get_paginator(call).paginate(
            Bucket=self._settings.bucket, Prefix=prefix
        )
        return [item for page in pages for item in page.get(field, ())]

    def _abort_upload(self, upload: Mapping[str, Any]) -> None:
        client = self._clients.botocore
        with contextlib.suppress(client.exceptions.NoSuchUpload):
            client.abort_multipart_upload(
                Bucket=self._settings.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
            )

    def _clear_failed(self, keys: Sequence[str]) -> None:
        for key in keys:
            try:
                self.clear_uploads(key, older_than_s=0.0)
            except StorageError as error:
                _logger.warning("parts of %s may remain in %s: %s", key, self.url, error)
                return

    @contextlib.contextmanager
    def _translate_write_errors(self, what: str) -> Iterator[None]:
        with (
            explain_missing_bucket(self.url, self._settings.bucket),
            translate_errors(what, self.url),
        ):
            yield

    def _call_with_retries(self, work: Callable[[], T]) -> T:
        return retry(work, self._policy)

    @property
    def _store(self) -> S3Store:
        return self._clients.store

    @property
    def _clients(self) -> S3Clients:
        if S3Storage._first_pid not in (None, os.getpid()):
            raise StorageError(
                f"{self.url} cannot be used in a process that was forked after S3 was used.\n"
                "Start such processes with 'spawn' or 'forkserver' rather than 'fork' "
                "(multiprocessing.get_context), or fork before S3 is used."
            )
        S3Storage._first_pid = os.getpid()
        clients = self._open_clients
        if clients is None:
            try:
                from detcore_storage.s3_clients import S3Clients
            except ImportError as error:
                raise StorageError(
                    f"the storage {self.url} needs a package that is not installed.\n"
                    "Install it with: pip install 'detcore-storage[s3]'"
                ) from error
            clients = self._open_clients = S3Clients(self._settings)
        return clients


def _share_parts(num_large: int) -> int:
    """Return the number of concurrent parts for each of `num_large` files."""
    return _MAX_CONCURRENT_PARTS // max(1, min(num_large, _MAX_LARGE))


def _read_if_small(store: S3Store, key: str) -> tuple[Mapping[str, Any], memoryview | None]:
    """Return the metadata of a file, and its content unless it is large."""
    from obstore.exceptions import BaseError

    try:
        # Requesting a whole large file would waste the server's work.
        result = store.get(key, options={"range": (0, _FIRST_BYTES)})
    except BaseError as error:
        if "416" not in str(error):  # a range of an empty file
            raise
        result = store.get(key)
    meta: Mapping[str, Any] = result.meta
    if meta["size"] > _FIRST_BYTES:
        return meta, None
    data = memoryview(result.bytes())
    if len(data) != meta["size"]:
        raise ConnectionError(f"received {len(data)} of {meta['size']} bytes of {key}")
    return meta, data
