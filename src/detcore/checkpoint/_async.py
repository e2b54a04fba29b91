"""Run saves in the background while training continues, and bound how many wait."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from detcore.checkpoint._save import SaveStopped, caused_by
from detcore.contract.errors import CheckpointTimeoutError
from detcore.contract.values import SaveProgress

if TYPE_CHECKING:
    from detcore.checkpoint._save import Background, Save, Saver, Snapshot, Tensors


Timeout: TypeAlias = "float | Callable[[], float] | None"
"""Seconds to wait; or a function that returns the seconds left; None for no limit."""
# How long a cancelled save may take to stop; its files are removed during that time.
_NOTICE_S = 2.0
# How often the remaining time is read again.
_LOOK_S = 0.2


class BackgroundSaves:
    """Runs saves one at a time while training continues, and reports each result exactly once.

    All methods must be called from the training thread. An error of a save is raised once, by the
    next call of `poll`, `wait` or another method that changes checkpoints, or on closing.
    """

    def __init__(self, saver: Saver, behind: Background) -> None:
        self._saver = saver
        self._behind = behind
        self._save: Save | None = None
        self._given_up: list[Save] = []
        self._waited_s = 0.0  # since the last save began

    def _begin(self, snapshot: Snapshot, metadata: Mapping[str, Any], tensors: Tensors) -> str:
        """Wait for the previous save, begin one, and return its checkpoint's UUID."""
        self.wait()
        waited_s, self._waited_s = self._waited_s, 0.0
        self._save = self._saver.begin(snapshot, metadata, tensors, waited_s=waited_s)
        return self._save.uuid

    def _settle(self, storage_id: str) -> None:
        """Wait for a checkpoint that is still being saved."""
        save = self._mine()
        if save is not None and save.uuid == storage_id:
            self.wait()

    def progress(self) -> SaveProgress | None:
        """Return the progress of the asynchronous save under way, or None."""
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
        """Complete an asynchronous save that has ended; returns at once if none has.

        Raises:
            StorageError: If it failed; as `store_path` would have raised.
        """
        save = self._save
        if save is not None and save.is_done:
            self._collect(save)

    def wait(self, timeout_s: Timeout = None) -> None:
        """Wait until no asynchronous save is under way.

        Args:
            timeout_s: How long to wait, in seconds; None for no limit. A function is called several
                times a second and returns the seconds left.

        Raises:
            CheckpointTimeoutError: If the save has not ended by then. It continues, and can be
                waited for again.
            StorageError: If it failed; as `store_path` would have raised.
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

    def _wait(self, save: Save, timeout_s: Timeout) -> bool:
        if not callable(timeout_s):
            return save.wait(timeout_s)
        while (left_s := timeout_s()) > 0:
            if save.wait(min(left_s, _LOOK_S)):
                return True
        return save.is_done

    def give_up(self, timeout_s: float = 2.0) -> None:
        """Cancel the asynchronous save under way, and remove the files that it wrote.

        If its commit has started, it may still complete, and the checkpoint then counts.

        Args:
            timeout_s: How long to wait for its end, in seconds. A storage request that lasts longer
                finishes by itself, and no other follows it.
        """
        save = self._mine()
        if save is None:
            return
        save.stop()
        self._save = None
        self._given_up.append(save)
        if not save.wait(timeout_s):
            return
        if not any(isinstance(error, SaveStopped) for error in caused_by(save.failure)):
            self._saver.collect(save)  # it ended before the stop took effect

    def close(self, timeout_s: Timeout = 0.0, error: BaseException | None = None) -> None:
        """Wait for the asynchronous save under way, and cancel it after the timeout.

        Args:
            timeout_s: How long to wait, as for `wait`.
            error: The error that already ends the trial. If the save fails as well, its failure is
                logged and added to this error as a note, and not raised.

        Raises:
            CheckpointTimeoutError: If the save did not end in time.
            StorageError: If it failed.
        """
        try:
            try:
                self.wait(timeout_s)
            except CheckpointTimeoutError:
                self.give_up(0.0)
                raise
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

        Called when the process is about to exit.

        Returns:
            Whether there were any. Their threads may be waiting for the storage, and a regular exit
            of the process would wait for them.
        """
        left = [save for save in self._given_up if save.is_ours and not save.is_done]
        for save in left:
            if not save.is_in_place:
                shutil.rmtree(save.folder, ignore_errors=True)
        return bool(left)

    def _collect(self, save: Save) -> None:
        self._save = None
        self._saver.collect(save)

    def _mine(self) -> Save | None:
        if self._save is not None and not self._save.is_ours:
            self._save = None  # a forked child: the parent is responsible for it
        return self._save


def _too_late(save: Save, waited_s: float) -> str:
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
