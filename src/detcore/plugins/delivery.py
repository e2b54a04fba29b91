"""Deliver the events of trials to observers: in order, once, and later if a service is unreachable.

An observer reads the event logs. Its cursors are rows of the records. Each observed run has a
cursor, which is created in the transaction that starts the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import logging
import os
import struct
import threading
import time
import urllib.parse
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from detcore.atomic_files import replace_file
from detcore.contract.errors import (
    DetcoreError,
    RunError,
    StorageError,
    UnavailableError,
    in_one_line,
)
from detcore.contract.hook_values import CheckpointSaved, EventInfo
from detcore.contract.values import TrialInfo
from detcore.log import events
from detcore.log.events import Event, TrialFinished, encode_event
from detcore.log.lines import EventLine, EventLogDamagedError
from detcore.log.reading import (
    event_log_path,
    is_event_log_in_use,
    read_event_lines,
    read_event_log,
)
from detcore.log.writing import EventLog

if TYPE_CHECKING:
    from detcore.plugins.plugin_entry import Observer
    from detcore.records import Database, ObserverCursor, TrialRecord

__all__ = [
    "Delivery",
    "append_to_killed",
    "deliver_events",
    "drop_events",
    "list_waiting",
    "read_run",
    "write_run",
]

_LOG = logging.getLogger("detcore.plugins")
_POLL_INTERVAL_S = 1.0
_MAX_BACKOFF_S = 60.0
# If a plugin's hooks run longer than this, the other plugins get another thread.
_MAX_TURN_S = 2.0
# Maximum time for which `close` waits for a service that was unreachable before.
_UNREACHABLE_WAIT_S = 0.5
_END_POLL_S = 0.05
# The event of a run's end is in this last part of the log.
_TAIL_BYTES = 1024 * 1024
_HOOKS: dict[type, str] = {
    events.TrialStarted: "detcore_trial_started",
    events.TrainingReport: "detcore_training_metrics",
    events.ValidationReport: "detcore_validation_metrics",
    events.CheckpointCommitted: "detcore_checkpoint_saved",
    events.TrialFinished: "detcore_trial_finished",
}
# Fields that the checkpoint event and the hook's argument share.
_CHECKPOINT_FIELDS = ("uuid", "steps_completed", "size_bytes", "stalled_s", "total_s")
# Slot with a cursor in a lock file: `byte_offset`, `trying` and a checksum; see `_encode_slot`.
_SLOT = struct.Struct("<qq12xI")


def _find_hook(line: EventLine, hooks: Collection[str]) -> str | None:
    """Return the hook for the event of a line, or None if it is not in `hooks`."""
    hook = _HOOKS.get(type(line.event))
    return hook if hook in hooks else None


def _build_arguments(line: EventLine, trial: TrialInfo, *, is_repeat: bool) -> Mapping[str, object]:
    """Return the arguments for the hook of a line's event, as read-only values."""
    event = line.event
    info = EventInfo(number=line.seq, time=line.time, is_repeat=is_repeat)
    common: dict[str, object] = {"trial": trial, "event": info}
    if isinstance(event, events.TrainingReport | events.ValidationReport):
        common.update(
            steps_completed=event.steps_completed, metrics=MappingProxyType(event.metrics)
        )
        if isinstance(event, events.TrainingReport):
            batches = event.batch_metrics
            common["batch_metrics"] = (
                None if batches is None else tuple(map(MappingProxyType, batches))
            )
    elif isinstance(event, events.CheckpointCommitted):
        common["checkpoint"] = CheckpointSaved(
            url=event.url or "",
            path=None if event.path is None else Path(event.path),
            **{name: getattr(event, name) for name in _CHECKPOINT_FIELDS},
        )
    elif isinstance(event, TrialFinished):
        common.update(state=event.state, error=event.error)
    return common


