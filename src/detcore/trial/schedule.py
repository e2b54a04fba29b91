"""Decide which work is due at each batch, without I/O, clock or framework.

All rules about periods, policies and lengths are in this module. A controller of any framework
only compares ``steps < schedule.next_boundary``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from detcore.contract.controllers import Decision, Step
from detcore.contract.errors import ScheduleError
from detcore.contract.values import Length, TrialSettings

CheckpointPolicy = Literal["best", "all", "none"]
_STATE_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePlan:
    """The periods and lengths of a schedule, all in batches.

    Attributes:
        scheduling_unit: Maximum number of batches between two boundaries; >= 1.
        min_validation_period: Validate at multiples of this number of batches; 0 for no period.
        min_checkpoint_period: Save a checkpoint at multiples of this number of batches; 0 for no
            period.
        checkpoint_policy: Validations after which to save a checkpoint.
        perform_initial_validation: Whether to validate before the first batch.
        length: Absolute batch at which the searcher's current operation ends; >= 1.
    """

    scheduling_unit: int = 100
    min_validation_period: int = 0
    min_checkpoint_period: int = 0
    checkpoint_policy: CheckpointPolicy = "best"
    perform_initial_validation: bool = False
    length: int


# Steps that are done before an interrupt takes effect. They are cheap, and a resumed trial would
# have to train or validate again to reach them.
_BEFORE_INTERRUPTS = (Step.REPORT, Step.COMPLETE, Step.STOP)


class Schedule:
    """Decides which work is due, given the work done so far.

    `find_due_work` changes nothing: it returns the same answer until a ``record_*`` method or
    `extend_to` is called. No work is due twice at the same batch.
    Periods count from batch 0 of the trial, not from the start of the process, so a resumed trial
    validates, checkpoints and reports at the same batches as an uninterrupted trial.

    The order within one batch is: report, validate, checkpoint. At the end of an operation it is:
    report, checkpoint, validate, complete, so that a checkpoint exists before the searcher decides.
    A preemption or a stop request skips the validation, which the resumed trial then does.

    Example:
        >>> schedule = Schedule(SchedulePlan(length=200, scheduling_unit=100))
        >>> schedule.next_boundary
        100
        >>> schedule.record_training(100)
        >>> schedule.find_due_work().step.name
        'REPORT'
        >>> schedule.record_report()
        >>> schedule.find_due_work().until
        200

    Args:
        plan: Periods and length.
        steps_completed: Batches completed so far; they count as reported.
        last_validation: Batch of the latest validation, or None.
        last_checkpoint: Batch of the latest checkpoint, or None.

    Attributes:
        plan: Periods, and the length of the current operation.
        steps_completed: Batches completed.
    """

    def __init__(
        self,
        plan: SchedulePlan,
        *,
        steps_completed: int = 0,
        last_validation: int | None = None,
        last_checkpoint: int | None = None,
    ) -> None:
        self.plan = plan
        self.steps_completed = steps_completed
        self._last_report = steps_completed
        self._last_validation = last_validation
        self._last_checkpoint = last_checkpoint
        self._wants_policy_checkpoint = False
        self._is_completed = False

    @property
    def next_boundary(self) -> int:
        """Absolute batch at which `find_due_work` must be called next.

        Equals `steps_completed` while other work than training is due.
        """
        now = self.steps_completed
        return now if self._find_work_at_batch() is not None else self._find_next_boundary()

    def find_due_work(self, *, preempt: bool = False, stop_requested: bool = False) -> Decision:
        """Return the work that is due.

        Args:
            preempt: Whether the trial should stop now and be resumed later.
            stop_requested: Whether the user's code requested the end of the trial. Takes precedence
                over `preempt`.
        """
        now = self.steps_completed
        due = self._find_work_at_batch()
        if due is not None and due.step in _BEFORE_INTERRUPTS:
            return due
        if preempt or stop_requested:
            reason = "stop requested" if stop_requested else "preempted"
            if now > (self._last_checkpoint or 0):
                return Decision(Step.CHECKPOINT, now, reason)
            return Decision(Step.STOP, now, reason)
        return (
            Decision(Step.TRAIN, self._find_next_boundary(), "nothing is due")
            if due is None
            else due
        )

    def record_training(self, steps_completed: int) -> None:
        """Record that training has reached a batch, possibly before `next_boundary`.

        Args:
            steps_completed: Absolute count of batches, never less than before.

        Raises:
            ScheduleError: If the batch is before the present batch, or after `next_boundary`.
        """
        now = self.steps_completed
        if not now <= steps_completed <= self.next_boundary:
            raise ScheduleError(
                f"training went from batch {now} to batch {steps_completed}, but the next boundary "
                f"is batch {self.next_boundary}.\n"
                "Work that is due at the boundary would be skipped.\n"
                "A controller must call the clock after clock.next_boundary batches."
            )
        if steps_completed > now:
            self._wants_policy_checkpoint = False
        self.steps_completed = steps_completed

    def record_report(self) -> None:
        """Record that all training metrics so far were reported."""
        self._last_report = self.steps_completed

    def record_validation(self, *, is_best: bool | None) -> None:
        """Record a validation at the current batch.

        Args:
            is_best: Whether its searcher metric is the best of the experiment so far. None if the
                metric has no value, which counts as not best.
        """
        self._last_validation = self.steps_completed
        policy = self.plan.checkpoint_policy
        self._wants_policy_checkpoint = policy == "all" or (policy == "best" and bool(is_best))

    def record_checkpoint(self) -> None:
        """Record a committed checkpoint at the current batch."""
        self._last_checkpoint = self.steps_completed
        self._wants_policy_checkpoint = False

    def record_completion(self) -> None:
        """Record that the searcher has received the operation's result."""
        if not self._is_done():
            raise ScheduleError(
                f"the operation of {self.plan.length} batches is not complete at batch "
                f"{self.steps_completed}"
            )
        self._is_completed = True

    def extend_to(self, new_length: int) -> None:
        """Continue with the searcher's next operation.

        Args:
            new_length: Absolute batch at which the operation ends; >= the current batch.
        """
        if new_length < self.steps_completed:
            raise ScheduleError(
                f"the searcher's next operation ends at batch {new_length}, "
                f"but {self.steps_completed} batches are already trained"
            )
        self.plan = dataclasses.replace(self.plan, length=new_length)
        self._is_completed = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state to store in a checkpoint at the current batch, as JSON values.

        A schedule created by `from_state` treats the checkpoint that contains the state as saved,
        so call this before `record_checkpoint`.
        """
        return {
            "version": _STATE_VERSION,
            "steps_completed": self.steps_completed,
            "last_validation": self._last_validation,
        }

    @classmethod
    def from_state(
        cls, plan: SchedulePlan, state: Mapping[str, Any], *, is_validated: bool = False
    ) -> Schedule:
        """Create a schedule that continues from a checkpoint.

        Args:
            plan: Periods and length, which may have changed.
            state: Result of `state_dict` at the checkpoint.
            is_validated: Whether a validation at the same batch followed the checkpoint, which the
                state cannot include.

        Raises:
            ScheduleError: If the state has another version.
        """
        if state.get("version") != _STATE_VERSION:
            raise ScheduleError(
                f"the checkpoint's schedule has version {state.get('version')!r}, but this release "
                f"reads version {_STATE_VERSION}.\n"
                "The checkpoint was written by another detcore release.\n"
                "Resume with that release, or start a new experiment."
            )
        now = state["steps_completed"]
        return cls(
            plan,
            steps_completed=now,
            last_validation=now if is_validated else state["last_validation"],
            last_checkpoint=now,
        )

    def _is_at_end(self) -> bool:
        return self.steps_completed >= self.plan.length

    def _is_done(self) -> bool:
        now = self.steps_completed
        return self._is_at_end() and self._last_checkpoint == now and self._last_validation == now

    def _find_work_at_batch(self) -> Decision | None:
        """Return the work due at the current batch regardless of interrupts; None for training."""
        now = self.steps_completed
        if now > self._last_report:
            return Decision(Step.REPORT, now, "batches were trained")
        wants_validation = self._last_validation != now
        wants_checkpoint = self._last_checkpoint != now
        if self._is_completed:
            return Decision(Step.STOP, now, "completed")
        if self._is_at_end():
            if wants_checkpoint:
                return Decision(Step.CHECKPOINT, now, "end of the operation")
            if wants_validation:
                return Decision(Step.VALIDATE, now, "end of the operation")
            return Decision(Step.COMPLETE, now, "the operation's length was reached")
        if wants_validation and self._wants_initial_validation():
            return Decision(Step.VALIDATE, now, "initial validation")
        if wants_validation and _is_multiple(now, self.plan.min_validation_period):
            return Decision(Step.VALIDATE, now, "min_validation_period")
        if wants_checkpoint and self._wants_policy_checkpoint:
            return Decision(Step.CHECKPOINT, now, f"policy {self.plan.checkpoint_policy}")
        if wants_checkpoint and _is_multiple(now, self.plan.min_checkpoint_period):
            return Decision(Step.CHECKPOINT, now, "min_checkpoint_period")
        return None

    def _wants_initial_validation(self) -> bool:
        return (
            self.plan.perform_initial_validation
            and self.steps_completed == 0
            and self._last_validation is None
        )

    def _find_next_boundary(self) -> int:
        now, plan = self.steps_completed, self.plan
        periods = (plan.scheduling_unit, plan.min_validation_period, plan.min_checkpoint_period)
        cuts = [(now // period + 1) * period for period in periods if period]
        return min(*cuts, plan.length) if plan.length > now else now


def _is_multiple(batch: int, period: int) -> bool:
    return period > 0 and batch > 0 and batch % period == 0


def plan_from_settings(
    settings: TrialSettings,
    *,
    length: Length,
    global_batch_size: int | None,
    batches_per_epoch: int | None,
) -> SchedulePlan:
    """Convert the periods of an experiment's settings, and a length, to batches.

    Args:
        settings: Training settings of the experiment.
        length: Length of the searcher's operation.
        global_batch_size: Records per step over all workers, or None if not configured.
        batches_per_epoch: Batches in one epoch according to the data, or None.

    Raises:
        ScheduleError: If a length cannot be converted; the message names the setting.
    """

    def in_batches(name: str, value: Length) -> int:
        try:
            return value.to_batches(
                global_batch_size=global_batch_size,
                records_per_epoch=settings.records_per_epoch,
                batches_per_epoch=batches_per_epoch,
            )
        except ScheduleError as error:
            raise ScheduleError(f"{name}: {error}") from error

    return SchedulePlan(
        scheduling_unit=settings.scheduling_unit,
        min_validation_period=in_batches("min_validation_period", settings.min_validation_period),
        min_checkpoint_period=in_batches("min_checkpoint_period", settings.min_checkpoint_period),
        checkpoint_policy=settings.checkpoint_policy,
        perform_initial_validation=settings.perform_initial_validation,
        length=in_batches("searcher.max_length", length),
    )
