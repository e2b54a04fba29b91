"""Progress of the trials of a run, for displays."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from detcore.cli.output import format_hparams, printable
from detcore.record_descriptions import flatten, format_bytes, format_duration, format_number

if TYPE_CHECKING:
    from detcore.config import ExperimentConfig
    from detcore.contract.values import TrialInfo
    from detcore.launch import WorkerEvent
    from detcore.run import TrialStatus


_RATE_WINDOW_S = 15.0
# Longer window for a search, because its trials start slowly.
_SEARCH_WINDOW_S = 120.0
# Values within this time are one value, because a server sends the events of a trial in batches.
_RATE_SPAN_S = 0.1
_WAITING = "waiting for promotion"


class _Speedometer:
    """Speed of a growing number over the last seconds.

    Args:
        window_s: Time for which a value counts.
        min_span_s: Minimum time span between values for computing the speed.
    """

    def __init__(self, window_s: float, min_span_s: float) -> None:
        self._window_s = window_s
        self._min_span_s = min_span_s
        self.history: deque[tuple[float, float]] = deque()

    def add_value(self, value: float) -> None:
        now = time.monotonic()
        if self.history and now - self.history[-1][0] < _RATE_SPAN_S:
            now, _ = self.history.pop()
        self.history.append((now, value))
        while len(self.history) > 2 and now - self.history[0][0] > self._window_s:
            self.history.popleft()

    @property
    def per_second(self) -> float | None:
        """The speed, or None while unknown."""
        if not self.history:
            return None
        (first_at, first), (last_at, last) = self.history[0], self.history[-1]
        if last_at - first_at < self._min_span_s or last <= first:
            return None
        return (last - first) / (last_at - first_at)


@dataclasses.dataclass
class TrialProgress:
    """Progress of a trial so far.

    Attributes:
        length: Target length in batches; 0 = unknown.
        steps: Number of completed batches.
        phase: Current activity of the workers.
        best: Best reported value of the searcher's metric.
        reports: Description of the last report of each kind.
    """

    trial_id: int
    status: TrialStatus | None = None
    info: TrialInfo | None = None
    length: int = 0
    steps: int = 0
    phase: str = "starting"
    best: float | None = None
    reports: dict[str, str] = dataclasses.field(default_factory=dict)
    speed: _Speedometer = dataclasses.field(
        default_factory=lambda: _Speedometer(_RATE_WINDOW_S, _RATE_SPAN_S)
    )

    def record_start(self, info: TrialInfo) -> None:
        """Record the start of new workers."""
        self.info, self.phase = info, "starting"
        self.steps = info.steps_completed
        self.speed.history.clear()

    def update(self, event: WorkerEvent) -> None:
        """Update the progress from an event of the workers."""
        fields = event.fields
        steps = fields.get("steps_completed")
        if event.type == "started":
            self.length, self.phase = int(fields["length"]), "training"
        elif event.type == "training":
            self.phase = "training"  # a script does not report its start
        elif event.type == "finished":
            self.phase = str(fields["state"]).lower()
        # A checkpoint may be reported after training has moved far beyond it.
        if steps is not None and event.type != "checkpoint":
            self.steps = max(self.steps, int(steps))
            self.speed.add_value(self.steps)
        if report := describe_report(event):
            self.reports[event.type] = f"{report}  (batch {steps})"

    @property
    def pace(self) -> list[str]:
        """The speed and the remaining time, if known."""
        rate = self.speed.per_second
        if rate is None:
            return [] if self.phase == "training" else [self.phase]
        remaining_s = (self.length - self.steps) / rate if self.length else None
        now = self.phase if self.phase != "training" else format_time_left(remaining_s)
        return [f"{rate:.4g} batches/s", *([now] if now else [])]

    @property
    def state(self) -> str:
        """The state in a word or two."""
        status = self.status
        if status is None:
            return "running"
        if status.state.value == "PAUSED":
            if status.is_waiting:
                return _WAITING
            return "not started" if self.info is None and not status.rung else "interrupted"
        return status.state.value.lower()


class RunProgress:
    """Progress of a run so far.

    Attributes:
        trials: Progress of each trial by id.
        is_search: Whether the run may have several trials.
        searcher: Name of the search method.
        metric: Name of the searcher's metric.
        done: Completed fraction of the search, 0 to 1.
        planned_length: Total length of all trials in `unit`; 0 = unknown.
        unit: Unit of lengths.
        max_length: Maximum length of a trial; 0 = unknown.
    """

    def __init__(self) -> None:
        self.trials: dict[int, TrialProgress] = {}
        self.is_search = False
        self.searcher = ""
        self.metric = ""
        self.smaller_is_better = True
        self.done = 0.0
        self.planned_length = 0
        self.unit = "batches"
        self.max_length = 0
        self._varied: list[str] = []
        self._speed = _Speedometer(_SEARCH_WINDOW_S, 1.0)

    def search_started(self, config: ExperimentConfig) -> None:
        """Record the experiment's configuration."""
        from detcore.config import ranges

        searcher, length = config.searcher, config.searcher.max_length
        self.searcher, self.metric = searcher.name, searcher.metric
        self.smaller_is_better = searcher.smaller_is_better
        self.is_search = self.searcher != "single"
        if length is not None:
            self.unit, self.max_length = length.unit.value, length.count
        self._varied = [".".join(map(str, place)) for place, _ in ranges(config.hyperparameters)]

    def get_trial_progress(self, trial_id: int) -> TrialProgress:
        """Return the progress of a trial."""
        return self.trials.setdefault(trial_id, TrialProgress(trial_id))

    def update(self, info: TrialInfo, event: WorkerEvent) -> TrialProgress:
        """Update the progress from an event of a trial's workers."""
        trial = self.get_trial_progress(info.trial_id)
        trial.update(event)
        if event.type == "validation":
            self._note_best(trial, event.fields["metrics"].get(self.metric))
        return trial

    def record_status(self, status: TrialStatus) -> TrialProgress:
        """Record the state of a trial."""
        trial = self.get_trial_progress(status.trial_id)
        trial.status = status
        if self.unit == "batches" and (self.is_search or not trial.length):
            trial.length = status.length
        self._note_best(trial, status.metric)
        return trial

    def record_progress(self, done: float, planned_length: int) -> None:
        """Record the progress of the search."""
        self.done, self.planned_length = done, planned_length
        self._speed.add_value(done)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the search ends, at the speed of the last minutes; None if unknown."""
        speed = self._speed.per_second
        return None if speed is None else (1.0 - self.done) / speed

    @property
    def amount(self) -> str:
        """The trained length, such as "360 of 800 batches", or "" if the total is unknown."""
        if not self.planned_length:
            return ""
        digits = 0 if self.unit == "batches" else 1
        amount = f"{self.done * self.planned_length:.{digits}f}"
        return f"{amount} of {self.planned_length} {self.unit}"

    @property
    def best(self) -> TrialProgress | None:
        """The trial with the best value of the searcher's metric, or None."""
        best = min(self.trials.values(), key=self.make_sort_key, default=None)
        return None if best is None or best.best is None else best

    def make_sort_key(self, trial: TrialProgress) -> tuple[bool, float]:
        """Return a key that sorts trials, the best first."""
        sign = 1 if self.smaller_is_better else -1
        return trial.best is None, sign * (trial.best or 0.0)

    def describe_hparams(self, trial: TrialProgress) -> str:
        """Return the hyperparameters of a trial that vary between trials."""
        flat = flatten(trial.status.hparams if trial.status else {})
        varied = {name: flat[name] for name in self._varied if name in flat}
        return printable(format_hparams(varied))

    def describe_search(self) -> str:
        """Return the progress of a search in one line."""
        states = [trial.state for trial in self.trials.values()]
        ended = sum(state in ("completed", "error", "canceled") for state in states)
        parts = [f"{self.done:.0%}", self.amount, format_time_left(self.seconds_left)]
        parts.append(f"{ended} of {len(states)} trials ended, {states.count('running')} running")
        best = self.best
        if best is not None and best.best is not None:
            value = format_number(best.best)
            parts.append(f"best {self.metric} {value} (trial {best.trial_id})")
        return ", ".join(filter(None, parts))

    def _note_best(self, trial: TrialProgress, value: Any) -> None:
        if not isinstance(value, int | float) or value != value:
            return
        pick = min if self.smaller_is_better else max
        trial.best = float(value) if trial.best is None else pick(trial.best, float(value))


def describe_report(event: WorkerEvent) -> str:
    """Return metrics, or a saved checkpoint and the time it took. Return "" for other events."""
    fields = event.fields
    if event.type in ("training", "validation"):
        values = fields["metrics"].items()
        return "  ".join(printable(f"{name} {format_number(value)}") for name, value in values)
    if event.type != "checkpoint":
        return ""
    parts = [format_bytes(fields["size_bytes"])]
    if fields.get("stalled_s") is not None:
        parts.append(f"training stalled {fields['stalled_s']:.2f} s")
    if fields.get("total_s") is not None:
        parts.append(f"saved in {fields['total_s']:.2f} s")
    return f"{fields['uuid']}: {', '.join(parts)}"


def format_time_left(seconds: float | None) -> str:
    """Return a remaining time such as "27s left", or "" if it is unknown."""
    return "" if seconds is None else f"{format_duration(seconds)} left"
