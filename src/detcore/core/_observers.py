"""The observer plugins of a script by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.delivery import DeliveryKeeper
    from detcore.hooks import PluginManager
    from detcore.types import TrialInfo

__all__ = ["ScriptObservers"]


class ScriptObservers:
    """Tells the observer plugins of a script by itself, whose runner is its own process.

    Threads read the script's log, and share nothing with the training.

    Args:
        info: The trial.
        plugins: The plugins that are on.
        wait_s: Returns how long the end of the script waits for plugins, in seconds.
    """

    def __init__(
        self, info: TrialInfo, plugins: PluginManager, *, wait_s: Callable[[], float]
    ) -> None:
        self._info = info
        self._plugins = plugins
        self._wait_s = wait_s
        self._keeper: DeliveryKeeper | None = None

    def start(self) -> None:
        """Start to tell them; the log is open.

        Raises:
            StorageError: If the subscriptions cannot be written.
        """
        observers = self._plugins.observers()
        if observers:
            from detcore.delivery import DeliveryKeeper, write_run

            write_run(self._info)
            self._keeper = DeliveryKeeper(self._info, observers)

    def close(self) -> None:
        """Tell what is left, for a while; the rest stays in the trial's folder."""
        if self._keeper is None:
            return
        left = self._keeper.close(self._wait_s())
        if left:
            import logging

            logging.getLogger("detcore.plugins").warning(
                "trial %d: not everything was delivered to %s; it is kept in %s and delivered "
                "later (detcore plugins deliver)",
                self._info.trial_id, ", ".join(left), Path(self._info.trial_dir) / "observers",
            )  # fmt: skip
