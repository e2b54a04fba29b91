"""The runner's view of a trial's workers in a job."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from detcore.errors import WorkerError
from detcore.launch import OutputSink
from detcore.launch.nodes import (
    LogCopy,
    LogSource,
    RemoteWorkerGroup,
    read_log_header,
    read_save_durations,
)
from detcore.types import TrialInfo
from detcore_slurm.job_record import JobRecord
from detcore_slurm.run_folder import Appender, RunFolder, Tail
from detcore_slurm.slurm_commands import GONE, JobState, SlurmUnreachableError, cancel_job
from detcore_slurm.submission import Submission

# Files of an ended job arrive later than its state on a network file system.
_SETTLE_S = 5.0
# Lines that arrived in this time before the runner was killed are shown twice.
_NOTE_INTERVAL_S = 1.0
_SHARED_AFTER_S = 60.0
# Time for tasks to kill their workers, before Slurm kills the job.
_KILL_S = 10.0
_MAX_CLOCK_DIFFERENCE_S = 30.0
_SAVED_CODE = 75
_KILLED_CODES = (-signal.SIGTERM, -signal.SIGUSR1, -signal.SIGKILL, 128 + signal.SIGTERM,
                 128 + signal.SIGUSR1, 128 + signal.SIGKILL)  # fmt: skip
_REPLIES_TO_SEARCHER = ("train", "end")


class SlurmWorkerGroup(RemoteWorkerGroup):
    """Workers that the tasks of a Slurm job start; see `detcore.launch.WorkerGroup`.

    The launcher's thread calls `follow` and `observe_job`; the runner calls the other methods.

    Args:
        record: The job.
        folder: The files of the run.
        info: The trial.
        keep_open: Descriptors of which copies stay open until `close`.
        on_output: Called with the workers' output.
        node_info: The trial as the nodes see it. If it is not `info`, this keeps a copy of its log.
        submission: Submits the job; None for a run that an earlier runner has started.
        cancel: Cancels the job from the launcher's thread.
        on_close: Called at the end of `close`.
    """

    def __init__(
        self,
        record: JobRecord,
        folder: RunFolder,
        *,
        info: TrialInfo,
        keep_open: tuple[int, ...],
        on_output: OutputSink,
        node_info: TrialInfo,
        submission: Submission | None,
        cancel: Callable[[int], None],
        on_close: Callable[[SlurmWorkerGroup], None],
    ) -> None:
        super().__init__(record.slots, info)
        self.record = record
        self.folder = folder
        self._info = info
        self._kept = [os.dup(descriptor) for descriptor in keep_open]
        self._on_output = on_output
        self._copy: LogCopy | None = None
        if node_info is not info:
            self._copy, header = LogCopy(info), read_log_header(info)
            self._source = LogSource(node_info, header, start=self._copy.size_bytes)
        self._cancel = cancel
        self._on_close = on_close
        self._submission = submission
        self._is_new = is_new = submission is not None
        self._commands = Appender(folder.commands)
        self._tails = [Tail(folder.find_rank_log(rank)) for rank in range(record.slots)]
        self._signals = Tail(folder.signals)
        self._seen = {} if is_new else (folder.read_value("seen") or {})
        self._lines: list[tuple[int, Mapping[str, Any], int]] = []  # not handled yet
        self._num_replied = 0 if is_new else _count_replies(folder)
        self._codes: dict[int, int] = {}
        self._claim: Mapping[str, Any] | None = None
        self._slurm_signal: int | None = None
        self._own_signal: int | None = None
        self._kill_at: float | None = None
        self._shown = ""
        self._is_done = False
        self._is_drained = False
        self._noted_at = 0.0
        self._running_since: float | None = None
        self._over_since: float | None = None
        self._report_job()

    def reply(self, **fields: Any) -> None:
        """Reply to rank 0 with JSON values."""
        self._send(reply=fields)

    def release(self) -> None:
        """Release descriptors, and record that the runner has seen the end of the run."""
        self._on_close(self)
        self.record.close_run()
        for descriptor in self._kept:
            os.close(descriptor)
        if self._copy is not None:
            self._copy.close()

    def send_signal(self, rank: int, number: int) -> None:
        """Send a signal to all ranks, when it is sent to the first rank that still runs.

        The tasks read the same commands, so one line reaches all ranks. A waiting job is canceled.
        """
        if not all(earlier.has_ended for earlier in self.ranks[:rank]):
            return
        if number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            self._own_signal = number
            if self._kill_at is None and number == signal.SIGKILL:
                self._kill_at = time.monotonic() + _KILL_S
            if self._claim is None and self.folder.read_claim() is None:
                if self.record.job:
                    self._cancel(self.record.job)
                self._end_ranks(_SAVED_CODE if number != signal.SIGKILL else -number)
        self._send(**({"kill": True} if number == signal.SIGKILL else {"signal": number}))

    def _send(self, **command: Any) -> None:
        self._commands.add_line(**command)
        self._commands.flush()

    def submit_job(self) -> None:
        """Submit a job that could not be submitted at the start."""
        if self._is_done or self.record.job or self._submission is None:
            return
        try:
            self._submission.submit()
            self._report_job()
        except SlurmUnreachableError:
            self._show_once("the controller of Slurm does not answer. The job is submitted later")
        except WorkerError as error:
            self._fail(str(error))
        if self._is_done and self.record.job:  # the runner has ended it meanwhile
            self._cancel(self.record.job)

    def _report_job(self) -> None:
        if self.record.job:
            self.add_event("submitted", job=str(self.record.job))

    def follow_safely(self) -> None:
        """Read the new lines of all files. An error that does not pass ends the run."""
        if self._is_done:
            return
        try:
            self._follow()
        except OSError as error:  # a network file system may come back
            self._show_once(f"the files in {self.folder.path} cannot be read now: {error}")
        except Exception as error:  # noqa: BLE001  (a thread without a caller)
            self._cancel(self.record.job)
            self._fail(f"the files in {self.folder.path} cannot be used: {error!r}")

    def _follow(self) -> None:
        if self._claim is None:
            self._read_claim()
        for rank, tail in enumerate(self._tails):
            self._lines += ((rank, line, tail.offset) for line in tail.read_lines())
        # A task that had not installed its handlers dies of a signal, and reports nothing.
        for signaled in self._signals.read_lines():
            self._slurm_signal = signaled["signal"]
        # A worker writes reports before it sends messages, so they are copied first.
        self._copy_log()
        new_lines, self._lines = self._lines, []
        for rank, line, offset in new_lines:
            is_known = offset <= int(self._seen.get(str(rank), 0))
            self._handle_line(rank, line, is_known=is_known)
        if new_lines and (self._is_done or time.monotonic() > self._noted_at + _NOTE_INTERVAL_S):
            self._noted_at = time.monotonic()
            offsets = {str(rank): tail.offset for rank, tail in enumerate(self._tails)}
            self.folder.write_value("seen", offsets)
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            self._kill_at = None
            self._cancel(self.record.job)
        if self._slurm_signal is None or self._own_signal is not None:
            self._mark_ended()

    def observe_job(self, state: JobState) -> None:
        """Compare the files with what Slurm says about the job."""
        if self._is_done or all(rank.has_ended for rank in self.ranks):
            return
        is_same_start = self._claim is not None and self._claim["restarts"] >= state.restarts
        if state.is_pending and self._claim is None:
            self._show_reason(state)
        elif state.is_active and (self._claim is None or is_same_start):
            self._over_since = None
            self._check_claim()
        else:  # the job has ended, or was requeued since it started this run
            self._over_since = self._over_since or time.monotonic()
            is_complete = len(self._codes) == len(self.ranks)
            if is_complete or time.monotonic() > self._over_since + _SETTLE_S:
                self.follow_safely()
                self._end_run(state)

    def leave_node(self) -> None:
        """Let the trial save and continue elsewhere, because its node is drained.

        Raises:
            WorkerError: If slurmctld does not answer.
        """
        if self._claim is not None and not self._is_drained:
            cancel_job(self.record.job, "--batch", "--signal=TERM")
            self._is_drained = True

    def _read_claim(self) -> None:
        self._claim = self.folder.read_claim()
        if self._claim is None:
            return
        difference_s = float(self._claim["time"]) - time.time()
        if self._is_new and abs(difference_s) > _MAX_CLOCK_DIFFERENCE_S:
            self._show(
                f"the clock of {self._claim['node']} differs by {difference_s:+.0f} s from this "
                "machine's. Training is exact, but times in the records are wrong. Synchronize "
                "both with NTP"
            )

    def _show_reason(self, state: JobState) -> None:
        if state.reason != "None":
            hint = f". Release it:  scontrol release {self.record.job}"
            is_held = "held" in state.reason.lower()
            self._show_once(f"job {self.record.job} waits: {state.reason}{hint if is_held else ''}")
        # A waiting trial does not hang.
        self.add_event("status", text=f"waits: {state.reason}")

    def _check_claim(self) -> None:
        """Explain a job that runs, but does not write into the folder."""
        if self._claim is not None:
            return
        now = time.monotonic()
        self._running_since = self._running_since or now
        if now > self._running_since + _SHARED_AFTER_S:
            self._running_since = now + 10 * _SHARED_AFTER_S
            self._show(self._describe_unshared("runs"))

    def _describe_unshared(self, does: str) -> str:
        return (
            f"job {self.record.job} {does}, but has written nothing into {self.folder.path}. "
            "Check that compute nodes see this directory and the Python of this environment, or "
            f"set launcher.shared_dir. Output of the job: {self.folder.path.parent}/"
            f"slurm-{self.record.job}.out"
        )

    def _handle_line(self, rank: int, line: Mapping[str, Any], *, is_known: bool) -> None:
        if "text" in line:
            if not is_known:
                self._on_output(rank, line["stream"], line["text"])
        elif "event" in line:
            fields = dict(line["event"])
            kind = str(fields.pop("type"))
            if kind == "searcher_completed" and self._num_replied:
                self._num_replied -= 1  # an earlier runner has answered it
            elif not (kind == "question" and is_known):
                self.add_event(kind, **fields)
        elif "pid" in line:
            self.ranks[rank].pid = line["pid"]
        elif "slurm_signal" in line:
            self._slurm_signal = line["slurm_signal"]
        elif "code" in line:
            self._codes[rank] = line["code"]

    def _copy_log(self) -> None:
        """Append the new lines of the nodes' event log to the runner's."""
        is_over = self._over_since is not None or len(self._codes) == len(self.ranks)
        while self._copy is not None:
            start, lines = self._source.read(is_over=is_over)
            if not lines:
                return
            self._copy.append(start, lines)

    def _mark_ended(self) -> None:
        for rank, code in self._codes.items():
            self.ranks[rank].mark_ended(code)

    def _end_run(self, state: JobState) -> None:
        """End a run whose job has ended or was requeued."""
        self._is_done = True
        self._copy_log()
        is_complete = len(self._codes) == len(self.ranks)
        is_by_slurm = not state.is_over or state.name in ("PREEMPTED", "TIMEOUT", "NODE_FAIL")
        # Slurm has forgotten how the job ended while no runner was there.
        is_by_slurm = is_by_slurm or (state is GONE and not self._is_new and not is_complete)
        is_limit = state.name == "TIMEOUT" or self._slurm_signal == signal.SIGUSR1
        is_good = all(code in (0, _SAVED_CODE) for code in self._codes.values())
        was_ended = self._codes and all(code in _KILLED_CODES for code in self._codes.values())
        if self._own_signal is not None or (is_complete and set(self._codes.values()) == {0}):
            self._end_ranks(-self._own_signal if self._own_signal else 1)
        elif state.name == "CANCELLED":
            self._codes = {}
            self._show(
                f"job {self.record.job} was canceled with scancel, by you or another user. The "
                "trial is paused and nothing is lost. Continue with:  detcore run --resume "
                f"{self._info.experiment_id}"
            )
            self._end_ranks(_SAVED_CODE)
        elif is_limit and not self._has_saved() and set(self._codes.values()) <= {*_KILLED_CODES}:
            self._fail(
                f"job {self.record.job} reached its time limit before the trial had saved a "
                "checkpoint. Raise launcher.time: Slurm may ask for the save a minute early"
            )
        elif is_by_slurm or (self._slurm_signal is not None and (is_good or was_ended)):
            self._preempt(state, is_saved=is_complete and is_good)
        elif is_complete:
            self._mark_ended()
        elif self._claim is None:
            self._fail(self._describe_unshared(f"has ended ({state.name})"))
        else:
            self._fail(f"job {self.record.job} ended ({state.name} {state.reason}) unexpectedly")

    def _preempt(self, state: JobState, *, is_saved: bool) -> None:
        self.record.continues = True
        causes = {"TIMEOUT": "reached its time limit", "NODE_FAIL": "lost its node"}
        is_near = self._slurm_signal == signal.SIGUSR1
        default = "is near its time limit" if is_near else "was signaled by Slurm"
        default = "ran on a node that is drained" if self._is_drained else default
        cause = causes.get(state.name, default if state.is_over else "was requeued by Slurm")
        ending = "after a save" if is_saved else "without a save"
        self.add_event("preempted", reason=f"job {self.record.job} {cause}, {ending}")
        self._codes = {}
        self._end_ranks(_SAVED_CODE)

    def _fail(self, error: str) -> None:
        for line in self._read_job_output():
            self._show(line)
        self._show(error)
        self.add_event("finished", state="ERROR", error=error)
        self._end_ranks(-signal.SIGKILL)

    def _end_ranks(self, code: int) -> None:
        """Mark all ranks as ended; `code` is for those that have not told theirs."""
        self._is_done = True
        self._mark_ended()
        for rank in self.ranks:
            rank.mark_ended(code)

    def _has_saved(self) -> bool:
        return bool(read_save_durations(self._info, run_id=self._info.run_id))

    def _read_job_output(self) -> list[str]:
        """Return the last lines that Slurm and the tasks themselves have printed."""
        path = self.folder.path.parent / f"slurm-{self.record.job}.out"
        with contextlib.suppress(OSError):
            return path.read_text(errors="replace").splitlines()[-5:]
        return []

    def _show_once(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self._show(text)

    def _show(self, text: str) -> None:
        self._on_output(0, "stderr", f"slurm: {text}")


def _count_replies(folder: RunFolder) -> int:
    """Return how many lengths an earlier runner has sent."""
    replies = (line.get("reply", {}) for line in Tail(folder.commands).read_lines())
    return sum(reply.get("type") in _REPLIES_TO_SEARCHER for reply in replies)
