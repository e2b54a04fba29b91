"""Clauses on ends, callbacks and several workers."""

from __future__ import annotations

import os

import pytest

from detcore.types import TrialState
from detcore_testing.framework.framework_base import (
    FrameworkBase,
    check_completed,
    check_end,
    probe,
    used,
)
from detcore_testing.framework.framework_checks import (
    callback_faults,
    differences,
    metric_differences,
    shown,
)
from detcore_testing.framework.framework_runs import CHECKPOINT_PERIOD, FrameworkRuns
from detcore_testing.suite_clauses import clause

_NUM_USED = 2  # validations of the probe "use"


class EndClauses(FrameworkBase):
    """Stops, refusals and errors."""

    @clause(
        "stop-request-ends-trial",
        "after context.set_stop_requested(True) training ends at the next boundary and the trial "
        "is COMPLETED",
        capability="early-stop",
    )
    def test_stop_request_ends_trial(self, runs: FrameworkRuns) -> None:
        """Asked for when a checkpoint is committed."""
        run, steps = runs.stopped, 2 * CHECKPOINT_PERIOD
        check_end(run, TrialState.COMPLETED)
        assert max(run.checkpoints) == steps, (
            f"trained on: checkpoints at {sorted(run.checkpoints)}"
        )
        assert max(run.training) == steps, f"trained on: reports at {sorted(run.training)}"

    @clause(
        "framework-stop-ends-trial",
        "a trial that the framework stops ends early, is COMPLETED and has a checkpoint",
        capability="early-stop",
    )
    def test_framework_stop_ends_trial(self, runs: FrameworkRuns) -> None:
        """Such as ``model.stop_training``."""
        if not self.stop_entrypoint:
            pytest.skip("the framework has no way of its own to stop (stop_entrypoint)")
        run = runs.stopped_by_framework
        check_end(run, TrialState.COMPLETED)
        trained, saved = max(run.training, default=0), max(run.checkpoints, default=0)
        assert 0 < trained < self.num_batches, f"it ended after {trained} batches"
        assert saved == trained, f"ended at batch {trained}, last checkpoint at {saved}"

    @clause(
        "invalid-hyperparameters-end-trial",
        "InvalidHP ends a trial before it trains, is recorded, and causes no restart",
    )
    def test_invalid_hyperparameters_end_trial(self, runs: FrameworkRuns) -> None:
        """Though two restarts are allowed."""
        run = runs.invalid
        trial = check_end(run, TrialState.ERROR)
        assert "InvalidHP" in str(trial.error), f"recorded as {trial.error!r}"
        assert (trial.run_id, trial.num_restarts) == (1, 0), "it was started again"
        assert not run.training, f"it trained {max(run.training, default=0)} batches"
        assert not run.processes_left, shown(run.processes_left)

    @clause(
        "trial-errors-end-the-run",
        "an exception in the trial's code ends the run with its message, file and line, without a "
        "hang or leftover processes",
    )
    def test_trial_errors_end_the_run(self, runs: FrameworkRuns) -> None:
        """Exit code 1, state ERROR, and the user's own frames in the traceback."""
        run = runs.broken
        trial = check_end(run, TrialState.ERROR)
        for text in ("broken on purpose", f'File "{runs.model_dir}{os.sep}'):
            assert text in run.output, f"{text!r} is not in what was printed:\n{run.output}"
        assert "broken on purpose" in str(trial.error), f"recorded as {trial.error!r}"
        assert not run.processes_left, shown(run.processes_left)

    @clause(
        "wrong-entrypoint-is-reported",
        "a missing trial class ends the run with an error that names it",
    )
    def test_wrong_entrypoint_is_reported(self, runs: FrameworkRuns) -> None:
        """The message lists the classes that exist."""
        run = runs.unknown
        assert run.code == 1, f"exit code {run.code}:\n{run.output}"
        assert "has no class 'NobodyWroteThisTrial'" in run.output, run.output
        name = self.entrypoint.rpartition(":")[2]
        assert name in run.output, f"{name} is not among what is there:\n{run.output}"

    @clause(
        "callbacks-run-in-order",
        "callbacks are called once for each batch, validation and checkpoint, in the order of "
        "events",
        capability="callbacks",
    )
    def test_callbacks_run_in_order(self, runs: FrameworkRuns) -> None:
        """As the callbacks themselves noted it."""
        faults = callback_faults(
            self.callback_events(runs.reference.journal),
            kinds=self.callback_kinds,
            num_batches=self.num_batches,
            validated_at=self.validated_at(),
            saved_at=self.saved_at(),
        )
        faults += self._faults_after_a_resume(runs)
        assert not faults, shown(faults)

    def _faults_after_a_resume(self, runs: FrameworkRuns) -> list[str]:
        """Return the faults in the callback calls of a resumed run and of a bare restore."""
        faults = []
        run = runs.interrupted
        if run.code == 0 and "batch_end" in self.callback_kinds:
            found = self.callback_events(run.journal).count("batch_end")
            if found != self.num_batches - run.begun:
                faults.append(
                    f"{found} batches ended in a run that went on from batch {run.begun} to "
                    f"{self.num_batches}"
                )
        num_trained = used(self, runs)["num_trained"]
        journal = runs.journal("use")
        events = self.callback_events(journal) if journal.exists() else []
        if events.count("batch_end") > num_trained:
            faults.append(f"batch_end came {events.count('batch_end')} times, for {num_trained}")
        if events.count("validation_end") > _NUM_USED:
            faults.append(
                f"validation_end came {events.count('validation_end')} times after a restore and "
                f"{_NUM_USED} calls of validate"
            )
        return faults


