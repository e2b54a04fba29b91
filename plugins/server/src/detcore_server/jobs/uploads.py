"""Partial uploads of code archives, separate for each user."""

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


# 96 MB of incompressible data, plus headers.
MAX_UPLOAD_BYTES = 128 * 1000 * 1000
_MAX_PER_USER = 4
_LIFETIME_S = 24 * 3600.0
_CHUNK_BYTES = 1 << 20
# Prefix of directories in DETCORE_HOME/experiments for submissions in progress.
_INCOMING = ".incoming-"


@contextlib.contextmanager
def incoming_folder(environment: Environment) -> Iterator[Path]:
    """Create a temporary directory for a submission on the disk of the experiments.

    A killed server removes the directory when it restarts.
    """
    experiments = environment.home / "experiments"
    experiments.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=_INCOMING, dir=experiments, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def remove_leftovers(home: Path) -> None:
    """Remove unrecorded code that a killed server left."""
    for path in (home / "experiments").glob(f"{_INCOMING}*"):
        shutil.rmtree(path, ignore_errors=True)


class Uploads:
    """A user's uploaded archives that no experiment uses yet, named by digest.

    The archives are files in the directory of records. Unfinished archives are removed after a day.
    At most four archives are kept.

    Args:
        environment: Location of the records.
        user_id: The user.
    """

    def __init__(self, environment: Environment, user_id: int) -> None:
        self._folder = environment.home / "uploads" / str(user_id)

    def size(self, digest: str) -> int:
        """Return the number of bytes of an archive on the server."""
        try:
            return self._archive_path(digest).stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, digest: str, offset: int, data: bytes) -> int:
        """Append a part to an archive if it is the next part. Return the resulting size.

        Args:
            digest: SHA-256 of the archive in hexadecimal digits.
            offset: Offset of the part.
            data: The part.

        Raises:
            ConfigError: If the archive becomes too large.
            StorageFullError: If there is no space.
        """
        if offset + len(data) > MAX_UPLOAD_BYTES:
            raise ConfigError(
                f"the archive exceeds the maximum of {MAX_UPLOAD_BYTES} bytes.\n"
                "Exclude files with .detignore."
            )
        try:
            self._make_room(digest)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            with os.fdopen(os.open(self._archive_path(digest), flags, 0o600), "r+b", 0) as file:
                # Two attempts of one submission may run concurrently.
                fcntl.flock(file, fcntl.LOCK_EX)
                size = file.seek(0, os.SEEK_END)
                if size != offset:
                    return size
                # A full disk stores only a part, and the client continues after that part.
                return offset + file.write(data)
        except OSError as error:
            raise StorageFullError(
                f"the server cannot write the archive: {error.strerror}.\n"
                "Ask the administrator to free space in DETCORE_HOME."
            ) from error

    def find_finished(self, digest: str, size_bytes: int) -> Path | None:
        """Return the path of a complete archive, or None if parts are missing.

        Raises:
            InvalidArgumentError: If the archive does not match its digest. It is removed.
        """
        path = self._archive_path(digest)
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < size_bytes:
                    return None
                hasher = hashlib.sha256()
                while chunk := file.read(_CHUNK_BYTES):
                    hasher.update(chunk)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"the server cannot read {path}: {error}") from error
        if hasher.hexdigest() != digest:
            self.remove(digest)
            raise InvalidArgumentError(
                f"the uploaded archive {digest[:12]}... was damaged in transit and was removed.\n"
                "Submit the experiment again."
            )
        return path

    def remove(self, digest: str) -> None:
        """Remove an archive if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._archive_path(digest).unlink()

    def _archive_path(self, digest: str) -> Path:
        return self._folder / f"{digest}.tar.gz"

    def _make_room(self, digest: str) -> None:
        """Remove the user's old archives, and the oldest archives above the limit."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        own_path = self._archive_path(digest)
        candidates = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path != own_path:
                    candidates.append((path.stat().st_mtime, path))
        candidates.sort(reverse=True)
        for number, (written_at, path) in enumerate(candidates):
            if number >= _MAX_PER_USER - 1 or written_at < time.time() - _LIFETIME_S:
                path.unlink(missing_ok=True)
