"""One trial whose workers run."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.core._outcome import WorkerFault
from detcore.database import TrialLog
from detcore.launch import WorkerEvent, WorkerGroup, describe_exit
from detcore.launch.worker import (
    EXIT_COME_BACK,
    EXIT_CONFIG,
    EXIT_ERROR,
    EXIT_INVALID_HP,
    is_trial_class,
)

if TYPE_CHECKING:
    from detcore.runner._listener import RunListener
    from detcore.runner._slots import Place
    from detcore.types import TrialInfo

__all__ = ["RunningTrial", "TrialOutput"]

# The first of these says that a trial has begun to train.
_BEGUN = frozenset(
    {"started", "training", "validation", "checkpoint", "progress", "searcher_completed"}
)


class TrialOutput:
    """What the workers of a trial print goes to the trial's log, and to who listens.

    Args:
        info: The trial.
        listener: Gets the lines, but for notices.
        notices: Regular expressions of lines on standard error that are only logged; one with
            ``\\n`` is for lines that follow each other.
    """

    def __init__(self, info: TrialInfo, listener: RunListener, notices: Iterable[str] = ()) -> None:
        self._info = info
        self._listener = listener
        self._notices = [list(map(re.compile, notice.split(r"\n"))) for notice in notices]
        self._rest: dict[int, list[re.Pattern[str]]] = {}  # of a notice that a rank has begun
        self._lock = threading.Lock()
        self._log: TrialLog | None = TrialLog(Path(info.trial_dir), info.run_id)

    def __call__(self, rank: int, stream: str, line: str) -> None:
        """Take a line; called from threads, and after the end by what left its worker."""
        self._append(stream, line, rank)
        if stream == "stderr" and self._is_notice(rank, line):
            return
        self._listener.output(self._info, stream, line, rank=rank)

    def _is_notice(self, rank: int, line: str) -> bool:
        for notice in (self._rest.pop(rank, []), *self._notices):
            if notice and notice[0].fullmatch(line):
                self._rest[rank] = notice[1:]
                return True
        return False

    def say(self, text: str) -> None:
        """Say something of the trial, in its log and to who listens."""
        self._append("detcore", text, 0)
        self._listener.notice(text)

    def _append(self, stream: str, text: str, rank: int) -> None:
        # A full disk must not end the trial: the line is still shown.
        with self._lock, contextlib.suppress(OSError):
            if self._log is not None:
                self._log.append(stream, text, rank=rank)

    def close(self) -> None:
        """Close the log."""
        with self._lock:
            if self._log is not None:
                self._log.close()
                self._log = None


class RunningTrial:
    """A trial's workers, and what they told that matters at their end.

    Attributes:
        index: The trial's number in its search.
        was_told_end: Whether the workers were told that there is no more to train for now.
        progress: How much of what the workers train for is done, 0 to 1; None: not known.
        damaged: Checkpoint that could not be restored, and the error, or None.
        validated: Names of the metrics that its validations reported.
    """

    def __init__(
        self,
        index: int,
        info: TrialInfo,
        workers: WorkerGroup,
        output: TrialOutput,
        place: Place,
    ) -> None:
        self.index = index
        self.info = info
        self.workers = workers
        self.output = output
        self.place = place
        self.was_told_end = False
        self.damaged: tuple[str, str] | None = None
        self.progress: float | None = None
        self.validated: set[str] = set()
        self._length = _length_in_batches(info)  # workers of a trial class say it
        self._told_error: str | None = None
        self._told_state: str | None = None
        self._told_fault: str | None = None
        self._told: set[str] = set()
        self._steps_completed = info.steps_completed
        self._was_killed = False
        self._signals: list[int] = []
        self._code = 0

    def note(self, event: WorkerEvent) -> None:
        """Remember what an event says of the progress, and of the end."""
        self._told.add(event.type)
        self._steps_completed = event.fields.get("steps_completed", self._steps_completed)
        if event.type == "started":
            self._length = int(event.fields["length"])
        if event.type == "progress":  # of a script, in the unit of the searcher
            self._progressed(event.fields["progress"], event.fields["length"])
        elif event.type in ("started", "training", "validation"):
            self._progressed(event.fields["steps_completed"], self._length)
        if event.type == "validation":
            self.validated |= event.fields["metrics"].keys()
        if event.type == "finished":
            self._told_error = event.fields.get("error") or self._told_error
            self._told_state = event.fields.get("state")
            self._told_fault = event.fields.get("fault")
        elif event.type == "damaged":
            self.damaged = (str(event.fields["uuid"]), str(event.fields["error"]))

    def extended(self, length: int, *, before: int) -> None:
        """Take note that the workers train on, to a length that is counted as the one before."""
        self._length = self._length * length // before

    def _progressed(self, done: float, length: float | None) -> None:
        if length:
            self.progress = min(1.0, done / length)

    def signal(self, number: int) -> None:
        """Ask the workers to checkpoint and end; each kind of signal is sent once."""
        if number not in self._signals:
            self._signals.append(number)
            self.workers.signal(number)

    def kill(self) -> None:
        """End the workers at once."""
        self._was_killed = True
        self.workers.kill()

    def close(self) -> None:
        """Wait for the end, and release what belongs to the workers; the log stays open."""
        self._code = self.workers.close()
        rank = self.workers.first_failed
        found = WorkerFault.read(self.info, rank) if rank else None
        if found is not None:
            self._told_error, self._told_fault = f"rank {rank}: {found.error}", found.fault
            if not found.has_begun and is_trial_class(self.info.config["entrypoint"]):
                self._told -= _BEGUN

    @property
    def ended_well(self) -> bool:
        """Whether the workers ended with code 0, having said nothing else."""
        return self._code == 0 and self._told_state not in ("PAUSED", "INVALID_HP")

    @property
    def was_interrupted(self) -> bool:
        """Whether the workers ended because they were to make way, with or without a checkpoint."""
        if self._code == EXIT_COME_BACK or (self._code == 0 and self._told_state == "PAUSED"):
            return True
        # A program that does not know detcore, or that has not begun to listen.
        return self.was_cut_short or (
            self._code in {code for number in self._signals for code in (-number, 128 + number)}
        )

    @property
    def was_cut_short(self) -> bool:
        """Whether the runner killed the workers."""
        return self._was_killed and self._code != 0

    @property
    def is_invalid_hp(self) -> bool:
        """Whether the trial rejected its hyperparameters."""
        return self._code == EXIT_INVALID_HP or self._told_state == "INVALID_HP"

    @property
    def cannot_heal(self) -> bool:
        """Whether the next start would end as this one did, unless somebody changes something.

        That is an exception before training began: in a trial class before its first batch, in a
        script before it opened a context or reported anything. And one that is certain to come
        again: no memory, or NaN where that ends a trial.
        """
        if self._code == EXIT_CONFIG:
            return True
        if self._told & _BEGUN:
            return False
        if self._told_fault is not None:
            return True
        # A Python script that raised outside a context. With a checkpoint, it worked before.
        return (
            self._code == EXIT_ERROR
            and not self._told
            and self.info.latest_checkpoint is None
            and not is_trial_class(self.info.config["entrypoint"])
        )

    @property
    def has_begun(self) -> bool:
        """Whether the workers told of anything that they did."""
        return bool(self._told & _BEGUN)

    @property
    def fault(self) -> tuple[str, int] | None:
        """Kind and place of the exception that the code raised, and the batch last reported.

        None for workers that were killed, and for errors that come from outside.
        """
        return None if self._told_fault is None else (self._told_fault, self._steps_completed)

    @property
    def error(self) -> str:
        """What went wrong, in a line; for workers that failed."""
        rank = self.workers.first_failed
        if rank and self._told_fault is None:
            # Rank 0 may be able to tell only that it lost the other one.
            own = f"; rank 0: {self._told_error}" if self._told_error else ""
            return f"rank {rank} {describe_exit(self._code)}{own}"
        if self._told_error is not None:
            return self._told_error
        if self.is_invalid_hp:
            return "the trial rejected its hyperparameters"
        return f"the worker {describe_exit(self._code)}"


def _length_in_batches(info: TrialInfo) -> int:
    """Return how far the search wants a trial trained, in batches; 0: in another unit."""
    length = info.config["searcher"].get("max_length")
    is_batches = isinstance(length, int) or "batches" in (length or {})
    return (info.searcher_length or 0) if is_batches else 0
