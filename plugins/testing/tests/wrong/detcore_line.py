"""Registers the framework that keeps its contract."""

from detcore import hookimpl
from detcore.types import Framework


@hookimpl
def detcore_register_framework() -> Framework:
    return Framework(
        name="line",
        trial_class="framework_right:RightTrial",
        context_class="detcore:TrialContext",
        controller="framework_right:RightController",
        load_checkpoint="framework_right:load_model",
        several_workers=True,
        requires=("heavyframe",),
    )
