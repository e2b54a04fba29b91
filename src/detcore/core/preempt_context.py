"""Requests to stop early, and the context that reports them to training code."""

from __future__ import annotations

import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import ContextStateError
from detcore.core.context_options import PreemptMode
from detcore.stop_signals import find_stop_signals, leave_closed_terminal

if TYPE_CHECKING:
    from detcore.distributed import DistributedContext
    from detcore.environment import Environment


# Slurm's KillWait: from SIGTERM to SIGKILL, at the end of the time limit and on scancel.
# Source: slurm.conf(5), Slurm 24.05.
_SLURM_KILL_WAIT_S = 30.0
# Default of a pod's terminationGracePeriodSeconds.
# Source: Kubernetes documentation, "Pod Lifecycle", 1.31.
_KUBERNETES_S = 30.0
_MARGIN = 0.1
_MIN_MARGIN_S = 1.5


class PreemptContext:
    """Reports to training code whether to save a checkpoint and end.

    While the context is open, SIGINT, SIGTERM, SIGUSR1 and SIGHUP only set a flag. A second SIGINT
    raises KeyboardInterrupt. SIGHUP stays ignored if it was ignored before (nohup). Closing the
    context restores the previous handlers.

    Attributes:
        is_requested: Whether a stop was requested in this process. A plain attribute, cheap enough
            to read at every batch. `should_preempt` returns the answer that all workers share.
        is_acknowledged: Whether the training code has accepted the request to save and end.
        grace: Time to the kill at the first SIGTERM or SIGUSR1, and its source. None if neither
            signal arrived, or if no source gives the time. Sources in order of precedence:
            ``preemption_grace_s`` of the experiment file (or ``grace_s`` of `init`),
            ``DETCORE_GRACE_S``, Slurm (30 s after SIGTERM; after SIGUSR1 the time to
            ``SLURM_JOB_END_TIME``), Kubernetes (30 s).
    """

    def __init__(
        self,
        distributed: DistributedContext,
        preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
        *,
        find_grace: Callable[[int], Grace | None] | None = None,
    ) -> None:
        """Create the context; `start` installs the signal handlers.

        Args:
            distributed: This worker's rank and its peers.
            preempt_mode: The workers that call `should_preempt`.
            find_grace: Called with the number of each signal; returns the time to the kill.
        """
        self._find_grace = find_grace
        self._kill_at: float | None = None
        self._distributed = distributed
        self._mode = preempt_mode
        self._is_started = False
        self._sigint_seen = False
        self._before: dict[int, Any] = {}
        self.is_requested = False
        self.is_acknowledged = False
        self.grace: Grace | None = None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until this process is killed, at least 0; None if unknown.

        The time counts from the arrival of the signal.
        """
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def start(self) -> PreemptContext:
        """Install the signal handlers, if this is the main thread.

        Raises:
            ContextStateError: If the context was started before.
        """
        if self._is_started:
            raise ContextStateError("the preempt context was started twice.\nCall start() once.")
        self._is_started = True
        if threading.current_thread() is threading.main_thread():
            for number in find_stop_signals():
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def close(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            # Handlers that the user's code has installed since then stay.
            if signal.getsignal(number) == self._on_signal:
                # A closed terminal sends SIGHUP twice: to its processes, and when their shell ends.
                is_repeated = number == signal.SIGHUP and self.is_requested
                previous = signal.SIG_DFL if handler is None else handler
                signal.signal(number, signal.SIG_IGN if is_repeated else previous)
        self._before = {}

    def request(self) -> None:
        """Request a stop from within this process, as a signal does. Thread-safe."""
        self.is_requested = True

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Return whether to save a checkpoint and end.

        Example:
            >>> from detcore import core
            >>> with core.init() as context:
            ...     print(context.preempt.should_preempt())
            ...     context.preempt.request()  # as SIGTERM does
            ...     print(context.preempt.should_preempt())
            False
            True

        Args:
            auto_ack: Whether a True result also acknowledges the request. Pass False to decide
                later, then call `acknowledge_preemption_signal`.

        Raises:
            ContextStateError: If the context was not started, or in ChiefOnly mode on a worker
                that is not the chief.
        """
        if not self._is_started:
            raise ContextStateError(
                "should_preempt() was called before the context was started.\n"
                "Call it inside the block: with core.init() as context: ..."
            )
        rank = self._distributed.rank
        if self._mode is PreemptMode.ChiefOnly and rank != 0:
            raise ContextStateError(
                f"should_preempt() was called on rank {rank} in ChiefOnly mode.\n"
                "Call it on rank 0 only, or pass another preempt_mode to core.init()."
            )
        requested = self.is_requested
        if self._mode is PreemptMode.WorkersAskChief:
            requested = self._distributed.broadcast(requested)
        if requested and auto_ack:
            self.acknowledge_preemption_signal()
        return requested

    def acknowledge_preemption_signal(self) -> None:
        """Accept the request: a checkpoint is about to be saved, and the process to end."""
        self.is_acknowledged = True

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self._sigint_seen:
                raise KeyboardInterrupt
            self._sigint_seen = True
        elif number == signal.SIGHUP:
            leave_closed_terminal()
        self._record_kill_time(number)
        self.is_requested = True

    def _record_kill_time(self, number: int) -> None:
        grace = self._find_grace(number) if self._find_grace is not None else None
        if grace is not None:
            self.set_kill_time(grace, grace.seconds)

    def set_kill_time(self, grace: Grace, remaining_s: float) -> None:
        """Record the time of the kill. Later calls can only move it closer.

        Args:
            grace: Time to the kill when the signal arrived, at this or another worker.
            remaining_s: The part of it that remains, in seconds.
        """
        kill_at = time.monotonic() + remaining_s
        if self._kill_at is None or kill_at < self._kill_at:
            self.grace, self._kill_at = grace, kill_at


