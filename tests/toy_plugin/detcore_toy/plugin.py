"""Registers the toy framework, and a storage that is slow."""

from detcore import hookimpl
from detcore.hooks import StorageType
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


@hookimpl
def detcore_register_storage() -> StorageType:
    return StorageType(
        name="slow",
        schemes=(),
        settings="detcore_toy.slow_storage:SlowSettings",
        backend="detcore_toy.slow_storage:open_slow",
    )
