"""The clock: it does what the schedule says, at batch boundaries, between a controller and core."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.errors import MetricError
from detcore.trial._code import copy_code
from detcore.trial._schedule import Schedule, Step

if TYPE_CHECKING:
    from detcore.core import Context, SearcherOperation
    from detcore.trial._context import TrialContext
    from detcore.trial._controller import LoopingController, SteppingController

__all__ = ["CLOCK_FILE", "TRIAL_FILE", "Clock", "ClockSettings"]

CLOCK_FILE = "clock.json"
TRIAL_FILE = "trial.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClockSettings:
    """What the clock needs to know that does not change.

    Attributes:
        metric: Name of the searcher's metric.
        smaller_is_better: Its direction.
        batches_per_epoch: Batches in one epoch; 0 = unknown.
        trial_record: Content of ``trial.json`` in each checkpoint.
        code_dir: Folder of the user's code.
        code_files: Files in it that are put into each checkpoint, relative to it.
        to_batches: Turns the length of a searcher's operation into batches.
    """

    metric: str
    smaller_is_better: bool
    batches_per_epoch: int
    trial_record: Mapping[str, Any]
    code_dir: Path
    code_files: Sequence[str]
    to_batches: Callable[[SearcherOperation], int]


class Clock:
    """Tells a controller how far to train, and does what is due there.

    Attributes:
        next_boundary: Batches completed at which `boundary` must be called next; always more
            than `steps_completed`.
        steps_completed: Batches completed at the last boundary, over all starts of the trial.
        stopped: Why the clock ended training: "completed", "preempted", "stop requested"; None
            while it has not.
    """

    def __init__(
        self,
        *,
        core: Context,
        context: TrialContext,
        controller: LoopingController | SteppingController,
        schedule: Schedule,
        operation: SearcherOperation,
        operations: Iterator[SearcherOperation],
        settings: ClockSettings,
        searcher_metric: float | None = None,
    ) -> None:
        self._core = core
        self._context = context
        self._controller = controller
        self._schedule = schedule
        self._operation = operation
        self._operations = operations
        self._settings = settings
        self._searcher_metric = searcher_metric
        self._training: Mapping[str, float] = {}
        self._batches: Sequence[Mapping[str, float]] | None = None
        self.steps_completed = context.setup.steps_completed
        self.next_boundary = schedule.next_boundary
        self.stopped: str | None = None
        context.planned_batches = schedule.plan.length

    @property
    def batches_per_epoch(self) -> int:
        """Batches in one epoch, for epoch callbacks; 0 = unknown."""
        return self._settings.batches_per_epoch

    @property
    def interrupt_requested(self) -> bool:
        """Whether `boundary` should be called sooner than at `next_boundary`."""
        return self._core.preempt.is_requested or self._context.get_stop_requested()

    def open(self) -> bool:
        """Do what is due before the first step; return whether there is anything to train."""
        return self._act()

    def boundary(
        self,
        steps_completed: int,
        training_metrics: Mapping[str, float],
        batch_metrics: Sequence[Mapping[str, float]] | None = None,
    ) -> bool:
        """Report, then validate, checkpoint or stop as the schedule says.

        Calls back the controller's `validate` and `save`.

        Args:
            steps_completed: Batches completed, over all starts of the trial.
            training_metrics: Metrics over the batches since the last boundary, by name.
            batch_metrics: Metrics of each of these batches, oldest first, or None.

        Returns:
            True to go on training, False to return from the training loop.
        """
        self._training, self._batches = training_metrics, batch_metrics
        self._schedule.trained(steps_completed)
        self.steps_completed = steps_completed
        return self._act()

    def _act(self) -> bool:
        while True:
            decision = self._schedule.what_now(
                preempt=self._core.preempt.should_preempt(auto_ack=False),
                stop_requested=self._context.get_stop_requested(),
            )
            if decision.step is Step.TRAIN:
                self.next_boundary = decision.until
                return True
            if decision.step is Step.STOP:
                self.stopped = decision.reason
                if decision.reason == "preempted":
                    self._core.preempt.acknowledge_preemption_signal()
                return False
            if decision.step is Step.REPORT:
                self._report()
            elif decision.step is Step.VALIDATE:
                self._validate()
            elif decision.step is Step.CHECKPOINT:
                self._checkpoint()
            elif decision.step is Step.COMPLETE and not self._complete():
                self.stopped = "completed"
                return False

    def _report(self) -> None:
        steps = self.steps_completed
        if self._context.ledger is not None:
            self._context.ledger.flush()
        if self._training:
            self._core.train.report_training_metrics(steps, self._training, self._batches)
        done = min(1.0, steps / self._schedule.plan.length)
        self._operation.report_progress(done * self._operation.length)
        self._training, self._batches = {}, None
        self._schedule.reported()

    def _validate(self) -> None:
        steps = self.steps_completed
        metrics = dict(self._controller.validate())
        previous_best = self._core.train.get_experiment_best_validation()
        self._core.train.report_validation_metrics(steps, metrics)
        metric = self._searcher_value(metrics)
        self._searcher_metric = metric
        if previous_best is None:
            is_best = True
        elif self._settings.smaller_is_better:
            is_best = metric <= previous_best
        else:
            is_best = metric >= previous_best
        self._schedule.validated(is_best=is_best)

    def _searcher_value(self, metrics: Mapping[str, Any]) -> float:
        name = self._settings.metric
        if name not in metrics:
            raise MetricError(
                f"searcher.metric is {name!r}, but the validation at step {self.steps_completed} "
                f"gave: {', '.join(sorted(metrics)) or 'no metrics'}.\n"
                "Name one of these in the experiment file under searcher.metric."
            )
        try:
            value = float(metrics[name])
        except (TypeError, ValueError) as error:
            raise MetricError(
                f"the searcher metric {name!r} at step {self.steps_completed} is "
                f"{metrics[name]!r}, which is not a number"
            ) from error
        if math.isnan(value):
            raise MetricError(
                f"the searcher metric {name!r} is NaN at step {self.steps_completed}.\n"
                "Nothing can be compared with NaN, so neither the search nor the choice of the "
                "best checkpoint can go on.\n"
                "Lower the learning rate, look for NaN in the data, or resume from an earlier "
                "checkpoint with changed code."
            )
        return value

    def _checkpoint(self) -> None:
        if self._context.ledger is not None:
            self._context.ledger.flush()
        steps = self.steps_completed
        state = self._schedule.state_dict()
        record = dict(self._settings.trial_record, steps_completed=steps)
        metadata = {"steps_completed": steps, "framework": record.get("framework")}
        with self._core.checkpoint.store_path(metadata) as (path, _uuid):
            self._controller.save(path)
            _write_json(
                path / CLOCK_FILE,
                {"version": 1, "schedule": state, "searcher_metric": self._searcher_metric},
            )
            _write_json(path / TRIAL_FILE, record)
            copy_code(self._settings.code_dir, self._settings.code_files, path / "code")
        self._schedule.checkpointed()

    def _complete(self) -> bool:
        """Complete the searcher's operation; return whether there is another one."""
        if self._searcher_metric is None:
            raise MetricError("an operation ended without a validation")  # the schedule's promise
        self._operation.report_completed(self._searcher_metric)
        self._schedule.completed()
        following = next(self._operations, None)
        if following is None:
            return False
        self._operation = following
        self._schedule.extended(self._settings.to_batches(following))
        self._context.planned_batches = self._schedule.plan.length
        return True


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
