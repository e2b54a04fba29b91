"""Use Google Cloud Storage through gcsfs, with better part sizes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, BinaryIO

from detcore.errors import StorageError
from detcore.storage import (
    Capabilities,
    Digester,
    FileDigest,
    Progress,
    Sink,
    write_all,
)
from detcore_storage._bulk import BulkTransfers
from detcore_storage._fsspec import FsspecStorage
from detcore_storage._remote import bucket_needed
from detcore_storage._retries import RetryPolicy, retry_async

if TYPE_CHECKING:
    from detcore_storage._settings import GcsSettings


# An upload sends its parts one after the other. gcsfs's default of 50 MB is 3.4 times slower. Large
# files have larger parts, because few of them are in flight at a time.
_PART_BYTES = 8 << 20
_LARGE_PART_BYTES = 16 << 20
_LARGE_BYTES = 256 << 20
_CANCEL_S = 2.0
# This many files keep the connections busy as one stream each, which takes less CPU than parts do;
# for fewer files, several parts are read concurrently.
_STREAMS = 3
_STREAM_BYTES = 64 << 20
_BUFFER_BYTES = 1 << 20
_TYPE = "application/octet-stream"


def open_gcs(settings: GcsSettings) -> GcsStorage:
    """Return the storage of ``type: gcs``, and of ``gs://`` URLs."""
    return GcsStorage(settings)


class GcsStorage(FsspecStorage):
    """Checkpoints in a bucket of Google Cloud Storage."""

    def __init__(self, settings: GcsSettings) -> None:
        """Store the settings; the connection is made later."""
        super().__init__(f"gs://{settings.root()}")
        self._settings = settings
        self.policy = RetryPolicy(deadline_s=settings.deadline_s, renew=self._renew)

    @property
    def capabilities(self) -> Capabilities:
        """GCS has generation preconditions; a check shows whether an emulator honours them."""
        return Capabilities(atomic_create=True, fork_safe=True, byte_progress=True, durable=True)

    def _connect(self) -> tuple[Any, str]:
        # gcsfs.GCSFileSystem queries the kind of each bucket over gRPC, which takes a minute every
        # time if nothing answers (an emulator, a proxy); this class does not.
        from detcore_storage._gcs_requests import RetryingFileSystem

        settings = self._settings
        options: dict[str, Any] = {}
        if settings.endpoint_url is not None:
            options = {"endpoint_url": settings.endpoint_url.rstrip("/"), "token": "anon"}
        fs = RetryingFileSystem(
            policy=self.policy,
            project=settings.project or "",
            use_listings_cache=False,
            requests_timeout=settings.deadline_s,
            skip_instance_cache=True,  # fsspec would keep it, and its connections, for ever
            **options,
        )
        return fs, settings.root()

    def close(self) -> None:
        """Close the connections; not those of a parent process, whose loop does not run here."""
        opened = self._opened
        super().close()
        if opened is not None and opened[0] == os.getpid() and opened[1]._session is not None:
            import fsspec.asyn

            fsspec.asyn.sync(opened[1].loop, opened[1]._session.close)

    async def _renew(self) -> None:
        """Read the credentials again, and get a new token."""
        credentials = self._fs.credentials
        await asyncio.to_thread(credentials.connect, credentials.method)

    def _writing(self) -> AbstractContextManager[None]:
        return bucket_needed(self.url, self._settings.bucket)

    _gets_at_once = 6

    def _read_large(
        self,
        key: str,
        size: int,
        sink: Sink | None,
        *,
        algorithm: str,
        progress: Progress | None,
        files: int,
    ) -> FileDigest:
        if files < _STREAMS:
            return super()._read_large(
                key, size, sink, algorithm=algorithm, progress=progress, files=files
            )
        fs = self._fs
        stream = _Stream(fs, self._path(key), sink, Digester(algorithm), progress)
        return BulkTransfers(fs, self.policy).once(
            functools.partial(stream.read, size, self.policy)
        )

    def _make_folders(self, keys: Iterable[str]) -> None:
        """Do nothing: there are no folders, and a bucket must exist."""

    def _write_stream(self, key: str, source: BinaryIO, progress: Progress | None) -> FileDigest:
        fs = self._fs
        size = source.seek(0, 2)
        source.seek(0)
        bucket, name, _ = fs.split_path(self._path(key))

        async def send() -> FileDigest:
            from gcsfs.core import initiate_upload, upload_chunk

            digester = Digester()
            part = _PART_BYTES if size < _LARGE_BYTES else _LARGE_PART_BYTES
            within = self.policy.deadline_s
            place = await asyncio.wait_for(initiate_upload(fs, bucket, name, _TYPE), within)
            try:
                for offset in range(0, size, part):
                    data = source.read(part)
                    digester.update(data)
                    await asyncio.wait_for(
                        upload_chunk(fs, place, data, offset, size, _TYPE), within
                    )
                    if progress is not None:
                        progress(len(data))
            except BaseException:
                # Otherwise the session would exist for a week, invisibly; one attempt is enough.
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(fs._call("DELETE", place), min(within, _CANCEL_S))
                raise
            return digester.result()

        return BulkTransfers(fs, self.policy).once(send)


class _Stream:
    """A large file that is written and digested incrementally, and resumed after a failure."""

    def __init__(
        self,
        fs: Any,
        path: str,
        sink: Sink | None,
        digester: Digester,
        progress: Progress | None,
    ) -> None:
        self._fs = fs
        self._path = path
        self._sink = sink
        self._digester = digester
        self._progress = progress
        self._at = 0

    async def read(self, size: int, policy: RetryPolicy) -> FileDigest:
        """Read all of it; each request has the deadline of the policy."""
        while self._at < size:
            stop = min(self._at + _STREAM_BYTES, size)
            await retry_async(functools.partial(self._read_to, stop), policy)
        return self._digester.result()

    async def _read_to(self, stop: int) -> None:
        from gcsfs.retry import validate_response

        fs = self._fs
        await fs._set_session()
        async with fs.session.get(
            fs.url(self._path),
            params=fs._get_params({}),
            headers=fs._get_headers({"Range": f"bytes={self._at}-{stop - 1}"}),
            timeout=fs.requests_timeout,
            read_bufsize=_BUFFER_BYTES,
        ) as answer:
            if answer.status >= 400:
                validate_response(answer.status, await answer.read(), self._path)
            if answer.status != 206:
                raise StorageError(
                    f"asked for a part of {self._path}, the server answered {answer.status}.\n"
                    "Look for a proxy between here and the store that changes requests."
                )
            async for data, _ in answer.content.iter_chunks():
                self._take(data)
        if self._at != stop:
            raise ConnectionError(f"{self._path} was cut at {self._at} bytes, before {stop}")

    def _take(self, data: bytes) -> None:
        self._digester.update(data)
        if self._sink is not None:
            write_all(self._sink, data)
        self._at += len(data)
        if self._progress is not None:
            self._progress(len(data))
