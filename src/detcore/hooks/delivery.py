"""Delivery of trial events to observers: in order, once, and later if a service is away."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from detcore._log import (
    EventLine,
    EventLog,
    EventLogPart,
    event_log_path,
    events,
    is_event_log_in_use,
    read_event_lines,
    read_event_log,
)
from detcore._log.events import Event, TrialFinished, encode
from detcore.contract.errors import DatabaseError, DetcoreError, UnavailableError, in_one_line
from detcore.contract.hook_values import OBSERVER_HOOKS, CheckpointSaved, EventInfo
from detcore.contract.values import TrialInfo
from detcore.hooks._entry import Observer
from detcore.hooks._mailbox import (
    Cursor,
    Mailbox,
    find_mailboxes,
    mailboxes_of,
    read_run,
    subscribe,
    write_run,
)

__all__ = [
    "Cursor",
    "LateDelivery",
    "Mailbox",
    "Waiting",
    "count_waiting",
    "deliver_waiting",
    "event_log_path",
    "find_mailboxes",
    "read_event_log",
    "read_run",
    "subscribe",
    "tell_end_of_killed",
    "tell_recovered",
    "write_run",
]

_LOG = logging.getLogger("detcore.plugins")
_LOOK_EVERY_S = 2.0
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 60.0
# How long the end waits at most for a service that did not answer before.
_AWAY_WAIT_S = 0.5
# The end is the last line, and short.
_TAIL_BYTES = 16 * 1024
_HOOKS: dict[type[Event], str] = {
    events.TrialStarted: "detcore_trial_started",
    events.TrainingMetrics: "detcore_training_metrics",
    events.ValidationMetrics: "detcore_validation_metrics",
    events.CheckpointCommitted: "detcore_checkpoint_saved",
    events.TrialFinished: "detcore_trial_finished",
}
# Fields that the event of a checkpoint and the hook's argument have in common.
_OF_CHECKPOINT = ("uuid", "steps_completed", "size_bytes", "stalled_s", "total_s")


def _hook_of(event: Event | None) -> str | None:
    """Return the hook that an event of a log is for, or None."""
    return None if event is None else _HOOKS.get(type(event))


def _arguments_of(
    record: EventLine, event: Event, trial: TrialInfo, *, is_repeat: bool
) -> Mapping[str, object]:
    """Return the arguments for the hook of a record's event; nothing in them can be changed."""
    info = EventInfo(number=record.seq, time=record.time, is_repeat=is_repeat)
    common: dict[str, object] = {"trial": trial, "event": info}
    if isinstance(event, events.TrainingMetrics | events.ValidationMetrics):
        common.update(
            steps_completed=event.steps_completed, metrics=MappingProxyType(event.metrics)
        )
        if isinstance(event, events.TrainingMetrics):
            batches = event.batch_metrics
            common["batch_metrics"] = (
                None if batches is None else tuple(map(MappingProxyType, batches))
            )
    elif isinstance(event, events.CheckpointCommitted):
        common["checkpoint"] = CheckpointSaved(
            url=event.url or "",
            path=None if event.path is None else Path(event.path),
            **{name: getattr(event, name) for name in _OF_CHECKPOINT},
        )
    elif isinstance(event, TrialFinished):
        common.update(state=event.state, error=event.error)
    return common


def tell_recovered(
    trial_dir: Path, *, trial_id: int, run_id: int, saved: Sequence[events.CheckpointCommitted]
) -> None:
    """Add checkpoints to the log of a killed run that it committed and could not report.

    Nothing is written for a trial without observers.

    Args:
        trial_dir: The trial's folder.
        trial_id: The trial.
        run_id: The run; its process is gone.
        saved: The checkpoints that recovery found whole.
    """
    _append(trial_dir, trial_id, run_id, saved)


