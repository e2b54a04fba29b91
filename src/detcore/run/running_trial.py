"""The workers, output and reports of a running trial."""

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

from detcore.contract.errors import InexactResumeError, NotANumberError, in_one_line
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


# Events that show that a trial has started to train.
_TRAINING_EVENTS = frozenset(
    {"started", "training", "validation", "checkpoint", "progress", "searcher_completed"}
)

# Time from the request to write stacks to the kill.
_STACK_DUMP_S = 2.0
_MAX_POLL_INTERVAL_S = 1.0
# Exit codes of commands that failed to start: Python's for an exception, those of Python, argparse
# and shells for a wrong command line, and those of shells for a command that is not executable or
# does not exist. Other codes may mean a lost machine.
_START_FAILURE_CODES = frozenset({1, 2, 126, 127})
_MAX_REASON_LENGTH = 200
_NUM_SHOWN_LINES = 50
_RANK = re.compile(r"^rank \d+: ")


class TrialOutput:
    """Writes the output of a trial's workers to the trial's log and to the listener.

    Args:
        info: The trial.
        listener: Receives all lines except notices.
        notices: Regular expressions of standard error lines that are only logged. ``\\n`` separates
            the expressions of consecutive lines.

    Attributes:
        last_errors: The last standard error line of each rank that is not a notice.
    """

    def __init__(self, info: TrialInfo, listener: RunListener, notices: Iterable[str] = ()) -> None:
        self._info = info
        self._listener = listener
        self._notices = [list(map(re.compile, notice.split(r"\n"))) for notice in notices]
        # Expected next lines of a notice, by rank.
        self._notice_remainders: dict[int, list[re.Pattern[str]]] = {}
        self.last_errors: dict[int, str] = {}
        self._shown: deque[str] = deque(maxlen=_NUM_SHOWN_LINES)
        self._lock = threading.Lock()
        self._log: OutputLog | None = OutputLog(Path(info.trial_dir), info.run_id)

    def __call__(self, rank: int, stream: str, line: str) -> None:
        """Write a line. Called from threads, and for child processes even after a worker ended."""
        self._append_line(stream, line, rank)
        if stream == "stderr":
            if self._is_notice(rank, line):
                return
            self._shown.append(line)
            if any(map(str.isalnum, line)):
                self.last_errors[rank] = line.strip()[:_MAX_REASON_LENGTH]
        self._listener.output(self._info, stream, line, rank=rank)

    def _is_notice(self, rank: int, line: str) -> bool:
        for notice in (self._notice_remainders.pop(rank, []), *self._notices):
            if notice and notice[0].fullmatch(line):
                self._notice_remainders[rank] = notice[1:]
                return True
        return False

    def has_shown(self, error: str) -> bool:
        """Whether one of the last standard error lines contains an error, ignoring its rank."""
        text = _RANK.sub("", error)
        return any(text in line for line in list(self._shown))

    def write_notice(self, text: str) -> None:
        """Write a message about the trial to its log and to the listener."""
        self._append_line("detcore", text, 0)
        self._listener.notice(text)

    def _append_line(self, stream: str, text: str, rank: int) -> None:
        # A full disk must not end the trial: the line is still displayed.
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
        timeout_s: Maximum number of seconds; None for no limit.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = self.left_s = timeout_s
        self._looked_at = time.monotonic()

    def is_over(self, *, has_news: bool) -> bool:
        """Update the timer; return whether the timeout has passed without a report."""
        if self.left_s is None or self.timeout_s is None:
            return False
        now = time.monotonic()
        # A runner that is stopped or waits for its database does not answer its workers, so longer
        # intervals do not count.
        passed_s = min(now - self._looked_at, _MAX_POLL_INTERVAL_S)
        self._looked_at = now
        self.left_s = self.timeout_s if has_news else self.left_s - passed_s
        return self.left_s <= 0


