"""An experiment from its first trial to its last."""

from detcore.runner._experiment import (
    ExperimentResult,
    RunSettings,
    TrialResult,
    resume_experiment,
    start_experiment,
)
from detcore.runner._listener import RunListener

__all__ = [
    "ExperimentResult",
    "RunListener",
    "RunSettings",
    "TrialResult",
    "resume_experiment",
    "start_experiment",
]
