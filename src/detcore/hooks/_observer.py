"""Call the observer hooks of one plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pluggy import HookCaller

    from detcore.hooks._entry import PluginEntry

__all__ = ["OBSERVER_HOOKS", "Observer"]

OBSERVER_HOOKS = (
    "detcore_trial_started",
    "detcore_training_metrics",
    "detcore_validation_metrics",
    "detcore_checkpoint_saved",
    "detcore_trial_finished",
)
"""Names of the hooks that observe trials."""


class Observer:
    """A plugin with observer hooks.

    Made by `PluginManager.observers`; from then on, any single thread may use it.

    Attributes:
        entry: The plugin.
        hooks: Names of its observer hooks.
    """

    def __init__(self, entry: PluginEntry, callers: Mapping[str, HookCaller]) -> None:
        self.entry = entry
        self._callers = dict(callers)
        self.hooks = frozenset(callers)

    def tell(self, hook: str, arguments: Mapping[str, object]) -> None:
        """Call one of its hooks.

        Raises:
            BaseException: The exception of the hook. `detcore.errors.UnavailableError` requests the
                same call again later.
        """
        self._callers[hook](**arguments)
