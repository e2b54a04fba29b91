"""Choices that callers of the Core API make, and the experiment that a script describes."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScriptExperiment:
    """The data that a script that trains by itself records of its experiment.

    Attributes:
        config: The experiment's configuration: fields of an experiment file, as plain values;
            settings of your own belong into its ``data``.
        hparams: Hyperparameters of its one trial.
        seed: Seed of everything random in it, ``0 <= seed < 2**31``.
        name: Name of the experiment; None: the script's.
        model_dir: Folder of the code; None: the script's.
        test_mode: One batch, one validation, one checkpoint.
        arguments: Arguments of the library that trains; a run continues only with the same.
    """

    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    hparams: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    name: str | None = None
    model_dir: Path | None = None
    test_mode: bool = False
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def script_file() -> Path | None:
    """Return the file of the running script; None in an interactive session and with ``-c``."""
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    return script.absolute() if script is not None and script.is_file() else None
