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
# A pod's terminationGracePeriodSeconds where its specification does not say.
# Source: Kubernetes documentation, "Pod Lifecycle", 1.31.
_KUBERNETES_S = 30.0
_MARGIN = 0.1
_MIN_MARGIN_S = 1.5


class PreemptContext:
    """Reports to training code whether to save a checkpoint and end.

    While the context is open, SIGINT, SIGTERM, SIGUSR1 and SIGHUP set a flag and do nothing more; a
    second SIGINT raises KeyboardInterrupt. SIGHUP stays ignored if it was (nohup). The former
    handlers come back when the context closes.

    Attributes:
        is_requested: Whether a stop was requested in this process; a plain attribute, cheap enough
            to read at every batch. `should_preempt` is what all workers agree on.
        is_acknowledged: Whether the training code has the request, and so is about to save and end.
        grace: Time to the kill when the first SIGTERM or SIGUSR1 came, and its source; None where
            neither came, or no source says. In this order: ``preemption_grace_s`` of the
            experiment file (or ``grace_s`` of `init`), ``DETCORE_GRACE_S``, Slurm (30 s after
            SIGTERM; after SIGUSR1 the time to ``SLURM_JOB_END_TIME``), Kubernetes (30 s).
    """

    def __init__(
        self,
        distributed: DistributedContext,
        preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
        *,
        find_grace: Callable[[int], Grace | None] | None = None,
    ) -> None:
        """Create the context; `start` makes it listen.

        Args:
            distributed: This worker's place.
            preempt_mode: The workers that ask whether to stop early.
            find_grace: Called with a signal's number when it comes; returns the time to the kill.
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
        """Seconds until this process is killed, 0 when they are over; None where not known.

        Counted from the moment when the signal came.
        """
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def start(self) -> PreemptContext:
        """Begin to listen. Signals are handled if this is the main thread.

        Raises:
            ContextStateError: If it listens already.
        """
        if self._is_started:
            raise ContextStateError("the preempt context was started twice; it listens already")
        self._is_started = True
        if threading.current_thread() is threading.main_thread():
            for number in find_stop_signals():
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def close(self) -> None:
        """Stop listening and restore the former signal handlers."""
        for number, handler in self._before.items():
            # Handlers that the user's code installed since then are theirs to keep.
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def request(self) -> None:
        """Ask for a stop from within this process, as a signal does; from any thread."""
        self.is_requested = True

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Return whether to save a checkpoint and end.

        Args:
            auto_ack: Take True as the promise to do so. Pass False to decide later, and call
                `acknowledge_preemption_signal` then.

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
        """Say that a checkpoint is about to be saved and the process to end."""
        self.is_acknowledged = True

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self._sigint_seen:
                raise KeyboardInterrupt
            self._sigint_seen = True
        elif number == signal.SIGHUP:
            leave_closed_terminal()
        self._note_time(number)
        self.is_requested = True

    def _note_time(self, number: int) -> None:
        grace = self._find_grace(number) if self._find_grace is not None else None
        if grace is not None:
            self.set_kill_time(grace, grace.seconds)

    def set_kill_time(self, grace: Grace, left_s: float) -> None:
        """Remember when the kill comes; later calls can only bring it closer.

        Args:
            grace: How long there was at the signal, here or at another worker.
            left_s: How much of it is left, in seconds.
        """
        kill_at = time.monotonic() + left_s
        if self._kill_at is None or kill_at < self._kill_at:
            self.grace, self._kill_at = grace, kill_at


@dataclasses.dataclass(frozen=True, slots=True)
class Grace:
    """The time to a kill, and its source.

    Attributes:
        seconds: From the signal to the kill; >= 0.
        source: The setting, variable or system that says so, for messages.
    """

    seconds: float
    source: str

    def __str__(self) -> str:
        return f"grace of {self.seconds:g} s ({self.source})"

    @property
    def margin_s(self) -> float:
        """How much of it is kept for ending: records, output, the runner's own end; seconds."""
        return min(max(_MIN_MARGIN_S, self.seconds * _MARGIN), self.seconds / 2)


def find_grace(
    number: int, environment: Environment, *, configured_s: float | None, now: float
) -> Grace | None:
    """Return the time between a signal and the kill, None if it is unknown.

    Args:
        number: The signal that came. SIGINT comes from a person, who waits.
        environment: Holds the variables of the machine and its scheduler.
        configured_s: The setting of the experiment file or the script, in seconds, or None.
        now: Seconds since 1970, as ``time.time()``.
    """
    if number not in (signal.SIGTERM, signal.SIGUSR1):
        return None
    if configured_s is not None:
        return Grace(configured_s, "preemption_grace_s")
    if environment.grace_s is not None:
        return Grace(environment.grace_s, "DETCORE_GRACE_S")
    if environment.is_slurm:
        return _slurm(number, environment.slurm_end_time, now)
    if environment.is_kubernetes and number == signal.SIGTERM:
        return Grace(_KUBERNETES_S, "Kubernetes' default")
    return None


def _slurm(number: int, end_time: float | None, now: float) -> Grace | None:
    if number == signal.SIGTERM:
        return Grace(_SLURM_KILL_WAIT_S, "Slurm's default KillWait")
    # --signal=USR1@120: a warning before the time limit, at which Slurm sends SIGTERM separately;
    # its KillWait is not counted here, because a job step may not get it.
    left = math.inf if end_time is None else end_time - now
    return Grace(left, "SLURM_JOB_END_TIME") if 0 <= left < math.inf else None
