"""Options of `init`, and the description of a script's experiment."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class PreemptMode(enum.Enum):
    """Selects the workers that call `PreemptContext.should_preempt`.

    With one worker the three modes are the same.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    """Every worker calls `should_preempt` and gets the chief's answer (default)."""

    ChiefOnly = "CHIEF_ONLY"
    """Only the chief may call `should_preempt`."""

    WorkersAskMaster = "WORKERS_ASK_MASTER"
    """Every worker checks independently; answers may differ for a moment."""


class SearcherMode(enum.Enum):
    """Selects the workers that get searcher operations. With one worker the modes are the same."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    """Every worker iterates over the operations in step with the chief (default)."""

    ChiefOnly = "CHIEF_ONLY"
    """Only the chief iterates over the operations."""


class TensorboardMode(enum.Enum):
    """Selects whether reported metrics are written to TensorBoard event files."""

    AUTO = "AUTO"
    """Every reported metric is written to the trial's event files."""

    MANUAL = "MANUAL"
    """detcore writes no event files; upload your own with `upload_tensorboard_files`."""


class EarlyExitReason(enum.Enum):
    """Reason why a trial ends before its searcher's length."""

    INVALID_HP = "INVALID_HP"
    """The training code cannot use the hyperparameters."""

    USER_REQUESTED_STOP = "USER_REQUESTED_STOP"
    """The training code decided to stop."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScriptExperiment:
    """Describes the experiment that a standalone script records.

    Attributes:
        config: Configuration with the fields of an experiment file, as plain values. Custom
            settings belong in its ``data`` field.
        hparams: Hyperparameters of the experiment's only trial.
        seed: Random seed, ``0 <= seed < 2**31``.
        name: Name of the experiment. Default: the script's file name.
        model_dir: Directory of the code. Default: the script's directory.
        test_mode: Whether to train one batch, validate once and save one checkpoint.
        arguments: Arguments of the training library. A run resumes only with the same arguments.
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
