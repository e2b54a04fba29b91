"""The files of a checkpoint behind a server, as a storage that can be read.

So what checks and puts together a download of any other storage does it here, too.
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
# A UUID that is one part of a path, whatever a proxy does with paths.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")

_AT_ONCE = 4
# How often in a row nothing more may come of a file.
_TRIES = 6
_BACKOFF_S = 0.2


class HttpStorage:
    """One checkpoint's files, read over HTTP. Read-only: methods that write raise an error.

    Args:
        session: The connection to the server.
        uuid: The checkpoint.

    Attributes:
        uuid: The checkpoint.
        url: Where the server has it.

    Raises:
        DetcoreError: If there is no such checkpoint, or it cannot be read; as the server says.
    """

    def __init__(self, session: Session, uuid: str) -> None:
        self._session = session
        self._path = f"{_ROOT}{checkpoint_path(uuid)}/files"
        self._look()

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities, as the protocol requires; nothing is written here."""
        return Capabilities(atomic_create=False, fork_safe=True, byte_progress=True, durable=False)

    def direct_path(self, key: str) -> Path | None:
        """Return None: nothing of it is on this machine."""
        return None

    def list(self, prefix: str = "") -> list[Entry]:
        """Return the files below a prefix, sorted by key."""
        self._look()
        found = [Entry(f"{self.uuid}/{name}", size) for name, size in self._known.items()]
        below = [
            entry
            for entry in found
            if not prefix or entry.key == prefix or entry.key.startswith(f"{prefix}/")
        ]
        return sorted(below, key=lambda entry: entry.key)

    def read(self, key: str) -> bytes:
        """Return the content of a small file."""
        sink = io.BytesIO()
        self._get(key, sink, None)
        return sink.getvalue()

    def get_tree(
        self,
        pairs: Sequence[Pair],
        *,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Copy keys to local files and digest them on the way, some at a time."""

        def get(pair: Pair) -> FileDigest:
            path, key = pair
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb", 0) as file:
                return self._get(key, file, progress)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            # A failure cancels the copies that were not started.
            return dict(zip((key for _, key in pairs), pool.map(get, pairs), strict=True))

    def close(self) -> None:
        """Do nothing: the session is the caller's."""

    def digest_tree(
        self,
        keys: Sequence[str],
        *,
        make_durable: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Read files and digest them, some at a time; their contents are not kept."""
        if make_durable:
            self._refuse()
        with open(os.devnull, "wb", 0) as nowhere, ThreadPoolExecutor(_AT_ONCE) as pool:
            digests = pool.map(lambda key: self._get(key, nowhere, progress), keys)
            return dict(zip(keys, digests, strict=True))

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse to write."""
        raise StorageError("the files of checkpoints behind a server are only read")

    put_tree = create = replace = delete = delete_tree = probe = _refuse

    # -- asking -----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask for the current list of files."""
        answer = read_document("files", self._session.request("GET", self._path))
        self.uuid, self.url = answer["uuid"], answer["storage_url"]
        self._known: dict[str, int] = {file["name"]: file["size"] for file in answer["files"]}

    def _get(self, key: str, file: BinaryIO, progress: Progress | None) -> FileDigest:
        """Copy a file; if the connection breaks, continue after the last received byte."""
        name = check_key(key).removeprefix(f"{self.uuid}/")
        most = self._known.get(name, 0)
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
                        if size > most:  # which was compared with the manifest before
                            raise StorageError(
                                f"the server sends more of {key} than the {most} bytes it has.\n"
                                "It was changed meanwhile: download the checkpoint again."
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
    """Return the path of a checkpoint, unless its UUID cannot be a part of one."""
    if not _PLAIN.fullmatch(uuid):
        raise NotFoundError(
            f"no checkpoint {uuid!r} is recorded.\nList them: detcore checkpoint list"
        )
    return f"/checkpoints/{uuid}"


def fetch_growth(session: Session, path: str, file: Document, folder: Path) -> None:
    """Append to a file in a folder the bytes that the server's copy has beyond it.

    Event files only grow. A local file that is larger belongs to an earlier file of that name and
    is written again.

    Args:
        session: The connection to the server.
        path: Of the contents of files.
        file: ``name, size`` on the server.
        folder: Where the file is, or will be.
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
