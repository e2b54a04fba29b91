"""Execute the schedule at batch boundaries, connecting a controller and the core context."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.checkpoint.restore_audit import check_restored
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
    from detcore.contract.controllers import (
        LoopingController,
        SavesState,
        SteppingController,
        SupportsStateTensors,
    )
    from detcore.contract.trial import TrialContext
    from detcore.core import Context, SearcherOperation
    from detcore.core.preempt_context import Grace
    from detcore.data import StepDigests
    from detcore.trial.trial_saving import TrialSaver


_logger = logging.getLogger("detcore.trial")
# A person who has pressed Ctrl-C does not wait longer for a batch that is only compared.
_MAX_EXTRA_BATCH_S = 0.5
_MIN_REMAINING_S = 5.0


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
        saved_parts: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the searcher's first operation.

        Args:
            core: The trial's open context.
            context: The context of the trial's code.
            saver: Saves checkpoints.
            state: State of the clock in the checkpoint from which the trial resumes. Empty at the
                first start.
            batches_per_epoch: Batches in one epoch according to the data; None if unknown.
            saved_parts: Digests of the state in the checkpoint, which `watch` compares.

        Raises:
            ScheduleError: If a length cannot be converted; the message names the setting.
        """
        self._saved_parts = saved_parts
        self._core = core
        self._context = context
        self._settings = context.setup.settings
        self._saver = saver
        self._data_batches_per_epoch = batches_per_epoch
        self._operations = core.searcher.operations()
        self._operation = next(self._operations)
        plan = self._plan_operation(self._operation)
        info = core.info
        # The checkpoint at the end of an operation is saved before its validation.
        self._searcher_metric = info.validated_metric if state and info else None
        self._schedule = Schedule(plan)
        if state:
            self._schedule = Schedule.from_state(
                plan, state["schedule"], is_validated=self._searcher_metric is not None
            )
            if self._searcher_metric is None:
                self._searcher_metric = state.get("searcher_metric")
        core.train.stops_at_nan = False  # the clock checks for NaN, on all workers alike
        self._is_chief = core.distributed.rank == 0
        self._has_warned_of_unread = False
        self._agreement = Agreement(
            core.distributed, average=self._settings.gradients.average_training_metrics
        )
        self.steps_completed = context.setup.steps_completed
        self.next_boundary = self._schedule.next_boundary
        self.stopped: str | None = "completed" if info and info.is_complete else None
        context.planned_batches = plan.length

    def _plan_operation(self, operation: SearcherOperation) -> SchedulePlan:
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
    def digests(self) -> StepDigests | None:
        return self._context.digests

    def watch(self, state: Callable[[], SupportsStateTensors]) -> None:
        if self.stopped is None:  # a completed run only provides its model
            check_restored(state(), self._saved_parts, reaction=self._settings.inexact_resume)
        self._saved_parts = None
        if self._context.digests is not None:
            self._context.digests.watch_script(lambda: state().state_tensors())

    @property
    def interrupt_requested(self) -> bool:
        return self._agreement.is_interrupted(bool(self._read_interrupts()))

    def due(self, steps_completed: int, *, early: bool = False) -> Decision:
        if self.stopped is not None:
            return Decision(Step.STOP, steps_completed, self.stopped)
        is_between = self.steps_completed < steps_completed < self.next_boundary
        if is_between and not early and not self.interrupt_requested:
            return Decision(Step.TRAIN, self.next_boundary, "nothing is due")
        self._schedule.record_training(steps_completed)
        self.steps_completed = steps_completed
        self._core.checkpoint.poll()
        return self._choose_decision()

    def reported(
        self,
        metrics: Mapping[str, float],
        batch_metrics: Sequence[Mapping[str, float]] | None = None,
        *,
        n_records: int | None = None,
    ) -> None:
        unit = UnitMetrics(metrics, batch_metrics, n_records)
        self._record_report(self._agreement.merge_unit(unit, self._read_interrupts())[0])

    def validated(self, result: ValidationResult | Mapping[str, float]) -> None:
        own_result = (
            result if isinstance(result, ValidationResult) else ValidationResult(dict(result))
        )
        previous_best = self._record_validation(own_result) if self._is_chief else None
        # All workers must make the decisions below alike, so they use bit-identical values.
        chief_result, previous_best = self._agreement.broadcast_from_chief(
            (own_result, previous_best)
        )
        if self._settings.stop_at_nan:
            NotANumberError.raise_if_nan(
                chief_result.metrics, f"the validation at batch {self.steps_completed}"
            )
        if self._is_chief:
            self._warn_of_unread_hparams()
        metric = self._get_searcher_value(chief_result.metrics)
        self._searcher_metric = metric
        if previous_best is None:
            is_best = True
        elif self._settings.smaller_is_better:
            is_best = metric <= previous_best
        else:
            is_best = metric >= previous_best
        self._schedule.record_validation(is_best=is_best)

    def save(self, state: SavesState) -> None:
        if self._context.ledger is not None:
            self._context.ledger.flush()
        if self._context.digests is not None:
            self._context.digests.flush()
            self._context.digests.note_checkpoint(self.steps_completed)
        self._saver.save(
            state,
            steps_completed=self.steps_completed,
            clock={
                "schedule": self._schedule.state_dict(),
                "searcher_metric": self._searcher_metric,
            },
            has_deadline=self._core.preempt.seconds_left is not None,
        )
        self._schedule.record_checkpoint()

    def request_stop(self) -> None:
        self._context.set_stop_requested(True)

    def worker_directory(self, checkpoint: Path) -> Path | None:
        return self._context.worker_directory(checkpoint)

    def _read_interrupts(self) -> StopRequests:
        return StopRequests(self._core.preempt.is_requested, self._context.get_stop_requested())

    def _choose_decision(self, recent_interrupts: StopRequests | None = None) -> Decision:
        """Return the framework's next work.

        Args:
            recent_interrupts: Interrupts that the workers have just exchanged, or None.
        """
        while True:
            interrupts = (
                self._agreement.merge_interrupts(self._read_interrupts())
                if recent_interrupts is None
                else recent_interrupts
            )
            recent_interrupts = None  # outdated after the work below, which may take long
            decision = self._schedule.find_due_work(
                preempt=interrupts.preempt, stop_requested=interrupts.stop
            )
            if decision.step is Step.STOP:
                return self._end_training(
                    decision.reason if self._wait_for_checkpoint() else "preempted"
                )
            if decision.step is Step.COMPLETE:
                if not self._wait_for_checkpoint():
                    return self._end_training("preempted")
                if not self._complete_operation():
                    return self._end_training("completed")
                continue
            if decision.step is Step.CHECKPOINT:
                if interrupts.preempt and not self._is_in_time():
                    return self._end_training("preempted")
                if not self._wait_for_previous_checkpoint():
                    continue
            self.next_boundary = decision.until
            return decision

    def _record_report(self, unit: UnitMetrics) -> None:
        steps = self.steps_completed
        if self._context.ledger is not None:
            self._context.ledger.flush()
        if self._is_chief:
            if unit.metrics:
                self._core.train.report_training_metrics(
                    steps, unit.metrics, unit.batches, n_records=unit.n_records
                )
            fraction = min(1.0, steps / self._schedule.plan.length)
            self._operation.report_progress(fraction * self._operation.length)
        digests = self._context.digests
        if digests is not None:
            digests.log_metrics(steps, unit.batches or ())
            digests.log_state(steps)
            digests.flush()
        if self._settings.stop_at_nan:
            first_batch = steps - len(unit.batches or ()) + 1
            for batch, metrics in enumerate(unit.batches or (), first_batch):
                NotANumberError.raise_if_nan(metrics, f"batch {batch}")
            NotANumberError.raise_if_nan(unit.metrics, f"the report at batch {steps}")
        self._schedule.record_report()

    def _warn_of_unread_hparams(self) -> None:
        """Log a warning about hyperparameters that were not read before the first validation."""
        if self._has_warned_of_unread:
            return
        self._has_warned_of_unread = True
        for name, closest in self._context.unread_hparams().items():
            _logger.warning(
                "the code has not read the hyperparameter %r so far%s",
                name,
                f": did you mean {closest!r}, which it reads?" if closest else "",
            )

    def _record_validation(self, result: ValidationResult) -> float | None:
        """Record a validation and return the previous best value."""
        train = self._core.train
        previous_best = train.get_experiment_best_validation()
        train.report_validation_metrics(
            self.steps_completed, result.metrics, n_records=result.n_records
        )
        return previous_best

    def _get_searcher_value(self, metrics: Mapping[str, Any]) -> float:
        # A standalone script may have no metric.
        name = self._settings.metric or next(iter(metrics), "")
        if name not in metrics:
            closest = closest_match(name, metrics)
            hint = f" Did you mean {closest!r}?" if closest else ""
            raise ConfigError(
                f"searcher.metric is {name!r}, but the validation at step {self.steps_completed} "
                f"returned: {', '.join(sorted(metrics)) or 'no metrics'}.{hint}\n"
                "Set searcher.metric to one of these."
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
                "NaN cannot be compared, so the search cannot continue.\n"
                "Lower the learning rate, look for NaN in the data, or resume from an earlier "
                "checkpoint with changed code."
            )
        return value

    def _end_training(self, reason: str) -> Decision:
        """End training."""
        self.stopped = reason
        if reason == "preempted":
            self._core.preempt.acknowledge_preemption_signal()
        elif reason == "stop requested" and self._is_chief:
            _logger.info(
                "the trial's code requested a stop at batch %d of %d",
                self.steps_completed,
                self._schedule.plan.length,
            )
        return Decision(Step.STOP, self.steps_completed, reason)

    def _wait_for_checkpoint(self) -> bool:
        """Wait for an asynchronous checkpoint; return whether it was committed in time."""
        is_committed = self._core.wait_for_checkpoint() if self._is_chief else None
        return bool(self._agreement.broadcast_from_chief(is_committed))

    def _wait_for_previous_checkpoint(self) -> bool:
        """Wait for the previous checkpoint; return False if a kill is announced meanwhile."""
        is_committed = None
        if self._is_chief:
            preempt = self._core.preempt
            was_announced = preempt.seconds_left is not None

            def get_remaining_s() -> float:
                is_newly_announced = not was_announced and preempt.seconds_left is not None
                return 0.0 if is_newly_announced else math.inf

            try:
                self._core.checkpoint.wait(get_remaining_s)
                is_committed = True
            except CheckpointTimeoutError:
                is_committed = False
        return bool(self._agreement.broadcast_from_chief(is_committed))

    def _is_in_time(self) -> bool:
        """Whether a checkpoint can be saved before an announced kill; True without a kill."""
        preempt = self._core.preempt
        kill_time = None
        if preempt.seconds_left is not None and preempt.grace is not None:
            kill_time = (preempt.seconds_left, preempt.grace)
        earliest = self._agreement.find_soonest(kill_time)
        if earliest is None:
            return True
        remaining_s, grace = earliest
        preempt.set_kill_time(grace, remaining_s)
        is_in_time = None
        if self._is_chief:
            is_in_time = self._prepare_last_save(grace)
        return bool(self._agreement.broadcast_from_chief(is_in_time))

    def _prepare_last_save(self, grace: Grace) -> bool:
        """Finish the save in progress; return whether time is left for another save.

        The present state is saved even if the time may be too short, because an incomplete save
        leaves no trace.
        """
        checkpoint, preempt = self._core.checkpoint, self._core.preempt

        def get_remaining_s() -> float:
            return (preempt.seconds_left or 0.0) - grace.margin_s

        def log_notice(text: str) -> None:
            _logger.info(
                "%s: %.1f s until the kill (%.1f s reserved for ending), %s",
                grace, preempt.seconds_left or 0.0, grace.margin_s, text,
            )  # fmt: skip

        steps = checkpoint.steps_being_saved
        if steps is not None:
            log_notice(f"the checkpoint of batch {steps} is finished first")
        try:
            checkpoint.wait(get_remaining_s)
        except CheckpointTimeoutError as error:
            log_notice(f"no time is left: {str(error).partition(chr(10))[0]}")
            # Its files are removed in the background, because no time is left to wait.
            checkpoint.cancel_save(0.0)
            return False
        has_time = get_remaining_s() > 0
        log_notice("the present state is saved" if has_time else "no further checkpoint is saved")
        return has_time

    def _complete_operation(self) -> bool:
        """Complete the searcher's operation; return whether another operation follows."""
        if self._searcher_metric is None:
            raise MetricError(
                "an operation ended without a validation"
            )  # the schedule prevents this
        if self._is_chief:
            self._operation.report_completed(self._searcher_metric)
        self._schedule.record_completion()
        following = next(self._operations, None)
        if following is None:
            return False
        self._operation = following
        self._schedule.extend_to(self._plan_operation(following).length)
        self._context.planned_batches = self._schedule.plan.length
        return True


