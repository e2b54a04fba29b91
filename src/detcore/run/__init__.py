"""An experiment from its first trial to its last."""

from detcore.run.checkpoint_source import recover_trial
from detcore.run.experiment_control import (
    control_experiment,
    control_trial,
    hold_experiment_lock,
    reconcile_experiment,
)
from detcore.run.experiment_run import (
    check_experiment,
    find_refusals,
    record_experiment,
    resume_experiment,
    start_experiment,
)
from detcore.run.results import ExperimentResult, TrialResult, read_results
from detcore.run.run_listener import NullListener, RunListener, RunSettings, TrialStatus
from detcore.run.script import ScriptRun
from detcore.run.trial_start import get_experiment_dir

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
    "find_refusals",
    "get_experiment_dir",
    "hold_experiment_lock",
    "read_results",
    "reconcile_experiment",
    "record_experiment",
    "recover_trial",
    "resume_experiment",
    "start_experiment",
]
