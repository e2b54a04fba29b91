"""Define trials, their contexts and controllers, and the loop that trains them.

Names are imported on first use, so that subclassing `Trial` does not load the training loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.trial._clock import AskedClock, Clock
    from detcore.trial._code import code_imported_from, copy_code, list_code
    from detcore.trial._context import TrialContext, TrialSetup
    from detcore.trial._controller import (
        LoopingController,
        PrepareOptions,
        SavesState,
        SteppingController,
        SupportsSnapshot,
        SupportsStartFrom,
        SupportsStateTensors,
        SupportsTensors,
        ValidationResult,
    )
    from detcore.trial._instance import InstanceCheckpoints, InstanceRecord
    from detcore.trial._loop import (
        OpenTrial,
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
    from detcore.trial._schedule import Decision, Schedule, SchedulePlan, Step, plan_from_settings
    from detcore.trial._trial import Trial

__all__ = [
    "AskedClock",
    "Clock",
    "Decision",
    "ImportEnded",
    "InstanceCheckpoints",
    "InstanceRecord",
    "LoopingController",
    "NativeStart",
    "OpenTrial",
    "Outcome",
    "PrepareOptions",
    "SavesState",
    "Schedule",
    "SchedulePlan",
    "Step",
    "SteppingController",
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
    "code_imported_from",
    "copy_code",
    "find_framework",
    "import_object",
    "import_trial_class",
    "is_importing_trial",
    "list_code",
    "open_clock",
    "open_trial",
    "plan_from_settings",
    "prepare_process",
    "preserved_random_state",
    "restore_random_state",
    "resumed_from",
    "run_trial",
    "start_native",
]

_HOMES = {
    "AskedClock": "_clock",
    "Clock": "_clock",
    "Decision": "_schedule",
    "ImportEnded": "_resolve",
    "InstanceCheckpoints": "_instance",
    "InstanceRecord": "_instance",
    "LoopingController": "_controller",
    "NativeStart": "_native",
    "OpenTrial": "_loop",
    "Outcome": "_loop",
    "PrepareOptions": "_controller",
    "SavesState": "_controller",
    "Schedule": "_schedule",
    "SchedulePlan": "_schedule",
    "Step": "_schedule",
    "SteppingController": "_controller",
    "SupportsSnapshot": "_controller",
    "SupportsStartFrom": "_controller",
    "SupportsStateTensors": "_controller",
    "SupportsTensors": "_controller",
    "Trial": "_trial",
    "TrialContext": "_context",
    "TrialSetup": "_context",
    "ValidationResult": "_controller",
    "capture_random_state": "_random",
    "check_requirements": "_resolve",
    "code_imported_from": "_code",
    "copy_code": "_code",
    "find_framework": "_resolve",
    "import_object": "_resolve",
    "import_trial_class": "_resolve",
    "is_importing_trial": "_resolve",
    "list_code": "_code",
    "open_clock": "_loop",
    "open_trial": "_loop",
    "plan_from_settings": "_schedule",
    "prepare_process": "_loop",
    "preserved_random_state": "_random",
    "restore_random_state": "_random",
    "resumed_from": "_loop",
    "run_trial": "_loop",
    "start_native": "_native",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore.trial' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detcore.trial.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
