"""A running trial."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import NotANumberError, in_one_line
from detcore.contract.values import Unit
from detcore.core.trial_outcome import WorkerFault
from detcore.launch import WorkerEvent, WorkerGroup, describe_exit
from detcore.launch.worker import (
    EXIT_CONFIG,
    EXIT_INVALID_HP,
    EXIT_TEMPFAIL,
)
from detcore.log.events import CheckpointCommitted, Event, TrainingReport, ValidationReport
from detcore.log.lines import EventLogDamagedError
from detcore.log.reading import event_log_path, read_event_lines
from detcore.records import OutputLog
from detcore.run.supervisor import Ending, WorkersEnded

if TYPE_CHECKING:
    from detcore.contract.values import TrialInfo
    from detcore.records import CheckpointRecord
    from detcore.run.run_listener import RunListener


# The first of these says that a trial has begun to train.
_BEGUN = frozenset(
    {"started", "training", "validation", "checkpoint", "progress", "searcher_completed"}
)

# From the request to write the stacks to the kill.
_STACKS_S = 2.0
_MAX_POLL_INTERVAL_S = 1.0
# Of Python for an exception, of Python, argparse and shells for a wrong command line, and of shells
# for a command that is not executable or does not exist. Others may mean a lost machine.
_NOT_BEGUN = frozenset({1, 2, 126, 127})
_MAX_REASON_LENGTH = 200
_NUM_SHOWN_LINES = 50
_RANK = re.compile(r"^rank \d+: ")


class TrialOutput:
    """The output of a trial's workers, which goes to the trial's log and to the listener.

    Args:
        info: The trial.
        listener: Gets the lines, but for notices.
        notices: Regular expressions of lines on standard error that are only logged; one with
            ``\\n`` is for lines that follow each other.

    Attributes:
        last_errors: The last line of each rank on standard error that is no notice.
    """

    def __init__(self, info: TrialInfo, listener: RunListener, notices: Iterable[str] = ()) -> None:
        self._info = info
        self._listener = listener
        self._notices = [list(map(re.compile, notice.split(r"\n"))) for notice in notices]
        self._rest: dict[int, list[re.Pattern[str]]] = {}  # of a notice that a rank has begun
        self.last_errors: dict[int, str] = {}
        self._shown: deque[str] = deque(maxlen=_NUM_SHOWN_LINES)
        self._lock = threading.Lock()
        self._log: OutputLog | None = OutputLog(Path(info.trial_dir), info.run_id)

    def __call__(self, rank: int, stream: str, line: str) -> None:
        """Take a line; called from threads, also by leftover processes of an ended worker."""
        self._append(stream, line, rank)
        if stream == "stderr":
            if self._is_notice(rank, line):
                return
            self._shown.append(line)
            if any(map(str.isalnum, line)):
                self.last_errors[rank] = line.strip()[:_MAX_REASON_LENGTH]
        self._listener.output(self._info, stream, line, rank=rank)

    def _is_notice(self, rank: int, line: str) -> bool:
        for notice in (self._rest.pop(rank, []), *self._notices):
            if notice and notice[0].fullmatch(line):
                self._rest[rank] = notice[1:]
                return True
        return False

    def has_shown(self, error: str) -> bool:
        """Whether one of the last lines on standard error contains an error, but for its rank."""
        text = _RANK.sub("", error)
        return any(text in line for line in list(self._shown))

    def say(self, text: str) -> None:
        """Write a message about the trial to its log and to the listener."""
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


class _HangTimer:
    """Counts the seconds without a report.

    Args:
        timeout_s: How many are too many; None: any number is fine.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = self.left_s = timeout_s
        self._looked_at = time.monotonic()

    def is_over(self, *, has_news: bool) -> bool:
        """Whether nothing was reported for too long, as of this look."""
        if self.left_s is None or self.timeout_s is None:
            return False
        now = time.monotonic()
        # A runner that waits for its database, or that is stopped, does not answer its workers.
        passed_s = min(now - self._looked_at, _MAX_POLL_INTERVAL_S)
        self._looked_at = now
        self.left_s = self.timeout_s if has_news else self.left_s - passed_s
        return self.left_s <= 0


