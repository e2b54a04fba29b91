"""Call obstore synchronously in threads, the fastest way to S3 (numbers are in docs/storage.md).

Its asynchronous calls are not used: they occasionally abort the process at interpreter exit.
"""

from __future__ import annotations

import collections
import datetime
import functools
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from detcore.storage import (
    DEFAULT_ALGORITHM,
    Digester,
    Entry,
    FileDigest,
    Pair,
    Progress,
    digest_bytes,
    read_whole,
    write_all,
    write_whole,
)
from detcore_storage._retries import RetryPolicy, retry

if TYPE_CHECKING:
    from obstore import GetOptions

    from detcore_storage._settings import S3Settings


PART_BYTES = 5 << 20
_MOST_PARTS = 9_000  # S3's limit is 10,000
_MOST_AT_ONCE = 3
# Concurrent parts of large files: more for a single file, fewer for each of several.
_PARTS_AT_ONCE = 6
_WHOLE_BYTES = 8 << 20
_FIRST_BYTES = 1 << 20
# Concurrent files, by size, so that less than 100 MB are in flight.
_AT_ONCE = ((1 << 20, 12), (_WHOLE_BYTES, 6), (1 << 62, _MOST_AT_ONCE))
_AT_ONCE_SLOW = 64
_SLOW_S = 0.006
_MANY = 256
_FEW = 64

# Processes in which obstore has been used. It keeps threads for the whole process, for all stores;
# a forked child would wait for them forever. This list is therefore process-wide.
_USED_IN: list[int] = []

T = TypeVar("T")


