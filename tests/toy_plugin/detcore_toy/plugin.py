"""Registers the toy framework."""

from detcore import hookimpl
from detcore.types import Framework


@hookimpl
def detcore_register_framework() -> Framework:
    return Framework(
        name="toy",
        trial_class="detcore_toy:ToyTrial",
        context_class="detcore:TrialContext",
        controller="detcore_toy:ToyController",
        several_workers=True,
    )
