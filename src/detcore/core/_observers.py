"""Telling the runner and the plugins what happened, once it is safely recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from detcore.errors import StorageFullError

if TYPE_CHECKING:
    import logging

    from detcore._log import Spool
    from detcore.core._events import EventPipe
    from detcore.core._outcome import Outcome
    from detcore.delivery import DeliveryKeeper
    from detcore.hooks import CheckpointSaved, PluginManager
    from detcore.types import TrialInfo

__all__ = ["Observers"]

_AddMissing: TypeAlias = Callable[[Callable[[str, object], object]], None]


class Observers:
    """Everybody who is told of a trial's metrics, checkpoints and end.

    The runner is told at once, through a pipe. Plugins are told by threads that read the trial's
    spool, where metrics are anyway; what plugins are told besides is added to it, if one observes.

    Args:
        info: Which trial.
        events: The way to the runner.
        plugins: The plugins that are on.
        wait_s: Returns how long the end of the trial waits for plugins, in seconds.
    """

    def __init__(
        self,
        info: TrialInfo,
        events: EventPipe,
        plugins: PluginManager,
        *,
        wait_s: Callable[[], float],
    ) -> None:
        self._info = info
        self._events = events
        self._plugins = plugins
        self._wait_s = wait_s
        self._spool: Spool | None = None
        self._keeper: DeliveryKeeper | None = None

    def started(self, spool: Spool, add_missing: _AddMissing) -> None:
        """Tell that the trial starts.

        Args:
            spool: Where the trial's records go; closed by `close`.
            add_missing: Adds the events of checkpoints that earlier runs could not tell of.

        Raises:
            StorageError: If it cannot be written down.
        """
        observers = self._plugins.observers()
        if not observers:
            return
        from detcore.delivery import (
            STARTED,
            DeliveryKeeper,
            run_path,
            write_run,
        )

        if not run_path(self._info).exists():  # a script's; the runner wrote its workers'
            write_run(self._info)
        spool.append(STARTED, {"run_id": self._info.run_id})
        if self._info.run_id > 1:
            add_missing(spool.append)
        self._spool = spool
        self._keeper = DeliveryKeeper(self._info, observers)

    def metrics(self, kind: str, steps_completed: int, metrics: Mapping[str, float]) -> None:
        """Tell the runner of training or validation metrics; plugins read them in the spool."""
        self._events.send(kind, steps_completed=steps_completed, metrics=dict(metrics))

    def checkpoint_saved(self, saved: CheckpointSaved) -> None:
        """Tell of a checkpoint."""
        self._events.send(
            "checkpoint",
            uuid=saved.uuid,
            steps_completed=saved.steps_completed,
            url=saved.url,
            size_bytes=saved.size_bytes,
            stalled_s=saved.stalled_s,
            total_s=saved.total_s,
        )
        if self._spool is not None:
            from detcore.delivery import CHECKPOINT, encode_checkpoint

            # No room: the next start of the trial tells of it, from the records.
            self._add(CHECKPOINT, encode_checkpoint(saved))

    def ending(self, outcome: Outcome) -> None:
        """Tell the runner how the trial ends, unless the layer above did so already."""
        if not self._events.has_sent("finished"):
            fault = {} if outcome.fault is None else {"fault": outcome.fault}
            self._events.send("finished", state=outcome.label, error=outcome.error, **fault)

    def finished(self, outcome: Outcome) -> None:
        """Tell the plugins that the trial ended; everything is recorded by then.

        What they cannot be told in time stays in the trial's folder.
        """
        if self._spool is None:
            return
        from detcore.delivery import FINISHED, encode_end

        self._add(FINISHED, encode_end(outcome.label, outcome.error))
        if self._keeper is not None:
            left = self._keeper.close(self._wait_s())
            if left:
                _logger().warning(
                    "trial %d: not everything was delivered to %s; it is kept in %s and delivered "
                    "later (detcore plugins deliver)",
                    self._info.trial_id, ", ".join(left), Path(self._info.trial_dir) / "observers",
                )  # fmt: skip

    def _add(self, kind: str, payload: object) -> None:
        assert self._spool is not None  # callers have looked
        try:
            self._spool.append(kind, payload)
        except StorageFullError as error:
            _logger().warning("plugins are not told of an event (%s): %s", kind, error)


def _logger() -> logging.Logger:
    import logging

    return logging.getLogger("detcore.plugins")