def append_to_killed(database: Database, trial: TrialRecord, event: Event) -> bool:
    """Append an event to the log of a run whose process was killed before it reported the event.

    Args:
        database: The records.
        trial: The trial. The process of its last run has exited.
        event: A checkpoint that recovery found complete, or the end of the run.

    Returns:
        Whether the event was written. It is not written if the run has no observers, if the log
        already contains the end of the run, or if the log cannot be used.
    """
    path = event_log_path(Path(trial.trial_dir or ""), trial.run_id)
    if trial.trial_dir is None or not path.exists() or is_event_log_in_use(path):
        return False
    try:
        if isinstance(event, TrialFinished):
            tail = read_event_lines(path, max(0, path.stat().st_size - _TAIL_BYTES))
            if any(line.kind == TrialFinished.KIND for line in tail):
                return False
        if not database.reopen_cursors(trial.id, trial.run_id):
            return False
        with EventLog(path, trial_id=trial.id, run_id=trial.run_id) as log:
            log.append(event.KIND, encode_event(event))
        # A reader may have finished the run before the event was written.
        return database.reopen_cursors(trial.id, trial.run_id)
    except (DetcoreError, OSError) as error:  # a damaged log or a full disk
        _LOG.warning("plugins do not receive an event of trial %d: %s", trial.id, error)
        return False


def write_run(info: TrialInfo) -> Path:
    """Write the file that describes the trial of a run, and return its path.

    Raises:
        StorageError: If the file cannot be written.
    """
    path = _get_run_path(Path(info.trial_dir), info.run_id)
    # The configuration may contain credentials, so no other user may read the file.
    text = json.dumps(info, indent=2, default=_to_json_value)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another worker on this machine may already be reading the file, so it is replaced.
        replace_file(path, text.encode(), mode=0o600)
    except OSError as error:
        raise StorageError(
            f"{path}, which describes the trial, cannot be written: {error}."
        ) from error
    return path


def read_run(trial_dir: Path, run_id: int) -> TrialInfo:
    """Read the trial of a run, whose directory may have been moved since.

    Raises:
        RunError: If the file is missing or invalid.
        StorageError: If the file cannot be read now.
    """
    path = _get_run_path(trial_dir, run_id)
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        names = {field.name for field in dataclasses.fields(TrialInfo)}
        # Observers do not need fields that a later release added.
        known_fields = {name: value for name, value in fields.items() if name in names}
        return TrialInfo(**{**known_fields, "trial_dir": str(trial_dir)})
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise RunError(f"{path} does not describe the trial of run {run_id}: {error}") from error
    except OSError as error:
        raise StorageError(
            f"{path}, which describes the trial, cannot be read: {error}."
        ) from error


