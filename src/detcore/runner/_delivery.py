"""Deliver events to observers during a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from detcore.delivery import LateDelivery
from detcore.hooks import PluginManager

if TYPE_CHECKING:
    from detcore.hooks import Observer
    from detcore.runner._experiment import RunSettings

__all__ = ["late_delivery"]


@contextlib.contextmanager
def late_delivery(settings: RunSettings, experiment_id: int) -> Iterator[LateDelivery]:
    """Deliver in the background during the block, and for a moment after it.

    Events left by earlier runs under the same home are delivered first, then the reports of the
    experiment's own trials. The rest stays for the next run.
    """
    environment, plugins = settings.environment, settings.plugins

    def make_observers() -> list[Observer]:
        # A separate manager, because one belongs to one thread. The run's reports the faults.
        own = PluginManager(
            environment,
            disabled=plugins.disabled,
            allowed=plugins.allowed,
            on_problem=lambda problem: None,
        )
        return own.observers()

    late = LateDelivery(environment.home, make_observers, experiment_id=experiment_id)
    try:
        yield late
    finally:
        for name, trials in sorted(late.close(environment.delivery_wait_s).items()):
            some = f"{trials} trial{'s' if trials > 1 else ''}"
            settings.listener.notice(
                f"plugin {name} was not told everything of {some} yet; it is kept, and delivered "
                "by the next run, or now by: detcore plugins deliver"
            )
