"""Define trials, their contexts and controllers, and the loop that trains them.

Names are imported on first use, so that subclassing `Trial` does not load the training loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.contract.controllers import (
    AskedClock,
    Clock,
    Decision,
    LoopingController,
    PrepareOptions,
    SavesState,
    Step,
    SteppingController,
    SupportsFinish,
    SupportsSnapshot,
    SupportsStartFrom,
    SupportsStateTensors,
    SupportsTensors,
    ValidationResult,
)
from detcore.contract.trial import InstanceCheckpoints, Trial, TrialContext, TrialSetup
from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.trial._attributes import AttributeCodec, AttributeTracker
    from detcore.trial._code import copy_code, list_code
    from detcore.trial._functions import FunctionTracker, list_function_variables
    from detcore.trial._loading import checkpoint_folder, made_from_code, read_trial_file
    from detcore.trial._loop import (
        Outcome,
        open_clock,
        open_trial,
        prepare_process,
        resumed_from,
        run_trial,
    )
    from detcore.trial._native import NativeStart, start_native
    from detcore.trial._random import (
        capture_random_state,
        preserved_random_state,
        restore_random_state,
    )
    from detcore.trial._resolve import (
        ImportEnded,
        check_requirements,
        find_framework,
        import_object,
        import_trial_class,
        is_importing_trial,
    )
    from detcore.trial._saving import trial_record
    from detcore.trial._schedule import Schedule

__all__ = [
    "AskedClock",
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
    "PrepareOptions",
    "SavesState",
    "Schedule",
    "Step",
    "SteppingController",
    "SupportsFinish",
    "SupportsSnapshot",
    "SupportsStartFrom",
    "SupportsStateTensors",
    "SupportsTensors",
    "Trial",
    "TrialContext",
    "TrialSetup",
    "ValidationResult",
    "capture_random_state",
    "check_requirements",
    "checkpoint_folder",
    "copy_code",
    "find_framework",
    "import_object",
    "import_trial_class",
    "is_importing_trial",
    "list_code",
    "list_function_variables",
    "made_from_code",
    "open_clock",
    "open_trial",
    "prepare_process",
    "preserved_random_state",
    "read_trial_file",
    "restore_random_state",
    "resumed_from",
    "run_trial",
    "start_native",
    "trial_record",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_attributes": "AttributeCodec AttributeTracker",
        "_code": "copy_code list_code",
        "_functions": "FunctionTracker list_function_variables",
        "_loading": "checkpoint_folder made_from_code read_trial_file",
        "_loop": "Outcome open_clock open_trial prepare_process resumed_from run_trial",
        "_random": "capture_random_state preserved_random_state restore_random_state",
        "_resolve": (
            "ImportEnded check_requirements find_framework import_object "
            "import_trial_class is_importing_trial"
        ),
        "_saving": "trial_record",
        "_schedule": "Schedule",
        "_native": "NativeStart start_native",
    },
)
