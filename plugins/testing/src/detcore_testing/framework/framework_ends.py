"""Clauses on stops, errors, callbacks and several workers."""

from __future__ import annotations

import os

import pytest

from detcore.types import TrialState
from detcore_testing.framework.framework_base import (
    FrameworkBase,
    check_completed,
    check_end,
    run_probe,
    use_controller,
)
from detcore_testing.framework.framework_checks import (
    compare_metrics,
    compare_states,
    find_callback_faults,
    format_faults,
)
from detcore_testing.framework.framework_runs import CHECKPOINT_PERIOD, FrameworkRuns
from detcore_testing.suite_clauses import clause

_NUM_PROBE_VALIDATIONS = 2  # validations of the probe "use"


class EndClauses(FrameworkBase):
    """Clauses on stops, rejections and errors."""

    @clause(
        "stop-request-ends-trial",
        "after context.set_stop_requested(True) training ends at the next boundary and the trial "
        "is COMPLETED",
        capability="early-stop",
    )
    def test_stop_request_ends_trial(self, runs: FrameworkRuns) -> None:
        """Request a stop when a checkpoint is committed."""
        run, steps = runs.stopped, 2 * CHECKPOINT_PERIOD
        check_end(run, TrialState.COMPLETED)
        assert max(run.checkpoints) == steps, (
            f"training continued: checkpoints at {sorted(run.checkpoints)}"
        )
        assert max(run.training) == steps, f"training continued: reports at {sorted(run.training)}"

    @clause(
        "framework-stop-ends-trial",
        "a trial that the framework stops ends early, is COMPLETED and has a checkpoint",
        capability="early-stop",
    )
    def test_framework_stop_ends_trial(self, runs: FrameworkRuns) -> None:
        """Stop with the framework's own method, such as ``model.stop_training``."""
        if not self.stop_entrypoint:
            pytest.skip("the suite defines no stop_entrypoint")
        run = runs.stopped_by_framework
        check_end(run, TrialState.COMPLETED)
        last_batch, last_save = max(run.training, default=0), max(run.checkpoints, default=0)
        assert 0 < last_batch < self.num_batches, f"the trial ended after {last_batch} batches"
        assert last_save == last_batch, (
            f"the trial ended at batch {last_batch}, but its last checkpoint is at {last_save}"
        )

    @clause(
        "invalid-hyperparameters-end-trial",
        "InvalidHP ends a trial before it trains, is recorded, and causes no restart",
    )
    def test_invalid_hyperparameters_end_trial(self, runs: FrameworkRuns) -> None:
        """Use a trial with two allowed restarts."""
        run = runs.invalid
        trial = check_end(run, TrialState.ERROR)
        assert "InvalidHP" in str(trial.error), f"recorded as {trial.error!r}"
        assert (trial.run_id, trial.num_restarts) == (1, 0), "the trial was restarted"
        assert not run.training, f"the trial trained {max(run.training, default=0)} batches"
        assert not run.leftover_processes, format_faults(run.leftover_processes)

    @clause(
        "trial-errors-end-the-run",
        "an exception in the trial's code ends the run with its message, file and line, without a "
        "hang or leftover processes",
    )
    def test_trial_errors_end_the_run(self, runs: FrameworkRuns) -> None:
        """Check for exit code 1, state ERROR, and user frames in the traceback."""
        run = runs.broken
        trial = check_end(run, TrialState.ERROR)
        for text in ("broken on purpose", f'File "{runs.model_dir}{os.sep}'):
            assert text in run.output, f"{text!r} is not in the output:\n{run.output}"
        assert "broken on purpose" in str(trial.error), f"recorded as {trial.error!r}"
        assert not run.leftover_processes, format_faults(run.leftover_processes)

    @clause(
        "wrong-entrypoint-is-reported",
        "a missing trial class ends the run with an error that names it",
    )
    def test_wrong_entrypoint_is_reported(self, runs: FrameworkRuns) -> None:
        """Check that the message lists the existing classes."""
        run = runs.unknown
        assert run.code == 1, f"exit code {run.code}:\n{run.output}"
        assert "has no class 'NobodyWroteThisTrial'" in run.output, run.output
        name = self.entrypoint.rpartition(":")[2]
        assert name in run.output, f"the message does not list {name}:\n{run.output}"

    @clause(
        "callbacks-run-in-order",
        "callbacks are called once for each batch, validation and checkpoint, in the order of "
        "events",
        capability="callbacks",
    )
    def test_callbacks_run_in_order(self, runs: FrameworkRuns) -> None:
        """Check the events that the callbacks logged."""
        faults = find_callback_faults(
            self.callback_events(runs.reference.journal),
            kinds=self.callback_kinds,
            num_batches=self.num_batches,
            validated_at=self.validated_at(),
            saved_at=self.saved_at(),
        )
        faults += self._find_resume_faults(runs)
        assert not faults, format_faults(faults)

    def _find_resume_faults(self, runs: FrameworkRuns) -> list[str]:
        """Return the faults in the callback calls of a resumed run and of a bare restore."""
        faults = []
        run = runs.interrupted
        if run.code == 0 and "batch_end" in self.callback_kinds:
            count = self.callback_events(run.journal).count("batch_end")
            if count != self.num_batches - run.start_batch:
                faults.append(
                    f"batch_end was called {count} times in a run resumed at batch "
                    f"{run.start_batch} of {self.num_batches}"
                )
        num_trained = use_controller(self, runs)["num_trained"]
        journal = runs.journal("use")
        events = self.callback_events(journal) if journal.exists() else []
        if events.count("batch_end") > num_trained:
            faults.append(
                f"batch_end was called {events.count('batch_end')} times for {num_trained} batches"
            )
        num_validations = events.count("validation_end")
        if num_validations > _NUM_PROBE_VALIDATIONS:
            faults.append(
                f"validation_end was called {num_validations} times after a restore and "
                f"{_NUM_PROBE_VALIDATIONS} calls of validate"
            )
        return faults


