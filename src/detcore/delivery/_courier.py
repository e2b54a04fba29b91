"""Delivers the events of one trial to one plugin."""

from __future__ import annotations

import enum
import logging
import threading
from collections import Counter
from collections.abc import Callable

from detcore._log import SpooledRecord, SpoolPart, is_spool_in_use, read_spool, spool_path
from detcore._log.events import Event, TrialFinished
from detcore.contract.errors import DetcoreError, UnavailableError, in_one_line
from detcore.contract.values import TrialInfo
from detcore.delivery._events import arguments_of, hook_of
from detcore.delivery._mailbox import Cursor, Mailbox
from detcore.hooks import Observer

__all__ = ["Courier", "Failures", "Stop"]

_LOG = logging.getLogger("detcore.plugins")


class Stop(enum.Enum):
    """Why a courier stopped."""

    NOTHING_LEFT = "nothing left"
    UNAVAILABLE = "unavailable"
    ASKED = "asked to stop"
    BUSY = "another process delivers"


class Failures:
    """Logs the failures of a plugin's hooks: the first of each at once, their number at the end.

    Args:
        observer: The plugin.
    """

    def __init__(self, observer: Observer) -> None:
        self._label = observer.entry.label
        self._counts: Counter[str] = Counter()

    def add(self, hook: str, error: BaseException) -> None:
        """Count a failure."""
        self._counts[hook] += 1
        if self._counts[hook] == 1:
            from detcore.hooks import describe_error

            _LOG.warning(
                "plugin %s: %s failed; training continues: %s",
                self._label, hook, describe_error(error),
            )  # fmt: skip

    def close(self) -> None:
        """Log how often each hook failed."""
        for hook, count in sorted(self._counts.items()):
            if count > 1:
                _LOG.warning("plugin %s: %s failed %d times in all", self._label, hook, count)
        self._counts.clear()


