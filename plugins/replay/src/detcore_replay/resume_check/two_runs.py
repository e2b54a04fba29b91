"""Run a program uninterrupted and with kills, and compare both runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from detcore_replay.resume_check.check_result import CheckResult, Plan, format_counts
from detcore_replay.resume_check.program_check import ProgramCheck
from detcore_replay.resume_check.scratch_runs import Moment, ProgramFailedError, ScratchRuns
from detcore_replay.resume_check.training_check import TrainingCheck


def run_check(
    check: ProgramCheck | TrainingCheck,
    plan: Plan,
    open_runs: Callable[[], ScratchRuns],
    notice: Callable[[str], None],
) -> CheckResult:
    """Run a program uninterrupted, then with kills, and compare.

    Args:
        check: Chooses the moments of the kills, and compares.
        plan: The commands.
        open_runs: Returns a place for runs.
        notice: Called with messages about the progress.

    Raises:
        RunError: If the program fails without a kill, or its results cannot be compared.
    """
    notice("run 1: uninterrupted")
    first = open_runs()
    first.run(plan.start, check.watch(first))
    first.set_aside()
    second = open_runs()
    moments, notes = check.choose_moments(plan, first, second)
    times = plan.kill_after
    if not moments:
        parts = plan.num_kills + 1
        times = times or [first.seconds * number / parts for number in range(1, parts)]
    if times:
        moments = [_create_timer(seconds) for seconds in times]
    notice(f"run 2: with {len(moments)} kills (run 1 took {first.seconds:.1f} s)")
    failure, command = "", plan.start
    try:
        for moment in (*moments, None):
            if not second.run(command, moment):
                break
            command = plan.resume if check.can_resume(second) else plan.start
    except ProgramFailedError as error:
        failure = str(error)
    num_missed = len(moments) - len(second.kills)
    if num_missed and not failure:
        notes.append(f"the program ended before {format_counts(kill=num_missed)}")
    result = check.compare(first, second, failure)
    return dataclasses.replace(
        result,
        seconds=(first.seconds, second.seconds),
        kills=tuple(second.kills),
        notes=(*notes, *result.notes),
    )


def _create_timer(seconds: float) -> Moment:
    return lambda elapsed: elapsed >= seconds
