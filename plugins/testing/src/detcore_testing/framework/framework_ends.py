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
        "a-stop-request-ends-the-trial",
        "after context.set_stop_requested(True) training ends at the next boundary; COMPLETED",
        capability="early-stop",
    )
    def test_a_stop_request_ends_the_trial(self, runs: FrameworkRuns) -> None:
        """Asked for when a checkpoint is committed."""
        run, steps = runs.stopped, 2 * CHECKPOINT_PERIOD
        check_end(run, TrialState.COMPLETED)
        assert max(run.checkpoints) == steps, (
            f"trained on: checkpoints at {sorted(run.checkpoints)}"
        )
        assert max(run.training) == steps, f"trained on: reports at {sorted(run.training)}"

    @clause(
        "the-frameworks-own-stop-ends-the-trial",
        "a trial that stops in the framework's own way ends early; COMPLETED, with a checkpoint",
        capability="early-stop",
    )
    def test_the_frameworks_own_stop_ends_the_trial(self, runs: FrameworkRuns) -> None:
        """Such as ``model.stop_training``."""
        if not self.stop_entrypoint:
            pytest.skip("the framework has no way of its own to stop (stop_entrypoint)")
        run = runs.stopped_by_framework
        check_end(run, TrialState.COMPLETED)
        trained, saved = max(run.training, default=0), max(run.checkpoints, default=0)
        assert 0 < trained < self.num_batches, f"it ended after {trained} batches"
        assert saved == trained, f"ended at batch {trained}, last checkpoint at {saved}"

    @clause(
        "invalid-hyperparameters-end-the-trial",
        "InvalidHP ends a trial before it trains; it is recorded, and not started again",
    )
    def test_invalid_hyperparameters_end_the_trial(self, runs: FrameworkRuns) -> None:
        """Though two restarts are allowed."""
        run = runs.invalid
        trial = check_end(run, TrialState.ERROR)
        assert "InvalidHP" in str(trial.error), f"recorded as {trial.error!r}"
        assert (trial.run_id, trial.num_restarts) == (1, 0), "it was started again"
        assert not run.training, f"it trained {max(run.training, default=0)} batches"
        assert not run.processes_left, shown(run.processes_left)

    @clause(
        "a-broken-trial-is-told",
        "what the user's code raises ends the run: message, file and line, no hang, no leftovers",
    )
    def test_a_broken_trial_is_told(self, runs: FrameworkRuns) -> None:
        """Exit code 1, state ERROR, and the user's own frames in the traceback."""
        run = runs.broken
        trial = check_end(run, TrialState.ERROR)
        for text in ("broken on purpose", f'File "{runs.model_dir}{os.sep}'):
            assert text in run.output, f"{text!r} is not in what was printed:\n{run.output}"
        assert "broken on purpose" in str(trial.error), f"recorded as {trial.error!r}"
        assert not run.processes_left, shown(run.processes_left)

    @clause(
        "a-wrong-entrypoint-is-told", "a trial class that is not there is an error that says so"
    )
    def test_a_wrong_entrypoint_is_told(self, runs: FrameworkRuns) -> None:
        """The message lists the classes that exist."""
        run = runs.unknown
        assert run.code == 1, f"exit code {run.code}:\n{run.output}"
        assert "has no class 'NobodyWroteThisTrial'" in run.output, run.output
        name = self.entrypoint.rpartition(":")[2]
        assert name in run.output, f"{name} is not among what is there:\n{run.output}"

    @clause(
        "callbacks-come-in-order",
        "callbacks are told of each batch, validation and checkpoint once, in the order of events",
        capability="callbacks",
    )
    def test_callbacks_come_in_order(self, runs: FrameworkRuns) -> None:
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
        "two-workers-train-one-model",
        "two workers come to the state that one comes to, within worker_tolerance",
        capability="several-workers",
    )
    def test_two_workers_train_one_model(self, runs: FrameworkRuns) -> None:
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
        "two workers report the validation metrics of one, over as many records",
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
        "two workers that were killed go on from the checkpoint before, bit for bit",
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
        "several-workers-are-refused",
        "a framework that trains on one worker refuses several, and says so",
    )
    def test_several_workers_are_refused(self, runs: FrameworkRuns) -> None:
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