class WorkerClauses(FrameworkBase):
    """Several workers."""

    @clause(
        "two-workers-match-one-worker",
        "two workers reach the state that one worker reaches, within worker_tolerance",
        capability="several-workers",
    )
    def test_two_workers_match_one_worker(self, runs: FrameworkRuns) -> None:
        """Before anything was killed: the first checkpoint, and the last one that was written."""
        assert runs.two_workers.finished[0].code == 1, runs.two_workers.output
        expected = runs.one_worker.last_checkpoint
        told = differences(
            self.read_state(runs.two_workers_uninterrupted),
            self.read_state(expected),
            ignored=self.ignored_state,
            tolerance=self.worker_tolerance,
        )
        assert not told, shown(told)

    @clause(
        "two-workers-validate-each-record-once",
        "two workers report the validation metrics of one worker, over the same number of records",
        capability="several-workers",
    )
    def test_two_workers_validate_each_record_once(self, runs: FrameworkRuns) -> None:
        """The same metrics and counts at each step, reported once."""
        found, expected = runs.two_workers.validations, runs.one_worker.validations
        assert found, f"no validation:\n{runs.two_workers.output}"
        near = self.worker_tolerance
        told = metric_differences(found, expected, relative=near, absolute=near)
        told += [
            f"step {steps}: {record.n_records} records, not {expected[steps].n_records}"
            for steps, record in found.items()
            if steps in expected and record.n_records != expected[steps].n_records
        ]
        assert not told, shown(told)

    @clause(
        "two-workers-resume-exactly",
        "two killed workers resume bit for bit from the previous checkpoint",
        capability="several-workers",
    )
    def test_two_workers_resume_exactly(self, runs: FrameworkRuns) -> None:
        """They reach the state that the killed workers had written but not committed."""
        self.skip_where_inexact(runs)
        run = runs.two_workers
        check_completed(self, run)
        told = self.differences(run.last_checkpoint, runs.two_workers_uninterrupted)
        self.check_resumed(runs, told, "at the last batch")
        assert not run.processes_left, shown(run.processes_left)

    @clause(
        "several-workers-are-rejected",
        "a framework that supports only one worker rejects several with an error",
    )
    def test_several_workers_are_rejected(self, runs: FrameworkRuns) -> None:
        """Where several-workers is declined: by the framework, or because a package is missing."""
        can = probe(runs, "discover").get("several_workers")
        if "several-workers" not in self.declined:
            assert can, "Framework.several_workers is False.\nDecline 'several-workers', or set it."
            return
        run = runs.refused_workers
        assert check_end(run, TrialState.ERROR).error, f"without a reason:\n{run.output}"
        assert not run.training, f"it trained {max(run.training, default=0)} batches"
        if not can:
            assert f"the framework {self.framework!r} train on one" in run.output, run.output
