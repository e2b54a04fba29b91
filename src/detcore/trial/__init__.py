"""Trials, their contexts and controllers, and the loop that trains them.

Names are imported on first use, so that subclassing `Trial` does not load the training loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.contract.controllers import (
    Clock,
    Decision,
    LoopingController,
    PollingClock,
    PrepareOptions,
    SavesState,
    Step,
    SteppingController,
    SupportsCommit,
    SupportsFinish,
    SupportsLiveState,
    SupportsSnapshot,
    SupportsStartFrom,
    SupportsStateTensors,
    SupportsTensors,
    ValidationResult,
)
from detcore.contract.trial import InstanceCheckpoints, Trial, TrialContext, TrialSetup
from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.trial.attribute_state import AttributeTracker
    from detcore.trial.code_copy import copy_code, list_code
    from detcore.trial.entrypoint import (
        ImportEnded,
        check_requirements,
        find_framework,
        import_object,
        import_trial_class,
        is_importing_trial,
    )
    from detcore.trial.function_state import FunctionTracker, list_function_variables
    from detcore.trial.live_values import AttributeCodec, read_own_state, read_values
    from detcore.trial.native_start import NativeStart, start_native
    from detcore.trial.random_state import (
        capture_random_state,
        preserve_random_state,
        restore_random_state,
    )
    from detcore.trial.schedule import Schedule
    from detcore.trial.trial_loading import (
        create_trial_from_code,
        find_checkpoint_directory,
        read_trial_file,
    )
    from detcore.trial.trial_loop import (
        Outcome,
        open_clock,
        open_trial,
        prepare_process,
        restore_latest_checkpoint,
        run_trial,
    )
    from detcore.trial.trial_saving import build_trial_record

__all__ = [
    "AttributeCodec",
    "AttributeTracker",
    "Clock",
    "Decision",
    "FunctionTracker",
    "ImportEnded",
    "InstanceCheckpoints",
    "LoopingController",
    "NativeStart",
    "Outcome",
    "PollingClock",
    "PrepareOptions",
    "SavesState",
    "Schedule",
    "Step",
    "SteppingController",
    "SupportsCommit",
    "SupportsFinish",
    "SupportsLiveState",
    "SupportsSnapshot",
    "SupportsStartFrom",
    "SupportsStateTensors",
    "SupportsTensors",
    "Trial",
    "TrialContext",
    "TrialSetup",
    "ValidationResult",
    "build_trial_record",
    "capture_random_state",
    "check_requirements",
    "copy_code",
    "create_trial_from_code",
    "find_checkpoint_directory",
    "find_framework",
    "import_object",
    "import_trial_class",
    "is_importing_trial",
    "list_code",
    "list_function_variables",
    "open_clock",
    "open_trial",
    "prepare_process",
    "preserve_random_state",
    "read_own_state",
    "read_trial_file",
    "read_values",
    "restore_latest_checkpoint",
    "restore_random_state",
    "run_trial",
    "start_native",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "attribute_state": "AttributeTracker",
        "code_copy": "copy_code list_code",
        "function_state": "FunctionTracker list_function_variables",
        "trial_loading": "find_checkpoint_directory create_trial_from_code read_trial_file",
        "trial_loop": (
            "Outcome open_clock open_trial prepare_process restore_latest_checkpoint run_trial"
        ),
        "random_state": "capture_random_state preserve_random_state restore_random_state",
        "entrypoint": (
            "ImportEnded check_requirements find_framework import_object "
            "import_trial_class is_importing_trial"
        ),
        "live_values": "AttributeCodec read_own_state read_values",
        "trial_saving": "build_trial_record",
        "schedule": "Schedule",
        "native_start": "NativeStart start_native",
    },
)
