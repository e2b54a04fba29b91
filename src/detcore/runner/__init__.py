"""An experiment from its first trial to its last."""

from detcore.runner._experiment import RunSettings, resume_experiment, start_experiment
from detcore.runner._listener import RunListener, TrialStatus
from detcore.runner._lock import experiment_lock
from detcore.runner._results import ExperimentResult, TrialResult
from detcore.runner._settle import control_experiment, settle_experiment
from detcore.runner._starting import experiment_folder

__all__ = [
    "ExperimentResult",
    "RunListener",
    "RunSettings",
    "TrialResult",
    "TrialStatus",
    "control_experiment",
    "experiment_folder",
    "experiment_lock",
    "resume_experiment",
    "settle_experiment",
    "start_experiment",
]
