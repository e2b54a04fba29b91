"""Run saves on a background thread while training continues, and bound how many wait."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from detcore.errors import CheckpointError, CheckpointTimeoutError

if TYPE_CHECKING:
    from detcore.checkpoint._manifest import Manifest
    from detcore.checkpoint._save import Saver, Snapshot, Tensors
    from detcore.storage import FileDigest, Pair, Progress, StorageBackend

__all__ = [
    "AsyncSave",
    "Behind",
    "Outstanding",
    "SaveProgress",
    "SaveStopped",
    "Threads",
    "Timeout",
    "Transfer",
]

THREAD_NAME = "detcore-save"
Timeout: TypeAlias = "float | Callable[[], float] | None"
"""Seconds to wait; or a function that returns the seconds left; None for no limit."""


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


# How long a cancelled save may take to stop; its files are removed during that time.
_NOTICE_S = 2.0
# How often the remaining time is read again.
_LOOK_S = 0.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SaveProgress:
    """Progress of a save in the background.

    Attributes:
        uuid: The checkpoint.
        steps_completed: Batches completed when it began.
        age_s: Seconds since it began.
        upload_s: Seconds since the transfer to the storage began; 0 while files are written.
        fraction: Fraction of its bytes that arrived, from 0 to 1; None if unknown.
    """

    uuid: str
    steps_completed: int
    age_s: float
    upload_s: float = 0.0
    fraction: float | None = None


class Outstanding:
    """Starts saves one at a time, and reports the result of each exactly once.

    All methods must be called from the training thread; the error of a failed save is raised by
    the next call, and only by that one.

    Args:
        saver: Performs the saves.
        behind: Clock and threads.
    """

    def __init__(self, saver: Saver, behind: Behind) -> None:
        self._saver = saver
        self._behind = behind
        self._save: AsyncSave | None = None
        self._given_up: list[AsyncSave] = []
        self._waited_s = 0.0  # since the last save began

    def begin(
        self,
        snapshot: Snapshot,
        metadata: Mapping[str, Any],
        versions: Mapping[str, str],
        tensors: Tensors,
    ) -> str:
        """Wait for the previous save, begin one, and return its checkpoint's UUID."""
        self.wait()
        began = self._behind.now() - self._waited_s
        self._waited_s = 0.0
        self._save = self._saver.begin(snapshot, metadata, versions, tensors, began=began)
        return self._save.uuid

    @property
    def uuid(self) -> str | None:
        """The checkpoint that is being saved, or whose result was not reported yet."""
        save = self._mine()
        return save.uuid if save is not None else None

    def progress(self) -> SaveProgress | None:
        """Return the progress of the save, or None if none is running."""
        save = self._mine()
        if save is None or save.is_done:
            return None
        transfer, now = save.transfer, self._behind.now()
        upload_s = 0.0 if transfer.began is None else now - transfer.began
        fraction = None
        if transfer.total_bytes and transfer.moved_bytes:
            fraction = min(1.0, transfer.moved_bytes / transfer.total_bytes)
        return SaveProgress(
            uuid=save.uuid,
            steps_completed=save.steps_completed,
            age_s=save.age_s,
            upload_s=upload_s,
            fraction=fraction,
        )

    def poll(self) -> None:
        """Report the save if it has ended, or raise its error."""
        save = self._save
        if save is not None and save.is_done:
            self._collect(save)

    def wait(self, timeout_s: Timeout = None) -> None:
        """Wait for the save, then report it as `poll` does.

        Raises:
            CheckpointTimeoutError: If it has not ended by then; it continues.
        """
        save = self._mine()
        if save is None:
            return
        began = self._behind.now()
        is_over = self._wait(save, timeout_s)
        waited_s = self._behind.now() - began
        self._waited_s += waited_s
        if not is_over:
            raise CheckpointTimeoutError(_too_late(save, waited_s), uuid=save.uuid)
        self._collect(save)

    def _wait(self, save: AsyncSave, timeout_s: Timeout) -> bool:
        if not callable(timeout_s):
            return save.wait(timeout_s)
        while (left_s := timeout_s()) > 0:
            if save.wait(min(left_s, _LOOK_S)):
                return True
        return save.is_done

    def give_up(self, timeout_s: float) -> None:
        """Stop the save and remove its files, unless it has ended first.

        Args:
            timeout_s: How long to wait for its end, in seconds. A request that lasts longer
                finishes by itself; the save can no longer commit, unless the commit had started.
        """
        save = self._mine()
        if save is None:
            return
        save.stop()
        self._save = None
        self._given_up.append(save)
        if save.wait(timeout_s) and not _is_stop(save.failure):
            self._saver.collect(save)  # it ended before the stop took effect

    def close(self, timeout_s: Timeout, error: BaseException | None) -> None:
        """Wait for the save when the context closes, and cancel it after the timeout.

        Args:
            timeout_s: How long to wait, in seconds.
            error: The error that already ends the block. A failure of the save is then logged and
                added to it as a note, so that neither hides the other.

        Raises:
            CheckpointTimeoutError: If the save has not ended by then.
        """
        try:
            self._wait_or_give_up(timeout_s)
        except Exception as failure:
            if error is None:
                raise
            import logging

            text = f"in addition, a checkpoint could not be saved: {failure}"
            logging.getLogger("detcore").error(text)
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(text)
        finally:
            left_s = timeout_s() if callable(timeout_s) else timeout_s
            for save in self._given_up:
                if save.is_ours:
                    save.wait(_NOTICE_S if left_s is None else min(left_s, _NOTICE_S))

    def abandon(self) -> bool:
        """Remove the temporary files of cancelled saves that have not ended.

        Returns:
            Whether there were any.
        """
        left = [save for save in self._given_up if save.is_ours and not save.is_done]
        for save in left:
            if save.temporary is not None:
                shutil.rmtree(save.temporary, ignore_errors=True)
        return bool(left)

    def _wait_or_give_up(self, timeout_s: Timeout) -> None:
        try:
            self.wait(timeout_s)
        except CheckpointTimeoutError:
            self.give_up(0.0)
            raise

    def _collect(self, save: AsyncSave) -> None:
        self._save = None
        self._saver.collect(save)

    def _mine(self) -> AsyncSave | None:
        if self._save is not None and not self._save.is_ours:
            self._save = None  # a forked child: the parent is responsible for it
        return self._save


def _is_stop(error: BaseException | None) -> bool:
    """Whether a save ended because it was cancelled; a storage may have wrapped the exception."""
    seen: list[BaseException] = []  # an exception may be raised from itself
    while error is not None and error not in seen and not isinstance(error, SaveStopped):
        seen.append(error)
        error = error.__cause__ or error.__context__
    return isinstance(error, SaveStopped)


def _too_late(save: AsyncSave, waited_s: float) -> str:
    sent = save.transfer
    how_far = (
        f"{sent.moved_bytes} of {sent.total_bytes} bytes had arrived"
        if sent.moved_bytes
        else "its files were still being written"
        if sent.began is None
        else f"its {sent.total_bytes} bytes were on their way to the storage"
    )
    return (
        f"checkpoint {save.uuid} of batch {save.steps_completed} was not saved within "
        f"{waited_s:.1f} s (begun {save.age_s:.1f} s ago): {how_far}.\n"
        "It does not count before it is whole, and earlier checkpoints are untouched; the trial's "
        "next start keeps it if it was committed after all, and removes it if not.\n"
        "Give it more time with checkpoint_exit_timeout_s, or look at why the storage is slow: "
        "detcore storage check URL"
    )
