"""Code on its way in: archives that come in parts, each user's apart from the others'."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.errors import ConfigError, InvalidArgumentError, StorageError, StorageFullError

if TYPE_CHECKING:
    from detcore.environment import Environment


# 96 MB that cannot be compressed, and their headers.
MAX_UPLOAD_BYTES = 128 * 1000 * 1000
_MAX_PER_USER = 4
_LIFETIME_S = 24 * 3600.0
_CHUNK_BYTES = 1 << 20
# Prefix of folders in DETCORE_HOME/experiments for submissions in progress.
_INCOMING = ".incoming-"


@contextlib.contextmanager
def incoming_folder(environment: Environment) -> Iterator[Path]:
    """Create a folder for files of a submission, on the disk of the experiments, for a block.

    If the server is killed, it removes the folder when it starts again.
    """
    experiments = environment.home / "experiments"
    experiments.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=_INCOMING, dir=experiments, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def remove_leftovers(home: Path) -> None:
    """Remove the code of submissions that a killed server had not recorded."""
    for path in (home / "experiments").glob(f"{_INCOMING}*"):
        shutil.rmtree(path, ignore_errors=True)


class Uploads:
    """The archives of one user that no experiment has taken yet, named by their digests.

    They are files below the folder of records. One that is not finished within a day is removed,
    and so are the oldest of more than four.

    Args:
        environment: Where the folder of records is.
        user_id: The user.
    """

    def __init__(self, environment: Environment, user_id: int) -> None:
        self._folder = environment.home / "uploads" / str(user_id)

    def size(self, digest: str) -> int:
        """Return how many bytes of an archive the server has."""
        try:
            return self._path(digest).stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, digest: str, offset: int, data: bytes) -> int:
        """Add a part to an archive, unless another part is next; return the resulting size.

        Args:
            digest: SHA-256 of the whole archive, in hexadecimal digits.
            offset: Where the part begins.
            data: The part.

        Raises:
            ConfigError: If the archive becomes too large.
            StorageFullError: If there is no room.
        """
        if offset + len(data) > MAX_UPLOAD_BYTES:
            raise ConfigError(
                f"the archive has more than {MAX_UPLOAD_BYTES} bytes, which no server takes.\n"
                "Hand in less: leave files out with .detignore."
            )
        try:
            self._make_room(digest)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            with os.fdopen(os.open(self._path(digest), flags, 0o600), "r+b", 0) as file:
                # Two tries of one submission may run at once.
                fcntl.flock(file, fcntl.LOCK_EX)
                size = file.seek(0, os.SEEK_END)
                if size != offset:
                    return size
                # On a full disk only a part is written; the client continues behind it.
                return offset + file.write(data)
        except OSError as error:
            raise StorageFullError(
                f"the archive cannot be written on the server: {error.strerror}.\n"
                "Its administrator has to make room in DETCORE_HOME."
            ) from error

    def finished(self, digest: str, size_bytes: int) -> Path | None:
        """Return the file of a complete archive, or None if parts are missing.

        Raises:
            InvalidArgumentError: If it does not match its digest; it is removed.
        """
        path = self._path(digest)
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < size_bytes:
                    return None
                found = hashlib.sha256()
                while chunk := file.read(_CHUNK_BYTES):
                    found.update(chunk)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{path} cannot be read on the server: {error}") from error
        if found.hexdigest() != digest:
            self.remove(digest)
            raise InvalidArgumentError(
                f"what was uploaded is not the archive {digest[:12]}...: it was damaged on its "
                "way, and was removed.\nHand the experiment in again."
            )
        return path

    def remove(self, digest: str) -> None:
        """Remove an archive, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._path(digest).unlink()

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.tar.gz"

    def _make_room(self, digest: str) -> None:
        """Remove the user's archives that are too old, and the oldest of too many."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mine = self._path(digest)
        others = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path != mine:
                    others.append((path.stat().st_mtime, path))
        others.sort(reverse=True)
        for number, (written_at, path) in enumerate(others):
            if number >= _MAX_PER_USER - 1 or written_at < time.time() - _LIFETIME_S:
                path.unlink(missing_ok=True)