class LogTail:
    """Reads the events that a log has got since the last look, for a display.

    A log that cannot be read has no events: its other followers report that.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(path)
        self._end = 0

    def read(self) -> Iterator[Event]:
        """Yield the new events; one that is being written comes at the next look."""
        with contextlib.suppress(EventLogDamagedError, OSError):
            if self._path.stat().st_size <= self._end:
                return
            for record in read_event_lines(self._path, self._end):
                self._end = record.end
                if (event := record.event) is not None:
                    yield event


class RunningTrial:
    """A trial's workers, and those of their events that matter at their end.

    Attributes:
        index: The trial's number in its search.
        damaged: Checkpoint that could not be restored, and the error, or None.
        progress: Finished fraction of the workers' training, 0 to 1; None: not known.
        validated: Names of the metrics that its validations reported.
    """

    def __init__(
        self,
        index: int,
        info: TrialInfo,
        workers: WorkerGroup,
        output: TrialOutput,
    ) -> None:
        self.index = index
        self.info = info
        self.workers = workers
        self.output = output
        self._reports = LogTail(event_log_path(Path(info.trial_dir), info.run_id))
        self.damaged: tuple[str, str] | None = None
        self.progress: float | None = None
        self.validated: set[str] = set()
        self._validations: list[Mapping[str, Any]] = []
        self._last_training: Mapping[str, Any] = {}
        self._searcher_length = info.searcher_length or 1
        self._length = _length_in_batches(info)  # workers of a trial class say it
        self._told_error: str | None = None
        self._told_state: str | None = None
        self._told_fault: str | None = None
        self._told: set[str] = set()
        self._steps_completed = info.steps_completed
        self._was_killed = False
        self._signals: list[int] = []
        self._code = 0
        self._is_hang = False
        self._hang = _HangTimer(info.settings.hang_timeout_s)

    def poll(self) -> list[WorkerEvent]:
        """Return the reports in the log and the messages since the last call.

        A worker reports first, so the reports before a message come before it.
        """
        messages = self.workers.poll()
        found = [*self.read_reports(), *messages]
        if self._hang.is_over(has_news=bool(found) and not self._is_hang):
            self._end_hanging()
        return found

    def _end_hanging(self) -> None:
        """Let the workers write their stacks, then kill them."""
        if not self._is_hang:
            self._is_hang = True
            self._told_error = (
                f"it hangs: it reported nothing for {self._hang.timeout_s:g} s (hang_timeout_s) "
                f"after step {self._steps_completed}"
            )
            self.workers.signal(signal.SIGQUIT)
            self._hang.left_s = _STACKS_S
        else:
            self.workers.kill()

    def read_reports(self) -> list[WorkerEvent]:
        """Return the reports in the log since the last call, of training metrics the newest."""
        found: list[WorkerEvent] = []
        for event in self._reports.read():
            report = _report_of(event)
            if report is None:
                continue
            if found and found[-1].type == report.type == TrainingReport.KIND:
                found.pop()
            found.append(report)
        return found

    def note(self, event: WorkerEvent) -> None:
        """Remember the progress, or the end, that an event reports."""
        self._told.add(event.type)
        steps = event.fields.get("steps_completed", self._steps_completed)
        self._steps_completed = max(self._steps_completed, steps)
        if event.type == "started":
            self._length = int(event.fields["length"])
        if event.type == "progress":  # of a script, in the unit of the searcher
            self._progressed(event.fields["progress"], event.fields["length"])
        elif event.type in ("started", "training", "validation"):
            self._progressed(event.fields["steps_completed"], self._length)
        if event.type == "validation":
            self.validated |= event.fields["metrics"].keys()
            self._validations.append(event.fields)
        elif event.type == "training":
            self._last_training = event.fields
        if event.type == "finished":
            self._told_error = event.fields.get("error") or self._told_error
            self._told_state = event.fields.get("state")
            self._told_fault = event.fields.get("fault")
        elif event.type == "damaged":
            self.damaged = (str(event.fields["uuid"]), str(event.fields["error"]))

    def extended(self, length: int) -> None:
        """Record that the workers continue, to a length in the unit of the one before."""
        self._length = self._length * length // self._searcher_length
        self._searcher_length = length

    def _progressed(self, done: float, length: float | None) -> None:
        if length:
            self.progress = min(1.0, done / length)

    def signal(self, number: int) -> None:
        """Ask the workers to checkpoint and end, each kind of signal once; or kill them."""
        if number == signal.SIGKILL:
            self._was_killed = True
            self.workers.kill()
        elif number not in self._signals:
            self._signals.append(number)
            self.workers.signal(number)

    def close(self) -> None:
        """Wait for the end, and release the resources of the workers; the log stays open."""
        self._code = self.workers.close()
        ranks = [rank] if (rank := self.workers.first_failed) else []
        if rank == 0 and self._told_error is not None and self._told_fault is None:
            # Rank 0 of a script may end first because it lost the one that failed.
            ranks = list(range(1, self.info.settings.slots_per_trial))
        faults = ((each, WorkerFault.read(self.info, each)) for each in ranks)
        for each, found in faults:
            if found is None:
                continue
            self._told_error, self._told_fault = f"rank {each}: {found.error}", found.fault
            if not found.has_begun and self.info.settings.is_trial_class:
                self._told -= _BEGUN
            break

    def describe_end(self, latest: CheckpointRecord | None, *, now: float) -> WorkersEnded:
        """Return everything that the trial's fate depends on, once the workers are closed.

        Args:
            latest: The checkpoint that the next start would continue from.
            now: The time.
        """
        how, info = self.ending, self.info
        error = "" if how in (Ending.WELL, Ending.INTERRUPTED) else self.error
        origin: str | None = "from its latest checkpoint"
        if how is Ending.DAMAGED and self.damaged is not None:
            uuid, error = self.damaged[0], self.damaged[1].splitlines()[0]
            origin = f"{latest.uuid}, {latest.steps_completed} batches" if latest else None
            if latest is None:
                # The user did not ask for training from the start.
                error = in_one_line(
                    error,
                    f"It was the only checkpoint of trial {info.trial_id}, so there is nothing "
                    "to go on from. If its files can be brought back: detcore checkpoint repair "
                    f"{uuid}; else start the experiment again.",
                )
        elif latest is None and info.source_checkpoint is not None:
            origin = f"from checkpoint {info.source_checkpoint}, as at first"
        elif latest is None:
            origin = "from the beginning: it has no checkpoint"
        return WorkersEnded(
            self.index,
            how,
            now,
            error=error,
            fault=self._fault,
            why_certain=self._why_certain,
            made_progress=latest is not None and latest.steps_completed > info.steps_completed,
            origin=origin,
            is_error_shown=bool(error) and self.output.has_shown(error),
        )

    @property
    def reports_digest(self) -> str | None:
        """A digest of all validations and of the last training metrics; None without validation."""
        if not self._validations:
            return None
        reports = json.dumps([self._validations, self._last_training], sort_keys=True)
        return hashlib.sha256(reports.encode()).hexdigest()

    @property
    def early_end(self) -> str | None:
        """How far a script came that ended well before its length in batches, or None.

        A trial class logs this itself.
        """
        is_early = 0 < self._steps_completed < self._length
        is_script = not self.info.settings.is_trial_class
        if not (is_early and is_script and self.ending is Ending.WELL):
            return None
        return (
            f"trial {self.info.trial_id}: the script ended at batch {self._steps_completed} of "
            f"{self._length}, before searcher.max_length"
        )

    @property
    def ending(self) -> Ending:
        """How the workers ended."""
        if self._code == 0 and self._told_state not in ("PAUSED", "INVALID_HP"):
            return Ending.WELL
        if self._was_interrupted:
            return Ending.INTERRUPTED
        if self.is_invalid_hp:
            return Ending.INVALID_HP
        return Ending.CRASHED if self.damaged is None else Ending.DAMAGED

    @property
    def _was_interrupted(self) -> bool:
        """Whether the workers ended because they were asked to, with or without a checkpoint."""
        if self._code == EXIT_TEMPFAIL or (self._code == 0 and self._told_state == "PAUSED"):
            return True
        # A program that does not know detcore, that has not begun to listen, or that hangs.
        numbers = {*self._signals, signal.SIGTERM, signal.SIGKILL} if self._signals else set()
        return (self._was_killed and self._code != 0) or (
            self._code in {code for number in numbers for code in (-number, 128 + number)}
        )

    @property
    def is_invalid_hp(self) -> bool:
        """Whether the trial rejected its hyperparameters."""
        return self._code == EXIT_INVALID_HP or self._told_state == "INVALID_HP"

    @property
    def _why_certain(self) -> str | None:
        """Why the next start would end as this one did, unless something is changed, or None.

        That is an exception before training began: in a trial class before its first batch, in a
        script before it opened a context or reported anything. So is one that is certain to
        recur: no memory, or NaN where that ends a trial.
        """
        has_begun = bool(self._told & _BEGUN)
        # With a checkpoint, it worked before.
        is_outside = (
            self._code in _NOT_BEGUN
            and not self._told
            and self.info.latest_checkpoint is None
            and not self.info.settings.is_trial_class
        )
        is_nan = (self._told_fault or "").startswith(NotANumberError.__name__)
        if has_begun and (self._code == EXIT_CONFIG or is_nan):
            return "it would end in the same way each time"
        if has_begun or not (self._code == EXIT_CONFIG or self._told_fault or is_outside):
            return None
        return "it failed before its first batch, and would fail there each time"

    @property
    def _fault(self) -> tuple[str, int] | None:
        """Kind and place of the exception that the code raised, and the batch last reported.

        None for workers that were killed, and for errors that come from outside.
        """
        return None if self._told_fault is None else (self._told_fault, self._steps_completed)

    @property
    def error(self) -> str:
        """The error of workers that failed, in one line."""
        rank = self.workers.first_failed
        if rank and self._told_fault is None:
            # Rank 0 may know only that it lost the other one.
            own = f"; rank 0: {self._told_error}" if self._told_error else ""
            return f"rank {rank} {self._describe_exit(rank)}{own}"
        if self._told_error is not None:
            return self._told_error
        if self.is_invalid_hp:
            return "the trial rejected its hyperparameters"
        return f"the worker {self._describe_exit(0)}"

    def _describe_exit(self, rank: int) -> str:
        last = self.output.last_errors.get(rank)
        why = f"; its last line on standard error: {last}" if last else ""
        return f"{describe_exit(self._code)}{why}"


def _report_of(event: Event) -> WorkerEvent | None:
    """Return the parts of an event in the log that a display shows, or None."""
    match event:
        case TrainingReport() | ValidationReport():
            fields = {"steps_completed": event.steps_completed, "metrics": event.metrics}
            return WorkerEvent(event.KIND, fields)
        case CheckpointCommitted(url=str()):
            names = ("uuid", "steps_completed", "url", "size_bytes", "stalled_s", "total_s")
            return WorkerEvent("checkpoint", {name: getattr(event, name) for name in names})
        case _:
            return None


def _length_in_batches(info: TrialInfo) -> int:
    """Return how far the search wants a trial trained, in batches; 0: in another unit."""
    is_batches = info.settings.length_unit is Unit.BATCHES
    return (info.searcher_length or 0) if is_batches else 0
