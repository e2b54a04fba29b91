"""Deliver events to observers beside a run."""

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
    """Deliver in the background during the block, and for a moment behind it.

    What an earlier run under the same home left is delivered first, then what the experiment's own
    trials report. The rest stays for the next run.
    """
    environment, plugins = settings.environment, settings.plugins

    def make_observers() -> list[Observer]:
        # One of its own: a manager belongs to one thread. Its faults are told by the run's.
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
