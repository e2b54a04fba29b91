"""Deliver events to observer plugins in the background, during a run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from detcore._log import read_records, spool_path
from detcore.contract.errors import DatabaseError, DetcoreError
from detcore.delivery._courier import Courier, Failures, Stop
from detcore.delivery._events import hook_of
from detcore.delivery._mailbox import Mailbox, find_mailboxes, mailboxes_of, read_run
from detcore.hooks import OBSERVER_HOOKS, Observer

__all__ = ["LateDelivery", "Waiting", "count_waiting", "deliver_waiting"]

_LOG = logging.getLogger("detcore.plugins")
_LOOK_EVERY_S = 2.0
_WATCH_EVERY_S = 0.2
_LAST_RETRY_S = 60.0
# How long the end waits at most for a service that did not answer before.
_AWAY_WAIT_S = 0.5


class LateDelivery:
    """Delivers the waiting events under a home to observers, with one thread for each plugin.

    It looks at the trials that its process runs five times a second, at those of earlier processes
    once, and at the other trials of the experiment every two seconds. No plugin is imported while
    no event waits.
    """

    def __init__(
        self,
        home: Path,
        make_observers: Callable[[], Sequence[Observer]],
        *,
        experiment_id: int | None = None,
    ) -> None:
        """Start to look for events, in a thread.

        Args:
            home: `Environment.home`; searched once.
            make_observers: Returns the observer plugins that are on; called in the thread.
            experiment_id: The experiment whose trials are searched until the end; None = none.
        """
        self._home = home
        self._make_observers = make_observers
        self._experiment_id = experiment_id
        self._observers: dict[str, Observer] | None = None
        self._failures: dict[str, Failures] = {}
        self._workers: dict[str, threading.Thread] = {}
        self._not_before: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._changed = threading.Condition()
        self._watched: set[Path] = set()
        self._told_away: set[str] = set()
        self._is_closing = False
        self._is_given_up = False
        self._thread = threading.Thread(target=self._run, name="detcore-late-delivery", daemon=True)
        self._thread.start()

    def watch(self, trial_dir: Path) -> None:
        """Look often for waiting events in the folder of a trial that runs."""
        with self._changed:
            self._watched.add(trial_dir)
            self._changed.notify_all()

    def unwatch(self, trial_dir: Path) -> None:
        """Look at a trial's folder as rarely as at others from now on."""
        with self._changed:
            self._watched.discard(trial_dir)

    def close(self, timeout_s: float) -> dict[str, int]:
        """Deliver the remaining events of the experiment's trials, as far as time allows.

        Returns:
            The number of its trials with undelivered events, by plugin.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        for name, worker in list(self._workers.items()):
            left_s = max(0.0, deadline - time.monotonic())
            worker.join(min(left_s, _AWAY_WAIT_S) if self._is_away(name) else left_s)
        self._is_given_up = True
        for failures in list(self._failures.values()):
            failures.close()
        left: dict[str, int] = {}
        for mailbox in self._find(only_mine=True):
            left[mailbox.plugin] = left.get(mailbox.plugin, 0) + 1
        return left

    def _run(self) -> None:
        is_first, look_at = True, 0.0
        while True:
            is_last = self._is_closing
            try:
                if is_last or time.monotonic() >= look_at:
                    look_at = time.monotonic() + _LOOK_EVERY_S
                    self._look(self._find(only_mine=not is_first), is_last=is_last)
                    is_first = False
                else:
                    self._look(self._find_watched(), is_last=False)
            except (DetcoreError, OSError) as error:
                _LOG.warning("what waits for observers cannot be looked for: %s", error)
            if is_last:
                return
            with self._changed:
                wait_s = _WATCH_EVERY_S if self._watched else _LOOK_EVERY_S
                num_watched = len(self._watched)
                self._changed.wait_for(
                    lambda: self._is_closing or len(self._watched) > num_watched,  # noqa: B023
                    wait_s,
                )

    def _find_watched(self) -> list[Mailbox]:
        with self._changed:
            folders = sorted(self._watched)
        return [box for folder in folders for box in mailboxes_of(folder) if box.is_behind()]

    def _find(self, *, only_mine: bool) -> list[Mailbox]:
        if only_mine and self._experiment_id is None:
            return []
        wanted = self._experiment_id if only_mine else None
        return list(find_mailboxes(self._home, experiment_id=wanted))

    def _look(self, found: list[Mailbox], *, is_last: bool) -> None:
        """Start a thread for each plugin that has waiting events and no running thread."""
        waiting: dict[str, list[Mailbox]] = {}
        for mailbox in found:
            waiting.setdefault(mailbox.plugin, []).append(mailbox)
        if not waiting:
            return
        if self._observers is None:
            self._observers = {each.entry.name: each for each in self._make_observers()}
            self._failures = {name: Failures(each) for name, each in self._observers.items()}
        for name, mailboxes in waiting.items():
            observer, worker = self._observers.get(name), self._workers.get(name)
            if observer is None:
                continue
            if worker is not None and worker.is_alive() and (not is_last or self._is_away(name)):
                continue
            if is_last or time.monotonic() >= self._not_before.get(name, 0.0):
                self._workers[name] = threading.Thread(
                    target=self._deliver,
                    args=(name, observer, mailboxes, worker),
                    name=f"detcore-late-{name}",
                    daemon=True,
                )
                self._workers[name].start()

    def _is_away(self, name: str) -> bool:
        """Whether the plugin's service was away at the last attempt."""
        return self._not_before.get(name, 0.0) > 0.0

    def _deliver(
        self,
        name: str,
        observer: Observer,
        mailboxes: list[Mailbox],
        before: threading.Thread | None,
    ) -> None:
        if before is not None:
            before.join()  # at the end; a hook that hangs holds up its own plugin only
        try:
            _told, problem = deliver_waiting(
                observer, mailboxes, lambda: self._is_given_up, failures=self._failures[name]
            )
        except Exception as error:  # noqa: BLE001  (what is on the disk stays there)
            problem = f"{type(error).__name__}: {error}"
            _LOG.warning("what plugin %s missed cannot be delivered now: %s", name, problem)
        else:
            self._tell_if_away(name, observer, problem)
        pause = min(_LAST_RETRY_S, 2 * self._pauses.get(name, 0.5)) if problem else 0.0
        self._pauses[name] = pause or 0.5
        self._not_before[name] = time.monotonic() + pause if pause else 0.0

    def _tell_if_away(self, name: str, observer: Observer, problem: str | None) -> None:
        """Log an outage of a plugin's service once."""
        if problem is None:
            self._told_away.discard(name)
        elif name not in self._told_away:
            self._told_away.add(name)
            _LOG.warning(
                "plugin %s: its service is away, and what it misses is kept for later: %s",
                observer.entry.label, problem,
            )  # fmt: skip


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
    count, since = 0, None
    for run_id in mailbox.runs():
        if run_id < cursor.run_id:
            continue
        offset = cursor.offset if run_id == cursor.run_id else 0
        with contextlib.suppress(DatabaseError, FileNotFoundError):  # reported at the delivery
            for record in read_records(spool_path(mailbox.trial_dir, run_id), offset):
                if hook_of(record.event) in wanted:
                    count += 1
                    since = record.time if since is None else since
    return Waiting(num_events=count, since=since)


def deliver_waiting(
    observer: Observer,
    mailboxes: Iterable[Mailbox],
    should_stop: Callable[[], bool] = lambda: False,
    *,
    failures: Failures | None = None,
) -> tuple[int, str | None]:
    """Deliver the undelivered events of some trials to one plugin.

    Trials whose events another process is delivering are left out. If the plugin's service is away,
    the rest is left for later.

    Args:
        observer: The plugin.
        mailboxes: Its mailboxes.
        should_stop: Called between two events.
        failures: Counts the failures of its hooks; None: they are logged for each trial.

    Returns:
        How many events were delivered, and why the rest was not, if its service is away.
    """
    told = 0
    for mailbox in mailboxes:
        if not mailbox.runs():
            continue
        courier = Courier(
            mailbox,
            observer,
            functools.partial(read_run, mailbox.trial_dir),
            is_quiet=True,
            failures=failures,
        )
        try:
            stop = courier.deliver(should_stop)
        finally:
            told += courier.num_told
            courier.close()
        if stop is Stop.UNAVAILABLE:
            return told, courier.problem
        if stop is Stop.ASKED:
            break
    return told, None
