"""Use S3 through s3fs, and through obstore if that is installed."""

from __future__ import annotations

import asyncio
import collections
import datetime
import functools
import importlib.util
import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from detcore.errors import StorageError
from detcore.storage import (
    DEFAULT_ALGORITHM,
    Capabilities,
    Digester,
    Entry,
    FileDigest,
    Pair,
    Progress,
    check_key,
)
from detcore_storage._bucket import bucket_needed
from detcore_storage._bulk import BulkTransfers
from detcore_storage._fsspec import FsspecStorage
from detcore_storage._retries import RetryPolicy, retry_async, translated

if TYPE_CHECKING:
    from detcore_storage._obstore import ObstoreEngine
    from detcore_storage._settings import S3Settings


_LOG = logging.getLogger("detcore.storage")
_PART_BYTES = 5 << 20
_PARTS_AT_ONCE = 2
_MOST_PARTS = 9_000  # S3's limit is 10,000
_OLD_S = 24 * 3600.0
_ABORT_S = 2.0


def open_s3(settings: S3Settings) -> S3Storage:
    """Return the storage of ``type: s3``, and of ``s3://`` URLs."""
    return S3Storage(settings)


class S3Storage(FsspecStorage):
    """Checkpoints in a bucket of S3."""

    def __init__(self, settings: S3Settings) -> None:
        """Store the settings; the connection is made later.

        Raises:
            StorageError: If the settings require an engine that is not installed.
        """
        super().__init__(f"s3://{settings.root()}")
        self._settings = settings
        self.policy = RetryPolicy(deadline_s=settings.deadline_s, renew=self._renew)
        self._fast: ObstoreEngine | None = None
        has_obstore = importlib.util.find_spec("obstore") is not None
        if settings.engine == "obstore" and not has_obstore:
            raise StorageError(
                "engine: obstore is not installed.\n"
                "Install it (pip install 'detcore-storage[fast]'), or leave engine out: s3fs will "
                "then do the work."
            )
        if settings.engine != "s3fs" and has_obstore:
            from detcore_storage._obstore import ObstoreEngine

            self._fast = ObstoreEngine(settings)

    @property
    def capabilities(self) -> Capabilities:
        """S3 has conditional puts; a check shows whether a server honours them."""
        return Capabilities(atomic_create=True, fork_safe=True, byte_progress=True, durable=True)

    @property
    def engine(self) -> str:
        """The library that moves files: ``"obstore"`` or ``"s3fs"``."""
        return "s3fs" if self._engine is None else "obstore"

    def put_tree(
        self, pairs: Sequence[Pair], *, progress: Progress | None = None
    ) -> dict[str, FileDigest]:
        """Copy local files to keys; see `StorageBackend.put_tree`."""
        engine = self._engine
        if engine is None:
            return super().put_tree(pairs, progress=progress)
        keys = [check_key(key) for _, key in pairs]
        sizes = [path.stat().st_size for path, _ in pairs]
        try:
            with self._writing(), translated(f"writing to {self._settings.root()}", self.url):
                digests = engine.put(pairs, sizes, progress)
        except StorageError:
            # Parts that obstore had sent would stay in the bucket, invisible but billed.
            self._clear_failed([key for key, size in zip(keys, sizes, strict=True)
                                if size > _PART_BYTES])  # fmt: skip
            raise
        return dict(zip(keys, digests, strict=True))

    def _writing(self) -> AbstractContextManager[None]:
        return bucket_needed(self.url, self._settings.bucket)

    def _fetch(
        self,
        keys: Sequence[str],
        paths: Sequence[Path | None],
        algorithm: str = DEFAULT_ALGORITHM,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        engine = self._engine
        if engine is None:
            return super()._fetch(keys, paths, algorithm, progress)
        with translated(f"reading from {self._settings.root()}", self.url):
            digests = engine.get(keys, paths, algorithm, progress)
        return dict(zip(keys, digests, strict=True))

    def create(self, key: str, data: bytes) -> None:
        """Store a small file that does not exist yet, with a conditional put."""
        check_key(key)
        engine = self._engine
        if engine is None:
            super().create(key, data)
            return
        with self._writing(), translated(f"creating {key}", self.url):
            if not engine.create(key, data):
                raise FileExistsError(f"{key} exists already in {self.url}")

    def replace(self, key: str, data: bytes) -> None:
        """Store a small file, replacing an existing one."""
        check_key(key)
        engine = self._engine
        if engine is None:
            super().replace(key, data)
            return
        with self._writing(), translated(f"writing {key}", self.url):
            engine.replace(key, data)

    def read(self, key: str) -> bytes:
        """Return the content of a small file."""
        check_key(key)
        engine = self._engine
        if engine is None:
            return super().read(key)
        with translated(f"reading {key}", self.url):
            return engine.read(key)

    def list(self, prefix: str = "") -> list[Entry]:
        """Return the files below a prefix, sorted by key."""
        if prefix:
            check_key(prefix)
        engine = self._engine
        if engine is None:
            return super().list(prefix)
        with translated(f"listing {prefix or 'all files'}", self.url):
            entries = engine.list(prefix)
        # obstore refuses a whole listing if it contains a key such as "a//b".
        return super().list(prefix) if entries is None else entries

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files; keys that do not exist are skipped."""
        checked = [check_key(key) for key in keys]
        engine = self._engine
        if engine is None:
            super().delete(checked)
            return
        with translated(f"deleting {', '.join(checked[:3])}", self.url):
            engine.delete(checked)

    def probe(self) -> None:
        """Write, read and delete a small file; also abort uploads of killed processes."""
        super().probe()
        try:
            self.clear_uploads(older_than_s=_OLD_S)
        except (PermissionError, StorageError) as error:
            # Listing uploads needs a separate permission, which saving does not need.
            _LOG.warning(
                "unfinished uploads in %s cannot be looked for, and may be paid for: %s",
                self.url, str(error).partition("\n")[0],
            )  # fmt: skip

    def clear_uploads(self, prefix: str = "", *, older_than_s: float) -> int:
        """Abort abandoned multipart uploads, whose parts are billed but not listed.

        Args:
            prefix: Prefix to search, below the storage's own prefix.
            older_than_s: Minimum age in seconds; younger ones may still be in progress.

        Returns:
            The number of aborted uploads.
        """
        start = "/".join(part for part in (self._settings.prefix, prefix) if part)
        with translated("looking for unfinished uploads", self.url):
            old = []
            latest = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(
                seconds=older_than_s
            )
            options: dict[str, Any] = {"Bucket": self._settings.bucket, "Prefix": start}
            while True:
                page = self._s3("list_multipart_uploads", **options)
                old += [upload for upload in page.get("Uploads", ())
                        if upload["Initiated"] <= latest
                        and (upload["Key"] == start or not start
                             or upload["Key"].startswith(f"{start}/"))]  # fmt: skip
                if not page.get("IsTruncated"):
                    break
                options["KeyMarker"] = page["NextKeyMarker"]
                options["UploadIdMarker"] = page.get("NextUploadIdMarker", "")
            for upload in old:
                self._s3(
                    "abort_multipart_upload", Bucket=self._settings.bucket, Key=upload["Key"],
                    UploadId=upload["UploadId"],
                )  # fmt: skip
        return len(old)

    def _clear_failed(self, keys: Sequence[str]) -> None:
        for key in keys:
            try:
                self.clear_uploads(key, older_than_s=0.0)
            except (OSError, StorageError) as error:
                _LOG.warning("parts of %s may be left in %s: %s", key, self.url, error)
                return

    @property
    def _engine(self) -> ObstoreEngine | None:
        """The fast engine, unless this process was forked from one that has used it."""
        return self._fast if self._fast is not None and self._fast.is_usable() else None

    def _s3(self, name: str, **options: Any) -> Any:
        fs = self._fs
        return BulkTransfers(fs, self.policy).run(functools.partial(fs._call_s3, name, **options))

    def _connect(self) -> tuple[Any, str]:
        import s3fs

        settings = self._settings
        path_style = settings.path_style
        if path_style is None:
            path_style = settings.endpoint_url is not None
        region = settings.region
        if region is None and settings.endpoint_url is not None:
            region = "us-east-1"
        fs = s3fs.S3FileSystem(
            key=None if settings.access_key is None else settings.access_key.get_secret_value(),
            secret=None if settings.secret_key is None else settings.secret_key.get_secret_value(),
            endpoint_url=settings.endpoint_url,
            client_kwargs={} if region is None else {"region_name": region},
            config_kwargs={
                "s3": {"addressing_style": "path" if path_style else "auto"},
                "max_pool_connections": 50,
                "connect_timeout": min(10.0, settings.deadline_s / 2),
                "read_timeout": min(60.0, settings.deadline_s / 2),
                # Some servers refuse trailing checksums, which are sent otherwise; the manifest
                # contains digests anyway.
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
                # botocore would draw its pauses from the generator that training uses.
                "retries": {"total_max_attempts": 1},
            },
            use_listings_cache=False,
        )
        return fs, settings.root()

    async def _renew(self) -> None:
        """Read the credentials of s3fs again."""
        await self._fs.set_session(refresh=True)

    def _make_folders(self, keys: Iterable[str]) -> None:
        """Do nothing: there are no folders, and a bucket must exist."""

    def _write_stream(self, key: str, source: BinaryIO, progress: Progress | None) -> FileDigest:
        size = source.seek(0, 2)
        source.seek(0)
        upload = _PartsUpload(self._fs, self.policy, *self._fs.split_path(self._path(key))[:2])
        return BulkTransfers(self._fs, self.policy).once(
            functools.partial(upload.send, source, size, progress)
        )


class _PartsUpload:
    """One multipart upload through s3fs; each part has the deadline of a request.

    s3fs's own upload has no deadline, and needs a second pass over the file for the digest.
    """

    def __init__(self, fs: Any, policy: RetryPolicy, bucket: str, key: str) -> None:
        self._fs = fs
        self._policy = policy
        self._where = {"Bucket": bucket, "Key": key}

    async def send(self, source: BinaryIO, size: int, progress: Progress | None) -> FileDigest:
        """Upload the file, or leave nothing behind."""
        part_bytes = max(_PART_BYTES, -(-size // _MOST_PARTS))
        digester = Digester()
        begun = await self._call("create_multipart_upload")
        token = {"UploadId": begun["UploadId"]}
        pending: collections.deque[asyncio.Task[dict[str, Any]]] = collections.deque()
        parts: list[dict[str, Any]] = []
        try:
            while data := source.read(part_bytes):
                digester.update(data)
                if len(pending) == _PARTS_AT_ONCE:
                    parts.append(await pending.popleft())
                number = len(parts) + len(pending) + 1
                pending.append(asyncio.ensure_future(self._send_part(data, number, token)))
                if progress is not None:
                    progress(len(data))
            while pending:
                parts.append(await pending.popleft())
            await self._complete(parts, token, size)
        except BaseException:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            await self._abort(token)
            raise
        return digester.result()

    async def _send_part(self, data: bytes, number: int, token: dict[str, str]) -> dict[str, Any]:
        done = await self._call("upload_part", PartNumber=number, Body=data, **token)
        return {"PartNumber": number, "ETag": done["ETag"]}

    async def _complete(
        self, parts: list[dict[str, Any]], token: dict[str, str], size: int
    ) -> None:
        try:
            await self._call("complete_multipart_upload", MultipartUpload={"Parts": parts}, **token)
        except FileNotFoundError:
            # An earlier attempt succeeded and its response was lost: the upload no longer exists.
            there = await self._fs._info("/".join(self._where.values()))
            if there["size"] != size:
                raise

    async def _abort(self, token: dict[str, str]) -> None:
        try:
            await asyncio.wait_for(
                self._fs._call_s3("abort_multipart_upload", **self._where, **token), _ABORT_S
            )
        except (OSError, asyncio.TimeoutError) as error:
            _LOG.warning("parts of %s may be left in the bucket: %s", self._where["Key"], error)

    async def _call(self, name: str, **options: Any) -> Any:
        return await retry_async(
            lambda: self._fs._call_s3(name, **self._where, **options), self._policy
        )