def _to_json_value(value: object) -> Any:
    """Convert a value that JSON cannot represent."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    to_list = getattr(value, "tolist", None)  # NumPy's
    if callable(to_list):
        return to_list()
    return dict(value) if isinstance(value, Mapping) else str(value)


def _get_run_path(trial_dir: Path, run_id: int) -> Path:
    return trial_dir / f"run-{run_id}.json"


def _find_trial_dir(home: Path, cursor: ObserverCursor) -> Path:
    return home / "experiments" / str(cursor.experiment_id) / "trials" / str(cursor.trial_id)


def _get_lock_path(trial_dir: Path, plugin: str) -> Path:
    return trial_dir / "observers" / f"{urllib.parse.quote(plugin, safe='')}.lock"


@contextlib.contextmanager
def _lock_trial(trial_dir: Path, plugin: str) -> Iterator[int]:
    """Lock the deliveries of a trial to a plugin during the block, if no process holds the lock.

    The lock is a file because an event log can only be read below its own home, even if several
    homes share their records, and because the kernel releases it when the process is killed. Each
    trial has a lock, so that a slow hook does not delay the trials of other processes.

    Yields:
        The file's descriptor, or -1 if another process holds the lock.
    """
    path = _get_lock_path(trial_dir, plugin)
    path.parent.mkdir(exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield -1
    else:
        try:
            yield descriptor
        finally:
            # Released explicitly: a process that was forked meanwhile also has the file open.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _encode_slot(cursor: ObserverCursor, lock: int) -> bytes:
    """Encode a cursor as the slot of a lock file.

    The checksum covers the file's inode. The slot is invalid in a copied home, because the
    delivering process writes the original file.
    """
    owner = repr((cursor, os.fstat(lock).st_ino))
    return _SLOT.pack(cursor.byte_offset, cursor.trying, zlib.crc32(owner.encode()))


def _load_cursor(trial_dir: Path, cursor: ObserverCursor) -> ObserverCursor:
    """Return the newest state of a cursor: the slot in the lock file if it is valid and ahead."""
    with (
        contextlib.suppress(OSError, struct.error),
        _get_lock_path(trial_dir, cursor.plugin).open("rb") as file,
    ):
        slot = file.read(_SLOT.size)
        offset, trying, _ = _SLOT.unpack(slot)
        ahead = dataclasses.replace(cursor, byte_offset=offset, trying=trying)
        if offset >= cursor.byte_offset and _encode_slot(ahead, file.fileno()) == slot:
            return ahead
    return cursor


class _EventReader:
    """Delivers events to a plugin, in order, starting at its cursors. Not thread-safe.

    An event counts as delivered when its hook has returned or failed. Before each call, the cursor
    moves after the previous events and marks the event as being delivered. After a kill, the next
    process then knows which event it repeats. This cursor is in the lock file. Its row in the
    records, which requires a transaction, moves at the first event of each part of the log and at
    the end.

    Args:
        database: The records, with the cursors.
        home: `Environment.home`; the event logs are below it.
        observer: The plugin.

    Attributes:
        num_delivered: Number of delivered events, including those whose hook failed.
        problem: The plugin's message about the current outage of its service, or None.
    """

    _cursor: ObserverCursor
    _saved: ObserverCursor
    _lock: int

    def __init__(self, database: Database, home: Path, observer: Observer) -> None:
        self._database = database
        self._home = home
        self._observer = observer
        self._failures: Counter[str] = Counter()
        self.num_delivered = 0
        self.problem: str | None = None

    def deliver_waiting(
        self,
        *,
        experiment_id: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Deliver the events reported so far, except those that another process delivers now.

        Args:
            experiment_id: Deliver only events of this experiment.
            should_stop: Called between two events.

        Returns:
            False if it stopped early, because of `should_stop` or of the outage in `problem`.

        Raises:
            DatabaseError: If the cursors cannot be read or moved. An event may be repeated later.
        """
        self.problem = None
        name = self._observer.entry.name
        cursors = self._database.list_cursors(plugin=name, experiment_id=experiment_id)
        for trial_id, group in itertools.groupby(cursors, lambda cursor: cursor.trial_id):
            runs = list(group)
            trial_dir = _find_trial_dir(self._home, runs[0])
            if not _has_undelivered(trial_dir, runs):
                continue
            with _lock_trial(trial_dir, name) as self._lock:
                if self._lock >= 0 and not self._deliver_trial(trial_dir, trial_id, should_stop):
                    return False
        return True

    def _deliver_trial(
        self, trial_dir: Path, trial_id: int, should_stop: Callable[[], bool]
    ) -> bool:
        # The cursors are read again, because another process may have moved them.
        name = self._observer.entry.name
        cursors = self._database.list_cursors(plugin=name, trial_id=trial_id)
        for cursor in cursors:
            path = event_log_path(trial_dir, cursor.run_id)
            if not path.exists():  # not created yet, or below another home
                continue
            self._saved, self._cursor = cursor, _load_cursor(trial_dir, cursor)
            is_newest = cursor is cursors[-1]
            try:
                if not self._deliver_run(path, cursor.run_id, is_newest, should_stop):
                    return False
            except (EventLogDamagedError, RunError, FileNotFoundError) as error:
                if not path.exists():  # moved meanwhile
                    continue
                _LOG.warning(
                    "plugin %s cannot receive the events of run %d in %s: %s",
                    self._observer.entry.label, cursor.run_id, trial_dir, error,
                )  # fmt: skip
                self._move_cursor(is_finished=True)
            finally:
                self._save_cursor()
        return True

    def _deliver_run(
        self, path: Path, run_id: int, is_newest: bool, should_stop: Callable[[], bool]
    ) -> bool:
        """Deliver the remaining events of a run; return False if it stopped early."""
        trial = read_run(path.parent, run_id)
        is_finished = not is_newest
        while True:
            # Checked before the log is read, so that all events before the end are read.
            is_over = not is_newest or not is_event_log_in_use(path)
            part = read_event_log(path, self._cursor.byte_offset, is_over=is_over)
            if not part.lines:
                break
            lines = list(part.parse_lines())
            last = max((line.seq for line in lines if isinstance(line, EventLine)), default=0)
            for line in lines:
                if isinstance(line, int):
                    _LOG.warning(
                        "plugin %s does not receive a line of %s before byte %d, because its "
                        "checksum is wrong",
                        self._observer.entry.label, path, line,
                    )  # fmt: skip
                    self._move_cursor(byte_offset=line)
                    continue
                hook = _find_hook(line, self._observer.hooks)
                if hook is not None and (
                    should_stop() or not self._deliver_event(hook, line, trial, last)
                ):
                    return False
                self._move_cursor(byte_offset=line.end)
                is_finished = is_finished or line.kind == TrialFinished.KIND
        if is_finished:
            self._save_cursor(is_finished=True)
            # `append_to_killed` appends and then reopens cursors, so either this process sees the
            # new lines or it reopens the cursor.
            new_lines = read_event_log(path, self._cursor.byte_offset, is_over=True).lines
            self._move_cursor(is_finished=not new_lines)
        return True

    def _deliver_event(self, hook: str, line: EventLine, trial: TrialInfo, last: int) -> bool:
        """Deliver one event of a part of the log; return False if the service is unreachable.

        Args:
            hook: The hook for the event.
            line: The event.
            trial: The trial.
            last: The highest event number in the part.
        """
        is_repeat = line.seq <= self._cursor.trying
        if line.seq > self._saved.trying:
            # If the slot is lost, any event of this part may have been delivered. The row must
            # record this before the first event is delivered.
            self._write_slot()
            self._save_cursor(trying=last)
        self._move_cursor(trying=max(line.seq, self._cursor.trying))
        self._write_slot()
        try:
            self._observer.call(hook, _build_arguments(line, trial, is_repeat=is_repeat))
        except UnavailableError as error:
            self.problem = in_one_line(error) or "its service is not reachable"
            return False
        except BaseException as error:
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and isinstance(error, KeyboardInterrupt):
                raise  # the user interrupts a command
            self._log_failure(hook, error)
        self.problem = None
        self.num_delivered += 1
        return True

    def _move_cursor(self, **changes: Any) -> None:
        self._cursor = dataclasses.replace(self._cursor, **changes)

    def _write_slot(self) -> None:
        os.pwrite(self._lock, _encode_slot(self._cursor, self._lock), 0)

    def _save_cursor(self, **changes: Any) -> None:
        row = dataclasses.replace(self._cursor, **changes)
        if row != self._saved:
            self._database.move_cursor(row)
            self._saved = row

    def _log_failure(self, hook: str, error: BaseException) -> None:
        self._failures[hook] += 1
        if self._failures[hook] == 1:
            from detcore.plugins.plugin_loading import describe_error

            _LOG.warning(
                "plugin %s: %s failed; training continues: %s",
                self._observer.entry.label, hook, describe_error(error),
            )  # fmt: skip

    def close(self) -> None:
        """Log the number of failures of each hook."""
        for hook, count in sorted(self._failures.items()):
            if count > 1:
                _LOG.warning(
                    "plugin %s: %s failed %d times in all", self._observer.entry.label, hook, count
                )


