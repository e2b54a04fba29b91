"""Let the ranks of one machine meet in a folder that only their user can enter."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from detcore.environment import read_variables
from detcore.errors import DistributedError

__all__ = ["MeetingPlace", "job_identity", "private_folder"]

# Values that are the same in all processes of one job and differ between jobs.
_JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
)


def job_identity() -> str:
    """Return an identity of this job among those on this machine, for use without a key.

    It consists of the launcher's variables, or else the parent process.
    """
    values = read_variables(_JOB_VARIABLES)
    if values:
        return repr(sorted(values.items()))
    parent = os.getppid()
    started = ""
    with contextlib.suppress(OSError, IndexError):
        # Process ids are reused; field 22 is the time at which the process started.
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    return f"parent {parent} {started}"


def private_folder() -> Path:
    """Return the user's folder for sockets, made with mode 0700.

    Raises:
        DistributedError: If another user owns the folder, or others may enter it.
    """
    # A socket's path has to fit into 107 bytes, so a long TMPDIR cannot be used.
    root = Path("/tmp") if os.access("/tmp", os.W_OK) else Path(tempfile.gettempdir())
    folder = root / f"detcore-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise DistributedError(
            f"{folder} is not a folder of this user alone.\n"
            "The workers of a machine meet there, and other users must not enter.\n"
            f"Remove it, or run: chmod 700 {folder}"
        )
    return folder


class MeetingPlace:
    """The names under which one group of ranks meets; held by the rank that listens.

    Args:
        identity: Text that only the ranks of this group share.
    """

    def __init__(self, identity: bytes) -> None:
        name = hashlib.sha256(b"detcore meeting|" + identity).hexdigest()[:32]
        folder = private_folder()
        self.socket_path = str(folder / f"{name}.sock")
        self.note_path = folder / f"{name}.note"
        self._lock_path = folder / f"{name}.lock"
        self._lock: int | None = None

    def take(self) -> None:
        """Become the listener of this name; remove leftovers of a dead one.

        Raises:
            DistributedError: If a living process listens here.
        """
        import fcntl

        while self._lock is None:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(lock)
                raise DistributedError(
                    "another process is waiting for workers under the same name.\n"
                    "Two jobs with the same parent process look alike without a key.\n"
                    "Give each job a DETCORE_JOB_KEY (or key=...), or a port_offset."
                ) from error
            # The file may have been removed between the two calls above.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), self._lock_path.stat()):
                    self._lock = lock
                    break
            os.close(lock)
        self._remove()

    def leave_note(self, text: bytes) -> None:
        """Publish the address to users who may enter the folder, atomically."""
        partial = self.note_path.with_suffix(".part")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        partial.replace(self.note_path)

    def release(self) -> None:
        """Remove the names; the connections made here stay."""
        if self._lock is None:
            return
        self._remove()
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None

    def _remove(self) -> None:
        for path in (self.socket_path, self.note_path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