class LogTail:
    """Reads the new events of a log, for a display.

    An unreadable log yields no events. Other readers of the log report the error.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(path)
        self._end = 0

    def read_new_events(self) -> Iterator[Event]:
        """Yield the events since the last call. Incomplete events are yielded by the next call."""
        with contextlib.suppress(EventLogDamagedError, OSError):
            if self._path.stat().st_size <= self._end:
                return
            for record in read_event_lines(self._path, self._end):
                self._end = record.end
                if (event := record.event) is not None:
                    yield event


class RunningTrial:
    """A trial's workers, and the events that are relevant at their end.

    Attributes:
        index: The trial's number in its search.
        damaged: UUID of a checkpoint that could not be restored and the error, or None.
        progress: Completed fraction of the workers' training, 0 to 1, or None if unknown.
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
        self._length = _find_length_in_batches(info)  # trial classes report it
        self._reported_error: str | None = None
        self._reported_state: str | None = None
        self._reported_fault: str | None = None
        self._preempted: str | None = None
        self._event_types: set[str] = set()
        self._steps_completed = info.steps_completed
        self._was_killed = False
        self._signals: list[int] = []
        self._code = 0
        self._is_hang = False
        self._hang = _HangTimer(info.settings.hang_timeout_s)

    def poll(self) -> list[WorkerEvent]:
        """Return the reports in the log and the messages since the last call.

        Workers write reports before they send messages, so reports come first.
        """
        messages = self.workers.poll()
        events = [*self.read_reports(), *messages]
        if self._hang.is_over(has_news=bool(events) and not self._is_hang):
            self._end_hanging()
        return events

    def _end_hanging(self) -> None:
        """Make hanging workers write their stacks; kill them at the next call."""
        if not self._is_hang:
            self._is_hang = True
            self._reported_error = (
                f"it hangs: it reported nothing for {self._hang.timeout_s:g} s (hang_timeout_s) "
                f"after step {self._steps_completed}"
            )
            self.workers.signal(signal.SIGQUIT)
            self._hang.left_s = _STACK_DUMP_S
        else:
            self.workers.kill()

    def read_reports(self) -> list[WorkerEvent]:
        """Return the new reports, keeping only the newest of consecutive training reports."""
        reports: list[WorkerEvent] = []
        for event in self._reports.read_new_events():
            report = _convert_report(event)
            if report is None:
                continue
            if reports and reports[-1].type == report.type == TrainingReport.KIND:
                reports.pop()
            reports.append(report)
        return reports

    def note_event(self, event: WorkerEvent) -> None:
        """Record the progress or the end that an event reports."""
        self._event_types.add(event.type)
        steps = event.fields.get("steps_completed", self._steps_completed)
        self._steps_completed = max(self._steps_completed, steps)
        if event.type == "started":
            self._length = int(event.fields["length"])
        if event.type == "progress":  # from a script, in the unit of the searcher
            self._set_progress(event.fields["progress"], event.fields["length"])
        elif event.type in ("started", "training", "validation"):
            self._set_progress(event.fields["steps_completed"], self._length)
        if event.type == "validation":
            self.validated |= event.fields["metrics"].keys()
            self._validations.append(event.fields)
        elif event.type == "training":
            self._last_training = event.fields
        if event.type == "finished":
            self._reported_error = event.fields.get("error") or self._reported_error
            self._reported_state = event.fields.get("state")
            self._reported_fault = event.fields.get("fault")
        elif event.type == "preempted":
            self._preempted = str(event.fields["reason"])
        elif event.type == "damaged":
            self.damaged = (str(event.fields["uuid"]), str(event.fields["error"]))

    def extend_length(self, length: int) -> None:
        """Record that the workers continue, to a length in the same unit as before."""
        self._length = self._length * length // self._searcher_length
        self._searcher_length = length

    def _set_progress(self, done: float, length: float | None) -> None:
        if length:
            self.progress = min(1.0, done / length)

    def send_signal(self, number: int) -> None:
        """Send a signal to the workers, each at most once; SIGKILL kills them."""
        if number == signal.SIGKILL:
            self._was_killed = True
            self.workers.kill()
        elif number not in self._signals:
            self._signals.append(number)
            self.workers.signal(number)

    def close(self) -> None:
        """Wait for the workers to end, and release their resources. The log stays open."""
        self._code = self.workers.close()
        ranks = [rank] if (rank := self.workers.first_failed) else []
        if rank == 0 and self._reported_error is not None and self._reported_fault is None:
            # Rank 0 of a script may end first, because it lost the rank that failed.
            ranks = list(range(1, self.info.settings.slots_per_trial))
        faults = ((rank_number, WorkerFault.read(self.info, rank_number)) for rank_number in ranks)
        for rank_number, fault in faults:
            if fault is None:
                continue
            self._reported_error, self._reported_fault = (
                f"rank {rank_number}: {fault.error}",
                fault.fault,
            )
            if not fault.has_begun and self.info.settings.is_trial_class:
                self._event_types -= _TRAINING_EVENTS
            break

    def describe_end(self, latest: CheckpointRecord | None, *, now: float) -> WorkersEnded:
        """Return the event for the supervisor, after `close`.

        Args:
            latest: The checkpoint from which the next start would continue.
            now: The present time.
        """
        how, info = self.ending, self.info
        error = "" if how in (Ending.WELL, Ending.INTERRUPTED) else self.error
        origin: str | None = "from its latest checkpoint"
        if how is Ending.DAMAGED and self.damaged is not None:
            uuid, error = self.damaged[0], self.damaged[1].splitlines()[0]
            origin = f"{latest.uuid}, {latest.steps_completed} batches" if latest else None
            if latest is None:
                # The trial does not start over without a request of the user.
                error = in_one_line(
                    error,
                    f"It was the only checkpoint of trial {info.trial_id}, so the trial cannot "
                    "resume. After restoring its files:  detcore checkpoint repair "
                    f"{uuid}. Otherwise start a new experiment.",
                )
        elif latest is None and info.source_checkpoint is not None:
            origin = f"from checkpoint {info.source_checkpoint}, like its first start"
        elif latest is None:
            origin = "from the start: it has no checkpoint"
        return WorkersEnded(
            self.index,
            how,
            now,
            error=error,
            fault=self._fault,
            permanent_cause=self._permanent_cause,
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
        """Notice about a script that ended successfully before its length, or None.

        Trial classes log such a notice themselves.
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
        if self._code == 0 and self._reported_state not in ("PAUSED", "INVALID_HP"):
            return Ending.WELL
        if self._preempted is not None and not self._signals and not self._was_killed:
            return Ending.PREEMPTED
        if self._was_interrupted:
            return Ending.INTERRUPTED
        if self.is_invalid_hp:
            return Ending.INVALID_HP
        return Ending.CRASHED if self.damaged is None else Ending.DAMAGED

    @property
    def _was_interrupted(self) -> bool:
        """Whether the workers ended on request, with or without a checkpoint."""
        if self._code == EXIT_TEMPFAIL or (self._code == 0 and self._reported_state == "PAUSED"):
            return True
        # Signals end programs that do not use detcore, do not handle signals yet, or hang.
        numbers = {*self._signals, signal.SIGTERM, signal.SIGKILL} if self._signals else set()
        return (self._was_killed and self._code != 0) or (
            self._code in {code for number in numbers for code in (-number, 128 + number)}
        )

    @property
    def is_invalid_hp(self) -> bool:
        """Whether the trial rejected its hyperparameters."""
        return self._code == EXIT_INVALID_HP or self._reported_state == "INVALID_HP"

    @property
    def _permanent_cause(self) -> str | None:
        """Why the next start would fail like this one, or None if it may succeed.

        Exceptions before training are permanent: in a trial class before its first batch, in a
        script before it opened a context or reported an event. So are exceptions that are certain
        to recur: out of memory, a NaN or an inexact resume that ends the trial.
        """
        has_begun = bool(self._event_types & _TRAINING_EVENTS)
        # A command that has saved a checkpoint has worked before.
        is_outside = (
            self._code in _START_FAILURE_CODES
            and not self._event_types
            and self.info.latest_checkpoint is None
            and not self.info.settings.is_trial_class
        )
        recurring = (NotANumberError.__name__, InexactResumeError.__name__)
        recurs = (self._reported_fault or "").startswith(recurring)
        if has_begun and (self._code == EXIT_CONFIG or recurs):
            return "it would fail in the same way each time"
        if has_begun or not (self._code == EXIT_CONFIG or self._reported_fault or is_outside):
            return None
        return "it failed before its first batch, and would fail there each time"

    @property
    def _fault(self) -> tuple[str, int] | None:
        """Type and location of the exception in the code, and the last reported batch.

        None for killed workers, and for external errors.
        """
        return (
            None if self._reported_fault is None else (self._reported_fault, self._steps_completed)
        )

    @property
    def error(self) -> str:
        """Error of workers that failed, in one line."""
        if self._preempted is not None:
            return self._preempted
        rank = self.workers.first_failed
        if rank and self._reported_fault is None:
            # Rank 0 may know only that it lost the failed rank.
            chief_error = f"; rank 0: {self._reported_error}" if self._reported_error else ""
            return f"rank {rank} {self._describe_exit(rank)}{chief_error}"
        if self._reported_error is not None:
            return self._reported_error
        if self.is_invalid_hp:
            return "the trial rejected its hyperparameters"
        return f"the worker {self._describe_exit(0)}"

    def _describe_exit(self, rank: int) -> str:
        last_line = self.output.last_errors.get(rank)
        hint = f"; its last line on standard error: {last_line}" if last_line else ""
        return f"{describe_exit(self._code)}{hint}"


def _convert_report(event: Event) -> WorkerEvent | None:
    """Return the fields of a logged event that a display shows, or None."""
    match event:
        case TrainingReport() | ValidationReport():
            fields = {"steps_completed": event.steps_completed, "metrics": event.metrics}
            return WorkerEvent(event.KIND, fields)
        case CheckpointCommitted(url=str()):
            names = ("uuid", "steps_completed", "url", "size_bytes", "stalled_s", "total_s")
            return WorkerEvent("checkpoint", {name: getattr(event, name) for name in names})
        case _:
            return None


def _find_length_in_batches(info: TrialInfo) -> int:
    """Return the trial's length in batches; 0 if it has another unit."""
    is_batches = info.settings.length_unit is Unit.BATCHES
    return (info.searcher_length or 0) if is_batches else 0