def _has_undelivered(trial_dir: Path, cursors: Sequence[ObserverCursor]) -> bool:
    """Whether a trial may have undelivered events, or an earlier run to finish."""
    for cursor in cursors:
        with contextlib.suppress(FileNotFoundError):
            size = event_log_path(trial_dir, cursor.run_id).stat().st_size
            if size > cursor.byte_offset or cursor is not cursors[-1]:
                return True
    return False


@dataclasses.dataclass(slots=True)
class _DeliveryTurn:
    """A plugin that a `Delivery` serves.

    Attributes:
        lock: Held by the thread that serves the plugin.
        experiment_id: Experiment whose events it receives; None (all experiments) at its first
            turn.
        pause_s: Seconds until the next turn if the service or the records were unreachable, or 0.
        next_at: Time of the next turn.
        is_served: Set at the last turn, after `close` was called.
    """

    label: str
    reader: _EventReader
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    experiment_id: int | None = None
    pause_s: float = 0.0
    next_at: float = 0.0
    is_served: threading.Event = dataclasses.field(default_factory=threading.Event)


class Delivery:
    """Delivers the waiting events under a home to observers, in one thread.

    The thread serves the plugins in turn: first the waiting events of earlier experiments, then
    every second the events of this experiment. A plugin whose service is unreachable pauses for
    increasing intervals. When a hook runs longer than two seconds, another thread serves the other
    plugins.

    Args:
        database: The records, which may be unreachable temporarily.
        home: `Environment.home`.
        observers: The plugins. Nothing else may use these objects.
        experiment_id: The experiment whose events are delivered until the end.
    """

    def __init__(
        self,
        database: Database,
        home: Path,
        observers: Iterable[Observer],
        *,
        experiment_id: int,
    ) -> None:
        self._database = database
        self._home = home
        self._experiment_id = experiment_id
        self._is_closing = threading.Event()
        self._is_given_up = False
        self._turns = {
            observer: _DeliveryTurn(observer.entry.label, _EventReader(database, home, observer))
            for observer in observers
        }
        if self._turns:
            self._start_thread()

    def close(self, timeout_s: float) -> dict[str, int]:
        """Deliver the remaining events of the experiment, as far as time allows.

        Returns:
            Number of trials with undelivered events, for each plugin with undelivered events.
        """
        deadline = time.monotonic() + timeout_s
        self._is_closing.set()
        for turn in self._turns.values():
            remaining_s = max(0.0, deadline - time.monotonic())
            turn.is_served.wait(
                min(remaining_s, _UNREACHABLE_WAIT_S) if turn.pause_s else remaining_s
            )
        self._is_given_up = True
        num_trials: dict[str, int] = {}
        for observer, turn in self._turns.items():
            turn.reader.close()
            name = observer.entry.name
            with contextlib.suppress(DetcoreError, OSError):  # the run reports this error
                cursors = self._database.list_cursors(
                    plugin=name, experiment_id=self._experiment_id
                )
                if waiting := list_waiting(self._home, cursors, observer.hooks):
                    num_trials[name] = len(waiting)
        return num_trials

    def _start_thread(self) -> None:
        self._thread = threading.Thread(
            target=self._serve_plugins, name="detcore-delivery", daemon=True
        )
        self._thread.start()

    def _serve_plugins(self) -> None:
        """Serve the plugins that no other thread serves, until the end."""
        while not self._is_given_up:
            is_last = self._is_closing.is_set()
            for turn in sorted(self._turns.values(), key=lambda turn: turn.pause_s):
                is_due = is_last or time.monotonic() >= turn.next_at
                if is_due and not turn.is_served.is_set() and turn.lock.acquire(blocking=False):
                    self._serve_plugin(turn, is_last=is_last)
                if self._thread is not threading.current_thread():
                    return  # the hook ran too long, and another thread has started
            if all(turn.is_served.is_set() for turn in self._turns.values()):
                return
            self._is_closing.wait(_POLL_INTERVAL_S)
            if is_last:
                time.sleep(_END_POLL_S)  # for the plugins that other threads serve

    def _serve_plugin(self, turn: _DeliveryTurn, *, is_last: bool) -> None:
        replacement = threading.Timer(_MAX_TURN_S, self._start_thread)
        replacement.daemon = True
        try:
            with contextlib.suppress(RuntimeError):  # without a thread, a hook may delay plugins
                replacement.start()
            self._run_turn(turn)
            if is_last:
                turn.is_served.set()
        finally:
            replacement.cancel()
            turn.lock.release()

    def _run_turn(self, turn: _DeliveryTurn) -> None:
        reader, text = turn.reader, "its service is unreachable, and its events are kept for later"
        try:
            reader.deliver_waiting(
                experiment_id=turn.experiment_id, should_stop=lambda: self._is_given_up
            )
            problem = reader.problem
        except Exception as error:  # noqa: BLE001  (the next turn continues without a loss)
            problem, text = f"{type(error).__name__}: {error}", "its events cannot be delivered now"
        turn.experiment_id = self._experiment_id
        if problem is None:
            turn.pause_s = 0.0
            return
        if not turn.pause_s:
            _LOG.warning("plugin %s: %s: %s", turn.label, text, problem)
        turn.pause_s = min(_MAX_BACKOFF_S, max(_POLL_INTERVAL_S, 2 * turn.pause_s))
        turn.next_at = time.monotonic() + turn.pause_s