def tell_end_of_killed(
    trial_dir: Path, *, trial_id: int, run_id: int, state: str, error: str | None
) -> bool:
    """Write the end of a run whose process was killed to its log, if the run has observers.

    Args:
        trial_dir: The trial's folder.
        trial_id: Which trial.
        run_id: Which run; its process is gone.
        state: As `detcore.contract.hooks.detcore_trial_finished` says.
        error: The error, or None.

    Returns:
        Whether it was written: the log did not have it, and observers wait for it.
    """
    path = event_log_path(trial_dir, run_id)
    if path.exists():
        tail = read_event_log(path, max(0, path.stat().st_size - _TAIL_BYTES), is_over=True)
        for record in tail.parse():
            if isinstance(record, EventLine) and record.kind == TrialFinished.KIND:
                return False
    return _append(trial_dir, trial_id, run_id, [TrialFinished(state=state, error=error)])


def _append(trial_dir: Path, trial_id: int, run_id: int, added: Sequence[Event]) -> bool:
    """Append events to the log of a run whose process is gone; return whether that was done."""
    path = event_log_path(trial_dir, run_id)
    mailboxes = [box for box in mailboxes_of(trial_dir) if box.observes(run_id)]
    if not added or not mailboxes or not path.exists() or is_event_log_in_use(path):
        return False
    with EventLog(path, trial_id=trial_id, run_id=run_id) as log:
        for event in added:
            log.append(event.KIND, encode(event))
    for mailbox in mailboxes:
        mailbox.add_run(run_id)  # it may count as over already
    return True


class _Failures:
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
            from detcore.hooks._load import describe_error

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


