"""The files of a checkpoint on a server, as a read-only storage.

Downloads use the same code as for other storages.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from detcore.client.http.http_session import ServerUnavailableError
from detcore.client.http.wire_documents import read_document
from detcore.contract.errors import NotFoundError, StorageError
from detcore.storage import (
    Capabilities,
    Digester,
    Entry,
    FileDigest,
    Pair,
    Progress,
    check_key,
    write_all,
)

if TYPE_CHECKING:
    from detcore.client.documents import Document
    from detcore.client.http.http_session import Session


_ROOT = "/api/detcore/v1"
# A UUID that is a single path component for all proxies.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")

_AT_ONCE = 4
# Maximum number of consecutive tries that receive no further bytes of a file.
_TRIES = 6
_BACKOFF_S = 0.2


class HttpStorage:
    """The files of a checkpoint, read over HTTP. Methods that write raise an error.

    Args:
        session: The connection to the server.
        uuid: The checkpoint.

    Attributes:
        uuid: The checkpoint.
        url: Storage URL of the checkpoint on the server.

    Raises:
        DetcoreError: If the server reports that the checkpoint does not exist or is unreadable.
    """

    def __init__(self, session: Session, uuid: str) -> None:
        self._session = session
        self._path = f"{_ROOT}{checkpoint_path(uuid)}/files"
        self._refresh_files()

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of a read-only storage."""
        return Capabilities(atomic_create=False, fork_safe=True, byte_progress=True, durable=False)

    def direct_path(self, key: str) -> Path | None:
        """Return None, because the files are on the server."""
        return None

    def list(self, prefix: str = "") -> list[Entry]:
        """Return the files below a prefix, sorted by key."""
        self._refresh_files()
        entries = [Entry(f"{self.uuid}/{name}", size) for name, size in self._sizes.items()]
        below = [
            entry
            for entry in entries
            if not prefix or entry.key == prefix or entry.key.startswith(f"{prefix}/")
        ]
        return sorted(below, key=lambda entry: entry.key)

    def read(self, key: str) -> bytes:
        """Return the content of a small file."""
        sink = io.BytesIO()
        self._download_file(key, sink, None)
        return sink.getvalue()

    def get_tree(
        self,
        pairs: Sequence[Pair],
        *,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Copy keys to local files and compute their digests, several files concurrently."""

        def get(pair: Pair) -> FileDigest:
            path, key = pair
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb", 0) as file:
                return self._download_file(key, file, progress)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            # A failure cancels the copies that have not started.
            return dict(zip((key for _, key in pairs), pool.map(get, pairs), strict=True))

    def close(self) -> None:
        """No-op: the caller closes the session."""

    def digest_tree(
        self,
        keys: Sequence[str],
        *,
        make_durable: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Read files and compute their digests, several files concurrently."""
        if make_durable:
            self._refuse_write()
        with open(os.devnull, "wb", 0) as nowhere, ThreadPoolExecutor(_AT_ONCE) as pool:
            digests = pool.map(lambda key: self._download_file(key, nowhere, progress), keys)
            return dict(zip(keys, digests, strict=True))

    def _refuse_write(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise an error, because the storage is read-only."""
        raise StorageError("the files of checkpoints on a server are read-only")

    put_tree = create = replace = delete = delete_tree = probe = _refuse_write

    # -- requests ---------------------------------------------------------------------------------

    def _refresh_files(self) -> None:
        """Request the current list of files."""
        answer = read_document("files", self._session.request("GET", self._path))
        self.uuid, self.url = answer["uuid"], answer["storage_url"]
        self._sizes: dict[str, int] = {file["name"]: file["size"] for file in answer["files"]}

    def _download_file(self, key: str, file: BinaryIO, progress: Progress | None) -> FileDigest:
        """Download a file. If the connection breaks, continue after the last received byte."""
        name = check_key(key).removeprefix(f"{self.uuid}/")
        expected_size = self._sizes.get(name, 0)
        digester = Digester()
        size = tries = 0
        while True:
            try:
                params = {"name": name, "offset": size}
                with self._session.stream(f"{self._path}/content", params=params) as pieces:
                    for piece in pieces:
                        digester.update(piece)
                        write_all(file, piece)
                        size += len(piece)
                        tries = 0
                        if size > expected_size:  # the size in the manifest
                            raise StorageError(
                                f"the server sends more than the {expected_size} bytes of {key}.\n"
                                "The file has changed. Download the checkpoint again."
                            )
                        if progress is not None:
                            progress(len(piece))
                return digester.result()
            except NotFoundError as error:
                raise FileNotFoundError(key) from error
            except ServerUnavailableError:
                tries += 1
                if tries == _TRIES:
                    raise
                time.sleep(_BACKOFF_S * 2**tries)


def checkpoint_path(uuid: str) -> str:
    """Return the path of a checkpoint on the server.

    Raises:
        NotFoundError: If the UUID is not a valid path component.
    """
    if not _PLAIN.fullmatch(uuid):
        raise NotFoundError(
            f"no checkpoint {uuid!r} is recorded.\nList them: detcore checkpoint list"
        )
    return f"/checkpoints/{uuid}"


def fetch_growth(session: Session, path: str, file: Document, folder: Path) -> None:
    """Append the bytes to a local file that the server's copy has in addition.

    Event files only grow. A larger local file belongs to an earlier file with the same name, and is
    downloaded again.

    Args:
        session: The connection to the server.
        path: Path of file contents on the server.
        file: ``name, size`` on the server.
        folder: Directory of the local file.
    """
    target = folder / check_key(file["name"])
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("ab", 0) as sink:
        if sink.tell() > file["size"]:
            sink.truncate(0)
            sink.seek(0)
        if sink.tell() == file["size"]:
            return
        params = {"name": file["name"], "offset": sink.tell()}
        with session.stream(path, params=params) as pieces:
            for piece in pieces:
                write_all(sink, piece)