class ObstoreEngine:
    """Moves files between a disk and a bucket.

    Args:
        settings: Settings of the bucket.
    """

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._opened: Any = None
        # An attempt here includes obstore's own retries; together they stay below the deadline.
        self._policy = RetryPolicy(deadline_s=settings.deadline_s / 2, renew=self._reopen)

    def is_usable(self) -> bool:
        """Whether this process may use obstore, which a fork of a process that used it may not."""
        return not _USED_IN or os.getpid() in _USED_IN

    def put(
        self, pairs: Sequence[Pair], sizes: Sequence[int], progress: Progress | None
    ) -> list[FileDigest]:
        """Upload files."""
        at_once = _parts_at_once(sum(size > _WHOLE_BYTES for size in sizes))

        def put(index: int) -> FileDigest:
            path, key = pairs[index]
            if sizes[index] <= _WHOLE_BYTES:
                return self._put_whole(path, key, sizes[index], progress)
            return self._put_parts(path, key, at_once, progress)

        return _in_threads(put, sizes)

    def get(
        self,
        keys: Sequence[str],
        paths: Sequence[Path | None],
        algorithm: str,
        progress: Progress | None,
    ) -> list[FileDigest]:
        """Download files, or only digest those without a path."""
        small: dict[int, FileDigest] = {}
        large: dict[int, Mapping[str, Any]] = {}

        # At most this much of a large file is requested: the server would read and send the rest in
        # vain. Among many files most are small, for which a range costs more than it saves.
        first: GetOptions | None = {"range": (0, _FIRST_BYTES)} if len(keys) <= _FEW else None

        def get(index: int) -> None:
            meta, data = retry(
                lambda: _read_if_small(self._store, keys[index], first), self._policy
            )
            if data is None:
                large[index] = meta
                return
            path = paths[index]
            if path is not None:
                write_whole(path, data)
            if progress is not None:
                progress(len(data))
            small[index] = digest_bytes(data, algorithm)

        _in_threads(get, [0] * len(keys), at_once=8 if len(keys) <= _FEW else None)
        order = list(large)
        at_once = _parts_at_once(len(order))

        def get_large(position: int) -> FileDigest:
            index = order[position]
            meta, path = large[index], paths[index]
            return self._get_parts(keys[index], meta, path, algorithm, at_once, progress)

        done = _in_threads(get_large, [large[index]["size"] for index in order])
        found = small | dict(zip(order, done, strict=True))
        return [found[index] for index in range(len(keys))]

    def create(self, key: str, data: bytes) -> bool:
        """Upload a file if no file has its name; return whether it was uploaded."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            retry(lambda: obstore.put(self._store, key, data, mode="create"), self._policy)
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def replace(self, key: str, data: bytes) -> None:
        """Upload a small file."""
        import obstore

        retry(lambda: obstore.put(self._store, key, data, use_multipart=False), self._policy)

    def read(self, key: str) -> bytes:
        """Return a small file."""
        import obstore

        return retry(lambda: bytes(obstore.get(self._store, key).bytes()), self._policy)

    def list(self, prefix: str) -> list[Entry] | None:
        """Return the files below a prefix, or None if obstore cannot represent one of the keys."""
        import obstore
        from obstore.exceptions import InvalidPathError

        def found() -> list[Entry]:
            return [
                Entry(meta["path"], meta["size"])
                for page in obstore.list(self._store, prefix=prefix or None, chunk_size=1000)
                for meta in page
            ]

        try:
            entries = retry(found, self._policy)
            if not entries and prefix:
                meta = retry(lambda: obstore.head(self._store, prefix), self._policy)
                entries = [Entry(meta["path"], meta["size"])]
        except FileNotFoundError:
            return []
        except (InvalidPathError, ValueError):
            return None
        except Exception as error:
            if "Error parsing Path" in str(error):  # listings raise it as a GenericError
                return None
            raise
        return sorted(entries, key=lambda entry: entry.key)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete files."""
        import obstore

        def delete(start: int) -> None:
            batch = list(keys[start : start + 500])
            try:
                retry(lambda: obstore.delete(self._store, batch), self._policy)
            except FileNotFoundError:
                return

        for start in range(0, len(keys), 500):
            delete(start)

    def _put_whole(self, path: Path, key: str, size: int, progress: Progress | None) -> FileDigest:
        import obstore

        data = read_whole(path, size)
        retry(lambda: obstore.put(self._store, key, data, use_multipart=False), self._policy)
        if progress is not None:
            progress(len(data))
        return digest_bytes(data)

    def _put_parts(
        self, path: Path, key: str, at_once: int, progress: Progress | None
    ) -> FileDigest:
        """Upload in parts; obstore retries each of them, but not with renewed credentials."""
        reported = 0  # by all attempts

        def report(sent: int) -> None:
            nonlocal reported
            if progress is not None and sent > reported:
                progress(sent - reported)
                reported = sent

        return retry(lambda: self._put_parts_once(path, key, at_once, report), self._policy)

    def _put_parts_once(
        self, path: Path, key: str, at_once: int, report: Callable[[int], None]
    ) -> FileDigest:
        import obstore

        digester = Digester()
        size = path.stat().st_size
        part = max(PART_BYTES, -(-size // _MOST_PARTS))

        def parts() -> Iterator[bytes]:
            sent = 0
            with open(path, "rb", buffering=0) as source:
                while data := source.read(part):
                    digester.update(data)
                    yield data
                    sent += len(data)
                    report(sent)

        try:
            obstore.put(self._store, key, parts(), chunk_size=part, max_concurrency=at_once)
        except FileNotFoundError:
            # Either the bucket does not exist, or the last response was lost: the upload is then
            # complete, and retrying the request does not find it.
            if self._stored(key) != digester.result():
                raise
        return digester.result()

    def _stored(self, key: str) -> FileDigest | None:
        """Return the digest of the stored file, or None."""
        import obstore

        try:
            meta = retry(lambda: obstore.head(self._store, key), self._policy)
        except FileNotFoundError:
            return None
        return self._get_parts(key, meta, None, DEFAULT_ALGORITHM, _PARTS_AT_ONCE, None)

    def _get_parts(
        self,
        key: str,
        meta: Mapping[str, Any],
        path: Path | None,
        algorithm: str,
        at_once: int,
        progress: Progress | None,
    ) -> FileDigest:
        """Download in ranges, some of them ahead of the write position."""
        digester = Digester(algorithm)
        size = meta["size"]
        ahead: collections.deque[Future[memoryview]] = collections.deque()
        start = 0
        with (
            ThreadPoolExecutor(at_once, thread_name_prefix="detcore-storage") as pool,
            _open_sink(path) as sink,
        ):
            try:
                while start < size or ahead:
                    while start < size and len(ahead) < at_once:
                        stop = min(start + PART_BYTES, size)
                        ahead.append(pool.submit(self._range, key, meta, start, stop))
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

    def _range(self, key: str, meta: Mapping[str, Any], start: int, stop: int) -> memoryview:
        import obstore

        options: GetOptions = {"range": (start, stop)}
        if meta.get("e_tag"):
            options["if_match"] = meta["e_tag"]  # all parts must be of the same object

        def read() -> memoryview:
            data = memoryview(obstore.get(self._store, key, options=options).bytes())
            if len(data) != stop - start:
                raise ConnectionError(f"{len(data)} bytes of {key} came instead of {stop - start}")
            return data

        return retry(read, self._policy)

    def _reopen(self) -> None:
        """Read the credentials again, at the next request."""
        self._opened = None

    @property
    def _store(self) -> Any:
        store = self._opened
        if store is None:
            store = self._opened = _open(self._settings)
        if not _USED_IN:
            _USED_IN.append(os.getpid())
        return store


def _open(settings: S3Settings) -> Any:
    from obstore.store import S3Store

    deadline = settings.deadline_s
    options: dict[str, Any] = {}
    if settings.access_key is not None and settings.secret_key is not None:
        options["access_key_id"] = settings.access_key.get_secret_value()
        options["secret_access_key"] = settings.secret_key.get_secret_value()
        region = settings.region
    else:
        region = settings.region or _add_credentials(options)
    endpoint = settings.endpoint_url or _configured_endpoint()
    if endpoint is not None:
        options["endpoint"] = endpoint.rstrip("/")
    path_style = settings.path_style
    if path_style is None:
        path_style = endpoint is not None
    quarter = datetime.timedelta(seconds=deadline / 4)
    # Over HTTPS, TLS already detects changed bytes; a second checksum (SHA-256, for the signature)
    # would cost more than everything else, and AWS's own tools omit it there, too.
    options["unsigned_payload"] = endpoint is None or endpoint.startswith("https://")
    return S3Store(
        settings.bucket,
        prefix=settings.prefix,
        region=region or "us-east-1",
        virtual_hosted_style_request=not path_style,
        client_options={
            "allow_http": True,
            "timeout": quarter,
            "connect_timeout": min(datetime.timedelta(seconds=10), quarter),
        },
        retry_config={
            "max_retries": 1000,  # the timeout ends the retries
            "retry_timeout": quarter,
            "backoff": {
                "base": 2,
                "init_backoff": datetime.timedelta(seconds=0.1),
                "max_backoff": datetime.timedelta(seconds=5),
            },
        },
        **options,
    )


def _add_credentials(options: dict[str, Any]) -> str | None:
    """Add a provider of credentials that follows AWS's own tools; return the configured region.

    obstore alone does not support profiles.
    """
    import botocore.session

    session = botocore.session.get_session()

    def provide() -> dict[str, Any]:
        credentials = session.get_credentials()
        if credentials is None:
            raise PermissionError(
                "no AWS credentials were found; set access_key and secret_key, AWS_ACCESS_KEY_ID "
                "and AWS_SECRET_ACCESS_KEY, or a profile"
            )
        frozen = credentials.get_frozen_credentials()
        expires = getattr(credentials, "_expiry_time", None)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": expires,
        }

    options["credential_provider"] = provide
    region = session.get_config_variable("region")
    return region if isinstance(region, str) else None


def _configured_endpoint() -> str | None:
    """Return the address in the environment or the profile (``AWS_ENDPOINT_URL``)."""
    import botocore.configprovider
    import botocore.exceptions
    import botocore.session

    session = botocore.session.get_session()
    try:
        scoped = session.get_scoped_config()
    except botocore.exceptions.ProfileNotFound:
        scoped = {}  # looking up the credentials will report the error
    found = botocore.configprovider.ConfiguredEndpointProvider(
        full_config=session.full_config, scoped_config=scoped, client_name="s3"
    ).provide()
    return found if isinstance(found, str) else None


def _parts_at_once(files: int) -> int:
    """Return the number of concurrent parts for each of some large files."""
    return _PARTS_AT_ONCE // max(1, min(files, _MOST_AT_ONCE))


def _read_if_small(
    store: Any, key: str, first: GetOptions | None
) -> tuple[Mapping[str, Any], memoryview | None]:
    """Return the metadata of a file, and its content unless it is large.

    Args:
        store: The store.
        key: The key of the file.
        first: Options that request only the first bytes.
    """
    import obstore

    try:
        result = obstore.get(store, key, options=first)
    except obstore.exceptions.BaseError as error:
        if first is None or "416" not in str(error):  # a range of an empty file
            raise
        result = obstore.get(store, key)
    meta: Mapping[str, Any] = result.meta
    if meta["size"] > _FIRST_BYTES:
        return meta, None
    data = memoryview(result.bytes())
    if len(data) != meta["size"]:
        raise ConnectionError(f"{len(data)} bytes of {key} came instead of {meta['size']}")
    return meta, data


class _NoSink:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        pass


def _open_sink(path: Path | None) -> Any:
    return _NoSink() if path is None else open(path, "wb", buffering=0)


def _in_threads(
    work: Callable[[int], T], sizes: Sequence[int], *, at_once: int | None = None
) -> list[T]:
    """Call `work` with each index, more concurrently for small files; stop at the first failure."""
    results: dict[int, T] = {}
    below = -1
    for limit, threads in _AT_ONCE:
        indices = [index for index, size in enumerate(sizes) if below < size <= limit]
        below = limit
        threads = min(at_once or threads, len(indices))
        if len(indices) >= _MANY and at_once is None:
            # If requests take long, most of the time is waiting: run more of them concurrently.
            first, indices = indices[: 3 * threads], indices[3 * threads :]
            took: list[float] = []
            timed = functools.partial(_timed, work, took)
            results.update(zip(first, _all_at_once(timed, first, threads), strict=True))
            # The faster ones decide: a busy processor slows others down, too.
            if statistics.quantiles(took, n=4)[0] > _SLOW_S:
                threads = _AT_ONCE_SLOW
        results.update(zip(indices, _all_at_once(work, indices, threads), strict=True))
    return [results[index] for index in range(len(sizes))]


def _timed(work: Callable[[int], T], took: list[float], index: int) -> T:
    start = time.monotonic()
    result = work(index)
    took.append(time.monotonic() - start)
    return result


def _all_at_once(work: Callable[[int], T], indices: Sequence[int], threads: int) -> list[T]:
    if threads <= 1:
        return [work(index) for index in indices]
    results: dict[int, T] = {}
    todo = iter(indices)  # shared: each thread takes the next one
    stop = threading.Event()

    def go_on() -> None:
        try:
            for index in todo:
                results[index] = work(index)
                if stop.is_set():
                    return
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(threads, thread_name_prefix="detcore-storage") as pool:
        futures = [pool.submit(go_on) for _ in range(threads)]
        try:
            for future in futures:
                future.result()
        finally:
            stop.set()
    return [results[index] for index in indices]
