"""The schedule alone: periods, policies, interruptions, conversions."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detcore.config import ExperimentConfig
from detcore.errors import ScheduleError
from detcore.trial import Decision, Schedule, Step
from detcore.trial.schedule import SchedulePlan, plan_from_settings
from detcore.types import Length, TrialSettings, Unit

# Most that can be due at one batch: report, initial or periodic validation, checkpoint, complete,
# and the decision to train or stop.
MAX_DECISIONS_PER_BATCH = 6


@dataclasses.dataclass
class Log:
    """Work of a driven schedule: (kind, batch) in order, and how it ended."""

    did: list[tuple[Step, int]] = dataclasses.field(default_factory=list)
    chunks: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    state: dict[str, Any] | None = None
    reason: str = ""

    def at(self, step: Step) -> list[int]:
        return [batch for kind, batch in self.did if kind is step]


def drive(
    schedule: Schedule,
    *,
    preempt_at: int | None = None,
    stop_at: int | None = None,
    kill_at: int | None = None,
    best_at: frozenset[int] | None = None,
) -> Log:
    """Follow the schedule until it stops. With `best_at` None, every validation is the best.

    `kill_at` ends it like SIGKILL once that batch is trained, before anything due there is done.
    """
    log = Log()
    decisions_here = 0
    while True:
        now = schedule.steps_completed
        flags = {
            "preempt": preempt_at is not None and now >= preempt_at,
            "stop_requested": stop_at is not None and now >= stop_at,
        }
        decision = schedule.find_due_work(**flags)
        assert schedule.find_due_work(**flags) == decision, "asking must not change the answer"
        decisions_here += 1
        assert decisions_here <= MAX_DECISIONS_PER_BATCH, log.did[-10:]
        if decision.step is Step.TRAIN:
            assert now < decision.until == schedule.next_boundary
            interrupts = [at for at in (preempt_at, stop_at) if at is not None and at > now]
            until = min([decision.until, *interrupts])
            if kill_at is not None and now < kill_at <= until:
                return log
            log.chunks.append((now, until))
            schedule.record_training(until)
            decisions_here = 0
            continue
        log.did.append((decision.step, now))
        if decision.step is Step.REPORT:
            schedule.record_report()
        elif decision.step is Step.VALIDATE:
            schedule.record_validation(is_best=best_at is None or now in best_at)
        elif decision.step is Step.CHECKPOINT:
            log.state = json.loads(json.dumps(schedule.state_dict()))
            schedule.record_checkpoint()
        elif decision.step is Step.COMPLETE:
            schedule.record_completion()
        else:
            log.reason = decision.reason
            return log


plans = st.builds(
    SchedulePlan,
    scheduling_unit=st.integers(1, 40),
    min_validation_period=st.integers(0, 30),
    min_checkpoint_period=st.integers(0, 30),
    checkpoint_policy=st.sampled_from(["best", "all", "none"]),
    perform_initial_validation=st.booleans(),
    length=st.integers(1, 120),
)


def multiples(period: int, length: int) -> set[int]:
    return set(range(period, length + 1, period)) if period else set()


# -- properties -----------------------------------------------------------------------------------


@given(plan=plans, best_at=st.frozensets(st.integers(0, 120)))
def test_schedule_keeps_periods(plan: SchedulePlan, best_at: frozenset[int]) -> None:
    log = drive(Schedule(plan), best_at=best_at)
    length = plan.length
    validations = multiples(plan.min_validation_period, length) | {length}
    if plan.perform_initial_validation:
        validations.add(0)
    assert log.at(Step.VALIDATE) == sorted(validations)
    checkpoints = multiples(plan.min_checkpoint_period, length) | {length}
    if plan.checkpoint_policy == "all":
        checkpoints |= validations
    elif plan.checkpoint_policy == "best":
        checkpoints |= validations & best_at
    assert log.at(Step.CHECKPOINT) == sorted(checkpoints)
    assert set(log.at(Step.REPORT)) >= multiples(plan.scheduling_unit, length) | {length}
    assert log.at(Step.COMPLETE) == [length]
    assert log.did[-1] == (Step.STOP, length)
    assert log.reason == "completed"


@given(plan=plans)
def test_stretches_cover_training_exactly(plan: SchedulePlan) -> None:
    log = drive(Schedule(plan))
    assert all(0 < end - start <= plan.scheduling_unit for start, end in log.chunks)
    assert [batch for start, end in log.chunks for batch in range(start, end)] == list(
        range(plan.length)
    )
    assert log.at(Step.REPORT) == [end for _, end in log.chunks]


@given(plan=plans, preempt_at=st.integers(0, 120))
def test_preempted_schedule_validates_at_same_batches(plan: SchedulePlan, preempt_at: int) -> None:
    uninterrupted = drive(Schedule(plan))
    first = drive(Schedule(plan), preempt_at=preempt_at)
    if first.reason == "completed":
        assert preempt_at > plan.length
        return
    assert first.reason == "preempted"
    second = drive(_resumed(plan, first))
    assert second.reason == "completed"
    both = first.at(Step.VALIDATE) + second.at(Step.VALIDATE)
    assert sorted(set(both)) == uninterrupted.at(Step.VALIDATE)
    if first.state is not None:
        assert len(both) == len(set(both)), "a validation was repeated after a clean stop"
    assert second.did[-1] == uninterrupted.did[-1]
    assert set(uninterrupted.at(Step.REPORT)) <= set(first.at(Step.REPORT) + second.at(Step.REPORT))


@given(plan=plans, kill_at=st.integers(1, 120), best_at=st.frozensets(st.integers(0, 120)))
def test_killed_schedule_leaves_same_records(
    plan: SchedulePlan, kill_at: int, best_at: frozenset[int]
) -> None:
    uninterrupted = drive(Schedule(plan), best_at=best_at)
    first = drive(Schedule(plan), kill_at=kill_at, best_at=best_at)
    second = drive(_resumed(plan, first), best_at=best_at)
    for step in (Step.VALIDATE, Step.CHECKPOINT, Step.REPORT):
        assert sorted({*first.at(step), *second.at(step)}) == uninterrupted.at(step)
    start = (first.state or {"steps_completed": 0})["steps_completed"]
    # From its checkpoint on, the resumed run cuts its chunks where the uninterrupted one did.
    assert second.chunks == [chunk for chunk in uninterrupted.chunks if chunk[0] >= start]


@settings(max_examples=50)
@given(plan=plans, every=st.integers(1, 7))
def test_repeated_interrupts_reach_the_end(plan: SchedulePlan, every: int) -> None:
    """Each run is preempted a few batches after it started: no livelock, nothing lost."""
    uninterrupted = drive(Schedule(plan))
    schedule, validations = Schedule(plan), []
    for _ in range(plan.length // every + 3):
        log = drive(schedule, preempt_at=schedule.steps_completed + every)
        validations += log.at(Step.VALIDATE)
        if log.reason == "completed":
            break
        schedule = _resumed(plan, log)
    assert log.reason == "completed"
    assert sorted(set(validations)) == uninterrupted.at(Step.VALIDATE)


@given(plan=plans, stop_at=st.integers(1, 120))
def test_stop_request_saves_then_stops(plan: SchedulePlan, stop_at: int) -> None:
    log = drive(Schedule(plan), stop_at=stop_at)
    assert log.chunks[-1][1] == min(stop_at, plan.length)
    assert log.at(Step.CHECKPOINT)[-1] == log.chunks[-1][1]
    assert log.did[-1][0] is Step.STOP
    assert log.reason == ("stop requested" if stop_at <= plan.length else "completed")


@given(plan=plans, lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_operation_ends_with_save_then_validation(plan: SchedulePlan, lengths: list[int]) -> None:
    schedule = Schedule(plan)
    ends = [plan.length]
    log = drive(schedule)
    for more in lengths:
        ends.append(ends[-1] + more)
        schedule.extend_to(ends[-1])
        following = drive(schedule)
        log.did += following.did
    assert log.at(Step.COMPLETE) == ends
    for end in ends:
        here = [step for step, batch in log.did if batch == end]
        order = [Step.REPORT, Step.CHECKPOINT, Step.VALIDATE, Step.COMPLETE]
        assert [step for step in here if step in order] == order
    assert len(log.at(Step.VALIDATE)) == len(set(log.at(Step.VALIDATE)))


def _resumed(plan: SchedulePlan, log: Log) -> Schedule:
    return Schedule(plan) if log.state is None else Schedule.from_state(plan, log.state)


# -- examples -------------------------------------------------------------------------------------


def test_validation_precedes_checkpoint() -> None:
    plan = SchedulePlan(length=20, min_validation_period=10, min_checkpoint_period=10)
    here = [step for step, batch in drive(Schedule(plan)).did if batch == 10]
    assert here == [Step.REPORT, Step.VALIDATE, Step.CHECKPOINT]


def test_incomparable_validation_is_not_best() -> None:
    schedule = Schedule(SchedulePlan(length=40, min_validation_period=10))
    schedule.record_training(10)
    schedule.record_report()
    schedule.record_validation(is_best=None)
    assert schedule.find_due_work().step is Step.TRAIN


def test_initial_validation_is_not_repeated() -> None:
    plan = SchedulePlan(length=10, perform_initial_validation=True, checkpoint_policy="none")
    assert drive(Schedule(plan)).at(Step.VALIDATE) == [0, 10]
    assert drive(Schedule(plan, last_validation=0)).at(Step.VALIDATE) == [10]
    assert drive(Schedule(plan, steps_completed=3, last_checkpoint=3)).at(Step.VALIDATE) == [10]


def test_preemption_without_progress_saves_nothing() -> None:
    plan = SchedulePlan(length=250)
    assert drive(Schedule(plan), preempt_at=0).did == [(Step.STOP, 0)]
    resumed = Schedule(plan, steps_completed=100, last_checkpoint=100)
    assert drive(resumed, preempt_at=100).did == [(Step.STOP, 100)]


def test_resume_at_boundary_does_missing_work() -> None:
    """A preemption skips the validation due at batch 100; the checkpoint remembers that."""
    plan = SchedulePlan(length=200, min_validation_period=100, min_checkpoint_period=100)
    first = drive(Schedule(plan), preempt_at=100)
    assert first.did == [(Step.REPORT, 100), (Step.CHECKPOINT, 100), (Step.STOP, 100)]
    second = drive(_resumed(plan, first), best_at=frozenset({100}))
    assert second.did[0] == (Step.VALIDATE, 100)
    assert second.did[1] == (Step.REPORT, 200)


def test_finished_operation_completes_when_preempted() -> None:
    schedule = Schedule(SchedulePlan(length=10), steps_completed=10, last_checkpoint=10)
    assert schedule.find_due_work(preempt=True) == Decision(Step.STOP, 10, "preempted")
    schedule.record_validation(is_best=True)
    assert schedule.find_due_work(preempt=True).step is Step.COMPLETE


def test_stop_request_precedes_preemption() -> None:
    schedule = Schedule(SchedulePlan(length=10), steps_completed=5, last_checkpoint=5)
    assert schedule.find_due_work(preempt=True, stop_requested=True).reason == "stop requested"


def test_resume_beyond_shorter_length_completes() -> None:
    plan = SchedulePlan(length=100)
    schedule = Schedule(plan, steps_completed=150, last_validation=100, last_checkpoint=150)
    assert [step for step, _ in drive(schedule).did] == [Step.VALIDATE, Step.COMPLETE, Step.STOP]


def test_boundary_is_present_batch_while_work_is_due() -> None:
    schedule = Schedule(SchedulePlan(length=10, perform_initial_validation=True))
    assert schedule.next_boundary == 0
    schedule.record_validation(is_best=False)
    assert schedule.next_boundary == 10


# -- errors ---------------------------------------------------------------------------------------


def test_training_past_boundary_is_refused() -> None:
    schedule = Schedule(SchedulePlan(length=250))
    with pytest.raises(ScheduleError, match=r"to batch 101.*next boundary is batch 100"):
        schedule.record_training(101)
    schedule.record_training(50)
    with pytest.raises(ScheduleError, match="from batch 50 to batch 49"):
        schedule.record_training(49)


def test_early_completion_is_refused() -> None:
    with pytest.raises(ScheduleError, match="250 batches is not complete at batch 0"):
        Schedule(SchedulePlan(length=250)).record_completion()


def test_operation_in_the_past_is_refused() -> None:
    with pytest.raises(ScheduleError, match="ends at batch 99, but 100 batches are already"):
        Schedule(SchedulePlan(length=100), steps_completed=100).extend_to(99)


def test_final_validation_is_not_repeated() -> None:
    """The state does not contain the validation, but the records do."""
    state = {"version": 1, "steps_completed": 4, "last_validation": None}
    for length in (4, 8):
        plan = SchedulePlan(length=length, min_validation_period=2)
        for is_validated, expected in ((False, [4, 6, 8]), (True, [6, 8])):
            log = drive(Schedule.from_state(plan, state, is_validated=is_validated))
            assert log.at(Step.VALIDATE) == [batch for batch in expected if batch <= length]
            assert log.at(Step.COMPLETE) == [length]


def test_schedule_of_other_version_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"schedule has version 2.*\n.*\nResume with"):
        Schedule.from_state(SchedulePlan(length=10), {"version": 2})


# -- conversion of the configuration --------------------------------------------------------------


def _settings(**changes: Any) -> TrialSettings:
    config = ExperimentConfig.model_validate(
        {"searcher": {"name": "single", "metric": "loss", "max_length": {"epochs": 3}}}
    )
    arguments: dict[str, Any] = {
        "scheduling_unit": 50,
        "min_validation_period": Length(1, Unit.EPOCHS),
        "min_checkpoint_period": Length(640, Unit.RECORDS),
        "checkpoint_policy": "all",
        "perform_initial_validation": True,
        **changes,
    }
    return dataclasses.replace(config.trial_settings(), **arguments)


def test_configured_lengths_become_batches() -> None:
    plan = plan_from_settings(
        _settings(), length=Length(3, Unit.EPOCHS), global_batch_size=32, batches_per_epoch=57
    )
    assert plan == SchedulePlan(
        scheduling_unit=50,
        min_validation_period=57,
        min_checkpoint_period=20,
        checkpoint_policy="all",
        perform_initial_validation=True,
        length=171,
    )


def test_records_per_epoch_precedes_data_length() -> None:
    config = _settings(records_per_epoch=320)
    plan = plan_from_settings(
        config, length=Length(3, Unit.EPOCHS), global_batch_size=32, batches_per_epoch=57
    )
    assert (plan.min_validation_period, plan.length) == (10, 30)


@pytest.mark.parametrize("unit", list(Unit))
def test_zero_period_means_never(unit: Unit) -> None:
    config = _settings(
        min_validation_period=Length(0, unit),
        min_checkpoint_period=Length(0, unit),
        perform_initial_validation=False,
    )
    length = Length(90, Unit.BATCHES)
    plan = plan_from_settings(config, length=length, global_batch_size=None, batches_per_epoch=None)
    log = drive(Schedule(plan))
    assert log.at(Step.VALIDATE) == [90]
    assert log.at(Step.CHECKPOINT) == [90]


def test_epochs_require_data_length() -> None:
    config = _settings(min_validation_period=Length(0, Unit.BATCHES))
    message = r"searcher.max_length: cannot convert 3 epochs into batches: records_per_epoch is not"
    length = Length(3, Unit.EPOCHS)
    with pytest.raises(ScheduleError, match=message):
        plan_from_settings(config, length=length, global_batch_size=32, batches_per_epoch=None)