class Courier:
    """Delivers the events of one trial to a plugin, in order, from its cursor on. Not thread-safe.

    An event counts as delivered when its hook returned or failed; then the cursor moves. Before the
    call, the cursor marks the event as being delivered, so that the process after a crash knows.

    Args:
        mailbox: The mailbox of the plugin in the trial.
        observer: The plugin.
        read_trial: Returns the trial of a run; raises `DetcoreError` if it is not known any more.
        is_quiet: Whether an outage is not logged, but only kept in `problem`.
        failures: Counts the failures of hooks beyond this courier; None: it logs them at `close`.

    Attributes:
        num_told: Number of delivered events, including those whose hook failed.
        problem: The plugin's message about the current outage of its service, or None.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        observer: Observer,
        read_trial: Callable[[int], TrialInfo],
        *,
        is_quiet: bool = False,
        failures: Failures | None = None,
    ) -> None:
        self._mailbox = mailbox
        self._observer = observer
        self._read_trial = read_trial
        self._trial: TrialInfo | None = None
        self._cursor: Cursor | None = None
        self._failures = Failures(observer) if failures is None else failures
        self._counts_beyond = failures is not None
        self._is_quiet = is_quiet
        self._has_told_away = False
        self.num_told = 0
        self.problem: str | None = None

    def deliver(self, should_stop: Callable[[], bool] = lambda: False) -> Stop:
        """Deliver the events that have come so far; the courier keeps the lock until `close`.

        Args:
            should_stop: Called between two events.
        """
        if not self._mailbox.acquire():
            return Stop.BUSY
        if self._cursor is None:
            self._cursor = self._mailbox.read()
        while (run_id := self._find_run()) is not None:
            # Checked before the spool is read, so that all events written before the end are read.
            is_over = self._is_over(run_id)
            part = self._read(run_id, is_over=is_over)
            if part is None:
                self._mailbox.close_run(run_id)
                continue
            stop = self._tell_part(run_id, part, should_stop)
            if stop is not None:
                return stop
            if not part.lines:
                if not is_over or self._may_start(run_id, part):
                    break
                self._close_run(run_id)
        return Stop.NOTHING_LEFT

    def close(self) -> None:
        """Give back the lock."""
        self._mailbox.release()
        self._cursor = None
        if not self._counts_beyond:
            self._failures.close()

    # -- the runs of the trial ---------------------------------------------------------------------

    def _find_run(self) -> int | None:
        """Return the run to continue with, and move the cursor to it; None if no run is left."""
        assert self._cursor is not None  # `deliver` has read it
        run_id = next((n for n in self._mailbox.runs() if n >= self._cursor.run_id), None)
        if run_id is not None and run_id != self._cursor.run_id:
            self._move(Cursor(run_id=run_id))
        return run_id

    def _is_over(self, run_id: int) -> bool:
        """Whether no process writes events of a run any more."""
        return self._mailbox.runs()[-1:] != [run_id] or not is_spool_in_use(
            spool_path(self._mailbox.trial_dir, run_id)
        )

    def _may_start(self, run_id: int, part: SpoolPart) -> bool:
        """Whether a run without a writer has not begun: its log is empty, and it is the last."""
        is_blank = part.header is None or part.end == part.header.records_at
        return is_blank and self._mailbox.runs()[-1:] == [run_id]

    def _close_run(self, run_id: int) -> None:
        """Record that a run is over, unless its end was written for it meanwhile.

        `tell_end_of_killed` writes the end first and then adds the run: one of the two is seen.
        """
        self._mailbox.close_run(run_id)
        part = self._read(run_id, is_over=True)
        if part is not None and part.lines:
            self._mailbox.add_run(run_id)

    def _read(self, run_id: int, *, is_over: bool) -> SpoolPart | None:
        """Read the next part of a run's spool; log a warning and return None if that fails."""
        assert self._cursor is not None  # `deliver` has read it
        path = spool_path(self._mailbox.trial_dir, run_id)
        try:
            if self._trial is None or self._trial.run_id != run_id:
                self._trial = self._read_trial(run_id)
            return read_spool(path, self._cursor.offset, is_over=is_over)
        except (DetcoreError, FileNotFoundError) as error:
            _LOG.warning(
                "plugin %s cannot be told of run %d in %s: %s",
                self._observer.entry.label, run_id, self._mailbox.trial_dir, error,
            )  # fmt: skip
            return None

    def _move(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._mailbox.write(cursor)

    # -- one event after the other -----------------------------------------------------------------

    def _tell_part(
        self, run_id: int, part: SpoolPart, should_stop: Callable[[], bool]
    ) -> Stop | None:
        """Deliver some events of a run; return why it stopped before their end, or None."""
        for record in part.records():
            if isinstance(record, int):
                _LOG.warning(
                    "plugin %s is not told of a line of %s, before byte %d, whose checksum is "
                    "wrong",
                    self._observer.entry.label, spool_path(self._mailbox.trial_dir, run_id), record,
                )  # fmt: skip
                continue
            event = record.event
            hook = hook_of(event)
            if event is not None and hook is not None and hook in self._observer.hooks:
                if should_stop():
                    return Stop.ASKED
                if not self._tell(run_id, record, event, hook):
                    return Stop.UNAVAILABLE
                self._move(Cursor(run_id=run_id, offset=record.end))
            if record.kind == TrialFinished.KIND:
                self._move(Cursor(run_id=run_id, offset=record.end))
                self._mailbox.close_run(run_id)
                return None
        assert self._cursor is not None  # `deliver` has read it
        if part.end != self._cursor.offset:
            self._move(Cursor(run_id=run_id, offset=part.end))
        return None

    def _tell(self, run_id: int, record: SpooledRecord, event: Event, hook: str) -> bool:
        """Deliver one event; return whether that is done."""
        assert self._cursor is not None  # `deliver` has read it
        assert self._trial is not None  # `_read` has read it
        is_repeat = self._cursor.trying == record.seq
        if not is_repeat:
            self._move(Cursor(run_id=run_id, offset=self._cursor.offset, trying=record.seq))
        try:
            self._observer.tell(hook, arguments_of(record, event, self._trial, is_repeat=is_repeat))
        except UnavailableError as error:
            self._is_away(error)
            return False
        except BaseException as error:
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and isinstance(error, KeyboardInterrupt):
                raise  # the user's, in a command
            self._failures.add(hook, error)
        self._has_told_away = False
        self.problem = None
        self.num_told += 1
        return True

    def _is_away(self, error: UnavailableError) -> None:
        self.problem = in_one_line(error) or "its service is not reachable"
        if not self._has_told_away and not self._is_quiet:
            self._has_told_away = True
            _LOG.warning(
                "plugin %s: its service is away, and what it misses is kept for later: %s",
                self._observer.entry.label, self.problem,
            )  # fmt: skip
