"""Follow the logs of the trials that run: into the records, to observer plugins, to a display."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore._log import SpoolDamagedError, read_records, spool_path
from detcore.contract.values import ExperimentState
from detcore.database import LogFollower, answer_question
from detcore.hooks import PluginManager
from detcore.hooks.delivery import LateDelivery

if TYPE_CHECKING:
    from detcore._log.events import Event
    from detcore.contract.values import TrialInfo
    from detcore.database import Database
    from detcore.hooks import Observer
    from detcore.runner._listener import RunSettings

__all__ = [
    "ExperimentResult",
    "LogTail",
    "TrialLogs",
    "TrialResult",
    "late_delivery",
    "read_results",
]

_JOIN_S = 5.0


class TrialLogs:
    """Reads the logs of the trials that run, and answers their workers' questions.

    While its trials run, the runner is the only process that moves their reports into the records,
    apart from commands that read. The end of a trial takes its log in again.

    Args:
        database: The records; they may be unreachable at times.
        home: The home that holds the logs.
        delivery: Tells observer plugins.
    """

    def __init__(self, database: Database, home: Path, delivery: LateDelivery) -> None:
        self._database = database
        self._home = home
        self._delivery = delivery
        self._follower = LogFollower(database)

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Stop following at the end of the block."""
        try:
            yield
        finally:
            self._follower.stop(_JOIN_S)

    def follow(self, info: TrialInfo) -> None:
        """Follow the log of a run that is about to start."""
        trial_dir = Path(info.trial_dir)
        self._follower.follow(spool_path(trial_dir, info.run_id))
        self._delivery.watch(trial_dir)

    def unfollow(self, info: TrialInfo) -> None:
        """Stop following a run whose workers are gone; the caller takes in the rest."""
        trial_dir = Path(info.trial_dir)
        self._follower.unfollow(spool_path(trial_dir, info.run_id))
        self._delivery.unwatch(trial_dir)

    def answer(self, info: TrialInfo, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to a worker's question about the records.

        Args:
            info: The trial of the worker.
            question: Its message: ``question``, ``number`` and ``fields``.
        """
        found = answer_question(
            self._database,
            self._home,
            info.trial_id,
            str(question["question"]),
            question["fields"],
        )
        return {"type": "answer", "number": question["number"], "answer": found}


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


class LogTail:
    """Reads the events that a log has got since the last look, for a display.

    A log that cannot be read has no events: its other followers report that.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(path)
        self._end = 0

    def read(self) -> Iterator[Event]:
        """Yield the new events; one that is being written comes at the next look."""
        if not self._has_grown():
            return
        with contextlib.suppress(SpoolDamagedError, OSError):
            for record in read_records(self._path, self._end):
                self._end = record.end
                if (event := record.event) is not None:
                    yield event

    def _has_grown(self) -> bool:
        try:
            return self._path.stat().st_size > self._end
        except OSError:
            return False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """How far a trial came.

    Attributes:
        best_validation: The best value of the searcher's metric, or None.
        best_steps: The batch at which that was reached, or None.
        latest_checkpoint: UUID of the newest checkpoint, or None.
        hparams: Its hyperparameters.
        num_restarts: How often it was started again after a crash.
        error: The error, or None.
    """

    trial_id: int
    state: str
    steps_completed: int
    best_validation: float | None
    latest_checkpoint: str | None
    best_steps: int | None = None
    hparams: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_restarts: int = 0
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """How an experiment stands when its runner ends.

    Attributes:
        trials: By their records, oldest first.
        metric: Name of the searcher's metric.
        smaller_is_better: Its direction.
        error: The error in one line, or None.
        was_cut_short: Whether a second Ctrl-C ended it without a checkpoint.
    """

    experiment_id: int
    state: ExperimentState
    trials: tuple[TrialResult, ...]
    metric: str
    smaller_is_better: bool = True
    error: str | None = None
    was_cut_short: bool = False

    @property
    def ranked(self) -> list[TrialResult]:
        """The trials, the best first; those without a validation last, by their ids."""

        def key(trial: TrialResult) -> tuple[bool, float, int]:
            value = trial.best_validation
            if value is None:
                return True, 0.0, trial.trial_id
            return False, value if self.smaller_is_better else -value, trial.trial_id

        return sorted(self.trials, key=key)


def read_results(
    database: Database, experiment_id: int, *, metric: str, smaller_is_better: bool
) -> tuple[TrialResult, ...]:
    """Read the progress and results of an experiment's trials from their reports."""
    trials = database.list_trials(experiment_id)
    summaries = database.summarize_trials(
        experiment_id, metric=metric, smaller_is_better=smaller_is_better
    )
    results = []
    for trial in trials:
        summary = summaries[trial.id]
        results.append(
            TrialResult(
                trial_id=trial.id,
                state=str(trial.state.value),
                steps_completed=max(summary.steps_completed, summary.steps_saved),
                best_validation=summary.best.metrics[metric] if summary.best else None,
                latest_checkpoint=summary.latest_checkpoint,
                best_steps=summary.best.steps_completed if summary.best else None,
                hparams=trial.hparams,
                num_restarts=trial.num_restarts,
                error=trial.error,
            )
        )
    return tuple(results)
