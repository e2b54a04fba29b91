"""Telling one plugin of a trial while it runs."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from detcore.delivery._courier import Stop

if TYPE_CHECKING:
    from detcore.delivery._courier import Courier

__all__ = ["AWAY_WAIT_S", "DeliveryThread"]

_LOG = logging.getLogger("detcore.plugins")
_POLL_S = 0.2
_FIRST_RETRY_S = 0.5
_LAST_RETRY_S = 30.0
AWAY_WAIT_S = 0.5
"""How long the end waits at most for a service that did not answer before, in seconds."""


class DeliveryThread:
    """Tells a plugin what a trial reports, in a thread of its own.

    It reads the spool about five times a second and shares nothing with the thread that trains.
    """

    def __init__(self, courier: Courier, name: str) -> None:
        """Start the thread.

        Args:
            courier: Tells the plugin; closed by the thread.
            name: Of the plugin.
        """
        self._courier = courier
        self.name = name
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_given_up = False
        self._retry_s = 0.0
        self._has_failed = False
        self._thread = threading.Thread(
            target=self._run, name=f"detcore-observer-{name}", daemon=True
        )
        self._thread.start()

    @property
    def is_away(self) -> bool:
        """Whether the plugin's service was away when it was asked last."""
        return self._courier.problem is not None

    def finish(self) -> None:
        """Tell what is left, then end; returns at once."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came in time. Otherwise nothing more is told from here.

        A hook that is running cannot be interrupted; the thread is a daemon.
        """
        self._thread.join(max(0.0, timeout_s))
        if self._thread.is_alive():
            self._is_given_up = True
            return False
        return True

    def _run(self) -> None:
        try:
            while True:
                is_last = self._is_closing
                stop = self._deliver()
                if is_last or stop is Stop.ASKED:
                    return
                self._wait(stop)
        finally:
            self._courier.close()

    def _deliver(self) -> Stop:
        try:
            return self._courier.deliver(lambda: self._is_given_up)
        except Exception as error:  # noqa: BLE001  (what is on the disk stays there)
            if not self._has_failed:
                self._has_failed = True
                _LOG.warning(
                    "what plugin %s is to be told cannot be read or noted, and is tried again: "
                    "%s: %s", self.name, type(error).__name__, error,
                )  # fmt: skip
            return Stop.UNAVAILABLE

    def _wait(self, stop: Stop) -> None:
        if stop is Stop.UNAVAILABLE:
            self._retry_s = min(_LAST_RETRY_S, max(_FIRST_RETRY_S, 2 * self._retry_s))
        else:
            self._retry_s = 0.0
        until = time.monotonic() + (self._retry_s or _POLL_S)
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing, until - time.monotonic())
