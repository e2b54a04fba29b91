"""Count the bytes of a save in the background, and stop it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import CheckpointError

if TYPE_CHECKING:
    from detcore.storage import FileDigest, Pair, Progress, StorageBackend

__all__ = ["Background", "SaveStopped", "Transfer", "caused_by"]


def caused_by(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that led to it; a storage or a framework may have wrapped it."""
    seen: list[BaseException] = []  # an exception may be raised from itself
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


class SaveStopped(CheckpointError):
    """A save that was cancelled before its commit; raised only on the save's own thread."""


class Background:
    """The machine's monotonic clock, and daemon threads; tests substitute their own."""

    def now(self) -> float:
        """Return a monotonic time in seconds."""
        return time.monotonic()

    def start(self, work: Callable[[], None]) -> None:
        """Start work on a thread that does not keep the process alive."""
        threading.Thread(target=work, name="detcore-save", daemon=True).start()

    def wait(self, done: threading.Event, timeout_s: float | None) -> bool:
        """Wait until an event is set or the timeout expires; return whether it is set."""
        return done.wait(timeout_s)


class Transfer:
    """A save's storage: counts the bytes that arrive, and refuses operations after a stop.

    Attributes:
        total_bytes: Sum of the sizes of its files; 0 until all of them are written.
        moved_bytes: Bytes in the storage, if the storage reports them.
        began: Time of the first transfer, by `Background.now`; None before.
        is_stopped: Whether further operations of the save are refused.
    """

    def __init__(self, storage: StorageBackend) -> None:
        self._storage = storage
        self.total_bytes = 0
        self.moved_bytes = 0
        self.began: float | None = None
        self.is_stopped = False
        self._lock = threading.Lock()

    def begin(self, total_bytes: int, now: float) -> None:
        """Record that the files are written and their transfer to the storage begins."""
        self.total_bytes, self.began = total_bytes, now

    def check(self) -> None:
        """Refuse to continue after a stop.

        Raises:
            SaveStopped: If the save was cancelled.
        """
        if self.is_stopped:
            raise SaveStopped("the save was given up")

    def __getattr__(self, name: str) -> Any:
        self.check()
        return getattr(self._storage, name)

    def put_tree(
        self, pairs: Sequence[Pair], *, progress: Progress | None = None
    ) -> dict[str, FileDigest]:
        """Copy files; a stop takes effect between two pieces."""
        self.check()
        return self._storage.put_tree(pairs, progress=self._counted(progress))

    def digest_tree(
        self, keys: Sequence[str], *, progress: Progress | None = None, **options: Any
    ) -> dict[str, FileDigest]:
        """Digest files in place; a stop takes effect between two pieces."""
        self.check()
        return self._storage.digest_tree(keys, progress=self._counted(progress), **options)

    def _counted(self, progress: Progress | None) -> Progress:
        def count(size: int) -> None:  # on any thread
            with self._lock:
                self.moved_bytes += size
            self.check()
            if progress is not None:
                progress(size)

        return count
