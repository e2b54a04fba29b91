"""The one save that may be under way while training goes on."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from detcore.checkpoint._async import AsyncSave, Behind, SaveStopped
from detcore.errors import CheckpointTimeoutError

if TYPE_CHECKING:
    from detcore.checkpoint._save import Saver, Snapshot, Tensors

__all__ = ["Outstanding", "SaveProgress", "Timeout"]

Timeout: TypeAlias = "float | Callable[[], float] | None"
"""Seconds to wait; or what tells again and again how many are left; None: as long as it takes."""

# How long a save that is given up may take to notice; its traces are removed meanwhile.
_NOTICE_S = 2.0
# How soon it is seen that there is less time than there was.
_LOOK_S = 0.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SaveProgress:
    """How far a save is that goes on behind the training.

    Attributes:
        uuid: The checkpoint.
        steps_completed: Batches that it holds.
        age_s: How long ago it was begun, in seconds.
        upload_s: How long its files have been on their way to the storage; 0 while they are
            written.
        fraction: Part of its bytes that arrived, from 0 to 1; None where that is not known.
    """

    uuid: str
    steps_completed: int
    age_s: float
    upload_s: float = 0.0
    fraction: float | None = None


class Outstanding:
    """Begins saves one after the other, and answers for each of them once.

    Methods are called from the thread that trains; what a save fails with is raised there, by the
    next of them, and by one only.

    Args:
        saver: Does the work.
        behind: Time and threads.
    """

    def __init__(self, saver: Saver, behind: Behind) -> None:
        self._saver = saver
        self._behind = behind
        self._save: AsyncSave | None = None
        self._given_up: list[AsyncSave] = []
        self._waited_s = 0.0  # since the last save was begun

    def begin(
        self,
        snapshot: Snapshot,
        metadata: Mapping[str, Any],
        versions: Mapping[str, str],
        tensors: Tensors,
    ) -> str:
        """Wait for the save before, begin one, and return its checkpoint's UUID."""
        self.wait()
        began = self._behind.now() - self._waited_s
        self._waited_s = 0.0
        self._save = self._saver.begin(snapshot, metadata, versions, tensors, began=began)
        return self._save.uuid

    @property
    def uuid(self) -> str | None:
        """The checkpoint that is being saved, or whose end was not told of yet."""
        save = self._mine()
        return save.uuid if save is not None else None

    def progress(self) -> SaveProgress | None:
        """Return how far the save is; None where none is under way."""
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
        """Tell of the save if it is over, or raise what it failed with."""
        save = self._save
        if save is not None and save.is_done:
            self._collect(save)

    def wait(self, timeout_s: Timeout = None) -> None:
        """Wait for the save, then do as `poll`.

        Raises:
            CheckpointTimeoutError: If it is not over by then; it goes on.
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
        """Let the save begin nothing more, and remove its traces, unless it is over first.

        Args:
            timeout_s: How long to wait until it has ended, in seconds. A request that lasts
                longer ends by itself; it cannot commit any more, unless the commit is under way.
        """
        save = self._mine()
        if save is None:
            return
        save.stop()
        self._save = None
        self._given_up.append(save)
        if save.wait(timeout_s) and not _is_stop(save.failure):
            self._saver.collect(save)  # it was over before it noticed

    def close(self, timeout_s: Timeout, error: BaseException | None) -> None:
        """Wait for the save at the end of everything; what is not over then is given up.

        Args:
            timeout_s: How long to wait, in seconds.
            error: What ends the block already. The save's own failure is then added to it as a
                note, and logged, so that neither hides the other.

        Raises:
            CheckpointTimeoutError: If the save is not over by then.
        """
        try:
            self._wait_or_give_up(timeout_s)
        except Exception as failure:
            if error is None:
                raise
            import logging

            text = f"beside that, a checkpoint could not be saved: {failure}"
            logging.getLogger("detcore").error(text)
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(text)
        finally:
            left_s = timeout_s() if callable(timeout_s) else timeout_s
            for save in self._given_up:
                if save.is_ours:
                    save.wait(_NOTICE_S if left_s is None else min(left_s, _NOTICE_S))

    def abandon(self) -> bool:
        """Remove the temporary files of saves that were given up and have not ended.

        Returns:
            Whether there are any.
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
            self._save = None  # a forked child: the parent looks after it
        return self._save


def _is_stop(error: BaseException | None) -> bool:
    """Whether a save ended because it was given up; a storage may have wrapped the reason."""
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
