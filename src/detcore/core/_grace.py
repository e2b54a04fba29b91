"""The time that a process has between a request to end and the kill."""

from __future__ import annotations

import dataclasses
import math
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.environment import Environment

__all__ = ["Grace", "find_grace"]

# Slurm's KillWait: from SIGTERM to SIGKILL, at the end of the time limit and on scancel.
# Source: slurm.conf(5), Slurm 24.05.
_SLURM_KILL_WAIT_S = 30.0
# A pod's terminationGracePeriodSeconds where its specification does not say.
# Source: Kubernetes documentation, "Pod Lifecycle", 1.31.
_KUBERNETES_S = 30.0

_MARGIN = 0.1
_LEAST_MARGIN_S = 1.5


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
        return min(max(_LEAST_MARGIN_S, self.seconds * _MARGIN), self.seconds / 2)


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
