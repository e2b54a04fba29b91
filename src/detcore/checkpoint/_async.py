"""Run a save on a background thread while training continues."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from detcore.errors import CheckpointError

if TYPE_CHECKING:
    from detcore.checkpoint._manifest import Manifest
    from detcore.storage import FileDigest, Pair, Progress, StorageBackend

__all__ = ["AsyncSave", "Behind", "SaveStopped", "Threads", "Transfer"]

THREAD_NAME = "detcore-save"


class SaveStopped(CheckpointError):
    """A save that was cancelled before its commit; raised only on the save's own thread."""


class Behind(Protocol):
    """Clock and background execution; tests substitute their own."""

    def now(self) -> float:
        """Return a monotonic time in seconds."""

    def start(self, work: Callable[[], None]) -> None:
        """Start work in the background."""

    def wait(self, done: threading.Event, timeout_s: float | None) -> bool:
        """Wait until an event is set or the timeout expires; return whether it is set."""


class Threads:
    """The machine's monotonic clock, and daemon threads."""

    def now(self) -> float:
        """Return the monotonic clock."""
        return time.monotonic()

    def start(self, work: Callable[[], None]) -> None:
        """Start a thread that does not keep the process alive."""
        threading.Thread(target=work, name=THREAD_NAME, daemon=True).start()

    def wait(self, done: threading.Event, timeout_s: float | None) -> bool:
        """Wait for the event."""
        return done.wait(timeout_s)


class Transfer:
    """Progress of a save's transfer, and the request to stop it.

    Attributes:
        total_bytes: Sum of the sizes of its files; 0 until all of them are written.
        moved_bytes: Bytes in the storage, if the storage reports them.
        began: Time of the first transfer, by `Behind.now`; None before.
        is_stopped: Whether further operations of the save are refused.
    """

    def __init__(self) -> None:
        self.total_bytes = 0
        self.moved_bytes = 0
        self.began: float | None = None
        self.is_stopped = False
        self._lock = threading.Lock()

    def begin(self, total_bytes: int, now: float) -> None:
        """Record that the files are written and their transfer to the storage begins."""
        self.total_bytes, self.began = total_bytes, now

    def moved(self, count: int) -> None:
        """Count bytes that arrived; callable from any thread.

        Raises:
            SaveStopped: If the save was cancelled.
        """
        with self._lock:
            self.moved_bytes += count
        self.check()

    def check(self) -> None:
        """Refuse to continue after a stop.

        Raises:
            SaveStopped: If the save was cancelled.
        """
        if self.is_stopped:
            raise SaveStopped("the save was given up")

    def watched(self, storage: StorageBackend) -> StorageBackend:
        """Return a storage that counts transferred bytes and refuses operations after a stop."""
        return cast("StorageBackend", _WatchedStorage(storage, self))


class _WatchedStorage:
    """A storage back end that checks for a stop before every operation."""

    def __init__(self, storage: StorageBackend, transfer: Transfer) -> None:
        self._storage = storage
        self._transfer = transfer

    def __getattr__(self, name: str) -> Any:
        self._transfer.check()
        return getattr(self._storage, name)

    def put_tree(
        self, pairs: Sequence[Pair], *, progress: Progress | None = None
    ) -> dict[str, FileDigest]:
        """Copy files; a stop takes effect between two pieces."""
        self._transfer.check()
        return self._storage.put_tree(pairs, progress=self._counted(progress))

    def digest_tree(
        self, keys: Sequence[str], *, progress: Progress | None = None, **options: Any
    ) -> dict[str, FileDigest]:
        """Digest files in place; a stop takes effect between two pieces."""
        self._transfer.check()
        return self._storage.digest_tree(keys, progress=self._counted(progress), **options)

    def _counted(self, progress: Progress | None) -> Progress:
        def count(size: int) -> None:
            self._transfer.moved(size)
            if progress is not None:
                progress(size)

        return count


class AsyncSave:
    """One save, begun on the training thread and finished on another.

    Attributes:
        uuid: The checkpoint.
        steps_completed: Batches completed when it began.
        began: When the training thread requested it, by `Behind.now`.
        stalled_s: Seconds for which it stopped training.
        transfer: Its progress.
        temporary: Folder of its files if they are staged outside the storage, else None.
        manifest: The committed manifest; None before.
        failure: The exception that ended it, or None.
        ended: When it ended; None before.
    """

    def __init__(self, uuid: str, steps_completed: int, *, began: float, behind: Behind) -> None:
        self.uuid = uuid
        self.steps_completed = steps_completed
        self.began = began
        self.stalled_s = 0.0
        self.transfer = Transfer()
        self.temporary: Path | None = None
        self.manifest: Manifest | None = None
        self.failure: BaseException | None = None
        self.ended: float | None = None
        self._behind = behind
        self._done = threading.Event()
        self._pid = os.getpid()

    def start(self, work: Callable[[], Manifest], cleanup: contextlib.ExitStack) -> None:
        """Do the rest on a background thread.

        Args:
            work: Commits and records the checkpoint.
            cleanup: Exited when the work ends, with the exception if it failed.
        """
        rest = cleanup.pop_all()

        def run() -> None:
            try:
                with rest:
                    self.manifest = work()
            except BaseException as error:  # noqa: BLE001  (raised on the training thread)
                self.failure = error
            finally:
                self.ended = self._behind.now()
                self._done.set()

        try:
            self._behind.start(run)
        except BaseException:  # no more threads
            with rest:
                raise

    @property
    def is_done(self) -> bool:
        """Whether it has ended, successfully or not."""
        return self._done.is_set()

    @property
    def is_ours(self) -> bool:
        """Whether this process runs it; a child forked since then does not have the thread."""
        return self._pid == os.getpid()

    @property
    def age_s(self) -> float:
        """Seconds since it began."""
        return self._behind.now() - self.began

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it ends; return whether it has."""
        return self._behind.wait(self._done, timeout_s)

    def stop(self) -> None:
        """Refuse further operations; the current one is allowed to finish."""
        self.transfer.is_stopped = True
