"""Progress of the trials of a run, as displays show it."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detcore.cli.output import SHORT_UUID, printable
from detcore.describe import format_bytes, format_hparam, format_number

if TYPE_CHECKING:
    from detcore.config import ExperimentConfig
    from detcore.contract.values import TrialInfo
    from detcore.launch import WorkerEvent
    from detcore.run import TrialStatus


_RATE_WINDOW_S = 15.0
# Of a search, whose trials take a while to start.
_SEARCH_WINDOW_S = 120.0
# A server sends the events of a trial in batches; those of one batch arrive microseconds apart.
_RATE_SPAN_S = 0.1


class _Speedometer:
    """Speed of a growing number over the last seconds.

    Args:
        window_s: How long a value counts.
        min_span_s: For how long values are needed before the speed is known.
    """

    def __init__(self, window_s: float, min_span_s: float) -> None:
        self._window_s = window_s
        self._min_span_s = min_span_s
        self.history: deque[tuple[float, float]] = deque()

    def add(self, value: float) -> None:
        now = time.monotonic()
        if self.history and now - self.history[-1][0] < _RATE_SPAN_S:
            self.history[-1] = (self.history[-1][0], value)
        else:
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
        length: How far its workers train, in batches; 0 = not known.
        steps: Batches completed.
        phase: Current activity of its workers.
        best: The best value of the searcher's metric that was reported.
    """

    trial_id: int
    status: TrialStatus | None = None
    info: TrialInfo | None = None
    length: int = 0
    steps: int = 0
    training: str = ""
    validation: str = ""
    checkpoint: str = ""
    phase: str = "starting"
    best: float | None = None
    speed: _Speedometer = dataclasses.field(
        default_factory=lambda: _Speedometer(_RATE_WINDOW_S, _RATE_SPAN_S)
    )

    def started(self, info: TrialInfo) -> None:
        """Record the start of new workers."""
        self.info, self.phase = info, "starting"
        self.steps = info.steps_completed
        self.speed.history.clear()

    def update(self, event: WorkerEvent) -> None:
        """Update the progress from an event of the workers."""
        fields = event.fields
        if event.type == "started":
            self.length, self.phase = int(fields["length"]), "training"
        # A checkpoint may be reported after training has moved far beyond it.
        if "steps_completed" in fields and event.type != "checkpoint":
            steps = int(fields["steps_completed"])
            self.steps = max(self.steps, steps)
            self.speed.add(steps)
        if event.type == "training":
            self.phase = "training"  # a script reports no start
            self.training = format_metrics(fields["metrics"])
        elif event.type == "validation":
            at = fields["steps_completed"]
            self.validation = f"{format_metrics(fields['metrics'])}  (batch {at})"
        elif event.type == "checkpoint":
            short = {**fields, "uuid": fields["uuid"][:SHORT_UUID]}
            self.checkpoint = f"{format_checkpoint(short)}  (batch {fields['steps_completed']})"
        elif event.type == "finished":
            self.phase = str(fields["state"]).lower()

    @property
    def rate(self) -> float | None:
        """Batches per second lately, or None while unknown."""
        return self.speed.per_second

    @property
    def seconds_left(self) -> float | None:
        """Seconds for which the workers still train, or None while unknown."""
        rate = self.rate
        return (self.length - self.steps) / rate if rate and self.length else None


class RunProgress:
    """Progress of a run so far.

    Attributes:
        trials: By their records.
        is_search: Whether there may be several trials.
        searcher: Name of the search method.
        metric: Name of its metric.
        done: How much of the search is done, 0 to 1.
        planned_length: How far all trials train together, in `unit`; 0: not known.
        unit: Unit of lengths.
        max_length: The longest length of a trial; 0: not known.
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
        self.varied: list[tuple[Any, ...]] = []
        self._names: dict[tuple[Any, ...], str] = {}
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
        self.varied = [place for place, _ in ranges(config.hyperparameters)]
        last = [place[-1] for place in self.varied]
        # Of nested groups the last name is enough, where it is the only one.
        self._names = {
            place: str(place[-1]) if last.count(place[-1]) == 1 else ".".join(map(str, place))
            for place in self.varied
        }

    def trial(self, trial_id: int) -> TrialProgress:
        """Return the progress of a trial."""
        return self.trials.setdefault(trial_id, TrialProgress(trial_id))

    def update(self, info: TrialInfo, event: WorkerEvent) -> TrialProgress:
        """Update the progress from an event of a trial's workers."""
        trial = self.trial(info.trial_id)
        trial.update(event)
        if event.type == "validation":
            self._note_best(trial, event.fields["metrics"].get(self.metric))
        return trial

    def changed(self, status: TrialStatus) -> TrialProgress:
        """Record the state of a trial."""
        trial = self.trial(status.trial_id)
        trial.status = status
        if self.unit == "batches" and (self.is_search or not trial.length):
            trial.length = status.length
        self._note_best(trial, status.metric)
        return trial

    def advanced(self, done: float, planned_length: int) -> None:
        """Record how much of the search is done."""
        self.done, self.planned_length = done, planned_length
        self._speed.add(done)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the search ends, at the speed of the last minutes; None if unknown."""
        speed = self._speed.per_second
        return None if speed is None else (1.0 - self.done) / speed

    @property
    def amount(self) -> str:
        """The trained part of all, such as "360 of 800 batches"; "" if the total is unknown."""
        if not self.planned_length:
            return ""
        trials = [t for t in self.trials.values() if t.length and t.status and t.status.length]
        sizes = {t.length / t.status.length for t in trials if t.status}
        size, unit = (1.0, self.unit) if len(sizes) != 1 else (sizes.pop(), "batches")
        planned = self.planned_length * size
        digits = 0 if unit == "batches" else 1
        return f"{self.done * planned:.{digits}f} of {planned:.0f} {unit}"

    @property
    def best(self) -> TrialProgress | None:
        """The trial with the best value of the searcher's metric; None before there is one."""
        measured = [trial for trial in self.trials.values() if trial.best is not None]
        pick = min if self.smaller_is_better else max
        return pick(measured, key=lambda trial: trial.best or 0.0, default=None)

    def hparams(self, trial: TrialProgress) -> str:
        """Return those hyperparameters of a trial that differ between trials."""
        found = trial.status.hparams if trial.status else {}
        parts = []
        for place in self.varied:
            value: Any = found
            for name in place:
                value = value.get(name, "-") if isinstance(value, Mapping) else "-"
            text = format_number(value) if isinstance(value, float) else format_hparam(value)
            parts.append(printable(f"{self._names[place]} {text}"))
        return "  ".join(parts)

    def _note_best(self, trial: TrialProgress, value: Any) -> None:
        if not isinstance(value, int | float) or value != value:
            return
        pick = min if self.smaller_is_better else max
        trial.best = float(value) if trial.best is None else pick(trial.best, float(value))


def format_checkpoint(fields: Mapping[str, Any]) -> str:
    """Return which checkpoint was saved, its size, and how long saving took."""
    parts = [format_bytes(fields["size_bytes"])]
    if fields.get("stalled_s") is not None:
        parts.append(f"training stood still {fields['stalled_s']:.2f} s")
    if fields.get("total_s") is not None:
        parts.append(f"saved in {fields['total_s']:.2f} s")
    return f"{fields['uuid']}: {', '.join(parts)}"


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """Return metrics as ``name value`` pairs."""
    return "  ".join(printable(f"{name} {format_number(value)}") for name, value in metrics.items())
