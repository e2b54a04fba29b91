"""Carry out the schedule at batch boundaries, between a controller and the core context."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.contract.controllers import Clock, Decision, PollingClock, Step, ValidationResult
from detcore.contract.errors import (
    CheckpointTimeoutError,
    ConfigError,
    MetricError,
    NotANumberError,
    closest_match,
)
from detcore.contract.values import Length, Unit
from detcore.trial.agreement import Agreement, StopRequests, UnitMetrics
from detcore.trial.schedule import Schedule, SchedulePlan, plan_from_settings

if TYPE_CHECKING:
    from detcore.contract.controllers import LoopingController, SavesState, SteppingController
    from detcore.contract.trial import TrialContext
    from detcore.core import Context, SearcherOperation
    from detcore.core.preempt_context import Grace
    from detcore.trial.trial_saving import TrialSaver


_logger = logging.getLogger("detcore.trial")


class ScheduledPollingClock(PollingClock):
    """The `PollingClock` of a schedule and a core context."""

    def __init__(
        self,
        core: Context,
        context: TrialContext,
        saver: TrialSaver,
        *,
        state: Mapping[str, Any],
        batches_per_epoch: int | None,
    ) -> None:
        """Begin the searcher's first operation.

        Args:
            core: The trial's open context.
            context: The context of the trial's code.
            saver: Saves checkpoints.
            state: State of the clock in the checkpoint that the trial resumes from; else empty.
            batches_per_epoch: Batches in one epoch according to the data; None if unknown.

        Raises:
            ScheduleError: If a length cannot be converted; the message names the setting.
        """
        self._core = core
        self._context = context
        self._settings = context.setup.settings
        self._saver = saver
        self._data_batches_per_epoch = batches_per_epoch
        self._operations = core.searcher.operations()
        self._operation = next(self._operations)
        plan = self._plan(self._operation)
        info = core.info
        # The checkpoint at the end of an operation is saved before the validation there.
        self._searcher_metric = info.validated_metric if state and info else None
        self._schedule = Schedule(plan)
        if state:
            self._schedule = Schedule.from_state(
                plan, state["schedule"], is_validated=self._searcher_metric is not None
            )
            if self._searcher_metric is None:
                self._searcher_metric = state.get("searcher_metric")
        core.train.stops_at_nan = False  # the clock sees to it, on all workers alike
        self._is_chief = core.distributed.rank == 0
        self._has_told_unread = False
        self._agreement = Agreement(
            core.distributed, average=self._settings.gradients.average_training_metrics
        )
        self.steps_completed = context.setup.steps_completed
        self.next_boundary = self._schedule.next_boundary
        self.stopped: str | None = "completed" if info and info.is_complete else None
        context.planned_batches = plan.length

    def _plan(self, operation: SearcherOperation) -> SchedulePlan:
        return plan_from_settings(
            self._settings,
            length=Length(operation.length, operation.unit or Unit.BATCHES),
            global_batch_size=self._context.setup.hparams.get("global_batch_size"),
            batches_per_epoch=self._data_batches_per_epoch,
        )

    @property
    def batches_per_epoch(self) -> int:
        global_batch_size = self._context.setup.hparams.get("global_batch_size")
        if self._settings.records_per_epoch and isinstance(global_batch_size, int):
            return max(1, self._settings.records_per_epoch // global_batch_size)
        return self._data_batches_per_epoch or 0

    @property
    def operation_length(self) -> int:
        return self._schedule.plan.length

    @property
    def interrupt_requested(self) -> bool:
        return self._agreement.is_interrupted(bool(self._interrupts()))

    def due(self, steps_completed: int, *, early: bool = False) -> Decision:
        if self.stopped is not None:
            return Decision(Step.STOP, steps_completed, self.stopped)
        is_between = self.steps_completed < steps_completed < self.next_boundary
        if is_between and not early and not self.interrupt_requested:
            return Decision(Step.TRAIN, self.next_boundary, "nothing is due")
        self._schedule.trained(steps_completed)
        self.steps_completed = steps_completed
        self._core.checkpoint.poll()
        return self._decide()

    def reported(
        self,
        metrics: Mapping[str, float],
        batch_metrics: Sequence[Mapping[str, float]] | None = None,
        *,
        n_records: int | None = None,
    ) -> None:
        mine = UnitMetrics(metrics, batch_metrics, n_records)
        self._report(self._agreement.unit(mine, self._interrupts())[0])

    def validated(self, result: ValidationResult | Mapping[str, float]) -> None:
        mine = result if isinstance(result, ValidationResult) else ValidationResult(dict(result))
        previous_best = self._record_validation(mine) if self._is_chief else None
        # All workers must make the decisions below alike, so they use bit-identical values.
        chiefs, previous_best = self._agreement.from_chief((mine, previous_best))
        if self._settings.stop_at_nan:
            NotANumberError.raise_if_nan(
                chiefs.metrics, f"the validation at batch {self.steps_completed}"
            )
        if self._is_chief:
            self._tell_unread_hparams()
        metric = self._searcher_value(chiefs.metrics)
        self._searcher_metric = metric
        if previous_best is None:
            is_best = True
        elif self._settings.smaller_is_better:
            is_best = metric <= previous_best
        else:
            is_best = metric >= previous_best
        self._schedule.validated(is_best=is_best)

    def save(self, state: SavesState) -> None:
        if self._context.ledger is not None:
            self._context.ledger.flush()
        if self._context.digests is not None:
            self._context.digests.flush()
        self._saver.save(
            state,
            steps_completed=self.steps_completed,
            clock={
                "schedule": self._schedule.state_dict(),
                "searcher_metric": self._searcher_metric,
            },
            has_deadline=self._core.preempt.seconds_left is not None,
        )
        self._schedule.checkpointed()

    def request_stop(self) -> None:
        self._context.set_stop_requested(True)

    def worker_directory(self, checkpoint: Path) -> Path | None:
        return self._context.worker_directory(checkpoint)

    def _interrupts(self) -> StopRequests:
        return StopRequests(self._core.preempt.is_requested, self._context.get_stop_requested())

    def _decide(self, known: StopRequests | None = None) -> Decision:
        """Return the next work of the framework; `known` are interrupts just exchanged."""
        while True:
            interrupts = self._agreement.interrupts(self._interrupts()) if known is None else known
            known = None  # outdated after the work below, which may take long
            decision = self._schedule.find_due_work(
                preempt=interrupts.preempt, stop_requested=interrupts.stop
            )
            if decision.step is Step.STOP:
                return self._stop(decision.reason if self._wait_for_checkpoint() else "preempted")
            if decision.step is Step.COMPLETE:
                if not self._wait_for_checkpoint():
                    return self._stop("preempted")
                if not self._complete():
                    return self._stop("completed")
                continue
            if decision.step is Step.CHECKPOINT:
                if interrupts.preempt and not self._is_in_time():
                    return self._stop("preempted")
                if not self._is_previous_settled():
                    continue
            self.next_boundary = decision.until
            return decision

    def _report(self, unit: UnitMetrics) -> None:
        steps = self.steps_completed
        if self._context.ledger is not None:
            self._context.ledger.flush()
        if self._is_chief:
            if unit.metrics:
                self._core.train.report_training_metrics(
                    steps, unit.metrics, unit.batches, n_records=unit.n_records
                )
            done = min(1.0, steps / self._schedule.plan.length)
            self._operation.report_progress(done * self._operation.length)
        digests = self._context.digests
        if digests is not None:
            digests.log_metrics(steps, unit.batches or ())
            digests.log_state(steps)
            digests.flush()
        if self._settings.stop_at_nan:
            first = steps - len(unit.batches or ()) + 1
            for batch, metrics in enumerate(unit.batches or (), first):
                NotANumberError.raise_if_nan(metrics, f"batch {batch}")
            NotANumberError.raise_if_nan(unit.metrics, f"the report at batch {steps}")
        self._schedule.reported()

    def _tell_unread_hparams(self) -> None:
        """Warn about hyperparameters that the trial has not read by the first validation."""
        if self._has_told_unread:
            return
        self._has_told_unread = True
        for name, near in self._context.unread_hparams().items():
            _logger.warning(
                "nothing has read the hyperparameter %r so far%s",
                name,
                f": did you mean {near!r}, which is read?" if near else "",
            )

    def _record_validation(self, result: ValidationResult) -> float | None:
        """Record a validation; return the previous best value."""
        train = self._core.train
        previous_best = train.get_experiment_best_validation()
        train.report_validation_metrics(
            self.steps_completed, result.metrics, n_records=result.n_records
        )
        return previous_best

    def _searcher_value(self, metrics: Mapping[str, Any]) -> float:
        name = str(self._settings.metric)
        if name not in metrics:
            near = closest_match(name, metrics)
            meant = f" Did you mean {near!r}?" if near else ""
            raise ConfigError(
                f"searcher.metric is {name!r}, but the validation at step {self.steps_completed} "
                f"gave: {', '.join(sorted(metrics)) or 'no metrics'}.{meant}\n"
                "Name one of these under searcher.metric in the experiment file. To resume this "
                f"experiment, add --set searcher.metric={near or 'NAME'}."
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
                "NaN cannot be compared, so neither the search nor the choice of the best "
                "checkpoint can continue.\n"
                "Lower the learning rate, look for NaN in the data, or resume from an earlier "
                "checkpoint with changed code."
            )
        return value

    def _stop(self, reason: str) -> Decision:
        """End training."""
        self.stopped = reason
        if reason == "preempted":
            self._core.preempt.acknowledge_preemption_signal()
        elif reason == "stop requested" and self._is_chief:
            _logger.info(
                "the trial's own code asked it to stop, at batch %d of %d",
                self.steps_completed,
                self._schedule.plan.length,
            )
        return Decision(Step.STOP, self.steps_completed, reason)

    def _wait_for_checkpoint(self) -> bool:
        """Wait for the checkpoint under way; return whether it was committed before the kill."""
        is_settled = self._core.wait_for_checkpoint() if self._is_chief else None
        return bool(self._agreement.from_chief(is_settled))

    def _is_previous_settled(self) -> bool:
        """Wait for the previous checkpoint; return False if the kill is announced for earlier."""
        is_settled = None
        if self._is_chief:
            preempt = self._core.preempt
            has_told = preempt.seconds_left is not None

            def left_s() -> float:
                has_news = not has_told and preempt.seconds_left is not None
                return 0.0 if has_news else math.inf

            try:
                self._core.checkpoint.wait(left_s)
                is_settled = True
            except CheckpointTimeoutError:
                is_settled = False
        return bool(self._agreement.from_chief(is_settled))

    def _is_in_time(self) -> bool:
        """Whether a checkpoint can finish before the kill, if the time of the kill is known."""
        preempt = self._core.preempt
        mine = None
        if preempt.seconds_left is not None and preempt.grace is not None:
            mine = (preempt.seconds_left, preempt.grace)
        known = self._agreement.soonest(mine)
        if known is None:
            return True
        left_s, grace = known
        preempt.set_kill_time(grace, left_s)
        is_in_time = None
        if self._is_chief:
            is_in_time = self._prepare_last_save(grace)
        return bool(self._agreement.from_chief(is_in_time))

    def _prepare_last_save(self, grace: Grace) -> bool:
        """Finish the save under way; return whether there is time for another one.

        An incomplete save leaves no trace, so the present state is saved even if it may be late.
        """
        checkpoint, preempt = self._core.checkpoint, self._core.preempt

        def left_s() -> float:
            return (preempt.seconds_left or 0.0) - grace.margin_s

        def say(text: str) -> None:
            _logger.info(
                "%s: %.1f s are left until the kill (%.1f s kept for ending), %s",
                grace, preempt.seconds_left or 0.0, grace.margin_s, text,
            )  # fmt: skip

        steps = checkpoint.steps_being_saved
        if steps is not None:
            say(f"the checkpoint of batch {steps} is still being saved: it is finished first")
        try:
            checkpoint.wait(left_s)
        except CheckpointTimeoutError as error:
            say(f"no time is left: {str(error).partition(chr(10))[0]}")
            # Its files are removed in the background: there is no time to wait for that.
            checkpoint.cancel_save(0.0)
            return False
        has_time = left_s() > 0
        say("the present state is saved" if has_time else "nothing more is saved")
        return has_time

    def _complete(self) -> bool:
        """Complete the searcher's operation; return whether another one follows."""
        if self._searcher_metric is None:
            raise MetricError("an operation ended without a validation")  # the schedule forbids it
        if self._is_chief:
            self._operation.report_completed(self._searcher_metric)
        self._schedule.completed()
        following = next(self._operations, None)
        if following is None:
            return False
        self._operation = following
        self._schedule.extended(self._plan(following).length)
        self._context.planned_batches = self._schedule.plan.length
        return True


