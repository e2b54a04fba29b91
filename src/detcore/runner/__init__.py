"""An experiment from its first trial to its last."""

from detcore.runner._experiment import (
    check_experiment,
    find_refusals,
    resume_experiment,
    start_experiment,
)
from detcore.runner._listener import NullListener, RunListener, RunSettings, TrialStatus
from detcore.runner._results import ExperimentResult, TrialResult, read_results
from detcore.runner._script import ScriptRun
from detcore.runner._settle import (
    control_experiment,
    control_trial,
    experiment_lock,
    settle_experiment,
)
from detcore.runner._starting import experiment_folder

__all__ = [
    "ExperimentResult",
    "NullListener",
    "RunListener",
    "RunSettings",
    "ScriptRun",
    "TrialResult",
    "TrialStatus",
    "check_experiment",
    "control_experiment",
    "control_trial",
    "experiment_folder",
    "experiment_lock",
    "find_refusals",
    "read_results",
    "resume_experiment",
    "settle_experiment",
    "start_experiment",
]