def deliver_events(
    database: Database, home: Path, observer: Observer, *, experiment_id: int | None = None
) -> tuple[int, str | None]:
    """Deliver the waiting events under a home to one plugin.

    Trials whose events another process is delivering are skipped.

    Args:
        database: The records.
        home: `Environment.home`.
        observer: The plugin.
        experiment_id: Deliver only events of this experiment.

    Returns:
        The number of delivered events, and the plugin's message if its service is unreachable.
    """
    reader = _EventReader(database, home, observer)
    try:
        reader.deliver_waiting(experiment_id=experiment_id)
    finally:
        reader.close()
    return reader.num_delivered, reader.problem


def list_waiting(
    home: Path, cursors: Iterable[ObserverCursor], hooks: Collection[str]
) -> dict[int, list[float]]:
    """Return the times of undelivered events in order, by trial.
    Args:
        home: `Environment.home`.
        cursors: The cursors of one plugin.
        hooks: The plugin's observer hooks.
    """
    times: dict[int, list[float]] = {}
    for cursor in cursors:
        trial_dir = _find_trial_dir(home, cursor)
        path, start = event_log_path(trial_dir, cursor.run_id), _load_cursor(trial_dir, cursor)
        with contextlib.suppress(EventLogDamagedError, FileNotFoundError):  # reported at delivery
            for line in read_event_lines(path, start.byte_offset):
                if _find_hook(line, hooks) is not None:
                    times.setdefault(cursor.trial_id, []).append(line.time)
    return times