class ScheduledClock(ScheduledPollingClock, Clock):
    """The `Clock` of a schedule, a core context and a controller."""

    _controller: LoopingController | SteppingController

    def slowest(self, seconds: float) -> float:
        return self._agreement.slowest(seconds)

    def open(self, controller: LoopingController | SteppingController) -> bool:
        """Do the work that is due before the first step; return whether there is any training."""
        self._controller = controller
        return self._act(UnitMetrics({}))

    def boundary(
        self,
        steps_completed: int,
        training_metrics: Mapping[str, float],
        batch_metrics: Sequence[Mapping[str, float]] | None = None,
        *,
        n_records: int | None = None,
    ) -> bool:
        mine = UnitMetrics(training_metrics, batch_metrics, n_records)
        unit, interrupts = self._agreement.unit(mine, self._interrupts())
        self._schedule.trained(steps_completed)
        self.steps_completed = steps_completed
        return self._act(unit, interrupts)

    def _act(self, unit: UnitMetrics, known: StopRequests | None = None) -> bool:
        self._core.checkpoint.poll()
        while True:
            decision, known = self._decide(known), None
            if decision.step in (Step.TRAIN, Step.STOP):
                return decision.step is Step.TRAIN
            if decision.step is Step.REPORT:
                self._report(unit)
            elif decision.step is Step.VALIDATE:
                self.validated(self._controller.validate())
            else:
                self.save(self._controller)