class _Courier:
    """Delivers the events of one trial to a plugin, in order, from its cursor on. Not thread-safe.

    An event counts as delivered when its hook returned or failed; then the cursor moves. Before the
    call, the cursor marks the event as being delivered, so that the process after a crash knows.

    Args:
        mailbox: The mailbox of the plugin in the trial.
        observer: The plugin.
        failures: Counts the failures of its hooks.

    Attributes:
        num_told: Number of delivered events, including those whose hook failed.
        problem: The plugin's message about the current outage of its service, or None.
    """

    def __init__(self, mailbox: Mailbox, observer: Observer, failures: _Failures) -> None:
        self._mailbox = mailbox
        self._observer = observer
        self._failures = failures
        self._trial: TrialInfo | None = None
        self._cursor = Cursor()
        self.num_told = 0
        self.problem: str | None = None

    def deliver(self, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Deliver the events that have come so far; the courier keeps the lock until `close`.

        Args:
            should_stop: Called between two events.

        Returns:
            False if it stopped before it had delivered all: it was asked to, or `problem` says why.
            Events that another process is delivering do not count.
        """
        if not self._mailbox.acquire():
            return True
        self._cursor = self._mailbox.read()
        while (run_id := self._find_run()) is not None:
            # Checked before the log is read, so that all events written before the end are read.
            is_over = self._is_over(run_id)
            part = self._read(run_id, is_over=is_over)
            if part is None:
                self._mailbox.close_run(run_id)
                continue
            if not self._tell_part(run_id, part, should_stop):
                return False
            if not part.lines:
                if not is_over or self._may_start(run_id, part):
                    break
                self._close_run(run_id)
        return True

    def close(self) -> None:
        """Give back the lock."""
        self._mailbox.release()

    def _find_run(self) -> int | None:
        """Return the run to continue with, and move the cursor to it; None if no run is left."""
        run_id = next((n for n in self._mailbox.runs() if n >= self._cursor.run_id), None)
        if run_id is not None and run_id != self._cursor.run_id:
            self._move(Cursor(run_id=run_id))
        return run_id

    def _is_over(self, run_id: int) -> bool:
        """Whether no process writes events of a run any more."""
        return self._mailbox.runs()[-1:] != [run_id] or not is_event_log_in_use(
            event_log_path(self._mailbox.trial_dir, run_id)
        )

    def _may_start(self, run_id: int, part: EventLogPart) -> bool:
        """Whether a run without a writer has not begun: its log is empty, and it is the last."""
        is_blank = part.header is None or part.end == part.header.lines_at
        return is_blank and self._mailbox.runs()[-1:] == [run_id]

    def _close_run(self, run_id: int) -> None:
        """Record that a run is over, unless its end was written for it meanwhile.

        `tell_end_of_killed` writes the end first and then adds the run: one of the two is seen.
        """
        self._mailbox.close_run(run_id)
        part = self._read(run_id, is_over=True)
        if part is not None and part.lines:
            self._mailbox.add_run(run_id)

    def _read(self, run_id: int, *, is_over: bool) -> EventLogPart | None:
        """Read the next part of a run's event log; log a warning and return None if that fails."""
        folder = self._mailbox.trial_dir
        try:
            if self._trial is None or self._trial.run_id != run_id:
                self._trial = read_run(folder, run_id)
            return read_event_log(
                event_log_path(folder, run_id), self._cursor.offset, is_over=is_over
            )
        except (DetcoreError, FileNotFoundError) as error:
            _LOG.warning(
                "plugin %s cannot be told of run %d in %s: %s",
                self._observer.entry.label, run_id, folder, error,
            )  # fmt: skip
            return None

    def _move(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._mailbox.write(cursor)

    def _tell_part(self, run_id: int, part: EventLogPart, should_stop: Callable[[], bool]) -> bool:
        """Deliver some events of a run; return False if it stopped before their end."""
        for record in part.parse():
            if isinstance(record, int):
                _LOG.warning(
                    "plugin %s is not told of a line of %s, before byte %d, whose checksum is "
                    "wrong",
                    self._observer.entry.label,
                    event_log_path(self._mailbox.trial_dir, run_id), record,
                )  # fmt: skip
                continue
            event = record.event
            hook = _hook_of(event)
            if event is not None and hook is not None and hook in self._observer.hooks:
                if should_stop() or not self._tell(run_id, record, event, hook):
                    return False
                self._move(Cursor(run_id=run_id, offset=record.end))
            if record.kind == TrialFinished.KIND:
                self._move(Cursor(run_id=run_id, offset=record.end))
                self._mailbox.close_run(run_id)
                return True
        if part.end != self._cursor.offset:
            self._move(Cursor(run_id=run_id, offset=part.end))
        return True

    def _tell(self, run_id: int, record: EventLine, event: Event, hook: str) -> bool:
        """Deliver one event; return whether that is done."""
        assert self._trial is not None  # `_read` has read it
        is_repeat = self._cursor.trying == record.seq
        if not is_repeat:
            self._move(Cursor(run_id=run_id, offset=self._cursor.offset, trying=record.seq))
        try:
            self._observer.tell(
                hook, _arguments_of(record, event, self._trial, is_repeat=is_repeat)
            )
        except UnavailableError as error:
            self.problem = in_one_line(error) or "its service is not reachable"
            return False
        except BaseException as error:
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and isinstance(error, KeyboardInterrupt):
                raise  # the user's, in a command
            self._failures.add(hook, error)
        self.problem = None
        self.num_told += 1
        return True


class LateDelivery:
    """Delivers the waiting events under a home to observers, to each in a separate thread.

    It looks at the trials of earlier experiments once, and at those of its experiment every two
    seconds.

    Args:
        home: `Environment.home`.
        observers: The plugins; nothing else may use these objects.
        experiment_id: The experiment whose trials are searched until the end.
    """

    def __init__(self, home: Path, observers: Iterable[Observer], *, experiment_id: int) -> None:
        self._home = home
        self._experiment_id = experiment_id
        self._is_closing = threading.Event()
        self._is_given_up = False
        self._plugins = [_Plugin(self, observer) for observer in observers]

    def find(self, *, only_mine: bool) -> Iterator[Mailbox]:
        """Yield the mailboxes of the experiment, or all under the home."""
        return find_mailboxes(self._home, experiment_id=self._experiment_id if only_mine else None)

    def is_given_up(self) -> bool:
        """Whether the time to deliver is over."""
        return self._is_given_up

    def wait_for_close(self, timeout_s: float) -> bool:
        """Wait until the end begins, or for some seconds; return whether it has begun."""
        return self._is_closing.wait(timeout_s)

    def close(self, timeout_s: float) -> dict[str, int]:
        """Deliver the remaining events of the experiment's trials, as far as time allows.

        Returns:
            The number of its trials with undelivered events, by plugin.
        """
        deadline = time.monotonic() + timeout_s
        self._is_closing.set()
        for plugin in self._plugins:
            left_s = max(0.0, deadline - time.monotonic())
            plugin.thread.join(min(left_s, _AWAY_WAIT_S) if plugin.is_away else left_s)
        self._is_given_up = True
        for plugin in self._plugins:
            plugin.failures.close()
        return Counter(mailbox.plugin for mailbox in self.find(only_mine=True))


class _Plugin:
    """One observer of a `LateDelivery`, and the thread that delivers to it.

    Attributes:
        failures: Counts the failures of its hooks.
        is_away: Whether its service was away at the last attempt.
    """

    def __init__(self, delivery: LateDelivery, observer: Observer) -> None:
        self.failures = _Failures(observer)
        self.is_away = False
        self._delivery = delivery
        self._observer = observer
        self.thread = threading.Thread(
            target=self._run, name=f"detcore-late-{observer.entry.name}", daemon=True
        )
        self.thread.start()

    def _run(self) -> None:
        only_mine, is_last, pause_s = False, False, _FIRST_RETRY_S
        while True:
            self._deliver(only_mine=only_mine)
            if is_last:
                return
            only_mine = True
            is_last = self._delivery.wait_for_close(pause_s if self.is_away else _LOOK_EVERY_S)
            pause_s = min(_LAST_RETRY_S, 2 * pause_s) if self.is_away else _FIRST_RETRY_S

    def _deliver(self, *, only_mine: bool) -> None:
        name, label = self._observer.entry.name, self._observer.entry.label
        try:
            found = [box for box in self._delivery.find(only_mine=only_mine) if box.plugin == name]
            _, problem = deliver_waiting(
                self._observer, found, self._delivery.is_given_up, failures=self.failures
            )
        except Exception as error:  # noqa: BLE001  (everything on the disk stays there)
            problem = f"{type(error).__name__}: {error}"
            _LOG.warning("what plugin %s missed cannot be delivered now: %s", label, problem)
        else:
            if problem is not None and not self.is_away:
                _LOG.warning(
                    "plugin %s: its service is away, and what it misses is kept for later: %s",
                    label, problem,
                )  # fmt: skip
        self.is_away = problem is not None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The undelivered events of one trial for one plugin.

    Attributes:
        num_events: How many events.
        since: When the oldest of them happened, in seconds since 1970; None without events.
    """

    num_events: int
    since: float | None


def count_waiting(mailbox: Mailbox, hooks: Iterable[str] = OBSERVER_HOOKS) -> Waiting:
    """Count the events that were not delivered to a plugin yet.

    Args:
        mailbox: Whose events.
        hooks: The plugin's observer hooks; all, where it is not installed.
    """
    wanted = frozenset(hooks)
    cursor = mailbox.read()
    times: list[float] = []
    for run_id in mailbox.runs():
        if run_id < cursor.run_id:
            continue
        offset = cursor.offset if run_id == cursor.run_id else 0
        with contextlib.suppress(DatabaseError, FileNotFoundError):  # reported at the delivery
            for record in read_event_lines(event_log_path(mailbox.trial_dir, run_id), offset):
                if _hook_of(record.event) in wanted:
                    times.append(record.time)
    return Waiting(num_events=len(times), since=times[0] if times else None)


def deliver_waiting(
    observer: Observer,
    mailboxes: Iterable[Mailbox],
    should_stop: Callable[[], bool] = lambda: False,
    *,
    failures: _Failures | None = None,
) -> tuple[int, str | None]:
    """Deliver the undelivered events of some trials to one plugin.

    Trials whose events another process is delivering are left out. If the plugin's service is away,
    the rest is left for later.

    Args:
        observer: The plugin.
        mailboxes: Its mailboxes.
        should_stop: Called between two events.
        failures: Counts the failures of its hooks; None: they are logged at the end.

    Returns:
        How many events were delivered, and why the rest was not, if its service is away.
    """
    counted = failures or _Failures(observer)
    told = 0
    try:
        for mailbox in mailboxes:
            if not mailbox.runs():
                continue
            courier = _Courier(mailbox, observer, counted)
            try:
                is_done = courier.deliver(should_stop)
            finally:
                told += courier.num_told
                courier.close()
            if not is_done:
                return told, courier.problem
    finally:
        if failures is None:
            counted.close()
    return told, None