@dataclasses.dataclass(frozen=True, slots=True)
class Grace:
    """Time from a signal to the kill, and its source.

    Attributes:
        seconds: Time from the signal to the kill; >= 0.
        source: Setting, variable or system that gives the time, for messages.
    """

    seconds: float
    source: str

    def __str__(self) -> str:
        return f"grace of {self.seconds:g} s ({self.source})"

    @property
    def margin_s(self) -> float:
        """Seconds reserved for ending: records, output and the runner's exit."""
        return min(max(_MIN_MARGIN_S, self.seconds * _MARGIN), self.seconds / 2)


def find_grace(
    number: int, environment: Environment, *, configured_s: float | None, now: float
) -> Grace | None:
    """Return the time between a signal and the kill; None if it is unknown.

    Args:
        number: Number of the signal. After SIGINT, which a person sends, no kill follows.
        environment: Variables of the machine and its scheduler.
        configured_s: Setting of the experiment file or the script, in seconds, or None.
        now: Seconds since 1970, as ``time.time()``.
    """
    if number not in (signal.SIGTERM, signal.SIGUSR1):
        return None
    if configured_s is not None:
        return Grace(configured_s, "preemption_grace_s")
    if environment.grace_s is not None:
        return Grace(environment.grace_s, "DETCORE_GRACE_S")
    if environment.is_slurm:
        return _find_slurm_grace(number, environment.slurm_end_time, now)
    if environment.is_kubernetes and number == signal.SIGTERM:
        return Grace(_KUBERNETES_S, "Kubernetes' default")
    return None


def _find_slurm_grace(number: int, end_time: float | None, now: float) -> Grace | None:
    if number == signal.SIGTERM:
        return Grace(_SLURM_KILL_WAIT_S, "Slurm's default KillWait")
    # With --signal=USR1@120, Slurm sends SIGUSR1 before the time limit and SIGTERM at the limit.
    # KillWait is not added here, because a job step may not get it.
    remaining_s = math.inf if end_time is None else end_time - now
    return Grace(remaining_s, "SLURM_JOB_END_TIME") if 0 <= remaining_s < math.inf else None
