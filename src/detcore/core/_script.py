"""The experiment of a script that trains by itself."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["ScriptExperiment", "script_file"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScriptExperiment:
    """The data that a script that trains by itself records of its experiment.

    Attributes:
        config: The experiment's configuration as plain values.
        hparams: Hyperparameters of its one trial.
        seed: Seed of everything random in it, ``0 <= seed < 2**31``.
        name: Name of the experiment; None: the script's.
        model_dir: Folder of the code; None: the script's.
        test_mode: One batch, one validation, one checkpoint.
    """

    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    hparams: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    name: str | None = None
    model_dir: Path | None = None
    test_mode: bool = False


def script_file() -> Path | None:
    """Return the file of the running script; None in an interactive session and with ``-c``."""
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    return script.absolute() if script is not None and script.is_file() else None
