"""Writing down what a trial reports; the chief has one, other workers have none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from detcore.core._best import BestValidation
from detcore.core._modes import EarlyExitReason
from detcore.types import ExperimentState

if TYPE_CHECKING:
    from detcore._log import Spool
    from detcore.core._events import EventPipe
    from detcore.database import WorkerRecords
    from detcore.types import TrialInfo

__all__ = ["Recorder"]

_OnReported: TypeAlias = Callable[[str, int, Mapping[str, float]], None]


class Recorder:
    """Records metrics, and why a trial ends.

    Args:
        info: Which trial.
        records: The records.
        spool: Where metrics are safe at once.
        events: The way to whoever watches.
        on_reported: Called with each report, once it is safe.
    """

    def __init__(
        self,
        info: TrialInfo,
        *,
        records: WorkerRecords,
        spool: Spool,
        events: EventPipe,
        on_reported: _OnReported,
    ) -> None:
        self._info = info
        self._records = records
        self._spool = spool
        self._events = events
        self._on_reported = on_reported
        self._best = BestValidation(info, records)

    def report(
        self,
        kind: str,
        steps_completed: int,
        metrics: dict[str, float],
        batch_metrics: list[dict[str, float]] | None,
        n_records: int | None,
    ) -> None:
        """Record metrics; they are safe when this returns."""
        payload = {
            "steps_completed": steps_completed,
            "metrics": metrics,
            "batch_metrics": batch_metrics,
            "n_records": n_records,
        }
        self._spool.append(kind, payload)
        if kind == "validation":
            self._best.add(metrics)

    def tell(self, kind: str, steps_completed: int, metrics: dict[str, float]) -> None:
        """Tell of metrics that are recorded."""
        self._on_reported(kind, steps_completed, metrics)

    def best_validation(self) -> float | None:
        """Return the best value of the searcher's metric over all trials, or None."""
        return self._best.value()

    def early_exit(self, reason: EarlyExitReason) -> None:
        """Record why the trial ends early."""
        self._events.send("early_exit", reason=reason.value)
        if reason is EarlyExitReason.INVALID_HP:
            self._records.set_trial_state(
                self._info.trial_id, ExperimentState.ERROR, error=reason.value
            )

    def status(self, status: str) -> None:
        """Tell what the trial is doing."""
        self._events.send("status", status=status)