class ScheduledClock(ScheduledPollingClock, Clock):
    """The `Clock` of a schedule, a core context and a controller."""

    _controller: LoopingController | SteppingController
    _is_past_end = False
    # When the last boundary's work was done, and the seconds per batch since the one before it.
    _boundary_at = 0.0
    _batch_s = math.inf

    def slowest(self, seconds: float) -> float:
        return self._agreement.find_slowest(seconds)

    def open(self, controller: LoopingController | SteppingController) -> bool:
        """Do the work that is due before the first step; return whether to train."""
        self._controller = controller
        return self._do_due_work(UnitMetrics({}))

    def boundary(
        self,
        steps_completed: int,
        training_metrics: Mapping[str, float],
        batch_metrics: Sequence[Mapping[str, float]] | None = None,
        *,
        n_records: int | None = None,
    ) -> bool:
        own_unit = UnitMetrics(training_metrics, batch_metrics, n_records)
        unit, interrupts = self._agreement.merge_unit(own_unit, self._read_interrupts())
        if self._is_past_end:
            self._digest_extra_batch(steps_completed, unit)
            return False
        seconds = time.monotonic() - self._boundary_at
        self._batch_s = seconds / max(1, steps_completed - self.steps_completed)
        self._schedule.record_training(steps_completed)
        self.steps_completed = steps_completed
        return self._do_due_work(unit, interrupts)

    def _do_due_work(self, unit: UnitMetrics, interrupts: StopRequests | None = None) -> bool:
        self._core.checkpoint.poll()
        while True:
            decision, interrupts = self._choose_decision(interrupts), None
            if decision.step is Step.STOP:
                return decision.reason == "preempted" and self._start_extra_batch()
            if decision.step is Step.TRAIN:
                self._boundary_at = time.monotonic()
                return True
            if decision.step is Step.REPORT:
                self._record_report(unit)
            elif decision.step is Step.VALIDATE:
                self.validated(self._controller.validate())
            else:
                self.save(self._controller)

    def _start_extra_batch(self) -> bool:
        """Prepare one batch after the last checkpoint, if the time allows; return whether to train.

        The resumed run trains this batch again, and compares it. Nothing else is recorded of it.
        """
        if self._context.digests is None or self.steps_completed >= self.operation_length:
            return False
        remaining_s = self._core.preempt.seconds_left
        has_time = self._batch_s <= _MAX_EXTRA_BATCH_S and (
            remaining_s is None or remaining_s > _MIN_REMAINING_S
        )
        if not self._agreement.broadcast_from_chief(has_time):
            return False
        self._is_past_end, self.stopped = True, None
        self.next_boundary = self.steps_completed + 1
        return True

    def _digest_extra_batch(self, step: int, unit: UnitMetrics) -> None:
        digests = self._context.digests
        if digests is not None and step > self.steps_completed:
            digests.log_metrics(step, unit.batches or ())
            digests.flush()
        self.stopped = "preempted"
