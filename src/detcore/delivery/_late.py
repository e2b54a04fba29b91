"""Delivering in the background what earlier processes could not."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.delivery._mailbox import Mailbox, find_mailboxes
from detcore.delivery._thread import AWAY_WAIT_S
from detcore.delivery._waiting import deliver_waiting
from detcore.errors import DetcoreError

if TYPE_CHECKING:
    from detcore.hooks import Observer, PluginManager

__all__ = ["LateDelivery"]

_LOG = logging.getLogger("detcore.plugins")
_LOOK_EVERY_S = 2.0
_LAST_RETRY_S = 60.0


class LateDelivery:
    """Tells observers what waits for them under a home, while something else goes on.

    Trials that run are told by their own workers, and are left alone. No plugin is imported while
    nothing waits.
    """

    def __init__(
        self,
        home: Path,
        make_plugins: Callable[[], PluginManager],
        *,
        experiment_id: int | None = None,
    ) -> None:
        """Start to look, in a thread.

        Args:
            home: `Environment.home`; looked through once.
            make_plugins: Returns a manager of the plugins that are on; called in the thread.
            experiment_id: Whose trials are looked for until the end; None = no further look.
        """
        self._home = home
        self._make_plugins = make_plugins
        self._experiment_id = experiment_id
        self._observers: dict[str, Observer] | None = None
        self._workers: dict[str, threading.Thread] = {}
        self._not_before: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_given_up = False
        self._thread = threading.Thread(target=self._run, name="detcore-late-delivery", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> dict[str, int]:
        """Deliver what the experiment's trials left, if that can be done in time.

        Returns:
            In how many of its trials something waits, by plugin.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        for name, worker in list(self._workers.items()):
            left_s = max(0.0, deadline - time.monotonic())
            worker.join(min(left_s, AWAY_WAIT_S) if self._is_away(name) else left_s)
        self._is_given_up = True
        left: dict[str, int] = {}
        for mailbox in self._find(only_mine=True):
            left[mailbox.plugin] = left.get(mailbox.plugin, 0) + 1
        return left

    def _run(self) -> None:
        is_first = True
        while True:
            is_last = self._is_closing
            try:
                self._look(only_mine=not is_first, is_last=is_last)
            except (DetcoreError, OSError) as error:
                _LOG.warning("what waits for observers cannot be looked for: %s", error)
            if is_last:
                return
            is_first = False
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing, _LOOK_EVERY_S)

    def _find(self, *, only_mine: bool) -> list[Mailbox]:
        if only_mine and self._experiment_id is None:
            return []
        wanted = self._experiment_id if only_mine else None
        return list(find_mailboxes(self._home, experiment_id=wanted))

    def _look(self, *, only_mine: bool, is_last: bool) -> None:
        """Start a thread for each plugin for which something waits and that is not at work."""
        waiting: dict[str, list[Mailbox]] = {}
        for mailbox in self._find(only_mine=only_mine):
            waiting.setdefault(mailbox.plugin, []).append(mailbox)
        if not waiting:
            return
        if self._observers is None:
            plugins = self._make_plugins()
            self._observers = {each.entry.name: each for each in plugins.observers()}
        for name, mailboxes in waiting.items():
            observer, worker = self._observers.get(name), self._workers.get(name)
            if observer is None:
                continue
            if worker is not None and worker.is_alive():
                if not is_last or self._is_away(name):
                    continue
                worker.join()  # `close` waits no longer than it said
            if is_last or time.monotonic() >= self._not_before.get(name, 0.0):
                self._workers[name] = threading.Thread(
                    target=self._deliver,
                    args=(name, observer, mailboxes),
                    name=f"detcore-late-{name}",
                    daemon=True,
                )
                self._workers[name].start()

    def _is_away(self, name: str) -> bool:
        """Whether the plugin's service was away when it was asked last."""
        return self._not_before.get(name, 0.0) > 0.0

    def _deliver(self, name: str, observer: Observer, mailboxes: list[Mailbox]) -> None:
        try:
            _told, problem = deliver_waiting(observer, mailboxes, lambda: self._is_given_up)
        except Exception as error:  # noqa: BLE001  (what is on the disk stays there)
            problem = f"{type(error).__name__}: {error}"
            _LOG.warning("what plugin %s missed cannot be delivered now: %s", name, problem)
        pause = min(_LAST_RETRY_S, 2 * self._pauses.get(name, 0.5)) if problem else 0.0
        self._pauses[name] = pause or 0.5
        self._not_before[name] = time.monotonic() + pause if pause else 0.0
