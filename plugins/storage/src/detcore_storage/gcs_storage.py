"""Use Google Cloud Storage through gcsfs, with better part sizes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, BinaryIO

from detcore.storage import Capabilities, Digester, FileDigest, Progress
from detcore_storage.fsspec_storage import FsspecStorage
from detcore_storage.remote_storage import explain_missing_bucket
from detcore_storage.retries import RetryPolicy, retry_async

if TYPE_CHECKING:
    from detcore_storage.storage_settings import GcsSettings


# An upload sends its parts sequentially. gcsfs's default of 50 MB is 3.4 times slower. Large files
# have larger parts, because few of these files are in flight at a time.
_PART_BYTES = 8 << 20
_LARGE_PART_BYTES = 16 << 20
_LARGE_BYTES = 256 << 20
_CANCEL_S = 2.0
_TYPE = "application/octet-stream"


def open_gcs(settings: GcsSettings) -> GcsStorage:
    """Return the storage of ``type: gcs``, and of ``gs://`` URLs."""
    return GcsStorage(settings)


class GcsStorage(FsspecStorage):
    """Checkpoints in a bucket of Google Cloud Storage."""

    def __init__(self, settings: GcsSettings) -> None:
        """Store the settings without connecting."""
        super().__init__(f"gs://{settings.root()}")
        self._settings = settings
        self.policy = RetryPolicy(deadline_s=settings.deadline_s, renew=self._renew_credentials)

    @property
    def capabilities(self) -> Capabilities:
        """GCS has generation preconditions, which not every emulator honours."""
        return Capabilities(atomic_create=True, fork_safe=True, byte_progress=True, durable=True)

    def _connect(self) -> tuple[Any, str]:
        # gcsfs.GCSFileSystem queries the kind of each bucket over gRPC, which takes a minute every
        # time if nothing answers (an emulator, a proxy); the class in gcsfs.core does not.
        settings = self._settings
        options: dict[str, Any] = {}
        if settings.endpoint_url is not None:
            options = {"endpoint_url": settings.endpoint_url.rstrip("/"), "token": "anon"}
        fs = _make_file_system(
            self.policy,
            project=settings.project or "",
            use_listings_cache=False,
            requests_timeout=settings.deadline_s,
            skip_instance_cache=True,  # fsspec would cache it and its connections forever
            **options,
        )
        return fs, settings.root()

    def close(self) -> None:
        """Close the connections of this process. A parent's event loop does not run here."""
        connection = self._connection
        super().close()
        if (
            connection is not None
            and connection[0] == os.getpid()
            and connection[1]._session is not None
        ):
            import fsspec.asyn

            fsspec.asyn.sync(connection[1].loop, connection[1]._session.close)

    async def _renew_credentials(self) -> None:
        """Read the credentials again, and get a new token."""
        credentials = self._fs.credentials
        await asyncio.to_thread(credentials.connect, credentials.method)

    def _translate_write_errors(self) -> AbstractContextManager[None]:
        return explain_missing_bucket(self.url, self._settings.bucket)

    def _make_directories(self, keys: Iterable[str]) -> None:
        """No-op: buckets have no directories."""

    def _write_stream(self, key: str, source: BinaryIO, progress: Progress | None) -> FileDigest:
        fs = self._fs
        size = source.seek(0, 2)
        source.seek(0)
        bucket, name, _ = fs.split_path(self._resolve_path(key))

        async def send() -> FileDigest:
            from gcsfs.core import initiate_upload, upload_chunk

            digester = Digester()
            part = _PART_BYTES if size < _LARGE_BYTES else _LARGE_PART_BYTES
            timeout_s = self.policy.deadline_s
            location = await asyncio.wait_for(initiate_upload(fs, bucket, name, _TYPE), timeout_s)
            try:
                for offset in range(0, size, part):
                    data = source.read(part)
                    digester.update(data)
                    await asyncio.wait_for(
                        upload_chunk(fs, location, data, offset, size, _TYPE), timeout_s
                    )
                    if progress is not None:
                        progress(len(data))
            except BaseException:
                # Otherwise the session would exist invisibly for a week. One attempt is enough.
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(fs._call("DELETE", location), min(timeout_s, _CANCEL_S))
                raise
            return digester.result()

        import fsspec.asyn

        digest: FileDigest = fsspec.asyn.sync(fs.loop, send)
        return digest


def _make_file_system(policy: RetryPolicy, **options: Any) -> Any:
    """Return a gcsfs file system with detcore's deadlines and pauses.

    gcsfs draws its pauses from Python's global generator, which training also uses. After a save
    with retries, a resume would not be exact.
    """
    from gcsfs.core import GCSFileSystem

    class RetryingFileSystem(GCSFileSystem):  # type: ignore[misc]  # gcsfs has no types
        async def _request(self, *args: Any, **options: Any) -> Any:
            # The function inside gcsfs's retry wrapper.
            once = functools.partial(GCSFileSystem._request.__wrapped__, self, *args, **options)
            return await retry_async(once, policy)

    return RetryingFileSystem(**options)