def drop_events(database: Database, home: Path, cursors: Iterable[ObserverCursor]) -> int:
    """Drop the undelivered events of some runs, and return their number.

    Trials whose events another process is delivering are skipped. Events that a run reports later
    are delivered.
    """
    num_dropped = 0
    for listed_cursor in cursors:
        trial_dir = _find_trial_dir(home, listed_cursor)
        path = event_log_path(trial_dir, listed_cursor.run_id)
        if not path.exists():
            continue
        with _lock_trial(trial_dir, listed_cursor.plugin) as lock:
            # The cursors are read again, because another process may have moved them.
            rows = database.list_cursors(
                plugin=listed_cursor.plugin, trial_id=listed_cursor.trial_id
            )
            cursor = next((row for row in rows if row.run_id == listed_cursor.run_id), None)
            if lock < 0 or cursor is None:
                continue
            # Checked before the log is read, so that all events before the end are read.
            is_over = not is_event_log_in_use(path)
            end = _load_cursor(trial_dir, cursor).byte_offset
            with contextlib.suppress(EventLogDamagedError):
                for line in read_event_lines(path, end):
                    num_dropped += _find_hook(line, _HOOKS.values()) is not None
                    end = line.end
            end_cursor = dataclasses.replace(cursor, byte_offset=end, is_finished=is_over)
            database.move_cursor(end_cursor)
    return num_dropped
