"""Choices that callers of the Core API make."""

from __future__ import annotations

import enum

__all__ = ["EarlyExitReason", "PreemptMode", "SearcherMode", "TensorboardMode"]


class PreemptMode(enum.Enum):
    """The workers that ask whether to stop early.

    With one worker the three modes are the same.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    """Every worker calls `should_preempt`; all get the chief's answer (default)."""

    ChiefOnly = "CHIEF_ONLY"
    """Only the chief may call `should_preempt`."""

    WorkersAskMaster = "WORKERS_ASK_MASTER"
    """Every worker looks for itself; answers may differ for a moment."""


class SearcherMode(enum.Enum):
    """The workers that get searcher operations. With one worker the two modes are the same."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    """Every worker iterates over the operations in step with the chief (default)."""

    ChiefOnly = "CHIEF_ONLY"
    """Only the chief iterates over them."""


class TensorboardMode(enum.Enum):
    """Whether reported metrics are written to event files."""

    AUTO = "AUTO"
    """Every reported metric is written to the trial's event files."""

    MANUAL = "MANUAL"
    """Nothing is written or uploaded unless you do it."""


class EarlyExitReason(enum.Enum):
    """Why a trial ends before its searcher wanted it to."""

    INVALID_HP = "INVALID_HP"
    """The hyperparameters cannot be trained with."""

    USER_REQUESTED_STOP = "USER_REQUESTED_STOP"
    """The training code decided that it has trained enough."""
