"""Digests of the batches and losses that a script trains on, for the check of each resume."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from detcore_torch.libraries import torch
from detcore_torch.state.state_digests import list_arrays

if TYPE_CHECKING:
    from detcore.trial import PollingClock

# Scripts may report rarely, and a killed process loses the digests since its last flush.
_FLUSH_INTERVAL_S = 1.0


class StepLog:
    """Digests the batches and losses of recorded steps, see ``reproducibility.step_digests``.

    Args:
        clock: The clock of the script.
    """

    def __init__(self, clock: PollingClock) -> None:
        self._digests = clock.digests
        self._step = 0
        self._losses: dict[str, Any] = {}
        self._flush_time = time.monotonic()

    def log_batch(self, step: int, batch: object, record_ids: Any = None) -> None:
        """Digest a batch, of one or several of a step, before training on it.

        Raises:
            InexactResumeError: See `detcore.core.TrainContext.record_resume`.
        """
        digests = self._digests
        if digests is None or not digests.is_recorded(step):
            return
        if step != self._step:
            self._step, self._losses = step, {}
            if time.monotonic() - self._flush_time > _FLUSH_INTERVAL_S:
                digests.flush()
                self._flush_time = time.monotonic()
        digests.log(step, record_ids, lambda: list_arrays(batch))

    def log_losses(self, step: int, losses: Iterable[object]) -> None:
        """Digest the losses and metrics of a batch; values that are not one number are skipped."""
        if self._digests is None or step != self._step:
            return
        for loss in losses:
            if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                self._losses[str(len(self._losses))] = loss.detach()
            elif isinstance(loss, int | float):
                self._losses[str(len(self._losses))] = loss
        self._digests.log_metrics(step, [dict(self._losses)])
