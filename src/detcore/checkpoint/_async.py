"""A save that goes on behind the training, on a thread of its own."""

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
    """A save that was given up before its commit; seen only on its own thread."""


class Behind(Protocol):
    """Time, and how something is done beside the training; tests bring a clock of their own."""

    def now(self) -> float:
        """Return a time in seconds that never goes back."""

    def start(self, work: Callable[[], None]) -> None:
        """Begin to do work beside the caller."""

    def wait(self, done: threading.Event, timeout_s: float | None) -> bool:
        """Wait until an event is set, or as long as given; return whether it is set."""


class Threads:
    """The clock of this machine, and daemon threads."""

    def now(self) -> float:
        """Return the monotonic clock."""
        return time.monotonic()

    def start(self, work: Callable[[], None]) -> None:
        """Start a thread that does not keep the process from ending."""
        threading.Thread(target=work, name=THREAD_NAME, daemon=True).start()

    def wait(self, done: threading.Event, timeout_s: float | None) -> bool:
        """Wait for the event."""
        return done.wait(timeout_s)


class Transfer:
    """How far the files of a save are, and whether it is to go on.

    Attributes:
        total_bytes: Sum of the sizes of its files; 0 while they are not all written.
        moved_bytes: Bytes in the storage, where the storage tells.
        began: When the first of them was sent, by `Behind.now`; None before.
        is_stopped: Whether no further operation of the save is to begin.
    """

    def __init__(self) -> None:
        self.total_bytes = 0
        self.moved_bytes = 0
        self.began: float | None = None
        self.is_stopped = False
        self._lock = threading.Lock()

    def begin(self, total_bytes: int, now: float) -> None:
        """Take note that the files are written and their way to the storage begins."""
        self.total_bytes, self.began = total_bytes, now

    def moved(self, count: int) -> None:
        """Take note of bytes that arrived; from any thread.

        Raises:
            SaveStopped: If the save was given up.
        """
        with self._lock:
            self.moved_bytes += count
        self.check()

    def check(self) -> None:
        """Go on, or not.

        Raises:
            SaveStopped: If the save was given up.
        """
        if self.is_stopped:
            raise SaveStopped("the save was given up")

    def watched(self, storage: StorageBackend) -> StorageBackend:
        """Return a storage that counts what is put there and refuses once the save is stopped."""
        return cast("StorageBackend", _WatchedStorage(storage, self))


class _WatchedStorage:
    """A storage back end whose every operation asks first whether to go on."""

    def __init__(self, storage: StorageBackend, transfer: Transfer) -> None:
        self._storage = storage
        self._transfer = transfer

    def __getattr__(self, name: str) -> Any:
        self._transfer.check()
        return getattr(self._storage, name)

    def put_tree(
        self, pairs: Sequence[Pair], *, progress: Progress | None = None
    ) -> dict[str, FileDigest]:
        """Copy files, until told otherwise between two pieces."""
        self._transfer.check()
        return self._storage.put_tree(pairs, progress=self._counted(progress))

    def digest_tree(
        self, keys: Sequence[str], *, progress: Progress | None = None, **options: Any
    ) -> dict[str, FileDigest]:
        """Digest files where they are, until told otherwise between two pieces."""
        self._transfer.check()
        return self._storage.digest_tree(keys, progress=self._counted(progress), **options)

    def _counted(self, progress: Progress | None) -> Progress:
        def count(size: int) -> None:
            self._transfer.moved(size)
            if progress is not None:
                progress(size)

        return count


class AsyncSave:
    """One save: begun on the thread that trains, ended on another.

    Attributes:
        uuid: The checkpoint.
        steps_completed: Batches completed when it was begun.
        began: When the training thread asked for it, by `Behind.now`.
        stalled_s: How long training stood still for it, in seconds.
        transfer: How far it is.
        temporary: The folder of its files where that is not in the storage, else None.
        manifest: What was committed; None before.
        failure: What it failed with; None while it has not.
        ended: When it was over; None before.
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
        """Do the rest on a thread of its own.

        Args:
            work: Commits and records the checkpoint.
            cleanup: Left when the work is over, with its failure if it failed.
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
        """Whether it is over, well or not."""
        return self._done.is_set()

    @property
    def is_ours(self) -> bool:
        """Whether this process does it; a child that was forked meanwhile has no such thread."""
        return self._pid == os.getpid()

    @property
    def age_s(self) -> float:
        """How long ago it was begun, in seconds."""
        return self._behind.now() - self.began

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over; return whether it is."""
        return self._behind.wait(self._done, timeout_s)

    def stop(self) -> None:
        """Let no further operation begin; what is under way ends first."""
        self.transfer.is_stopped = True