class WorkerClauses(FrameworkBase):
    """Clauses on several workers."""

    @clause(
        "two-workers-match-one-worker",
        "two workers reach the state that one worker reaches, within worker_tolerance",
        capability="several-workers",
    )
    def test_two_workers_match_one_worker(self, runs: FrameworkRuns) -> None:
        """Compare the last checkpoint written before the workers were killed."""
        assert runs.two_workers.finished[0].code == 1, runs.two_workers.output
        expected = runs.one_worker.last_checkpoint
        faults = compare_states(
            self.read_state(runs.two_workers_uninterrupted),
            self.read_state(expected),
            ignored=self.ignored_state,
            tolerance=self.worker_tolerance,
        )
        assert not faults, format_faults(faults)

    @clause(
        "two-workers-validate-each-record-once",
        "two workers report the validation metrics of one worker, over the same number of records",
        capability="several-workers",
    )
    def test_two_workers_validate_each_record_once(self, runs: FrameworkRuns) -> None:
        """Compare metrics and record counts at each step."""
        reports, expected = runs.two_workers.validations, runs.one_worker.validations
        assert reports, f"no validation:\n{runs.two_workers.output}"
        tolerance = self.worker_tolerance
        faults = compare_metrics(reports, expected, relative=tolerance, absolute=tolerance)
        faults += [
            f"step {steps}: {record.n_records} records, not {expected[steps].n_records}"
            for steps, record in reports.items()
            if steps in expected and record.n_records != expected[steps].n_records
        ]
        assert not faults, format_faults(faults)

    @clause(
        "two-workers-resume-exactly",
        "two killed workers resume bit for bit from the previous checkpoint",
        capability="several-workers",
    )
    def test_two_workers_resume_exactly(self, runs: FrameworkRuns) -> None:
        """Compare with the state that the killed workers wrote but did not commit."""
        self.skip_where_inexact(runs)
        run = runs.two_workers
        check_completed(self, run)
        faults = self.compare_states(run.last_checkpoint, runs.two_workers_uninterrupted)
        self.check_resumed(runs, faults, "at the last batch")
        assert not run.leftover_processes, format_faults(run.leftover_processes)

    @clause(
        "several-workers-are-rejected",
        "a framework that supports only one worker rejects several with an error",
    )
    def test_several_workers_are_rejected(self, runs: FrameworkRuns) -> None:
        """Check rejection by the framework, or because of a missing package, if declined."""
        is_supported = run_probe(runs, "discover").get("several_workers")
        if "several-workers" not in self.declined:
            assert is_supported, (
                "Framework.several_workers is False.\nSet it to True or decline 'several-workers'."
            )
            return
        run = runs.refused_workers
        assert check_end(run, TrialState.ERROR).error, f"the error has no message:\n{run.output}"
        assert not run.training, f"the trial trained {max(run.training, default=0)} batches"
        if not is_supported:
            assert f"the framework {self.framework!r} supports only one worker" in run.output, (
                run.output
            )
